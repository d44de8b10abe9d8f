#pragma once

#include <cstdint>
#include <span>

namespace centroid {

/// Hash the bits of `values`: equal on every holder of the same bits, whatever the chunks were.
///
/// Against accidents (a lost update, a wrong order), not attackers. -0 and 0 differ, and so do NaNs
/// with different payloads. Two floats make a word, the first in its lower half (an odd last one
/// has a zero upper half). Lane k of 8 begins as mix64(seed, k); word j changes lane j mod 8 to
/// mix64(lane ^ word). The result begins as mix64(seed, length) and takes lanes 0..7 by
/// mix64(result, lane).
///
/// thread  any; pure
/// cost    one pass, no allocation
std::uint64_t fingerprint(std::span<const float> values, std::uint64_t seed = 0);

}  // namespace centroid
