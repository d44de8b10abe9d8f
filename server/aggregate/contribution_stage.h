#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/codec/codec.h"
#include "common/tensor/buffer.h"
#include "common/tensor/chunk_plan.h"

namespace centroid::server {

/// A worker looks at its gradients itself and says so in PushEnd; one that does not may not spoil
/// the parameters of all. Where numbers that are not finite are to go in nobody asks.
/// fails invalid_argument: names the number
Status check_numbers(const Codec& codec, Bytes payload);

/// One contribution of a round that may close without it: kept as it came, so that it counts wholly
/// or leaves no trace.
///
/// memory  its payloads: at most codec.max_bytes of every chunk
/// thread  one
class StagedContribution {
 public:
  /// `chunks`: so many make it whole.
  StagedContribution(const ChunkPlan& plan, std::shared_ptr<const Codec> codec, std::size_t chunks);

  /// Keep a chunk, checked, so that what is kept can be added.
  /// fails invalid_argument: no such chunk, sent twice, another weight than before, or as the codec
  /// says.
  Status put(ChunkId chunk, double weight, Buffer payload, std::size_t bytes);
  std::uint64_t received() const { return received_; }
  bool is_whole() const { return received_ == chunks_; }
  double weight() const { return weight_; }
  double squares() const { return squares_; }  ///< of the numbers received, added up
  std::size_t bytes() const { return bytes_; }
  /// sum[i] += weight * x[i], or = when `first`. The contribution is whole.
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
