#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/codec/codec.h"
#include "common/tensor/buffer.h"
#include "common/tensor/chunk_plan.h"

namespace centroid::server {

/// A payload is no longer than its codec makes one of the chunk.
/// fails invalid_argument
Status check_length(const Codec& codec, const Chunk& chunk, std::uint64_t bytes);

/// A worker checks its gradients and reports in PushEnd; one that does not must not damage the
/// parameters of all. Not called if non-finite numbers are accepted.
/// fails invalid_argument: names the number
Status check_numbers(const Codec& codec, Bytes payload);

/// One contribution of a round that may close without it: stored complete, so that it counts
/// completely or leaves no trace.
///
/// memory  its payloads: at most max_bytes of every chunk's codec (codec_of)
/// thread  one
class StagedContribution {
 public:
  /// Complete with `chunks` chunks.
  StagedContribution(const ChunkPlan& plan, std::shared_ptr<const Codec> codec, std::size_t chunks);

  /// Store a checked chunk, so that it can be added.
  /// fails invalid_argument: no such chunk, sent twice, another weight than before, or as the codec
  Status put(ChunkId chunk, double weight, Buffer payload, std::size_t bytes);
  std::uint64_t received() const { return received_; }
  bool is_complete() const { return received_ == chunks_; }
  double weight() const { return weight_; }
  double squares() const { return squares_; }  ///< of the received numbers, summed
  std::size_t bytes() const { return bytes_; }
  /// sum[i] += weight * x[i], or = if `first`. The contribution is complete.
  void add_to(std::span<float> sum, ChunkId chunk, double weight, bool first) const;

 private:
  struct Payload {
    Buffer buffer;
    std::size_t bytes = 0;
    bool is_here = false;
  };
  const ChunkPlan& plan_;
  std::shared_ptr<const Codec> codec_;
  std::size_t chunks_;
  std::vector<Payload> payloads_;
  std::uint64_t received_ = 0;
  std::size_t bytes_ = 0;
  double weight_ = 0, squares_ = 0;
};

}  // namespace centroid::server
