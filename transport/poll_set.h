#pragma once

#include <algorithm>
#include <vector>

namespace centroid::transport {

/// Streams in shared memory, for the thread that runs their executor: it may look whether something
/// has come without a system call, and before it sleeps it lets their peers know, so that only then
/// they wake it.
///
/// thread  the executor's
class PollSet {
 public:
  class Member {
   public:
    /// Resume who waits for what has come; false: nobody.
    virtual bool poll() = 0;
    /// From now on peers wake us. False: something has come already, and was polled.
    virtual bool arm() = 0;
    virtual void disarm() = 0;

   protected:
    ~Member() = default;
  };

  void add(Member& member) { members_.push_back(&member); }
  void remove(Member& member) { std::erase(members_, &member); }
  bool empty() const { return members_.empty(); }

  bool poll() {
    bool has_come = false;
    for (Member* const member : members_) has_come |= member->poll();
    return has_come;
  }
  /// False: do not sleep.
  bool arm() {
    bool may_sleep = true;
    for (Member* const member : members_) may_sleep &= member->arm();
    return may_sleep;
  }
  void disarm() {
    for (Member* const member : members_) member->disarm();
  }

 private:
  std::vector<Member*> members_;
};

}  // namespace centroid::transport
