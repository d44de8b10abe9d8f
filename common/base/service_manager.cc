#include "common/base/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace centroid {

Status notify_service_manager(const std::string& state) {
  const char* const path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr) return {};
  const std::string_view name = path;
  const auto failed = [&](const std::string& why) {
    return Error(ErrorCode::kUnavailable, "cannot notify the service manager of " + state +
                                              ": NOTIFY_SOCKET " + std::string(name) + ": " + why);
  };
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.empty() || name.size() >= sizeof address.sun_path)
    return failed("not a path of a socket");
  name.copy(address.sun_path, name.size());
  if (name.front() == '@') address.sun_path[0] = '\0';  // a name that is in no folder
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket < 0) return failed(std::strerror(errno));
  const auto sent = ::sendto(socket, state.data(), state.size(), MSG_NOSIGNAL,
                             reinterpret_cast<const sockaddr*>(&address), length);
  const int reason = errno;
  ::close(socket);
  return sent < 0 ? Status(failed(std::strerror(reason))) : Status();
}

}  // namespace centroid
