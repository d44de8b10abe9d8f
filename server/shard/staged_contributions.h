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

/// The contributions that workers have sent and that no round has used yet: of each worker the
/// newest, and earlier ones that may count in a later round.
///
/// counts  a contribution stays until a Merge names it, a newer one of its worker comes, or its
///         worker is gone. One that no Merge names leaves no trace
/// thread  one
class StagedContributions {
 public:
  static constexpr std::size_t kPerWorker = 4;

  /// Nullptr: there is none with this key. The result outlives its worker.
  std::shared_ptr<StagedContribution> find(const proto::ContributionKey& key) const;
  /// Make sure that there is one with this key, of so many chunks of the plan.
  /// Returns false when it is older than what its worker sent since, or does not count any more.
  bool stage(const proto::ContributionKey& key, const ChunkPlan& plan,
             const std::shared_ptr<const Codec>& codec, std::size_t chunks);
  /// A round is merged: its parts have been added, and of the rest only what it keeps may count
  /// later.
  void drop_all_but(const proto::Merge& merge);
  void drop(MemberId member) { staged_.erase(member); }
  void clear() { staged_.clear(); }
  /// The same, and no round is over.
  void reset();
  std::uint64_t bytes() const;

 private:
  struct Staged {
    proto::ContributionKey key;
    std::shared_ptr<StagedContribution> contribution;  ///< a merge uses it while its worker goes
  };
  std::map<MemberId, std::deque<Staged>> staged_;
  Round over_;                              ///< the last one that was merged here
  std::set<proto::ContributionKey> keeps_;  ///< of rounds up to it, that may count in a later one
};

}  // namespace centroid::server
