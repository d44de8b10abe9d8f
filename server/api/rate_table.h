#pragma once

#include <cstddef>
#include <list>
#include <string>
#include <unordered_map>

#include "common/base/clock.h"

namespace centroid::server {

/// How often each client may ask: a token bucket for each, which holds a second's worth. Pure; one
/// thread.
///
/// bounds  `most` clients; who has not asked for longest is forgotten, and begins with a full
///         bucket
class RateTable {
 public:
  explicit RateTable(std::size_t most = 4096) : most_(most) {}

  /// One request of `client` at `now`, at most `per_second` (above 0) of them. Zero: it may be
  /// answered; else after how long the next one may.
  Duration take(const std::string& client, TimePoint now, double per_second);
  std::size_t size() const { return buckets_.size(); }

 private:
  struct Bucket {
    std::string client;
    double tokens = 0;
    TimePoint at;
  };
  const std::size_t most_;
  std::list<Bucket> by_use_;  ///< who asked last is last
  std::unordered_map<std::string, std::list<Bucket>::iterator> buckets_;
};

/// Who counts as one client, of its HOST:PORT: an address of IPv4, a network of 64 bits of IPv6,
/// which is what one customer has.
std::string client_of(const std::string& address);

}  // namespace centroid::server
