#pragma once

#include "server/service/job_context.h"

namespace centroid::server {

/// What every part of a job's server knows: the state and the services, by the names under which
/// the parts use them. Of one thread.
class JobPart {
 protected:
  explicit JobPart(JobContext& c)
      : context_(c),
        executor_(c.executor),
        config_(c.config),
        clock_(c.clock),
        disk_(c.disk),
        use_(c.use),
        probe_(c.probe),
        events_(c.events),
        phase_(c.phase),
        stopping_(c.stopping),
        changed_(c.changed),
        gate_(c.gate),
        job_(c.job),
        commands_(c.commands),
        members_(c.members),
        policy_(c.policy),
        aggregate_(c.aggregate),
        open_(c.open),
        totals_(c.totals),
        spread_(c.spread),
        waits_(c.waits),
        journal_(c.journal),
        replay_(c.replay),
        checkpoints_(c.checkpoints),
        fetched_(c.fetched),
        restore_(c.restore),
        epilogue_(c.epilogue),
        tasks_(c.tasks) {}
  /// As Waits::until.
  Task<bool> until(std::function<bool()> is_true, BlockedOn on,
                   TimePoint deadline = TimePoint::max()) const {
    return waits_.until(std::move(is_true), std::move(on), deadline);
  }

  /// Until no checkpoint is being written; it takes no rests meanwhile.
  Task<bool> until_written(BlockedOn on) const;

  JobPart(const JobPart&) = delete;
  JobPart& operator=(const JobPart&) = delete;
  ~JobPart() = default;

  JobContext& context_;  ///< for parts that this one makes
  const Executor& executor_;
  const ServerConfig& config_;
  const Clock& clock_;
  FileThread& disk_;
  StateUse& use_;
  Probe& probe_;
  EventLog& events_;
  JobPhase& phase_;
  StopRequest& stopping_;
  Event& changed_;
  LeaderGate& gate_;
  JobState& job_;
  OperatorCommands& commands_;
  Members& members_;
  RoundPolicy& policy_;
  const AggregateRule& aggregate_;
  OpenRound& open_;
  JobTotals& totals_;
  Spread& spread_;
  Waits& waits_;
  Journal& journal_;
  std::shared_ptr<Replay>& replay_;
  std::optional<CheckpointDirectory>& checkpoints_;
  FetchedVersions& fetched_;
  std::shared_ptr<RestoreWanted>& restore_;
  std::optional<proto::Finish>& epilogue_;
  TaskGroup& tasks_;
};

}  // namespace centroid::server
