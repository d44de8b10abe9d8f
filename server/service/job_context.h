#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "common/async/work_threads.h"
#include "common/checkpoint/checkpoint.h"
#include "server/config/server_config.h"
#include "server/service/members.h"
#include "server/service/open_round.h"
#include "server/service/operator_commands.h"
#include "server/service/spread.h"
#include "server/service/state_use.h"
#include "server/service/waits.h"
#include "server/state/job_state.h"
#include "server/state/job_totals.h"
#include "server/store/journal.h"
#include "transport/strangers.h"

namespace centroid::server {

class Replay;

/// The state of a job's server, and what its parts need to work. The parts (JobParts) get
/// references to what they need of it. Of one thread.
struct JobContext {
  JobContext(Executor on, Executor blocking, const ServerConfig& settings, const Clock& time,
             metrics::Registry& registry);
  ~JobContext();

  /// What looks at settings when they change does; the rest looks at them between two rounds.
  void settings_changed();
  /// Notifies `changed` from any thread, also when this is gone.
  std::function<void()> notifier() const;

  const Executor executor;
  const ServerConfig& config;
  const Clock& clock;
  FileThread disk;
  WorkThreads combining;  ///< chunks, with another aggregate than the mean
  StateUse use;
  Probe probe;
  EventLog events;
  JobPhase phase;
  StopRequest stopping;
  const std::shared_ptr<Event> changed_shared;
  Event& changed;  ///< members, decisions, requests: wakes the round loop, and Waits::until
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
  std::shared_ptr<Replay> replay;  ///< until it is over
  std::optional<CheckpointDirectory> checkpoints;
  FetchedVersions fetched;
  std::shared_ptr<RestoreWanted> restore;  ///< a checkpoint that an operator wants back
  std::optional<proto::Finish> epilogue;   ///< what members hear that come when the rounds are over
  std::function<void()> on_settings;       ///< told when settings have changed
  transport::Strangers strangers;          ///< at the port for workers
  bool awaits_workers = false;             ///< there is nothing else to do
  TaskGroup tasks;
};

}  // namespace centroid::server
