#include "server/rows/push_windows.h"

#include <algorithm>
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

Status PushWindows::check_room(std::uint64_t client) const {
  if (windows_.size() < kMaxClients || windows_.contains(client)) return {};
  return Error(ErrorCode::kResourceExhausted,
               "client " + std::to_string(client) +
                   " is refused: " + std::to_string(windows_.size()) +
                   " clients have pushed here, as many as can be " +
                   "remembered so that no push is applied twice. Try again when one of them has " +
                   "been away for 10 minutes; use one client for many pushes, not one for each");
}

void PushWindows::mark(std::uint64_t client, std::uint64_t sequence) {
  Window& window = windows_[client];
  if (sequence > window.newest) {
    if (sequence - window.newest >= kWindow) window.applied.reset();
    // Clear the bits of the numbers that enter the window.
    else
      for (std::uint64_t s = window.newest + 1; s < sequence; ++s)
        window.applied[s % kWindow] = false;
    window.newest = sequence;
  }
  window.applied[sequence % kWindow] = true;
}

std::uint64_t PushWindows::newest(std::uint64_t client) const {
  const auto found = windows_.find(client);
  return found == windows_.end() ? 0 : found->second.newest;
}

std::array<std::byte, PushWindows::kWindow / 8> PushWindows::Entry::bytes() const {
  std::array<std::byte, kWindow / 8> bytes{};
  for (std::size_t i = 0; i < kWindow; ++i)
    if (applied[i]) bytes[i / 8] |= std::byte{1} << (i % 8);
  return bytes;
}

void PushWindows::Entry::take_bytes(std::span<const std::byte> bytes) {
  for (std::size_t i = 0; i < kWindow; ++i)
    applied[i] = (bytes[i / 8] >> (i % 8) & std::byte{1}) != std::byte{0};
}

std::vector<PushWindows::Entry> PushWindows::entries() const {
  std::vector<Entry> entries;
  entries.reserve(windows_.size());
  for (const auto& [client, window] : windows_)
    entries.push_back({client, window.newest, window.applied});
  std::ranges::sort(entries, {}, &Entry::client);
  return entries;
}

void PushWindows::restore(const std::vector<Entry>& entries) {
  for (const Entry& entry : entries) {
    const auto [found, is_first] = windows_.try_emplace(entry.client);
    if (is_first || found->second.newest < entry.newest)
      found->second = {entry.newest, entry.applied};
  }
}

}  // namespace centroid::server
