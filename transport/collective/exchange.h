#pragma once

#include <cstdint>
#include <span>

#include "transport/collective/group.h"

namespace centroid::collective {

/// Bytes of which only the sender knows how many there are: parcel i goes to rank i of the group.
///
/// shape   `out` and `in` have a parcel per rank; our own are not looked at. Parcels that are sent
///         may be the same memory, parcels that come may not. `lengths`, one per rank: what came.
/// fails   as the operations of collectives.h; invalid_argument: a parcel outside its memory, or
///         longer than its `most`
/// bits    what was sent: nothing is added
/// steps   one; lengths are not told before, so there is no second way: a frame that is shorter
///         than a segment (1 MiB) ends its parcel
/// bytes   those of the parcels; a frame more where they are a multiple of a segment, below `most`
/// thread  `lengths` is written until the operation has ended
Handle exchange_async(const Group& group, Bytes input, std::span<const Parcel> out,
                      MutableBytes output, std::span<const Parcel> in,
                      std::span<std::uint64_t> lengths, CallOptions options = {});
Status exchange(const Group& group, Bytes input, std::span<const Parcel> out, MutableBytes output,
                std::span<const Parcel> in, std::span<std::uint64_t> lengths,
                CallOptions options = {});

}  // namespace centroid::collective
