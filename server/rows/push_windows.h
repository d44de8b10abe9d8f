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

/// Which pushes of which client have been applied, so that a push that is sent again after a
/// reconnect is not applied again. Remembers the newest kWindow sequence numbers of each client
/// until it is to forget that client: who owns this says when nobody of that name comes again.
class PushWindows {
 public:
  static constexpr std::uint64_t kWindow = 1024;
  /// Beyond so many no new client is taken. 150 bytes each, in memory and in every checkpoint.
  static constexpr std::size_t kMaxClients = 16384;

  /// False: this push has been applied.
  /// fails  failed_precondition when that is no longer known (the number is kWindow or more behind
  ///        the client's newest).
  Result<bool> is_new(std::uint64_t client, std::uint64_t sequence) const;
  /// Whether a push of this client can be remembered.
  /// fails resource_exhausted: it is new, and there are kMaxClients
  Status check_room(std::uint64_t client) const;
  /// This push has been applied; is_new said true.
  void mark(std::uint64_t client, std::uint64_t sequence);
  /// The client's newest; 0: none.
  std::uint64_t newest(std::uint64_t client) const;
  std::size_t clients() const { return windows_.size(); }
  /// Nobody of this name comes again.
  void forget(std::uint64_t client) { windows_.erase(client); }

  /// What is known of a client, for a checkpoint.
  struct Entry {
    std::uint64_t client = 0, newest = 0;
    std::bitset<kWindow> applied;
    /// `applied` as bytes, the first bit the lowest.
    std::array<std::byte, kWindow / 8> bytes() const;
    void take_bytes(std::span<const std::byte> bytes);
  };
  /// By client.
  std::vector<Entry> entries() const;
  /// Of entries(), beside what is there; of a client that is in both the newer. Those of several
  /// servers may be more than kMaxClients: none is forgotten.
  void restore(const std::vector<Entry>& entries);

 private:
  struct Window {
    std::uint64_t newest = 0;
    std::bitset<kWindow> applied;  ///< by sequence modulo kWindow
  };
  std::unordered_map<std::uint64_t, Window> windows_;
};

}  // namespace centroid::server
