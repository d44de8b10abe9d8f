#include "common/device/pinned_pool.h"

#include <mutex>
#include <utility>
#include <vector>

namespace centroid {

struct PinnedPoolState {
  PinnedPoolState(Device& of, std::size_t bytes, std::size_t most)
      : device(of), buffer_bytes(bytes), max_buffers(most) {
    free.reserve(most);  // so that giving back cannot fail
  }
  Device& device;
  const std::size_t buffer_bytes, max_buffers;
  std::mutex mutex;
  std::vector<std::unique_ptr<DeviceMemory>> free;
  std::size_t in_use = 0;
};

PinnedBuffer::PinnedBuffer(std::unique_ptr<DeviceMemory> memory,
                           std::shared_ptr<PinnedPoolState> home)
    : memory_(std::move(memory)), home_(std::move(home)) {}

void PinnedBuffer::release() noexcept {
  if (!memory_) return;
  const std::lock_guard lock(home_->mutex);
  home_->free.push_back(std::move(memory_));
  --home_->in_use;
}

PinnedBuffer::~PinnedBuffer() { release(); }

PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  if (this == &other) return *this;
  release();
  memory_ = std::move(other.memory_);
  home_ = std::move(other.home_);
  return *this;
}

PinnedPool::PinnedPool(Device& device, std::size_t buffer_bytes, std::size_t max_buffers)
    : state_(std::make_shared<PinnedPoolState>(device, buffer_bytes, max_buffers)) {}

Result<std::optional<PinnedBuffer>> PinnedPool::try_acquire() {
  const std::lock_guard lock(state_->mutex);
  std::unique_ptr<DeviceMemory> memory;
  if (!state_->free.empty()) {
    memory = std::move(state_->free.back());
    state_->free.pop_back();
  } else if (state_->in_use < state_->max_buffers) {
    CENTROID_ASSIGN(memory, state_->device.allocate_pinned(state_->buffer_bytes));
  } else {
    return std::optional<PinnedBuffer>();
  }
  ++state_->in_use;
  return std::optional<PinnedBuffer>(PinnedBuffer(std::move(memory), state_));
}

std::size_t PinnedPool::in_use() const {
  const std::lock_guard lock(state_->mutex);
  return state_->in_use;
}

}  // namespace centroid
