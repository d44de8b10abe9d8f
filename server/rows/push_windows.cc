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

}  // namespace centroid::server
