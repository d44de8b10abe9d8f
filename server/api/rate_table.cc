#include "server/api/rate_table.h"

#include <algorithm>
#include <chrono>

namespace centroid::server {

Duration RateTable::take(const std::string& client, TimePoint now, double per_second) {
  const double full = std::max(per_second, 1.0);
  auto found = buckets_.find(client);
  if (found == buckets_.end()) {
    if (buckets_.size() >= most_) {
      buckets_.erase(by_use_.front().client);
      by_use_.pop_front();
    }
    const auto at = by_use_.insert(by_use_.end(), Bucket{client, full, now});
    found = buckets_.emplace(client, at).first;
  }
  by_use_.splice(by_use_.end(), by_use_, found->second);
  Bucket& bucket = *found->second;
  const double passed = std::chrono::duration<double>(now - bucket.at).count();
  bucket.tokens = std::min(full, bucket.tokens + passed * per_second);
  bucket.at = now;
  if (bucket.tokens >= 1) {
    bucket.tokens -= 1;
    return Duration::zero();
  }
  const std::chrono::duration<double> wait((1 - bucket.tokens) / per_second);
  return std::max(std::chrono::duration_cast<Duration>(wait), Duration(1));
}

}  // namespace centroid::server
