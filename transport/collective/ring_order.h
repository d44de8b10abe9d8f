#pragma once

#include <cstdint>
#include <vector>

#include "transport/collective/group.h"

namespace centroid::collective {

/// Bytes per second between each two ranks of a group, both directions busy.
struct Bandwidths {
  std::uint32_t world = 0;
  std::vector<double> rates;  ///< row by row, world x world, symmetric; the diagonal is unused
  double between(std::uint32_t a, std::uint32_t b) const { return rates[a * world + b]; }
};

/// Measure all pairs, disjoint ones at the same time, in world - 1 turns; every rank receives the
/// same numbers. Every member calls it. Moves 2 x `bytes` per pair and direction.
///
/// fails  as the collectives do
Result<Bandwidths> measure_bandwidths(const Group& group, std::uint64_t bytes = 1 << 20);

/// The order of ranks, beginning with 0, with the fastest slowest hop, and among those with the
/// largest sum over its hops. Exact up to 8 ranks; above, nearest neighbours improved by reversals
/// until none helps. Ranks stay in their order unless its slowest hop is beaten by a tenth: noise
/// must not change the bits of a sum. Pure: the same numbers give the same order.
std::vector<std::uint32_t> best_ring(const Bandwidths& bandwidths);

/// The same members with rings in the best order; for groups of 2 and 3, whose orders are equal,
/// the group itself. Every member calls it.
///
/// fails  as the collectives do
Result<Group> order_by_bandwidth(const Group& group);

}  // namespace centroid::collective
