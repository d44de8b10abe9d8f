#pragma once

#include <cstdint>
#include <vector>

namespace centroid {

/// The order of one epoch: a permutation of 0..samples-1 from (seed, epoch), the same on every rank
/// and machine.
///
/// source  Fisher-Yates with the counter-based generator of common/base/random.h
std::vector<std::uint64_t> permutation(std::uint64_t samples, std::uint64_t seed,
                                       std::uint64_t epoch);

}  // namespace centroid
