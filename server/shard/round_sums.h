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

  /// What the leader says. Of the attempt that is being summed: those that are missing now do not
  /// come any more.
  void open(const proto::Opened& opened);
  /// Begin the attempt anew: other chunks than before lie here.
  void restart();
  /// There is no attempt, and what waits is dropped.
  void close();

  /// A contribution that is being summed, and is not complete.
  bool expects(const proto::ContributionKey& key) const;
  /// `codec`: of the payload. The key is expected.
  /// fails  as Aggregator::offer
  Status add(const proto::ContributionKey& key, const std::shared_ptr<const Codec>& codec,
             const proto::Push& push, Buffer payload, std::size_t bytes);
  /// What the leader is told once all of a contribution has come.
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
  std::vector<double> squares_;  ///< of the numbers that have come, by rank
  std::size_t complete_ = 0;     ///< chunks
  std::unique_ptr<Aggregator> aggregator_;
};

}  // namespace centroid::server
