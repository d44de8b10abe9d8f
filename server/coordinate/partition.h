#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace centroid::server {

/// Divide `total` by weights: whole parts that add up to it, each within one of its exact value.
///
/// rule    rounded down; what is left goes to the largest fractions, the first of equal ones
/// equal   where all weights are 0 (or not finite, or below 0): the first ones get one more
/// empty   no weights: no parts
std::vector<std::uint64_t> partition(std::uint64_t total, std::span<const double> weights);

}  // namespace centroid::server
