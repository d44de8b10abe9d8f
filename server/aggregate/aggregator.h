#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/codec/codec.h"
#include "common/tensor/buffer.h"
#include "common/tensor/chunk_plan.h"
#include "server/aggregate/robust.h"

namespace centroid::server {

/// Sums the contributions of one attempt, chunk by chunk: sum[i] += weight * x[i].
///
/// order   a chunk of rank r is added after those of all lower ranks (others wait in their
///         buffers), so the bits of the sum do not depend on timing
/// cache   sparse payloads much shorter than their chunk wait until all ranks' are there: the sum
///         is then made at once, in the cache. At most half a chunk's bytes of a rank wait so:
///         whatever the order in which ranks send, their credits cannot run out on it
/// rule    other than the mean: a chunk waits until all ranks' are there, then all become one at
///         once
/// memory  none of its own but the waiting buffers, which the senders' credits bound; with another
///         rule than the mean credit is given back when a chunk comes, and all of a round may wait
/// thread  one; no I/O, no clock
class Aggregator {
 public:
  struct Hooks {
    std::function<std::span<float>(const Chunk&)> target;  ///< where a chunk's sum grows
    std::function<bool(ChunkId)> is_held;  ///< the target still has readers: wait for `retry_held`
    std::function<void(ChunkId, double total_weight)>
        on_complete;  ///< every expected rank's chunk is in the sum
    std::function<void(std::uint32_t rank, std::size_t bytes)>
        on_consumed;  ///< a payload has left our memory
  };
  Aggregator(const ChunkPlan& plan, Hooks hooks, AggregateRule rule = {});

  /// Start an attempt of codecs.size() ranks; drops everything that waits. codecs[r] decodes rank
  /// r's payloads.
  void begin(std::vector<std::shared_ptr<const Codec>> codecs);
  /// The same for one rank whose codec was not known then. Before its first `offer`.
  void set_codec(std::uint32_t rank, std::shared_ptr<const Codec> codec) {
    ranks_[rank].codec = std::move(codec);
  }
  /// Take a chunk of `rank`. `squares`: of its numbers; they are added up.
  /// fails  invalid_argument (no such chunk, sent twice, another weight than before), or as the
  ///        codec says.
  Status offer(std::uint32_t rank, ChunkId chunk, double weight, Buffer payload, std::size_t bytes,
               double squares = 0);
  /// `rank` sends nothing (more): it is not waited for. What of it still waits is dropped.
  void absent(std::uint32_t rank);
  /// Some held chunks became free.
  void retry_held();

  bool is_absent(std::uint32_t rank) const { return rank >= ranks_.size() || ranks_[rank].absent; }
  bool has_part_of(std::uint32_t rank) const { return ranks_[rank].added > 0; }
  std::uint64_t received(std::uint32_t rank) const { return ranks_[rank].received; }
  /// A chunk of it waits, for other ranks or for memory.
  bool is_waiting(std::uint32_t rank) const { return ranks_[rank].received > ranks_[rank].added; }
  /// What of a rank waits in the order of the sum; what waits for all ranks together is too little
  /// to count.
  struct Queued {
    std::size_t bytes = 0;              ///< of its sender's credit
    ChunkId chunk;                      ///< the first
    std::vector<std::uint32_t> behind;  ///< ranks whose turn it is and who have not sent, ascending
  };
  Queued queued(std::uint32_t rank) const;
  double weight(std::uint32_t rank) const { return ranks_[rank].weight; }
  double squares(std::uint32_t rank) const { return ranks_[rank].squares; }
  std::size_t waiting() const { return waiting_; }
  std::size_t waiting_bytes() const;

 private:
  struct Waiting {
    std::uint32_t rank;
    double weight;
    Buffer payload;
    std::size_t bytes;
    bool is_deferred;
  };
  struct ChunkState {
    std::uint32_t next = 0;   // lowest rank not yet added
    std::uint32_t added = 0;  // ranks in the sum
    std::size_t missing = 0;  // ranks that are to send it and have not
    bool complete = false;
    bool is_deferred = false;  // all that came are short and wait for the others
    double weight = 0;
    std::vector<Waiting> waiting;
  };
  struct RankState {
    std::shared_ptr<const Codec>
        codec;  // shared: chunks may wait here longer than their sender lives
    bool absent = false;
    std::uint64_t received = 0, added = 0;
    std::size_t deferred_bytes = 0;  // of chunks that wait for all ranks
    double weight = 0;               // of its first chunk; the others must say the same
    double squares = 0;              // of all that came
    std::vector<bool> seen;
  };
  void advance(ChunkId chunk);
  void combine(ChunkId chunk);
  bool is_missing(ChunkId chunk) const { return chunks_[chunk.value].missing > 0; }
  Result<bool> defers(const RankState& source, const ChunkState& state, ChunkId chunk,
                      Bytes payload) const;
  Status check(const RankState& source, ChunkId chunk, Bytes payload) const;
  Status add(ChunkId chunk, std::uint32_t rank, double weight, Bytes payload);

  const ChunkPlan& plan_;
  Hooks hooks_;
  AggregateRule rule_;
  RobustMean robust_;
  std::vector<ChunkState> chunks_;
  std::vector<RankState> ranks_;
  std::size_t waiting_ = 0;
};

}  // namespace centroid::server
