#include "common/device/host_memory.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/base/log.h"

namespace centroid {

/// Shared by the pool and the memory in use, whichever lives longer.
struct HostMemoryState {
  HostMemoryState(Device& of, std::size_t most) : device(of), most_pinned(most) {}

  /// Unused memory that fits and is not much too large.
  std::unique_ptr<DeviceMemory> find(std::size_t bytes) {
    auto best = unused.end();
    for (auto it = unused.begin(); it != unused.end(); ++it) {
      const std::size_t size = (*it)->size();
      if (size >= bytes && size / 2 <= bytes && (best == unused.end() || size < (*best)->size()))
        best = it;
    }
    if (best == unused.end()) return nullptr;
    auto found = std::move(*best);
    unused.erase(best);
    use.unused -= found->size();
    return found;
  }
  void drop_unused() {
    unused.clear();
    use.unused = 0;
  }
  /// Why it cannot be pinned; on success it is in `out`.
  std::string pin(std::size_t bytes, std::unique_ptr<DeviceMemory>& out) {
    if ((out = find(bytes))) return {};
    if (use.pinned + use.unused > most_pinned - std::min(bytes, most_pinned)) drop_unused();
    if (bytes > most_pinned || use.pinned > most_pinned - bytes)
      return "the limit is " + std::to_string(most_pinned) + " bytes, " +
             std::to_string(use.pinned) + " are in use";
    auto made = device.allocate_pinned(bytes);
    if (!made.ok() && !unused.empty()) {
      drop_unused();
      made = device.allocate_pinned(bytes);
    }
    if (!made.ok()) return made.error().to_string();
    out = std::move(made).value();
    unused.reserve(++made_count);  // so that returning memory cannot fail
    return {};
  }

  Device& device;
  const std::size_t most_pinned;
  mutable std::mutex mutex;
  std::vector<std::unique_ptr<DeviceMemory>> unused;
  std::size_t made_count = 0;
  HostMemory::Use use;
  bool is_told = false;
};

namespace {

struct BorrowedMemory {
  BorrowedMemory(std::unique_ptr<DeviceMemory> of, std::shared_ptr<HostMemoryState> from)
      : memory(std::move(of)), home(std::move(from)) {}
  ~BorrowedMemory() {
    const std::lock_guard lock(home->mutex);
    home->use.pinned -= memory->size();
    home->use.unused += memory->size();
    home->unused.push_back(std::move(memory));
  }
  BorrowedMemory(const BorrowedMemory&) = delete;
  BorrowedMemory& operator=(const BorrowedMemory&) = delete;
  std::unique_ptr<DeviceMemory> memory;
  std::shared_ptr<HostMemoryState> home;
};

}  // namespace

HostMemory::HostMemory(Device& device, std::size_t most_pinned)
    : state_(std::make_shared<HostMemoryState>(device, most_pinned)) {}

Buffer HostMemory::take(std::size_t bytes) {
  if (state_->device.is_host() || bytes == 0) return Buffer(bytes);
  std::string refusal;
  {
    const std::lock_guard lock(state_->mutex);
    std::unique_ptr<DeviceMemory> memory;
    refusal = state_->pin(bytes, memory);
    if (memory) {
      std::byte* const data = memory->data();
      state_->use.pinned += memory->size();
      return Buffer(data, bytes, std::make_shared<BorrowedMemory>(std::move(memory), state_));
    }
    state_->use.refused += bytes;
    if (std::exchange(state_->is_told, true)) refusal.clear();
  }
  if (!refusal.empty())
    log::warn("memory.pinning_failed", {{"device", state_->device.name()},
                                        {"bytes", bytes},
                                        {"why", refusal},
                                        {"instead",
                                         "plain memory: copies do not run beside the "
                                         "device's work; see pinned_memory, ulimit -l"}});
  return Buffer(bytes);
}

HostMemory::Use HostMemory::use() const {
  const std::lock_guard lock(state_->mutex);
  return state_->use;
}

}  // namespace centroid
