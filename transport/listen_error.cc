#include "transport/listen_error.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <vector>

#include <boost/asio/error.hpp>

namespace centroid::transport {
namespace {

namespace fs = std::filesystem;
namespace asio = boost::asio;

constexpr const char* kListening = "0A";  // as /proc/net/tcp writes TCP_LISTEN
constexpr std::uint16_t kFirstFreePort = 1024;

struct Listening {
  std::set<std::string> inodes;
  std::string user;  ///< its number
};

/// source  proc(5), /proc/net/tcp: number, local and remote address, state, queues, timers,
///         retransmissions, user, timeout, inode
void find_listening(const std::string& file, std::uint16_t port, Listening& found) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);  // its head
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::string number, local, remote, state, queues, timers, retransmitted, user, timeout, inode;
    words >> number >> local >> remote >> state >> queues >> timers >> retransmitted >> user >>
        timeout >> inode;
    const auto colon = local.rfind(':');
    if (state != kListening || colon == std::string::npos || inode.empty()) continue;
    std::uint16_t at = 0;
    std::from_chars(local.data() + colon + 1, local.data() + local.size(), at, 16);
    if (at != port) continue;
    found.inodes.insert("socket:[" + inode + "]");
    found.user = user;
  }
}

bool holds(const fs::path& process, const std::set<std::string>& inodes) {
  std::error_code failed;
  for (fs::directory_iterator at(process / "fd", failed), end; !failed && at != end;
       at.increment(failed)) {
    std::error_code closed;
    if (inodes.contains(fs::read_symlink(at->path(), closed).string())) return true;
  }
  return false;
}

}  // namespace

std::string port_holder(std::uint16_t port, const std::string& root) {
  Listening found;
  find_listening(root + "/proc/net/tcp", port, found);
  find_listening(root + "/proc/net/tcp6", port, found);
  if (found.inodes.empty()) return "";
  std::error_code failed;
  for (fs::directory_iterator at(root + "/proc", failed), end; !failed && at != end;
       at.increment(failed)) {
    const std::string id = at->path().filename().string();
    if (id.empty() ||
        !std::all_of(id.begin(), id.end(), [](char c) { return c >= '0' && c <= '9'; }))
      continue;
    if (!holds(at->path(), found.inodes)) continue;
    std::ifstream file(at->path() / "comm");
    std::string name;
    std::getline(file, name);
    return "process " + id + " (" + name + ")";
  }
  return "a process of user " + found.user;
}

Error listen_error(const std::string& endpoint, std::uint16_t port, std::string_view doing,
                   const boost::system::error_code& why) {
  const std::string where = "cannot listen on " + endpoint + ": ";
  if (why == asio::error::address_in_use) {
    const std::string holder = port_holder(port);
    const std::string by = holder.empty() ? std::string() : " by " + holder;
    return {ErrorCode::kAlreadyExists, where + "the port is in use" + by +
                                           ": choose another port (0 takes a free one), or end "
                                           "that process"};
  }
  std::string what = std::string(doing) + ": " + why.message();
  if (why == boost::system::errc::address_not_available)
    what +=
        ": this machine has no such address; take one that `ip address` shows, or 0.0.0.0 for "
        "all of them";
  if (why == boost::system::errc::permission_denied && port < kFirstFreePort)
    what +=
        ": ports below 1024 need root or the capability CAP_NET_BIND_SERVICE; choose a higher one";
  return {ErrorCode::kInvalidArgument, where + what};
}

}  // namespace centroid::transport
