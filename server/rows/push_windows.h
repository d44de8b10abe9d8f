#pragma once

#include <bitset>
#include <cstdint>
#include <list>
#include <unordered_map>
#include <vector>

#include "common/base/result.h"

namespace centroid::server {

/// Which pushes of which client have been applied, so that a push that is sent again after a
/// reconnect is not applied again. Remembers the newest kWindow sequence numbers of a client and
/// the kMaxClients clients that pushed last.
class PushWindows {
 public:
  static constexpr std::uint64_t kWindow = 1024;
  static constexpr std::size_t kMaxClients = 4096;

  /// False: this push has been applied. fails failed_precondition when that is no longer known (the
  /// number is kWindow or more behind the client's newest).
  Result<bool> is_new(std::uint64_t client, std::uint64_t sequence) const;
  /// This push has been applied; is_new said true.
  void mark(std::uint64_t client, std::uint64_t sequence);
  /// The client's newest; 0: none.
  std::uint64_t newest(std::uint64_t client) const;
  std::size_t clients() const { return windows_.size(); }
  /// Nobody of this name comes again.
  void forget(std::uint64_t client);

  /// What is known of a client, for a checkpoint.
  struct Entry {
    std::uint64_t client = 0, newest = 0;
    std::bitset<kWindow> applied;
  };
  /// Who pushed last first.
  std::vector<Entry> entries() const;
  /// Of entries(); in place of what is there. At most kMaxClients.
  void restore(const std::vector<Entry>& entries);

 private:
  struct Window {
    std::uint64_t newest = 0;
    std::bitset<kWindow> applied;  ///< by sequence modulo kWindow
    std::list<std::uint64_t>::iterator place;
  };
  std::unordered_map<std::uint64_t, Window> windows_;
  std::list<std::uint64_t> order_;  ///< clients, who pushed last first
};

}  // namespace centroid::server
