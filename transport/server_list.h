#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "transport/transport.h"

namespace centroid::transport {

/// Which of several servers to call next: the one that a standby named as the leader, else the next
/// of the list. Pure.
class ServerList {
 public:
  explicit ServerList(std::vector<Endpoint> servers) : servers_(std::move(servers)) {}
  /// "HOST:PORT", several separated by commas.
  /// fails  as Endpoint::parse
  static Result<std::vector<Endpoint>> parse(const std::string& list);

  const Endpoint& present() const { return named_ ? *named_ : servers_[next_]; }
  /// Its call failed with `why`. True if another server should be called at once; false if all have
  /// been tried since the last pause.
  bool failed(const Error& why);
  /// It accepted us: the next failure begins a new series.
  void joined();
  /// Another server may become the leader.
  bool is_several() const { return servers_.size() > 1 || is_several_; }

 private:
  std::vector<Endpoint> servers_;
  std::size_t next_ = 0, tried_ = 0;
  bool is_several_ = false, has_followed_ = false;  // the second: since the last pause
  std::optional<Endpoint> named_;                   // by a standby
  Endpoint silent_;                                 // did not answer in time
  std::size_t passes_ = 0;                          // calls that still skip it
};

}  // namespace centroid::transport
