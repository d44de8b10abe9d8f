#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "common/base/result.h"
#include "common/device/device.h"
#include "common/device/host_memory.h"
#include "common/tensor/buffer.h"

namespace centroid::worker::cuda {

/// Pinned memory that batches are copied from, used in turn: as many steps may be queued before one
/// is waited for. thread: one at a time
class PinnedBatches {
 public:
  PinnedBatches(Device& device, Stream& stream);
  /// All of at least so many bytes. Waits for the stream where they have to grow.
  Status reserve(std::size_t bytes);
  /// The next one, of at least so many bytes, when no copy reads it any more.
  Result<std::byte*> next(std::size_t bytes);
  /// The copy of it is queued.
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
