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
#include "common/tensor/chunk_plan.h"
#include "worker/data/batch_loader.h"
#include "worker/node/nccl_group.h"
#include "worker/node/replica.h"
#include "worker/node/replica_group.h"

namespace centroid::worker {

/// One device of a group. Only the device's thread uses it, except at construction and between
/// steps.
struct Seat {
  trace::Lane lane;
  Buffer gradient;  // on the host; none: the group's is used, or none is needed
  std::unique_ptr<Replica> replica;
  LoadedBatch rows;  // to evaluate
};

/// Rows [part.begin, part.end) of a loaded batch, in the form that a model takes.
Batch rows_of(const LoadedBatch& loaded, const Dataset& data, Range part);

/// Parts of a group; each member uses the ones before it.
struct Parts {
  std::optional<HostMemory> memory;
  Buffer params, gradients;
  std::unique_ptr<NcclGroup> nccl;
  std::vector<Seat> seats;
  std::optional<std::uint64_t> room;  ///< least_room before steps allocated
};

/// Open the devices, connect GPUs through NCCL, and allocate the memory of a step and of an
/// evaluation (options.batch).
///
/// fails  as make_replica_group
Result<Parts> make_parts(const Model& model, const GroupOptions& options);

/// Smallest free memory of the devices; none: all are CPUs.
std::optional<std::uint64_t> least_room(const std::vector<Seat>& seats);

/// Whether a step, an evaluation and the slots of an optimizer fit together into the device.
/// `plane`: bytes of a slot.
///
/// fails  failed_precondition: with the numbers, and what to change
Status check_room(Replica& replica, const Model& model, std::uint64_t samples, std::size_t slots,
                  std::uint64_t plane);

}  // namespace centroid::worker
