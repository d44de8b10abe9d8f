#pragma once

#include <map>
#include <mutex>

#include "common/base/clock.h"
#include "common/base/ids.h"

namespace centroid::server {

/// Checkpoints that somebody fetches piece by piece: they stay until nobody has asked for a while.
///
/// thread  any
/// bounds  kMost of them, the one that was asked for last instead of the one that waits longest:
///         who fetches for ever may keep so many from being pruned
class FetchedVersions {
 public:
  static constexpr std::size_t kMost = 4;
  static constexpr std::chrono::seconds kPatience{60};  ///< between two pieces

  void renew(Version version, TimePoint now);
  void forget(Version version);
  bool holds(Version version, TimePoint now) const;

 private:
  mutable std::mutex mutex_;
  std::map<Version, TimePoint> until_;
};

}  // namespace centroid::server
