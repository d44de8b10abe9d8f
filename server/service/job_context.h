#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "common/checkpoint/checkpoint.h"
#include "server/service/members.h"
#include "server/service/open_round.h"
#include "server/service/operator_commands.h"
#include "server/service/replay.h"
#include "server/service/spread.h"
#include "server/service/state_use.h"
#include "server/state/job_state.h"
#include "server/state/job_totals.h"
#include "server/store/journal.h"

namespace centroid::server {

/// The state of a job's server, and what its parts need to work. The parts (JobParts) get
/// references to what they need of it. Of one thread.
struct JobContext {
  JobContext(Executor on, Executor blocking, const ServerConfig& settings, const Clock& time,
             metrics::Registry& registry)
      : executor(on),
        config(settings),
        clock(time),
        disk{std::move(blocking),
             std::make_shared<DutyCycle>(settings.checkpoint_processor_share * core_count())},
        use(on),
        probe(registry),
        events(time),
        phase(time, events, probe),
        changed(on),
        outgoing(on),
        gate(time, changed, phase, stopping),
        commands(on, disk.executor, settings, time, gate, job),
        members({.lease = settings.lease,
                 .max_members = static_cast<std::size_t>(settings.max_workers)}),
        policy(policy_of(settings)),
        aggregate(AggregateRule::parse(settings.aggregate).value()),
        open(policy),
        waits(time),
        journal(on),
        tasks(on) {
    job.run_id = settings.run_id;
  }

  /// What looks at settings when they change does; the rest looks at them between two rounds.
  void settings_changed();

  const Executor executor;
  const ServerConfig& config;
  const Clock& clock;
  FileThread disk;
  StateUse use;
  Probe probe;
  EventLog events;
  JobPhase phase;
  StopRequest stopping;
  Event changed;   ///< members, decisions, requests: wakes the round loop
  Event outgoing;  ///< wakes the outboxes
  LeaderGate gate;
  JobState job;
  OperatorCommands commands;
  Members members;
  RoundPolicy policy;
  const AggregateRule aggregate;
  OpenRound open;
  JobTotals totals;
  Spread spread;
  Waits waits;
  Journal journal;
  std::unique_ptr<Replay> replay;  ///< until it is over
  std::optional<CheckpointDirectory> checkpoints;
  FetchedVersions fetched;
  std::shared_ptr<RestoreWanted> restore;  ///< a checkpoint that an operator wants back
  std::optional<proto::Finish> epilogue;   ///< what members hear that come when the rounds are over
  std::function<void()> on_settings;       ///< told when settings have changed
  TaskGroup tasks;
};

}  // namespace centroid::server
