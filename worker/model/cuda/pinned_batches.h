#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "common/base/result.h"
#include "common/device/device.h"
#include "common/device/host_memory.h"
#include "common/tensor/buffer.h"

namespace centroid::worker::cuda {

/// Pinned memory that batches are copied from, a ring of four: that many steps may be queued before
/// `next` waits. thread: one at a time
class PinnedBatches {
 public:
  PinnedBatches(Device& device, Stream& stream);
  /// Grow all to at least `bytes`. Waits for the stream if one grows.
  Status reserve(std::size_t bytes);
  /// The next one, of at least `bytes`. Waits until no copy reads it.
  Result<std::byte*> next(std::size_t bytes);
  /// Record that its copy is queued.
  Status note_copy();

 private:
  struct One {
    Buffer memory;
    std::unique_ptr<StreamEvent> copied;
  };
  Device& device_;
  Stream& stream_;
  HostMemory pinned_;
  std::array<One, 4> all_;
  std::size_t next_ = 0;
};

}  // namespace centroid::worker::cuda
