#pragma once

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "common/device/cuda/cuda_device.h"

namespace centroid::test {

/// The GPU that tests run on: all tests of a program are run on each that there is, one after the
/// other.
inline unsigned& gpu_number() {
  static unsigned number = 0;
  return number;
}
inline std::string gpu_name() { return "cuda:" + std::to_string(gpu_number()); }

class OnEveryGpu final : public ::testing::EmptyTestEventListener {
  void OnTestProgramStart(const ::testing::UnitTest&) override {
    const auto gpus = cuda::device_count();
    if (gpus.ok()) count_ = static_cast<int>(std::max(*gpus, 1U));
    GTEST_FLAG_SET(repeat, GTEST_FLAG_GET(repeat) * count_);
  }
  void OnTestIterationStart(const ::testing::UnitTest&, int iteration) override {
    gpu_number() = static_cast<unsigned>(iteration % count_);
  }
  int count_ = 1;
};
inline const bool kIsOnEveryGpu = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new OnEveryGpu);
  return true;
}();

}  // namespace centroid::test

/// First line of a GPU test's SetUp: skip, with the driver's reason, where there is no GPU.
#define SKIP_WITHOUT_GPU()                                                       \
  do {                                                                           \
    const auto gpus = ::centroid::cuda::device_count();                          \
    if (!gpus.ok()) GTEST_SKIP() << "no GPU here: " << gpus.error().to_string(); \
  } while (0)
