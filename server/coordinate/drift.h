#pragma once

#include <cstdint>
#include <vector>

#include "common/base/ids.h"

namespace centroid::server {

/// Parameters and slots of one version on one worker, as it reports them.
struct ReplicaPrint {
  MemberId member;
  std::uint64_t fingerprint = 0;
};

struct Drift {
  std::vector<MemberId> members;  ///< whose replicas are to be replaced, in the order of `prints`
  bool is_tie = false;  ///< as many workers have another replica: none is known to be right
};

/// Compare the replicas of one version. The most frequent one is right: errors do not agree by
/// chance. Of equally frequent ones that of the first member stays, or none where the server has
/// the state (`has_state`), for it replaces all of them.
///
/// thread  any; pure
Drift find_drift(const std::vector<ReplicaPrint>& prints, bool has_state);

}  // namespace centroid::server
