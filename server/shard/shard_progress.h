#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace centroid::server {

/// The present activity of a shard server, for its reports. The leader does not drop a server that
/// makes progress.
///
/// thread  one
class ShardProgress {
 public:
  /// Sets the present activity for its lifetime and restores the enclosing one afterwards.
  class Activity {
   public:
    /// `waits`: it waits for something outside this server.
    Activity(ShardProgress& progress, std::string what, bool waits)
        : progress_(progress),
          what_(std::exchange(progress.what_, std::move(what))),
          waits_(std::exchange(progress.waits_, waits)) {}
    ~Activity() { progress_.what_ = std::move(what_), progress_.waits_ = waits_; }
    Activity(const Activity&) = delete;
    Activity& operator=(const Activity&) = delete;

   private:
    ShardProgress& progress_;
    std::string what_;
    bool waits_;
  };

  /// Record progress.
  void advance() { ++count_; }
  /// Call before each report: a wait counts as progress.
  void before_report() {
    if (waits_) ++count_;
  }
  const std::string& what() const { return what_; }
  std::uint64_t count() const { return count_; }

 private:
  std::string what_;
  bool waits_ = false;
  std::uint64_t count_ = 0;
};

}  // namespace centroid::server
