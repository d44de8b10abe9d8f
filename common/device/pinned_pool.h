#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "common/base/bytes.h"
#include "common/base/result.h"
#include "common/device/device.h"

namespace centroid {

/// A buffer of a PinnedPool; goes back to it when it is destroyed.
class PinnedBuffer {
 public:
  PinnedBuffer(PinnedBuffer&&) noexcept = default;
  PinnedBuffer& operator=(PinnedBuffer&&) noexcept;
  ~PinnedBuffer();
  std::byte* data() const { return memory_->data(); }
  std::size_t size() const { return memory_->size(); }
  MutableBytes bytes() const { return {data(), size()}; }

 private:
  friend class PinnedPool;
  PinnedBuffer(std::unique_ptr<DeviceMemory> memory, std::shared_ptr<struct PinnedPoolState> home);
  void release() noexcept;
  std::unique_ptr<DeviceMemory> memory_;
  std::shared_ptr<struct PinnedPoolState> home_;
};

/// A bounded set of equal buffers of pinned host memory, which is too dear to be made for every
/// use. thread: any; buffers may outlive the pool, the device outlives both.
class PinnedPool {
 public:
  PinnedPool(Device& device, std::size_t buffer_bytes, std::size_t max_buffers);
  /// A buffer, with whatever its last holder left in it; or nothing when all are in use (the caller
  /// applies back-pressure).
  /// fails  as Device::allocate_pinned
  Result<std::optional<PinnedBuffer>> try_acquire();
  std::size_t in_use() const;

 private:
  std::shared_ptr<struct PinnedPoolState> state_;
};

}  // namespace centroid
