#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/result.h"
#include "common/base/trace.h"
#include "common/device/host_memory.h"
#include "common/tensor/buffer.h"
#include "worker/data/batch_loader.h"
#include "worker/node/nccl_group.h"
#include "worker/node/replica.h"
#include "worker/node/replica_group.h"

namespace centroid::worker {

/// One device's place in a group. Used by the device's thread only, except at construction and
/// between steps.
struct Seat {
  trace::Lane lane;
  Buffer gradient;  // on the host; none: the group's, or nowhere
  std::unique_ptr<Replica> replica;
  LoadedBatch rows;  // that it evaluates
};
/// What a group is made of; the later stand on the earlier.
struct Parts {
  std::optional<HostMemory> memory;
  Buffer params, gradients;
  std::unique_ptr<NcclGroup> nccl;
  std::vector<Seat> seats;
  std::optional<std::uint64_t> room;  ///< least_room before the memory of steps was taken
};

/// Open the devices, join those that add through NCCL, and take the memory of a step and of an
/// evaluation (options.batch).
///
/// fails  as make_replica_group
Result<Parts> make_parts(const Model& model, const GroupOptions& options);

/// The least free memory of the devices that have their own; none: they are CPUs.
std::optional<std::uint64_t> least_room(const std::vector<Seat>& seats);

/// Whether a step, an evaluation, and the slots of an optimizer beside them, fit into the device.
/// `plane`: bytes of a slot.
///
/// fails  failed_precondition: with the numbers, and what to change
Status check_room(Replica& replica, const Model& model, std::uint64_t samples, std::size_t slots,
                  std::uint64_t plane);

}  // namespace centroid::worker
