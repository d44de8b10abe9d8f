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

/// Sums the contributions of the newest attempt as they come, in the order that the leader gives
/// (Opened.summed). The sums grow in the store's spare plane.
///
/// memory  what waits for its turn, which the workers' credit bounds
/// bits    as the leader's own sums: both are an Aggregator's
/// thread  one
class RoundSums {
 public:
  /// Gives a worker back its credit.
  using Release = std::function<void(MemberId, std::size_t bytes)>;
  RoundSums(const ShardChunks& chunks, Release release)
      : chunks_(chunks), release_(std::move(release)) {}

  /// Begin the attempt that the leader has opened. Told again for the same attempt: members that
  /// the new list lacks send nothing more.
  void open(const proto::Opened& opened);
  /// Begin the attempt again: this server now has other chunks.
  void restart();
  /// End the attempt, and drop what waits.
  void close();

  /// The attempt sums this contribution.
  bool expects(const proto::ContributionKey& key) const;
  /// `codec`: of the payload. The key is expected.
  /// fails  as Aggregator::offer
  Status add(const proto::ContributionKey& key, const std::shared_ptr<const Codec>& codec,
             const proto::Push& push, Buffer payload, std::size_t bytes);
  /// The message to the leader, once all chunks of the contribution have come.
  std::optional<proto::Whole> whole(const proto::ContributionKey& key) const;
  /// The sums of all chunks are those of `parts`, and of nobody else.
  /// fails  failed_precondition
  Status finish(const proto::Merge& merge);
  std::uint64_t bytes() const { return aggregator_ ? aggregator_->waiting_bytes() : 0; }

 private:
  std::optional<std::uint32_t> rank_of(const proto::ContributionKey& key) const;
  void begin();

  const ShardChunks& chunks_;
  const Release release_;
  proto::Opened opened_;  ///< its members are not kept
  std::map<MemberId, std::uint32_t> ranks_;
  std::size_t complete_ = 0;  ///< chunks
  std::unique_ptr<Aggregator> aggregator_;
};

}  // namespace centroid::server
