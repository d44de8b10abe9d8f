#include "common/device/host_memory.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/base/log.h"

namespace centroid {

/// Shared by the pool and what it has lent, whoever lives longer.
struct HostMemoryState {
  HostMemoryState(Device& of, std::size_t most) : device(of), most_pinned(most) {}

  /// Kept memory that fits and is not much too large.
  std::unique_ptr<DeviceMemory> find(std::size_t bytes) {
    auto best = kept.end();
    for (auto it = kept.begin(); it != kept.end(); ++it) {
      const std::size_t size = (*it)->size();
      if (size >= bytes && size / 2 <= bytes && (best == kept.end() || size < (*best)->size()))
        best = it;
    }
    if (best == kept.end()) return nullptr;
    auto found = std::move(*best);
    kept.erase(best);
    use.kept -= found->size();
    return found;
  }
  void drop_kept() {
    kept.clear();
    use.kept = 0;
  }
  /// Why it cannot be pinned; else it is in `out`.
  std::string pin(std::size_t bytes, std::unique_ptr<DeviceMemory>& out) {
    if ((out = find(bytes))) return {};
    if (use.pinned + use.kept > most_pinned - std::min(bytes, most_pinned)) drop_kept();
    if (bytes > most_pinned || use.pinned > most_pinned - bytes)
      return "the limit is " + std::to_string(most_pinned) + " bytes, " +
             std::to_string(use.pinned) + " are in use";
    auto made = device.allocate_pinned(bytes);
    if (!made.ok() && !kept.empty()) {
      drop_kept();
      made = device.allocate_pinned(bytes);
    }
    if (!made.ok()) return made.error().to_string();
    out = std::move(made).value();
    kept.reserve(++made_count);  // so that giving back cannot fail
    return {};
  }

  Device& device;
  const std::size_t most_pinned;
  mutable std::mutex mutex;
  std::vector<std::unique_ptr<DeviceMemory>> kept;
  std::size_t made_count = 0;
  HostMemory::Use use;
  bool is_told = false;
};

namespace {

struct Lent {
  Lent(std::unique_ptr<DeviceMemory> of, std::shared_ptr<HostMemoryState> from)
      : memory(std::move(of)), home(std::move(from)) {}
  ~Lent() {
    const std::lock_guard lock(home->mutex);
    home->use.pinned -= memory->size();
    home->use.kept += memory->size();
    home->kept.push_back(std::move(memory));
  }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;
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
      return Buffer(data, bytes, std::make_shared<Lent>(std::move(memory), state_));
    }
    state_->use.refused += bytes;
    if (std::exchange(state_->is_told, true)) refusal.clear();
  }
  if (!refusal.empty())
    log::warn("memory.not_pinned", {{"device", state_->device.name()},
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
