#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/base/result.h"

namespace centroid::server {

/// Records which pushes of each client have been applied, so that a push that is repeated after a
/// reconnect is not applied twice. Stores the newest kWindow sequence numbers of each client until
/// the owner calls `forget`.
class PushWindows {
 public:
  static constexpr std::uint64_t kWindow = 1024;
  /// Limit of clients. Each takes 150 bytes in memory and in every checkpoint.
  static constexpr std::size_t kMaxClients = 16384;

  /// False: this push has been applied.
  /// fails  failed_precondition: unknown, because the number is older than the client's newest by
  ///        kWindow or more.
  Result<bool> is_new(std::uint64_t client, std::uint64_t sequence) const;
  /// Check that a push of this client can be recorded.
  /// fails  resource_exhausted: the client is new, and there are kMaxClients
  Status check_room(std::uint64_t client) const;
  /// Record that this push has been applied. Call only if is_new.
  void mark(std::uint64_t client, std::uint64_t sequence);
  /// The client's newest; 0: none.
  std::uint64_t newest(std::uint64_t client) const;
  std::size_t clients() const { return windows_.size(); }
  /// The client will not return.
  void forget(std::uint64_t client) { windows_.erase(client); }

  /// The record of a client, for a checkpoint.
  struct Entry {
    std::uint64_t client = 0, newest = 0;
    std::bitset<kWindow> applied;
    /// `applied` as bytes, the first bit the lowest.
    std::array<std::byte, kWindow / 8> bytes() const;
    void take_bytes(std::span<const std::byte> bytes);
  };
  /// By client.
  std::vector<Entry> entries() const;
  /// Merge the result of entries() into this; for a client in both the newer entry wins. Merging
  /// several servers' entries may exceed kMaxClients; none is dropped.
  void restore(const std::vector<Entry>& entries);

 private:
  struct Window {
    std::uint64_t newest = 0;
    std::bitset<kWindow> applied;  ///< by sequence modulo kWindow
  };
  std::unordered_map<std::uint64_t, Window> windows_;
};

}  // namespace centroid::server
