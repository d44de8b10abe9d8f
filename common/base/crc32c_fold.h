#pragma once

#include <cstddef>
#include <cstdint>

namespace centroid {

inline constexpr std::size_t kCrcFoldBytes = 256;

/// The machine multiplies polynomials 512 bits at a time (AVX-512 and VPCLMULQDQ).
bool can_fold_crc32c();

/// Register of CRC-32C after the first `n - n % kCrcFoldBytes` bytes (n >= kCrcFoldBytes), without
/// the inversions.
///
/// source  Gopal et al. 2009, "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
///         Instruction" (Intel), reflected case
/// cost    one pass, about 4 times the speed of the CRC instruction on bytes that are in cache
std::uint32_t fold_crc32c(std::uint32_t crc, const std::byte* at, std::size_t n);

}  // namespace centroid
