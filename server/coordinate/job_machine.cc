#include "server/coordinate/job_machine.h"

namespace centroid::server {

JobStep JobMachine::next(const JobFacts& facts) const {
  if (facts.lacks_state) return JobStep::kFetchState;
  if (facts.has_new_settings) return JobStep::kTakeSettings;
  if (facts.needs_restore) return JobStep::kRestore;
  // The state at the goal is only there when all servers are.
  if (facts.needs_stop || (facts.is_goal_reached && !facts.lost_server)) return JobStep::kEnd;
  if (facts.may_not_commit) return JobStep::kAwaitLead;
  if (facts.needs_freeze) return JobStep::kFreeze;
  if (facts.replays) return JobStep::kReplay;
  if (facts.is_paused) return JobStep::kPause;
  if ((facts.awaits_server || facts.has_values) && !is_settled_) return JobStep::kResolveServers;
  if (!has_workers_) return JobStep::kGather;
  if (!facts.has_values) return JobStep::kInitialize;
  if (facts.lacks_journal) return JobStep::kBeginJournal;
  return JobStep::kTrain;
}

void JobMachine::over(JobStep step, bool answer) {
  const bool goes_on = (step == JobStep::kResolveServers || step == JobStep::kGather) && answer;
  if (!goes_on) *this = JobMachine();
  if (step == JobStep::kResolveServers) is_settled_ = answer;
  if (step == JobStep::kGather) has_workers_ = answer;
}

}  // namespace centroid::server
