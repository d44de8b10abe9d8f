#pragma once

#include "common/device/device.h"

namespace centroid::cuda {

/// Where kernels are queued.
struct Queue {
  unsigned processors = 1;
  void* stream = nullptr;  ///< cudaStream_t
};
inline Queue queue_of(const Device& device, const Stream& stream) {
  return {device.processors(), stream.native()};
}

}  // namespace centroid::cuda
