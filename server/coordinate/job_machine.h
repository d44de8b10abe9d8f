#pragma once

#include <cstdint>

namespace centroid::server {

/// What the next step of a job depends on, between two rounds.
struct JobFacts {
  bool lacks_state = false;       ///< the newest state is with workers, and is wanted here
  bool has_new_settings = false;  ///< an operator changed some
  bool needs_restore = false;     ///< an operator wants an earlier checkpoint back
  bool needs_stop = false;
  bool is_goal_reached = false;
  bool lost_server = false;     ///< one is gone with its chunks
  bool awaits_server = false;   ///< that one is waited for
  bool may_not_commit = false;  ///< another server leads, or may
  bool needs_freeze = false;    ///< a checkpoint reads one version on all servers
  bool replays = false;         ///< rounds of the journal are still to be applied
  bool is_paused = false;       ///< by an operator
  bool has_values = false;      ///< the model has initial values
  bool lacks_journal = false;   ///< it is wanted, and has not begun
};

enum class JobStep : std::uint8_t {
  kFetchState,
  kTakeSettings,
  kRestore,
  kEnd,  ///< no round follows
  kAwaitLead,
  kFreeze,
  kReplay,
  kPause,
  kResolveServers,  ///< chunks lie where they are to, on servers that are here
  kGather,          ///< workers enough for a round
  kInitialize,
  kBeginJournal,
  kTrain,  ///< one round
};

/// What a job does between two rounds, one step after the other. Pure.
///
/// order    what an operator asks for, then what the job needs, then a round
/// answers  kResolveServers and kGather end with yes or no. A yes holds until a step of another
///          kind has been made: servers and workers may go meanwhile.
class JobMachine {
 public:
  JobStep next(const JobFacts& facts) const;
  /// The step is over; `answer`: of the two that have one.
  void over(JobStep step, bool answer = true);

 private:
  bool is_settled_ = false, has_workers_ = false;
};

}  // namespace centroid::server
