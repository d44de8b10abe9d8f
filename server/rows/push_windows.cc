#include "server/rows/push_windows.h"

#include <string>

namespace centroid::server {

Result<bool> PushWindows::is_new(std::uint64_t client, std::uint64_t sequence) const {
  const auto found = windows_.find(client);
  if (found == windows_.end() || sequence > found->second.newest) return true;
  const Window& window = found->second;
  if (window.newest - sequence >= kWindow)
    return Error(ErrorCode::kFailedPrecondition,
                 "push " + std::to_string(sequence) + " of client " + std::to_string(client) +
                     " is more than " + std::to_string(kWindow - 1) + " behind its newest, " +
                     std::to_string(window.newest) + ": whether it was applied is not known");
  return !window.applied[sequence % kWindow];
}

void PushWindows::mark(std::uint64_t client, std::uint64_t sequence) {
  const auto [found, is_first] = windows_.try_emplace(client);
  Window& window = found->second;
  if (!is_first) order_.erase(window.place);
  order_.push_front(client);
  window.place = order_.begin();
  if (sequence > window.newest) {
    if (sequence - window.newest >= kWindow) window.applied.reset();
    // What leaves the window makes room for numbers not yet seen.
    else
      for (std::uint64_t s = window.newest + 1; s < sequence; ++s)
        window.applied[s % kWindow] = false;
    window.newest = sequence;
  }
  window.applied[sequence % kWindow] = true;
  if (windows_.size() <= kMaxClients) return;
  windows_.erase(order_.back());
  order_.pop_back();
}

std::uint64_t PushWindows::newest(std::uint64_t client) const {
  const auto found = windows_.find(client);
  return found == windows_.end() ? 0 : found->second.newest;
}

void PushWindows::forget(std::uint64_t client) {
  const auto found = windows_.find(client);
  if (found == windows_.end()) return;
  order_.erase(found->second.place);
  windows_.erase(found);
}

std::vector<PushWindows::Entry> PushWindows::entries() const {
  std::vector<Entry> entries;
  entries.reserve(windows_.size());
  for (const std::uint64_t client : order_) {
    const Window& window = windows_.at(client);
    entries.push_back({client, window.newest, window.applied});
  }
  return entries;
}

void PushWindows::restore(const std::vector<Entry>& entries) {
  windows_.clear();
  order_.clear();
  for (const Entry& entry : entries) {
    if (windows_.contains(entry.client)) continue;
    order_.push_back(entry.client);
    windows_[entry.client] = {entry.newest, entry.applied, std::prev(order_.end())};
  }
}

}  // namespace centroid::server
