#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>

#include "common/base/clock.h"
#include "common/base/result.h"

namespace centroid::server {

/// Protects the folders that servers share from a former leader. Every step that makes a round or a
/// checkpoint final checks it first.
///
/// open    while the election permits this server to act, by the local clock, and the file
///         `term.json` in the folder names no later term
/// thread  any
class Fence {
 public:
  static constexpr const char* kFile = "term.json";

  Fence(std::filesystem::path folder, std::string server)
      : folder_(std::move(folder)), server_(std::move(server)) {}

  /// From the election: this server leads in `term`, and may act until then.
  /// True: it was closed a moment ago, so those that wait for it are to be notified.
  bool open(std::uint64_t term, TimePoint until);
  void close(std::string why);  ///< for good

  /// fails   unavailable: not now, perhaps later (the lease could not be renewed); aborted: never
  ///         again, another server leads or may lead
  Status holds() const;
  /// The same, and the file is read.
  Status check();
  /// Read the file although the lease has expired: without etcd only it shows another leader.
  void look();
  /// Write the term into the folder, atomically. Blocks.
  /// fails   failed_precondition: it names a later term, so this etcd is not the previous one
  Status take() const;

  /// For a server without an election, before it reads or writes the folder. Blocks.
  /// fails   failed_precondition: the folder belongs to servers whose leader etcd elects
  static Status check_alone(const std::filesystem::path& folder);

  std::uint64_t term() const;
  const std::string& server() const { return server_; }

 private:
  struct State {
    std::uint64_t term = 0;
    TimePoint until = TimePoint::min();
    std::string closed;
  };
  State state() const;
  Status check_file();

  const std::filesystem::path folder_;
  const std::string server_;
  mutable std::mutex mutex_;
  State state_;
};

}  // namespace centroid::server
