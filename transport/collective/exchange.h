#pragma once

#include <cstdint>
#include <span>

#include "transport/collective/group.h"

namespace centroid::collective {

/// An exchange of parcels whose size only the sender knows: parcel i goes to rank i of the group.
///
/// shape   `out` and `in` have a parcel per rank; our own are ignored. Sent parcels may share
///         memory, received ones may not. `lengths`, one per rank: the received lengths.
/// fails   as the operations of collectives.h; invalid_argument: a parcel outside its memory, or
///         longer than its `most`
/// bits    as sent: nothing is added
/// steps   one; lengths are not sent before, so there is no second path: a frame that is shorter
///         than a segment (1 MiB) ends its parcel
/// bytes   those of the parcels; one more frame for a multiple of a segment, below `most`
/// thread  `lengths` is written until the operation has ended
Handle exchange_async(const Group& group, Bytes input, std::span<const Parcel> out,
                      MutableBytes output, std::span<const Parcel> in,
                      std::span<std::uint64_t> lengths, CallOptions options = {});
Status exchange(const Group& group, Bytes input, std::span<const Parcel> out, MutableBytes output,
                std::span<const Parcel> in, std::span<std::uint64_t> lengths,
                CallOptions options = {});

}  // namespace centroid::collective
