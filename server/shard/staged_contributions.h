#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>

#include "common/codec/codec.h"
#include "common/proto/servers.h"
#include "common/tensor/chunk_plan.h"
#include "server/aggregate/contribution_stage.h"

namespace centroid::server {

/// Contributions that no round has used yet: the newest of each worker, and earlier ones that may
/// count in a later round.
///
/// counts  a contribution stays until a Merge names it, a newer one of its worker arrives, or its
///         worker leaves. Without a Merge it has no effect
/// thread  one
class StagedContributions {
 public:
  static constexpr std::size_t kPerWorker = 4;

  /// Nullptr: none with this key. The result may outlive its worker.
  std::shared_ptr<StagedContribution> find(const proto::ContributionKey& key) const;
  /// Create a contribution of `chunks` chunks with this key unless it exists. False: its worker has
  /// sent a newer one, or it no longer counts.
  bool stage(const proto::ContributionKey& key, const ChunkPlan& plan,
             const std::shared_ptr<const Codec>& codec, std::size_t chunks);
  /// A round is merged: drop its parts and all others except those that it keeps for later.
  void drop_all_but(const proto::Merge& merge);
  void drop(MemberId member) { staged_.erase(member); }
  void clear() { staged_.clear(); }
  /// The same, and forget which rounds are over.
  void reset();
  std::uint64_t bytes() const;

 private:
  struct Staged {
    proto::ContributionKey key;
    std::shared_ptr<StagedContribution> contribution;  ///< its worker may leave during a merge
  };
  std::map<MemberId, std::deque<Staged>> staged_;
  Round over_;                              ///< the last one that was merged here
  std::set<proto::ContributionKey> keeps_;  ///< of rounds up to `over_`; may count in a later one
};

}  // namespace centroid::server
