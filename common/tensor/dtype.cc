#include "common/tensor/dtype.h"

#include <array>
#include <bit>

#include "common/tensor/text.h"

namespace centroid {
namespace {

struct Row {
  DType dtype;
  std::size_t bytes;
  std::string_view name;
  std::string_view safetensors;
};

constexpr std::array<Row, 7> kRows{{{DType::kF32, 4, "f32", "F32"},
                                    {DType::kF64, 8, "f64", "F64"},
                                    {DType::kF16, 2, "f16", "F16"},
                                    {DType::kBF16, 2, "bf16", "BF16"},
                                    {DType::kI32, 4, "i32", "I32"},
                                    {DType::kI64, 8, "i64", "I64"},
                                    {DType::kU8, 1, "u8", "U8"}}};

const Row& row_of(DType dtype) {
  const auto number = static_cast<std::size_t>(dtype);
  CENTROID_CHECK(number >= 1 && number <= kRows.size());
  return kRows[number - 1];
}

}  // namespace

std::size_t size_of(DType dtype) { return row_of(dtype).bytes; }
std::string_view to_string(DType dtype) { return row_of(dtype).name; }
std::string_view safetensors_name(DType dtype) { return row_of(dtype).safetensors; }

Result<DType> parse_dtype(std::string_view text) {
  std::string known;
  for (const Row& row : kRows) {
    if (text == row.name || text == row.safetensors) return row.dtype;
    known += known.empty() ? "" : ", ";
    known += row.name;
  }
  return Error(ErrorCode::kInvalidArgument,
               "dtype: \"" + printable(text) + "\" is not one of " + known);
}

Result<DType> dtype_from_wire(std::uint8_t number) {
  if (number < 1 || number > kRows.size())
    return Error(ErrorCode::kInvalidArgument, "dtype: number " + std::to_string(number) +
                                                  " is not in 1.." + std::to_string(kRows.size()));
  return static_cast<DType>(number);
}

std::uint16_t f16_from_f32(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  std::uint32_t half = 0;
  if (magnitude > 0x7F800000u) {  // NaN: quiet, upper payload bits stay
    half = 0x7E00u | ((magnitude >> 13) & 0x3FFu);
  } else if (magnitude >= 0x477FF000u) {  // from 65520 on the nearest even is infinity
    half = 0x7C00u;
  } else if (magnitude >= 0x38800000u) {  // normal half, from 2^-14
    const std::uint32_t rebiased = magnitude - (112u << 23);
    half = (rebiased + 0xFFFu + ((rebiased >> 13) & 1u)) >> 13;
  } else if (magnitude > 0x33000000u) {  // above 2^-25: subnormal half, unit 2^-24
    const std::uint32_t shift = 126u - (magnitude >> 23);
    const std::uint32_t mantissa = (magnitude & 0x7FFFFFu) | 0x800000u;
    const std::uint32_t rest = mantissa & ((1u << shift) - 1u);
    const std::uint32_t middle = 1u << (shift - 1u);
    half = mantissa >> shift;
    if (rest > middle || (rest == middle && (half & 1u) != 0)) ++half;
  }
  return static_cast<std::uint16_t>(sign | half);
}

float f32_from_f16(std::uint16_t x) {
  const std::uint32_t sign = (x & 0x8000u) << 16;
  const std::uint32_t exponent = (x >> 10) & 0x1Fu;
  const std::uint32_t mantissa = x & 0x3FFu;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24 is exact in float32
    const float value = static_cast<float>(mantissa) * 0x1.0p-24f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
  }
  if (exponent == 0x1F) {
    const std::uint32_t quiet = mantissa != 0 ? 0x400000u : 0u;
    return std::bit_cast<float>(sign | 0x7F800000u | quiet | (mantissa << 13));
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

}  // namespace centroid
