#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/tensor/chunk_plan.h"

namespace centroid::server {

/// Maximum number of servers of a model.
inline constexpr std::size_t kMaxServers = 256;
/// Index of the leader among the servers of a model.
inline constexpr std::size_t kLeaderServer = 0;
/// Owner of a chunk that is not placed yet.
inline constexpr std::uint16_t kNobody = 0xFFFF;
/// Limit of `place` for the bytes of the fullest server over the mean, if the chunks allow it.
inline constexpr double kMaxImbalance = 1.02;

/// Assign chunks to servers. Returns by chunk the index of its server. Pure: equal arguments give
/// the same result everywhere.
///
/// new      the largest chunk first, each to the server with the fewest bytes (the first of
///          equals)
/// balance  max / mean of the bytes is at most kMaxImbalance, unless chunks are too few and too
///          large for it: the fullest server exceeds the emptiest by one chunk at most when all
///          chunks are new
/// moves    `before` has one owner per chunk, kNobody for a new chunk. A server above the mean
///          gives chunks away until it has the mean; all other chunks stay. So if a server joins,
///          chunks move only to it, and if one leaves, only its chunks move
/// units    by chunk the number of its unit, ascending. The chunks of a unit are on one server
///          (results that are selected together). Empty: each chunk is a unit
/// limits   1 <= servers <= kMaxServers; before is empty (all are new) or has one owner per chunk
/// source   Graham 1969, "Bounds on Multiprocessing Timing Anomalies" (longest processing time)
std::vector<std::uint16_t> place(const ChunkPlan& plan, std::size_t servers,
                                 std::span<const std::uint16_t> before = {},
                                 std::span<const std::uint32_t> units = {});

/// Assign the `buckets` buckets of a table's keys, all of equal size, to servers. Returns by bucket
/// the index of its server. The servers' shares differ by at most one bucket. Pure.
std::vector<std::uint16_t> place_buckets(std::size_t buckets, std::size_t servers);

/// Reassign buckets, given their owners in `before`, to the servers with `keeps` (by server; at
/// least one). Their shares differ by at most one bucket; the other servers get none. Moves the
/// fewest buckets possible. Pure.
std::vector<std::uint16_t> replace_buckets(std::span<const std::uint16_t> before,
                                           const std::vector<bool>& keeps);

/// The buckets of one server as text, "0-1365 2048 4000-4095", and back.
/// fails  data_loss: bad text, or a bucket that does not exist.
std::string to_ranges(std::span<const std::uint16_t> owners, std::uint16_t server);
Result<std::vector<std::uint16_t>> buckets_of(std::string_view ranges, std::size_t buckets);

/// Bytes of the fullest server over the mean; 1 for a model without elements.
double imbalance(const ChunkPlan& plan, std::size_t servers, std::span<const std::uint16_t> owners);

}  // namespace centroid::server
