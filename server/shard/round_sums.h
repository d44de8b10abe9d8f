#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/codec/codec.h"
#include "common/proto/servers.h"
#include "common/tensor/buffer.h"
#include "server/aggregate/aggregator.h"
#include "server/shard/shard_chunks.h"

namespace centroid::server {

/// Sums the contributions of the newest attempt on arrival, in the leader's order (Opened.summed),
/// into the store's spare plane.
///
/// memory  chunks that wait for their turn; limited by the workers' credit
/// bits    as the leader's own sums, which use Aggregator too
/// thread  one
class RoundSums {
 public:
  /// Returns credit to a worker.
  using Release = std::function<void(MemberId, std::size_t bytes)>;
  /// `run_apart`: as Aggregator's. `changed`: `is_combining` may have changed.
  RoundSums(
      const ShardChunks& chunks, Release release, Aggregator::RunApart run_apart = {},
      std::function<void()> changed = [] {})
      : chunks_(chunks),
        release_(std::move(release)),
        run_apart_(std::move(run_apart)),
        changed_(std::move(changed)) {}

  /// Begin the attempt that the leader has opened. If called again for the same attempt, members
  /// missing from the new list send nothing more.
  void open(const proto::Opened& opened);
  /// Begin the attempt again, because this server's chunks changed.
  void restart();
  /// End the attempt, and drop waiting chunks.
  void close();

  /// Whether the attempt sums this contribution.
  bool expects(const proto::ContributionKey& key) const;
  /// Add a chunk of an expected contribution. `codec`: of the payload.
  /// fails  as Aggregator::offer
  Status add(const proto::ContributionKey& key, const std::shared_ptr<const Codec>& codec,
             const proto::Push& push, Buffer payload, std::size_t bytes);
  /// The message to the leader if the contribution is complete.
  std::optional<proto::Whole> whole(const proto::ContributionKey& key) const;
  /// Complete the sums: check that they consist of exactly the Merge's parts.
  /// fails  failed_precondition, also while `is_combining`: call it again then
  Status finish(const proto::Merge& merge);
  bool is_combining() const { return aggregator_ && aggregator_->is_combining(); }
  Round round() const { return opened_.round; }
  std::uint64_t bytes() const { return aggregator_ ? aggregator_->waiting_bytes() : 0; }

 private:
  std::optional<std::uint32_t> rank_of(const proto::ContributionKey& key) const;
  void begin();

  const ShardChunks& chunks_;
  const Release release_;
  const Aggregator::RunApart run_apart_;
  const std::function<void()> changed_;
  proto::Opened opened_;  ///< without its members
  std::map<MemberId, std::uint32_t> ranks_;
  std::size_t complete_ = 0;  ///< chunks
  std::unique_ptr<Aggregator> aggregator_;
};

}  // namespace centroid::server
