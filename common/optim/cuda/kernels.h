#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/base/result.h"
#include "common/device/cuda/queue.h"
#include "common/optim/rules.h"

namespace centroid::cuda {

// Optimizers on a GPU, with the bits of Optimizer::step, sum_of_squares and clip_factor. All
// addresses are the device's. Functions queue work and return at once; none allocates or waits.

/// Factor that limits a gradient's norm; stays on the device.
struct Clip {
  double norm = 0;
  float factor = 1;
  float unused = 0;
};
/// Size of the memory of `clip` in bytes.
std::size_t clip_bytes(std::uint64_t n);
/// Compute the Clip of these numbers at the start of `memory` (clip_bytes(n), aligned to 16 bytes).
/// cost  one pass over the gradient
Status clip(const float* gradient, std::uint64_t n, double bound, std::byte* memory,
            const Queue& queue);

struct UpdateArguments {
  rules::Step rule{};
  std::uint64_t n = 0;
  const float* gradient = nullptr;
  const float* factor = nullptr;  ///< Clip::factor, multiplies the gradient; null: none
  float* params = nullptr;
  std::array<float*, 2> slots{};  ///< those that the rule uses
};
/// Update params and slots in place.
/// cost  one pass: 12 bytes per number and 8 more per slot; 16-byte accesses if all arrays are
///       aligned to 16 bytes
Status update(const UpdateArguments& arguments, const Queue& queue);

}  // namespace centroid::cuda
