#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
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
/// cache   sparse payloads much shorter than their chunk wait until those of all ranks have
///         arrived: the sum is then made at once, in the cache. At most half a chunk's bytes of a
///         rank wait like this, so no order of the ranks can exhaust their credits
/// rule    other than the mean: a chunk waits until those of all ranks have arrived, then all are
///         combined at once, each chunk on one of a few threads: the bits do not depend on them
/// memory  none of its own but the waiting buffers, which the senders' credits bound; with another
///         rule than the mean credit is returned on arrival, and all of a round may wait
/// thread  one; no I/O, no clock
class Aggregator {
 public:
  /// Runs `work` on another thread, then `then` on this one.
  using RunApart = std::function<void(std::function<void()> work, std::function<void()> then)>;
  struct Hooks {
    std::function<std::span<float>(const Chunk&)> target;  ///< memory of a chunk's sum
    std::function<bool(ChunkId)>
        is_held;  ///< the target still has readers: wait for `retry_blocked`
    std::function<void(ChunkId, double total_weight)>
        on_complete;  ///< every expected rank's chunk is in the sum
    std::function<void(std::uint32_t rank, std::size_t bytes)>
        on_consumed;       ///< a payload's credit may be returned
    RunApart run_apart{};  ///< runs what combines a chunk; null: that runs on this thread
  };
  /// Chunks that are combined at once. Each may need memory for that of every worker, decoded.
  static constexpr std::size_t kAtOnce = 4;
  Aggregator(const ChunkPlan& plan, Hooks hooks, AggregateRule rule = {});
  ~Aggregator() { attempt_->is_over = true; }
  Aggregator(const Aggregator&) = delete;
  Aggregator& operator=(const Aggregator&) = delete;

  /// Start an attempt of codecs.size() ranks; drops all waiting payloads, and what combines those
  /// of the attempt before ends soon. codecs[r] decodes rank r's payloads (codec_of).
  void begin(std::vector<std::shared_ptr<const Codec>> codecs);
  /// The same for one rank whose codec was unknown then. Before its first `offer`.
  void set_codec(std::uint32_t rank, std::shared_ptr<const Codec> codec) {
    ranks_[rank].codec = std::move(codec);
  }
  /// Take a chunk of `rank`. `squares`: of its numbers; they are summed.
  /// fails  invalid_argument (no such chunk, sent twice, another weight than before), or as the
  ///        codec
  Status offer(std::uint32_t rank, ChunkId chunk, double weight, Buffer payload, std::size_t bytes,
               double squares = 0);
  /// `rank` sends nothing (more): do not wait for it. Drops its waiting payloads.
  void absent(std::uint32_t rank);
  /// Some blocked chunks became free.
  void retry_blocked();
  /// A chunk of this attempt is being combined, or its result waits for memory: `on_complete` will
  /// come without a further call, or after `retry_blocked`.
  bool is_combining() const { return combining_ > 0 || !ready_.empty(); }
  /// Chunks are being combined now; else they wait for memory.
  bool is_at_work() const { return is_combining() && idle_.size() < kAtOnce; }

  bool is_absent(std::uint32_t rank) const { return rank >= ranks_.size() || ranks_[rank].absent; }
  bool has_part_of(std::uint32_t rank) const { return ranks_[rank].added > 0; }
  std::uint64_t received(std::uint32_t rank) const { return ranks_[rank].received; }
  /// One of its chunks waits, for other ranks or for memory.
  bool is_waiting(std::uint32_t rank) const { return ranks_[rank].received > ranks_[rank].added; }
  /// Payloads of a rank that wait for the order of the sum; those that wait for all ranks together
  /// are too small to count.
  struct Queued {
    std::size_t bytes = 0;  ///< of its sender's credit
    ChunkId chunk;          ///< the first
    std::vector<std::uint32_t>
        behind;  ///< ranks whose turn it is and that have not sent, ascending
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
    std::size_t missing = 0;  // ranks whose payload is missing
    bool complete = false;
    bool is_deferred = false;  // all received ones are short and wait for the others
    double weight = 0;
    std::vector<Waiting> waiting;
    // of another rule than the mean
    bool is_ready = false;      // all payloads are here; kAtOnce other chunks are being combined
    std::vector<float> result;  // waits for memory
  };
  /// Work on its chunks may outlive it.
  struct Attempt {
    std::atomic<bool> is_over = false;
  };
  struct Token {};
  /// A chunk's payloads, while another thread combines them. It may outlive its attempt and the
  /// aggregator.
  struct Combination {
    std::shared_ptr<const Attempt> attempt;
    std::vector<Waiting> parts;
    std::vector<std::shared_ptr<const Codec>> codecs;
    std::vector<RobustMean::Encoded> rows;
    std::vector<float> result;
    std::unique_ptr<RobustMean> robust;
  };
  struct RankState {
    std::shared_ptr<const Codec>
        codec;  // shared: chunks may wait here longer than their sender exists
    bool absent = false;
    std::uint64_t received = 0, added = 0;
    std::size_t deferred_bytes = 0;  // of chunks that wait for all ranks
    double weight = 0;               // of its first chunk; the others must have the same
    double squares = 0;              // of all received
    std::vector<bool> seen;
  };
  void advance(ChunkId chunk);
  void combine(ChunkId chunk);
  void start_combining(ChunkId chunk, std::unique_ptr<RobustMean> robust);
  void combined(ChunkId chunk, std::vector<float> result);
  bool is_missing(ChunkId chunk) const { return chunks_[chunk.value].missing > 0; }
  Result<bool> defers(const RankState& source, const ChunkState& state, ChunkId chunk,
                      Bytes payload) const;
  const Codec& codec_for(const RankState& source, ChunkId chunk) const;
  Status check(const RankState& source, ChunkId chunk, Bytes payload) const;
  Status add(ChunkId chunk, std::uint32_t rank, double weight, Bytes payload);

  const ChunkPlan& plan_;
  Hooks hooks_;
  AggregateRule rule_;
  std::vector<ChunkState> chunks_;
  std::vector<RankState> ranks_;
  std::size_t waiting_ = 0;
  // of another rule than the mean
  std::vector<std::unique_ptr<RobustMean>> idle_;
  std::deque<ChunkId> ready_;  ///< chunks for which none was idle
  std::size_t combining_ = 0;  ///< chunks of this attempt, with those whose result waits
  std::shared_ptr<Attempt> attempt_ = std::make_shared<Attempt>();
  std::shared_ptr<Token> alive_ = std::make_shared<Token>();  ///< expires with the aggregator
};

}  // namespace centroid::server
