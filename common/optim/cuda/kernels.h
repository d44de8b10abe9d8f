#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/base/result.h"
#include "common/device/cuda/queue.h"
#include "common/optim/rules.h"

namespace centroid::cuda {

// Optimizers on a GPU: the bits of Optimizer::step, sum_of_squares and clip_factor. All addresses
// are the device's; all functions queue work and return at once. None allocates or waits.

/// Factor of a gradient that bounds its norm; stays on the device.
struct Clip {
  double norm = 0;
  float factor = 1;
  float unused = 0;
};
/// Bytes of memory that `clip` takes.
std::size_t clip_bytes(std::uint64_t n);
/// Afterwards memory (clip_bytes(n), on a 16-byte boundary) begins with the Clip of these numbers.
/// cost  one pass over the gradient
Status clip(const float* gradient, std::uint64_t n, double bound, std::byte* memory,
            const Queue& queue);

struct UpdateArguments {
  rules::Step rule{};
  std::uint64_t n = 0;
  const float* gradient = nullptr;
  const float* factor = nullptr;  ///< of Clip: multiplies the gradient; null: none
  float* params = nullptr;
  std::array<float*, 2> slots{};  ///< as many as the rule has
};
/// params and slots after the step, in place.
/// cost  one pass: 12 bytes a number and 8 more for every slot; 16-byte accesses if all arrays are
///       on 16-byte boundaries
Status update(const UpdateArguments& arguments, const Queue& queue);

}  // namespace centroid::cuda
