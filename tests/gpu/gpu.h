#pragma once

#include <gtest/gtest.h>

#include "common/device/cuda/cuda_device.h"

/// First line of a GPU test's SetUp: skip, with the driver's reason, where there is no GPU.
#define SKIP_WITHOUT_GPU()                                                       \
  do {                                                                           \
    const auto gpus = ::centroid::cuda::device_count();                          \
    if (!gpus.ok()) GTEST_SKIP() << "no GPU here: " << gpus.error().to_string(); \
  } while (0)
