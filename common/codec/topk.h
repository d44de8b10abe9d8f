#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/codec/thread_pool.h"
#include "common/codec/topk_kernels.h"
#include "common/tensor/buffer.h"

namespace centroid {

/// The k largest magnitudes of an array, exactly.
///
/// order   i before j if |x_i| > |x_j| as integers of their bits, or both are equal and i < j. NaN
///         is above infinity; zeros are never selected, so the result has min(k, non-zeros)
///         elements. It depends on the array and k only: not on threads, instruction set or seed.
/// steps   a sample of n / 128 gives a threshold; one pass selects the elements that reach it;
///         histograms find the k-th of these 1.2 to 2 k elements. A bad sample costs a second pass,
///         never a wrong result: a full buffer is reduced to its k largest and the threshold rises
/// cost    O(n), whatever the numbers; measured in docs/explanation/compression.md#speed
/// owns    memory for about 3 k elements; results are valid until the next call
/// thread  one at a time; the loops run on `pool` if there is one
/// limits  n < 2^32
/// source  sample and filter as in Floyd and Rivest 1975, "Expected time bounds for selection"
class TopkSelector {
 public:
  struct Selection {
    std::span<const std::uint32_t> index;  ///< ascending
    std::span<const float> value;          ///< x[index]
    std::uint64_t nonfinite = 0;           ///< sums that are not finite; then nothing is selected
    std::uint64_t first_nonfinite = 0;
  };
  explicit TopkSelector(ThreadPool* pool = nullptr, std::uint64_t seed = 1)
      : pool_(pool), seed_(seed) {}

  /// Select from x. NaN and infinities are selected first.
  Selection select(std::span<const float> x, std::uint64_t k);
  /// residual += gradient, then select from the residual, in one pass. If a sum is not finite, the
  /// residual keeps its value, or with `store_nonfinite` becomes the sum; both are counted.
  /// `before` gets the residual as it was, unless it is empty.
  Selection add_and_select(std::span<const float> gradient, std::span<float> residual,
                           std::uint64_t k, bool store_nonfinite = false,
                           std::span<float> before = {});

  /// The loops to use instead of the machine's widest. For tests.
  void use(const topk::Kernels* kernels) { kernels_ = kernels; }
  /// Capacity of the candidates' buffer beyond k, 0 for the default. For tests.
  void use_room(std::size_t room) { room_ = room; }
  /// Passes over the array in the last call.
  int passes() const { return passes_; }

 private:
  struct Part;
  struct Source;
  Selection run(const Source& source, std::uint64_t k);
  std::uint32_t sample(const Source& source, std::uint64_t k);
  void scan(const Source& source, Part& part, std::uint32_t threshold, std::uint64_t k);
  Selection keep(std::uint64_t k);
  const topk::Kernels& loops() const { return kernels_ ? *kernels_ : topk::kernels(); }

  struct Part {
    std::size_t begin = 0, end = 0;  // of the array
    Buffer memory;
    std::uint32_t* index = nullptr;  // candidates, ascending
    float* value = nullptr;
    std::size_t count = 0, capacity = 0;
    std::size_t greater = 0, equal = 0;  // than the k-th key
    std::uint64_t nonfinite = 0, first_nonfinite = 0;
    void reserve(std::size_t requested);
  };
  void for_parts(void (*work)(TopkSelector&, Part&, const void*), const void* argument);

  ThreadPool* pool_;
  std::uint64_t seed_;
  const topk::Kernels* kernels_ = nullptr;
  std::size_t room_ = 0;
  int passes_ = 0;
  std::vector<Part> parts_;
  std::vector<float> sample_;
  Buffer output_;
};

}  // namespace centroid
