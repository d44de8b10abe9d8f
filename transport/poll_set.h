#pragma once

#include <algorithm>
#include <vector>

namespace centroid::transport {

/// Streams in shared memory, for the thread that runs their executor: it can poll them without a
/// system call, and before it sleeps it arms them, so that peers ring its bell only then.
///
/// thread  the executor's
class PollSet {
 public:
  class Member {
   public:
    /// Resume waiters with received bytes; false: none.
    virtual bool poll() = 0;
    /// Peers ring from now on. False: something has arrived already, and was polled.
    virtual bool arm() = 0;
    virtual void disarm() = 0;

   protected:
    ~Member() = default;
  };

  void add(Member& member) { members_.push_back(&member); }
  void remove(Member& member) { std::erase(members_, &member); }
  bool empty() const { return members_.empty(); }

  bool poll() {
    bool found_work = false;
    for (Member* const member : members_) found_work |= member->poll();
    return found_work;
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
