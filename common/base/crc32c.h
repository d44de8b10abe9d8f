#pragma once

#include <cstdint>

#include "common/base/bytes.h"

namespace centroid {

/// CRC-32C (Castagnoli) of `bytes`, continuing from `crc` (0 to begin): crc32c(b, crc32c(a)) ==
/// crc32c(a+b).
///
/// thread  any; pure
/// cost    one pass; uses the SSE4.2 or ARMv8 instruction if the machine has it (checked at run
///         time)
/// source  RFC 3720, appendix B.4 (polynomial 0x1EDC6F41, reflected, inverted in and out)
std::uint32_t crc32c(Bytes bytes, std::uint32_t crc = 0);

/// The same by table, for machines without the instruction and as the test's oracle.
std::uint32_t crc32c_portable(Bytes bytes, std::uint32_t crc = 0);

}  // namespace centroid
