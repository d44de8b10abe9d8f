#pragma once

#include <cstdint>
#include <memory>

#include "worker/model/cuda/cublas_lt.h"

namespace centroid::simt {

/// Behaviour of the late devices' cuBLASLt.
enum class LtMode : std::uint8_t {
  kGood,
  kNoAlgorithm,    ///< finds none for any shape
  kHidesNan,       ///< its ReLU makes 0 of NaN
  kWrong,          ///< forgets the bias
  kFails,          ///< products fail
  kHidesNanLater,  ///< kHidesNan, except for 16 by 16 products
  kNotSupported,   ///< products are not supported, except 16 by 16
};
/// cuBLASLt for streams of late_device.h: takes the same column-major arguments, and refuses
/// arguments that cuBLASLt refuses and addresses with less alignment than promised.
std::shared_ptr<const worker::cublas_lt::Library> host_cublas_lt();
void use_lt_mode(LtMode mode);
/// Number of products so far.
std::uint64_t lt_products();

}  // namespace centroid::simt
