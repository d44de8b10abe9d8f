#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace centroid::server {

/// What a shard server does for its leader at the moment. Its reports say so, and the leader does
/// not give up a server that makes progress.
///
/// thread  one
class ShardProgress {
 public:
  /// Names the present activity for its lifetime; the one around it is named again afterwards.
  class Activity {
   public:
    /// `waits`: for something that this server cannot influence.
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

  /// A piece of work is done.
  void advance() { ++count_; }
  /// Call before each report: a wait is no lack of progress.
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
