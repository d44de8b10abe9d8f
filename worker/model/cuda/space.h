#pragma once

#include <cstddef>
#include <memory>

#include "common/device/device.h"

namespace centroid::worker::cuda {

/// Device memory, sized for the largest step.
struct Space {
  std::unique_ptr<DeviceMemory> memory;
  std::size_t wanted = 0;  ///< bytes, measured by a rehearsal
  std::size_t size() const { return memory ? memory->size() : 0; }
};

inline float* floats(const std::unique_ptr<DeviceMemory>& memory) {
  return reinterpret_cast<float*>(memory->data());
}
inline float* floats(const Space& space) { return floats(space.memory); }

}  // namespace centroid::worker::cuda
