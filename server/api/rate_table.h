#pragma once

#include <cstddef>
#include <list>
#include <string>
#include <unordered_map>

#include "common/base/clock.h"
#include "transport/stranger_budget.h"

namespace centroid::server {

/// Request rate of each client: a token bucket with one second's worth. Pure; one thread.
///
/// bounds  `most` clients; the least recently used is dropped, and starts with a full bucket
class RateTable {
 public:
  explicit RateTable(std::size_t most = 4096) : most_(most) {}

  /// One request of `client` at `now`, at most `per_second` (above 0). Zero: it may be answered;
  /// else the time until the next one may.
  Duration take(const std::string& client, TimePoint now, double per_second);
  std::size_t size() const { return buckets_.size(); }

 private:
  struct Bucket {
    std::string client;
    double tokens = 0;
    TimePoint at;
  };
  const std::size_t most_;
  std::list<Bucket> by_use_;  ///< most recently used last
  std::unordered_map<std::string, std::list<Bucket>::iterator> buckets_;
};

using transport::client_of;

}  // namespace centroid::server
