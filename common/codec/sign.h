#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/bytes.h"
#include "common/base/result.h"

namespace centroid::sign {

/// Numbers that share a scale.
/// source  Zheng et al. 2019, "Communication-Efficient Distributed Blockwise Momentum SGD with
///         Error-Feedback", section 3.3 (a scale per block); 256 as int8.h has them
constexpr std::size_t kBlock = 256;

/// ceil(n / 256) scales of 2 bytes, n bits.
constexpr std::size_t bytes(std::size_t n) { return 2 * ((n + kBlock - 1) / kBlock) + (n + 7) / 8; }

/// Largest scale, as bfloat16: finite.
constexpr std::uint16_t kLargestScale = 0x7F7F;

/// Keep the sign of every number and the mean magnitude of a block.
///
/// shape   x [n] float32; out: ceil(n / 256) bfloat16 scales, then ceil(n / 8) bytes of signs from
///         the lowest bit on, set where x is negative (-0 too); the last byte ends with zeros
/// units   x̂ = scale or -scale; scale = mean |x| of the block, rounded to bfloat16; the sum has a
///         fixed order (sign_kernels.h), so all machines write the same bytes
/// error   ||x - x̂||² = ||x||² - n · mean |x|² except for the scale's rounding: less than ||x||²,
///         as error feedback requires. Large for a single number: use it with error feedback
/// thread  any
/// cost    one pass, no allocation
/// fails   returns false when a number is not finite; out is then undefined
/// source  Bernstein et al. 2018, "signSGD"; Karimireddy et al. 2019, "Error Feedback Fixes
///         SignSGD"
bool quantize(std::span<const float> x, std::byte* out);

/// Whether `quantize` can have written the bytes: scales finite and not negative, zeros at the end.
/// fails invalid_argument
Status check(Bytes in, std::size_t n);

/// Sum of x̂[i]²; `in` has the right length, otherwise unchecked.
double squares(Bytes in, std::size_t n);

/// out[i] = x̂[i]; `in` is checked.
void dequantize(Bytes in, std::span<float> out);
/// acc[i] += weight * x̂[i], or = when `first`; multiplied and added with a rounding each.
void dequantize_add(Bytes in, float weight, bool first, std::span<float> acc);

}  // namespace centroid::sign
