#include "transport/server_list.h"

#include <algorithm>

#include "common/base/refusal.h"

namespace centroid::transport {

Result<std::vector<Endpoint>> ServerList::parse(const std::string& list) {
  std::vector<Endpoint> servers;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    CENTROID_ASSIGN(const auto one, Endpoint::parse(list.substr(at, end - at)));
    servers.push_back(one);
    at = end + 1;
  }
  return servers;
}

namespace {
/// Number of calls that skip a server which did not answer in time: each would take as long again.
constexpr std::size_t kPassOver = 8;
}  // namespace

bool ServerList::failed(const Error& why) {
  const Endpoint last = present();
  if (why.code() == ErrorCode::kDeadlineExceeded) silent_ = last, passes_ = kPassOver;
  const auto* const refusal = refusal_of<NotLeader>(why);
  if (refusal != nullptr && !named_ && !has_followed_) {
    const auto endpoint = Endpoint::parse(refusal->endpoint);
    // One step: a standby that names a standby is behind, and a dead leader is named until its
    // lease expires.
    if (endpoint.ok() && *endpoint != last && !(passes_ > 0 && *endpoint == silent_)) {
      is_several_ = has_followed_ = true;
      named_ = *endpoint;
      return true;
    }
  }
  named_.reset();
  ++tried_;
  next_ = (next_ + 1) % servers_.size();
  if (servers_.size() > 1 && passes_ > 0 && servers_[next_] == silent_) {
    --passes_;
    ++tried_;
    next_ = (next_ + 1) % servers_.size();
  }
  if (tried_ < servers_.size()) return true;
  tried_ = 0;
  has_followed_ = false;
  return false;
}

void ServerList::joined() {
  tried_ = passes_ = 0;
  has_followed_ = false;
}

}  // namespace centroid::transport
