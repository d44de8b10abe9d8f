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

/// x, y and tokens of a batch in a device's memory, which others get when this is gone.
struct StagedBatch {
  std::shared_ptr<DeviceMemory> memory;
  Inputs inputs;
};

/// Brings batches to a device before their turn, on a stream of its own.
///
/// memory  places on the device, and one of pinned memory that batches are copied from. `put` takes
///         none: the driver may hold up all GPUs of the process for it, and it runs beside
///         additions
/// thread  `put` from one thread, `make_room` from another. The device outlives it
class BatchStaging {
 public:
  explicit BatchStaging(Device& device);
  /// Have so many places, those that are in use among them, for so many samples of a model each,
  /// but no more than fit into `most_bytes`: what is free of more goes. While nothing runs on the
  /// device but copies of `put`.
  /// fails  as the device: there are as many as it had memory for
  Status make_room(std::size_t places, const Model& model, std::uint64_t samples,
                   std::uint64_t most_bytes);
  /// Done when it returns. False: there is no place for it.
  Result<bool> put(const Batch& batch, StagedBatch& into);

 private:
  struct Places;
  Device& device_;
  std::mutex mutex_;  // of what follows
  Buffer pinned_;
  std::unique_ptr<Stream> stream_;
  std::shared_ptr<Places> places_;
  HostMemory host_;
};

}  // namespace centroid::worker
