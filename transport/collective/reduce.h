#pragma once

#include <cstddef>

#include "common/base/bytes.h"
#include "common/base/result.h"
#include "transport/collective/types.h"

namespace centroid::collective {

/// The arithmetic of one reduction over one element type, chosen once per operation.
///
/// error   bf16 and f16 are computed in f32 and rounded to nearest even once per combination
/// thread  any; pure
/// cost    one pass
struct Arithmetic {
  /// to[i] = first[i] (+, min, ...) second[i]; `to` may be either of them.
  void (*combine)(std::byte* to, const std::byte* first, const std::byte* second,
                  std::size_t count) = nullptr;
  /// to[i] = payload[i] (+) own[i] * weight
  void (*combine_weighed)(std::byte* to, const std::byte* payload, const std::byte* own,
                          std::size_t count, double weight) = nullptr;
  /// to[i] = from[i] * factor; integers are divided by 1/factor, towards zero.
  void (*scale)(std::byte* to, const std::byte* from, std::size_t count, double factor) = nullptr;
  /// to[i] = from[i] / divisor, towards zero for integers.
  void (*divide)(std::byte* to, const std::byte* from, std::size_t count, double divisor) = nullptr;
};

/// fails invalid_argument: u8, or a weighted mean of integers
Result<Arithmetic> arithmetic_of(DType dtype, Reduction reduction);

}  // namespace centroid::collective
