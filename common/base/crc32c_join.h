#pragma once

#include <cstdint>

namespace centroid {

/// crc32c(a + b) from crc32c(a), crc32c(b) and the bytes of b.
///
/// cost    some 2000 steps, whatever the length
/// source  Mark Adler, zlib's crc32_combine: appending n zero bytes multiplies by x^(8n) modulo the
///         polynomial
std::uint32_t crc32c_join(std::uint32_t a, std::uint32_t b, std::uint64_t bytes_of_b);

}  // namespace centroid
