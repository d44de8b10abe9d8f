#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/codec/codec.h"
#include "common/codec/error_feedback.h"
#include "common/tensor/chunk_plan.h"

namespace centroid::server {

/// The mean of a round for the workers: encoded once for all of them, by `codec_down`.
///
/// buffers their chunks are f32 (codec_of)
/// memory  the codec's remainder stays with the server (error feedback). It grows in the memory of
///         the round's sums, beside the residual of earlier rounds, so an attempt that fails, or a
///         round that is skipped, leaves no trace: `begin` drops it
/// order   a chunk's payload is known when all chunks of its selection are complete: its tensor
///         (top-k), all (top-k with scope=global), itself (the others)
/// bits    of means, residual and codec only: independent of the order in which chunks complete
/// thread  one
class ReplyEncoder {
 public:
  /// `plan` outlives it.
  /// fails  as CodecSpec::parse and ErrorFeedback::make
  static Result<std::unique_ptr<ReplyEncoder>> make(const std::string& spec, const ChunkPlan& plan,
                                                    std::uint64_t seed);

  /// Memory of means and residual, all tensors end to end.
  struct Memory {
    std::span<float> means;           ///< becomes the round's remainder
    std::span<const float> residual;  ///< of the committed rounds; empty without error feedback
  };
  using Emit = std::function<void(const Chunk&, std::vector<std::byte> payload)>;

  bool stores_residual() const { return feedback_ != nullptr; }
  /// The chunks whose payloads are known together, [first, last): they must be on one server.
  std::pair<ChunkId, ChunkId> unit_of(ChunkId chunk) const;
  /// A new generation of workers starts without a residual.
  bool resets_residual() const;
  /// Begin an attempt: drops what was not committed.
  void begin(Round round);
  /// The chunk's mean is in memory. Emits every chunk whose payload is known now.
  Status complete(ChunkId chunk, const Memory& memory, const Emit& emit);
  /// The round counts: its remainder becomes the residual. Also if it had no chunk here.
  void commit();

  const Codec& codec(const Chunk& chunk) const;  ///< of its payload
  CodecSpec::Kind kind() const { return spec_.kind; }
  /// Committed rounds, for the warm-up.
  std::uint64_t rounds() const { return feedback_ ? feedback_->rounds() : 0; }
  void set_rounds(std::uint64_t rounds);

  /// Of the committed and the other rounds, since the beginning.
  struct Totals {
    std::uint64_t chunks = 0, dense_chunks = 0;  ///< of top-k: sent completely
    std::uint64_t raw_bytes = 0, bytes = 0;
  };
  Totals totals() const;

 private:
  ReplyEncoder(const ChunkPlan& plan, std::uint64_t seed) : plan_(plan), seed_(seed) {}

  const ChunkPlan& plan_;
  const std::uint64_t seed_;
  CodecSpec spec_;
  std::unique_ptr<Codec> codec_;
  std::unique_ptr<ErrorFeedback> feedback_;  // nullptr: the remainder is lost
  Round round_;
  std::vector<std::uint32_t> missing_;  // of the unit that begins with the chunk
  std::vector<std::byte> out_;
  Totals plain_;
};

}  // namespace centroid::server
