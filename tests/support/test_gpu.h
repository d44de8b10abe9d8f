#pragma once

// The GPUs of tests that are built twice: with those of late_device.h and the stand-in for NCCL,
// and (CENTROID_TEST_GPU) with the machine's. Tests begin with SKIP_WITHOUT_GPU.

#include <string>

#include "worker/node/replica_group.h"

#if defined(CENTROID_TEST_GPU)

#include "tests/gpu/gpu.h"

namespace centroid::test {
inline Result<worker::Compute> open_gpu(const std::string& spec, worker::Matmul matmul) {
  return worker::open_compute(spec, matmul);
}
}  // namespace centroid::test

#else

#include "tests/support/late_device.h"
#include "tests/support/simt.h"

namespace centroid::test {
inline std::string gpu_name() { return "cuda:0"; }
inline Result<worker::Compute> open_gpu(const std::string& spec, worker::Matmul matmul) {
  return simt::open_late(spec, matmul);
}
inline void begin_on_late_device() {
  simt::use_seed(5);
  simt::use_stream_seed(5);
}
}  // namespace centroid::test

#define SKIP_WITHOUT_GPU() ::centroid::test::begin_on_late_device()

#endif
