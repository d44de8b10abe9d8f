#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/tensor/chunk_plan.h"

namespace centroid {

/// Sets of tensors that travel in turn, one set a round (docs/how-to/diloco.md). The same plan
/// and count give the same fragments on every node.
///
/// balance  the largest tensor first, each to the fragment with the fewest elements so far: the
///          largest fragment exceeds the smallest by one tensor at most
class FragmentPlan {
 public:
  struct Fragment {
    std::vector<TensorId> tensors;  ///< ascending
    std::vector<Chunk> chunks;      ///< in the plan's order
    std::uint64_t elements = 0;
  };

  FragmentPlan() = default;
  /// fails invalid_argument: count is 0, or above 1 and above the number of tensors with elements
  static Result<FragmentPlan> make(const ChunkPlan& plan, std::uint32_t count);

  std::uint32_t count() const { return static_cast<std::uint32_t>(fragments_.size()); }
  const Fragment& operator[](std::uint32_t number) const { return fragments_[number]; }
  std::uint32_t number_of(TensorId tensor) const { return number_of_[tensor.value]; }
  /// The fragment after this many committed rounds. A skipped round does not count, so its fragment
  /// is next again.
  std::uint32_t turn(std::uint64_t committed) const {
    return static_cast<std::uint32_t>(committed % fragments_.size());
  }
  /// Committed rounds of the present fragment.
  std::uint64_t steps_before(std::uint64_t committed) const {
    return committed / fragments_.size();
  }

 private:
  std::vector<Fragment> fragments_;
  std::vector<std::uint32_t> number_of_;  // tensor
};

}  // namespace centroid
