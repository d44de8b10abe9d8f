#pragma once

#include <cstdint>
#include <span>

namespace centroid::worker {

/// Combines numbers in host memory of all ranks that have a part of the same tensors. Every rank
/// receives the same bits.
///
/// order   every rank makes the same calls with the same sizes
/// errors  the first error is kept: later calls do nothing and leave the numbers as they are
class PartReducer {
 public:
  virtual ~PartReducer() = default;
  virtual void sum(std::span<float> values) = 0;
  virtual void largest(std::span<float> values) = 0;
};

/// Consecutive items that a rank has.
struct PartRange {
  std::uint64_t begin = 0, count = 0;
};

/// One rank's part of the tensors that a model divides.
struct TensorPart {
  std::uint32_t rank = 0, ranks = 1;
  PartReducer* reducer = nullptr;  ///< outlives the model; null: no step will run
};

}  // namespace centroid::worker
