#pragma once

// Common to every file with launches. Included after tests/support/simt.h, or by nvcc.

#include "common/base/result.h"
#include "common/device/cuda/queue.h"
#if !defined(CENTROID_SIMT)
#include "common/device/cuda/cuda_device.h"
#endif

namespace centroid::cuda {

inline cudaStream_t stream_of(const Queue& queue) {
  return static_cast<cudaStream_t>(queue.stream);
}

/// Result of a launch; a failed one queues nothing.
inline Status launched([[maybe_unused]] const char* what) {
#if defined(CENTROID_SIMT)
  return {};
#else
  return status_of(cudaGetLastError(), what);
#endif
}

}  // namespace centroid::cuda
