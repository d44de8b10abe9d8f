#pragma once

#include <cstddef>
#include <memory>

#include "common/device/device.h"
#include "common/tensor/buffer.h"

namespace centroid {

/// Host memory that a device copies from and to: pinned, so that copies run beside the device's
/// work. What comes back is kept for the next who asks, since pinned memory is dear to make.
///
/// bound   `most_pinned` bytes are pinned at a time, lent or kept. Beyond that, and where the
///         machine refuses (its limit of locked memory), memory is plain: copies are slower and
///         hold up who queues them. The first time is logged (memory.not_pinned)
/// CPU     plain always, nothing is kept
/// thread  any; buffers may outlive the pool, the device outlives the pool
class HostMemory {
 public:
  HostMemory(Device& device, std::size_t most_pinned);
  /// At least so many bytes, with anything in them, on a 64-byte boundary. Throws std::bad_alloc.
  Buffer take(std::size_t bytes);
  struct Use {
    std::size_t pinned = 0;   ///< bytes, lent
    std::size_t kept = 0;     ///< pinned, and waiting for the next who asks
    std::size_t refused = 0;  ///< bytes that were wanted pinned and are plain, since the beginning
  };
  Use use() const;

 private:
  std::shared_ptr<struct HostMemoryState> state_;
};

}  // namespace centroid
