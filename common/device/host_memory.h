#pragma once

#include <cstddef>
#include <memory>

#include "common/device/device.h"
#include "common/tensor/buffer.h"

namespace centroid {

/// Host memory that a device copies from and to: pinned, so that copies run beside the device's
/// work. Returned memory is reused, because pinned memory is expensive to make.
///
/// bound   `most_pinned` bytes are pinned at a time, in use or not. Beyond that, and if the machine
///         refuses (its limit of locked memory), memory is plain: copies are slower and block their
///         caller. The first time is logged (memory.pinning_failed)
/// CPU     always plain and never reused
/// thread  any; buffers may outlive the pool, the device outlives the pool
class HostMemory {
 public:
  HostMemory(Device& device, std::size_t most_pinned);
  /// At least `bytes`, uninitialised, on a 64-byte boundary. Throws std::bad_alloc.
  Buffer take(std::size_t bytes);
  struct Use {
    std::size_t pinned = 0;   ///< bytes, in use
    std::size_t unused = 0;   ///< pinned and not in use
    std::size_t refused = 0;  ///< bytes that should be pinned and are plain, since the beginning
  };
  Use use() const;

 private:
  std::shared_ptr<struct HostMemoryState> state_;
};

}  // namespace centroid
