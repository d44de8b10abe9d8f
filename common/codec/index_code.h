#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/bytes.h"
#include "common/base/result.h"

namespace centroid {

/// Ascending indices as Rice-coded gaps, in blocks of 4096.
///
/// wire    per block: u8 l; the low l bits of every gap, packed from the lowest bit on and padded
///         to a byte; then for every gap its upper part q as q zero bits and a one, padded
///         likewise. gap_0 = index_0, gap_i = index_i - index_(i-1) - 1. l suits the block's mean
///         gap.
/// bytes   within 1 % of the entropy of random positions (docs/explanation/compression.md#speed)
/// source  Rice 1979; the choice of l: Kiely 2004, "Selecting the Golomb parameter in Rice coding"
namespace index_code {

constexpr std::size_t kBlock = 4096;

/// `encode` writes at most this for `count` of n positions.
std::size_t max_bytes(std::uint64_t count, std::uint64_t n);
/// Write the strictly ascending indices; returns the bytes.
std::size_t encode(std::span<const std::uint32_t> index, std::byte* out);
/// Read exactly out.size() indices below n from exactly `in`; `behind` bytes after it are readable
/// (with 8 or more nothing is copied). Prefetches the indexed numbers of `target`: memory access
/// and decoding then overlap.
/// fails  invalid_argument: too short, too long, an index of n or more, nonzero padding; `out` is
///        then undefined
Status decode(Bytes in, std::size_t behind, std::uint64_t n, std::span<std::uint32_t> out,
              const float* target = nullptr);

}  // namespace index_code
}  // namespace centroid
