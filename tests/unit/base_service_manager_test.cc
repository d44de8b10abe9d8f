#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "common/base/service_manager.h"

namespace centroid {
namespace {

/// A service manager that listens at `name`; '@' first: a name that is in no folder.
class Manager {
 public:
  explicit Manager(const std::string& name) : socket_(::socket(AF_UNIX, SOCK_DGRAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    name.copy(address.sun_path, name.size());
    if (name.front() == '@') address.sun_path[0] = '\0';
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    EXPECT_EQ(::bind(socket_, reinterpret_cast<const sockaddr*>(&address), length), 0);
    EXPECT_EQ(::setenv("NOTIFY_SOCKET", name.c_str(), 1), 0);
  }
  ~Manager() {
    ::close(socket_);
    ::unsetenv("NOTIFY_SOCKET");
  }

  /// A datagram that has arrived; "" without one.
  std::string read() const {
    char text[64];
    const auto size = ::recv(socket_, text, sizeof text, MSG_DONTWAIT);
    return size < 0 ? "" : std::string(text, static_cast<std::size_t>(size));
  }

 private:
  int socket_;
};

TEST(ServiceManager, gets_the_state_at_a_path_or_a_name_in_no_folder) {
  const std::string number = std::to_string(::getpid());
  const auto path = std::filesystem::temp_directory_path() / ("centroid-notify-" + number);
  for (const std::string& name : {path.string(), "@centroid-notify-" + number}) {
    SCOPED_TRACE(name);
    const Manager manager(name);
    EXPECT_TRUE(notify_service_manager("READY=1").ok());
    EXPECT_EQ(manager.read(), "READY=1");
    EXPECT_EQ(manager.read(), "");
  }
  std::filesystem::remove(path);
}

TEST(ServiceManager, is_not_needed) {
  ::unsetenv("NOTIFY_SOCKET");
  EXPECT_TRUE(notify_service_manager("READY=1").ok());
}

TEST(ServiceManager, that_cannot_be_reached_is_named) {
  for (const std::string& name :
       {std::string("/nonexistent/notify"), std::string(), std::string(200, 'x')}) {
    SCOPED_TRACE(name);
    ::setenv("NOTIFY_SOCKET", name.c_str(), 1);
    const Status sent = notify_service_manager("READY=1");
    ::unsetenv("NOTIFY_SOCKET");
    ASSERT_FALSE(sent.ok());
    EXPECT_NE(sent.error().message().find("NOTIFY_SOCKET " + name), std::string::npos);
  }
}

}  // namespace
}  // namespace centroid
