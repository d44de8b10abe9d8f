#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/tensor/chunk_plan.h"
#include "transport/collective/types.h"

namespace centroid::collective {

/// The memories of one operation.
enum class Place : std::uint8_t { kInput, kOutput, kScratch };

/// Bytes of one of them. In place, input and output are the same memory: kInput then means this
/// rank's own numbers, not yet combined with any other's.
struct Region {
  Place place = Place::kInput;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

inline constexpr std::int32_t kAtOnce = -1;

/// One frame to a peer. Frames to one peer are sent in the schedule's order.
struct SendStep {
  std::uint32_t peer = 0;
  std::uint32_t step = 0;
  std::uint32_t segment = 0;
  Region from;
  std::int32_t after = kAtOnce;       ///< the receive whose result is sent
  std::int32_t also_after = kAtOnce;  ///< a receive that shows that the peers keep pace
};

/// One frame from a peer: stored, or combined with `own` into `to`.
struct ReceiveStep {
  std::uint32_t peer = 0;
  std::uint32_t step = 0;
  std::uint32_t segment = 0;
  Region to;
  bool combines = false;
  bool payload_first = true;  ///< payload (+) own; else own (+) payload
  bool is_last = false;       ///< the result is complete: a mean divides here
  bool is_bounded = false;    ///< to.bytes is the maximum; a shorter frame ends the part
  Region own;
  std::int32_t after = kAtOnce;  ///< the receive that makes `own`
};

struct CopyStep {
  Region from, to;
  bool weighs = false;  ///< multiply by this rank's weight while copying
};

/// The steps of one rank in one operation: pure data, made without any I/O. Both ends of each pair
/// list their frames in the same order.
struct Schedule {
  std::vector<CopyStep> before;
  std::vector<ReceiveStep> receives;
  std::vector<SendStep> sends;
  std::vector<CopyStep> after;
  std::uint64_t scratch_bytes = 0;
};

/// Our place in the group, and the moved elements.
struct Shape {
  std::uint32_t rank = 0;
  std::uint32_t world = 1;
  std::uint64_t element_bytes = 4;
  bool is_in_place = false;
  bool weighs = false;  ///< own numbers are multiplied by a weight
  std::uint64_t segment_bytes = kSegmentBytes;
};

/// Elements of each rank's part, one after the other.
using Parts = std::vector<Range>;
/// By the remainder rule: the first count % world parts have one more.
Parts even_parts(std::uint64_t count, std::uint32_t world);
Parts parts_of(std::span<const std::uint64_t> counts);

Schedule ring_all_reduce(const Shape& shape, std::uint64_t count);
Schedule doubling_all_reduce(const Shape& shape, std::uint64_t count);
Schedule halving_all_reduce(const Shape& shape, std::uint64_t count);
Schedule chain_all_reduce(const Shape& shape, std::uint64_t count);
/// `nodes`: the name of each rank's node; a rank with an empty name is a node of its own.
Schedule hierarchical_all_reduce(const Shape& shape, std::uint64_t count,
                                 std::span<const std::string> nodes);
/// Whether a hierarchical all-reduce sends less between nodes than a ring.
bool pays_hierarchy(std::span<const std::string> nodes);
/// Output is this rank's part. In place, the input is the work area and the part stays where it is.
Schedule ring_reduce_scatter(const Shape& shape, const Parts& parts);
/// Input is this rank's part. In place, it is in the output already.
Schedule ring_all_gather(const Shape& shape, const Parts& parts);
Schedule direct_all_gather(const Shape& shape, const Parts& parts);
/// Input and output are the same memory, or the root's input is copied.
Schedule chain_broadcast(const Shape& shape, std::uint64_t count, std::uint32_t root);
Schedule tree_broadcast(const Shape& shape, std::uint64_t count, std::uint32_t root);
Schedule direct_all_to_all(const Shape& shape, const Parts& out, const Parts& in);
/// Parcels with a maximum size that the receiver knows.
Schedule bounded_exchange(const Shape& shape, std::span<const Parcel> out,
                          std::span<const Parcel> in);
Schedule direct_gather(const Shape& shape, const Parts& parts, std::uint32_t root);
Schedule direct_scatter(const Shape& shape, const Parts& parts, std::uint32_t root);
Schedule dissemination_barrier(const Shape& shape);
Schedule send_to(const Shape& shape, std::uint64_t count, std::uint32_t peer);
Schedule receive_from(const Shape& shape, std::uint64_t count, std::uint32_t peer);

/// Payload bytes this rank sends.
std::uint64_t bytes_sent(const Schedule& schedule);

}  // namespace centroid::collective
