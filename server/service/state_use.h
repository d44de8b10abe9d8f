#pragma once

#include <cstddef>
#include <memory>

#include "common/async/task.h"
#include "server/store/duty_cycle.h"

namespace centroid::server {

/// What reads or replaces the state beside the rounds. Of one thread.
struct StateUse {
  bool is_loading = false;       ///< what is left of the store is of no version
  bool is_writing = false;       ///< a checkpoint
  bool is_loop_writing = false;  ///< the round loop itself waits for it
  bool is_measured = false;      ///< for statistics
  bool is_merging = false;       ///< a round is committed, on one server after the other
  std::size_t readers = 0;       ///< wait for the newest state, which may be with the workers
};

/// While it lives somebody waits for the newest state.
class WantsState {
 public:
  explicit WantsState(StateUse& use) : use_(use) { ++use_.readers; }
  ~WantsState() { --use_.readers; }
  WantsState(const WantsState&) = delete;
  WantsState& operator=(const WantsState&) = delete;

 private:
  StateUse& use_;
};

/// The thread of files. A checkpoint that it writes beside rounds takes rests.
struct FileThread {
  Executor executor;
  std::shared_ptr<DutyCycle> duty;

  /// For what somebody waits for: no rests from here on.
  const Executor& hurried() {
    duty->hurry();
    return executor;
  }
};

}  // namespace centroid::server
