#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/base/result.h"

namespace centroid {

/// Element types. The numbers are on the wire (docs/reference/wire.md): never change one.
enum class DType : std::uint8_t {
  kF32 = 1,
  kF64 = 2,
  kF16 = 3,
  kBF16 = 4,
  kI32 = 5,
  kI64 = 6,
  kU8 = 7
};

std::size_t size_of(DType dtype);                  ///< bytes of one element
std::string_view to_string(DType dtype);           ///< "f32"
std::string_view safetensors_name(DType dtype);    ///< "F32"
Result<DType> parse_dtype(std::string_view text);  ///< either spelling
Result<DType> dtype_from_wire(std::uint8_t number);

/// bfloat16 <-> float32, round to nearest even; NaN stays NaN (quiet), infinities and signs stay.
/// Free of branches, so that loops over them become vector code; constexpr, so that CUDA kernels
/// can call them.
constexpr std::uint16_t bf16_from_f32(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40u;
  return static_cast<std::uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
}
constexpr float f32_from_bf16(std::uint16_t x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16);
}
/// IEEE half <-> float32, round to nearest even, subnormals exact, overflow to infinity.
std::uint16_t f16_from_f32(float x);
float f32_from_f16(std::uint16_t x);

}  // namespace centroid
