#pragma once

#include <cstddef>
#include <memory>
#include <mutex>

#include "common/base/result.h"
#include "common/device/device.h"
#include "common/device/host_memory.h"
#include "common/tensor/buffer.h"
#include "worker/model/model.h"

namespace centroid::worker {

/// x, y and tokens of a batch in a device's memory. The destructor makes the memory available to
/// other batches.
struct StagedBatch {
  std::shared_ptr<DeviceMemory> memory;
  Inputs inputs;
};

/// Copies batches to a device ahead of time, on its own stream.
///
/// memory  places on the device, and one in pinned memory that batches are copied from. `put`
///         allocates none: it runs during additions, and an allocation may make the driver block
///         all GPUs of the process
/// thread  `put` from one thread, `make_room` from another. The device outlives it
class BatchStaging {
 public:
  explicit BatchStaging(Device& device);
  /// Allocate `places` places, including those in use, for `samples` samples of a model each, but
  /// at most `most_bytes` in all. Free places beyond that are released. Only copies of `put` may
  /// run on the device meanwhile.
  /// fails  as the device; the places that fit in its memory exist
  Status make_room(std::size_t places, const Model& model, std::uint64_t samples,
                   std::uint64_t most_bytes);
  /// Copy a batch; returns when the copy is complete. False: no place is free.
  Result<bool> put(const Batch& batch, StagedBatch& into);

 private:
  struct Places;
  Device& device_;
  std::mutex mutex_;  // guards the next members
  Buffer pinned_;
  std::unique_ptr<Stream> stream_;
  std::shared_ptr<Places> places_;
  HostMemory host_;
};

}  // namespace centroid::worker
