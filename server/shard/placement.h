#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/tensor/chunk_plan.h"

namespace centroid::server {

/// Servers that one model may lie on.
inline constexpr std::size_t kMaxServers = 256;
/// Index of the leader among the servers of a model.
inline constexpr std::size_t kLeaderServer = 0;
/// Owner of a chunk that lies nowhere yet.
inline constexpr std::uint16_t kNobody = 0xFFFF;
/// Bytes of the fullest server over the mean, which `place` keeps where the chunks allow it.
inline constexpr double kMaxImbalance = 1.02;

/// Which server holds which chunk: by chunk the index of its server. Pure: the same arguments give
/// the same answer everywhere.
///
/// new      the largest chunk first, each to the server with the fewest bytes (the first of
///          equals)
/// balance  max / mean of the bytes is at most kMaxImbalance, unless chunks are too few and too
///          large for it: the fullest server exceeds the emptiest by one chunk at most when all
///          chunks are new
/// moves    `before` (one owner a chunk, kNobody: to be placed): chunks stay where they are but for
///          what a fuller server gives up until it has the mean; so a server that comes takes its
///          share and no other chunk moves, and of one that goes only its own chunks move
/// units    by chunk the number of the unit that it belongs to, ascending: chunks of one lie on one
///          server (results that are selected together); empty: each by itself
/// limits   1 <= servers <= kMaxServers; before is empty (all are new) or has an owner a chunk
/// source   Graham 1969, "Bounds on Multiprocessing Timing Anomalies" (longest processing time)
std::vector<std::uint16_t> place(const ChunkPlan& plan, std::size_t servers,
                                 std::span<const std::uint16_t> before = {},
                                 std::span<const std::uint32_t> units = {});

/// Which server holds which bucket of a table's keys, for so many buckets of equal size: by bucket
/// the index of its server. The servers' shares differ by one bucket at most. Pure.
std::vector<std::uint16_t> place_buckets(std::size_t buckets, std::size_t servers);

/// Where buckets are to lie, `before` which they lie somewhere: shares of those that keep theirs
/// (`keeps`, by server; at least one does) differ by one bucket at most, the others have none. No
/// more buckets move than must. Pure.
std::vector<std::uint16_t> replace_buckets(std::span<const std::uint16_t> before,
                                           const std::vector<bool>& keeps);

/// The buckets of one server as text, "0-1365 2048 4000-4095", and back.
/// fails  data_loss: no such text, or of more buckets than there are.
std::string to_ranges(std::span<const std::uint16_t> owners, std::uint16_t server);
Result<std::vector<std::uint16_t>> buckets_of(std::string_view ranges, std::size_t buckets);

/// Bytes of the fullest server over the mean; 1 for a model without elements.
double imbalance(const ChunkPlan& plan, std::size_t servers, std::span<const std::uint16_t> owners);

}  // namespace centroid::server
