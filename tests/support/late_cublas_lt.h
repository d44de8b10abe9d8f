#pragma once

#include <cstdint>
#include <memory>

#include "worker/model/cuda/cublas_lt.h"

namespace centroid::simt {

/// How the cuBLASLt of late devices behaves.
enum class LtMode : std::uint8_t {
  kGood,
  kNoAlgorithm,    ///< finds none for any shape
  kHidesNan,       ///< its ReLU makes 0 of NaN
  kWrong,          ///< forgets the bias
  kFails,          ///< products fail
  kHidesNanLater,  ///< kHidesNan, but for squares of 16
  kNotSupported,   ///< products are not supported, but for squares of 16
};
/// cuBLASLt for streams of late_device.h: takes the same column-major arguments, refuses what
/// cuBLASLt would, and addresses that stand on lower boundaries than was promised.
std::shared_ptr<const worker::cublas_lt::Library> host_cublas_lt();
void use_lt_mode(LtMode mode);
/// Products so far.
std::uint64_t lt_products();

}  // namespace centroid::simt
