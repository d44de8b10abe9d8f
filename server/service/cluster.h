#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/async/io_thread.h"
#include "common/async/task_group.h"
#include "common/base/clock.h"
#include "common/base/metrics.h"
#include "common/checkpoint/checkpoint.h"
#include "common/codec/codec.h"
#include "common/optim/norm.h"
#include "common/proto/messages.h"
#include "common/tensor/buffer.h"
#include "common/tensor/fragments.h"
#include "server/aggregate/aggregator.h"
#include "server/aggregate/reply_encoder.h"
#include "server/aggregate/round_machine.h"
#include "server/config.h"
#include "server/coordinate/coordinator.h"
#include "server/election/candidacy.h"
#include "server/membership/roster.h"
#include "server/service/admission.h"
#include "server/service/cluster_parts.h"
#include "server/service/contributions.h"
#include "server/service/initial_values.h"
#include "server/service/leader_gate.h"
#include "server/service/link.h"
#include "server/service/members.h"
#include "server/service/open_round.h"
#include "server/service/operator_commands.h"
#include "server/service/outbox.h"
#include "server/service/peer_exchange.h"
#include "server/service/round_loop.h"
#include "server/service/state_images.h"
#include "server/service/wait_report.h"
#include "server/shard/reply_reader.h"
#include "server/shard/shard_group.h"
#include "server/state/job_state.h"
#include "server/state/job_totals.h"
#include "server/store/journal.h"
#include "server/store/memory_need.h"
#include "server/store/parameter_store.h"
#include "server/store/statistics.h"
#include "server/tables/rows_service.h"
#include "transport/session.h"

namespace centroid::server {

/// The training service: members' sessions in, rounds, results out, checkpoints. Everything runs on
/// one executor (one thread), so its state needs no lock. Files: cluster.cc (life, members),
/// cluster_rows.cc (tables), sessions.cc (frames), outbox.cc (sending), rounds.cc (the round loop),
/// merge.cc (its end), shares.cc, epochs.cc, replies.cc (results through a codec), elastic.cc
/// (rounds that close without some members), initial.cc (initial values), state.cc, checkpoints.cc,
/// durability.cc, replay.cc (the journal), handover.cc (state that the workers hold), spread.cc,
/// spread_moves.cc, spread_checkpoint.cc (a model on several servers), pulls.cc (readers),
/// operations.cc, operators.cc, restore.cc (acts of operators), leading.cc (standby), view.cc,
/// view_waits.cc (what REST sees).
class Cluster final : private RoundControl {
 public:
  Cluster(Executor executor, Executor blocking, const ServerConfig& config, const Clock& clock,
          metrics::Registry& registry);
  ~Cluster() override;

  /// Open the checkpoint folder, load what `resume` or `init` ask for; `run` does it first if need
  /// be.
  Task<Status> prepare();
  bool is_beginning() const { return gate_.is_beginning(); }
  /// With several servers, before `run`: this one is a standby until it is told otherwise. The
  /// fence outlives this.
  void stand_by(Fence& fence);
  /// From the executor: who leads now.
  void set_leadership(Leadership present) { gate_.set_leadership(std::move(present)); }
  /// Another server leads, or may; asked when `run` has ended.
  bool is_deposed() const { return gate_.is_deposed(); }
  /// Accept and train until the job is over or `request_stop`. The result is the process's: an
  /// error when the job halted.
  Task<Status> run(transport::Listener& listener);
  /// From the executor: finish the round, checkpoint, tell everybody, end. With `leave_workers`
  /// nobody is told: the workers' connections end, and they wait for a server to come back.
  void request_stop(const std::string& why, bool leave_workers = false);
  /// Whether the job halted itself; asked when `run` has ended.
  bool is_halted() const { return phase_.is(Phase::kHalted); }
  /// Whether `run` ended before the job was over, to be gone on with; asked when `run` has ended.
  bool goes_on() const {
    return phase_.is(Phase::kStopping) && !commands_.stop && !data_.goal_reached();
  }

  /// Where what operators said is written, so that it does not wait for other files. Before
  /// `prepare`.
  void set_files(Executor files) { commands_.set_files(std::move(files)); }
  /// What knows the settings by name; `config` of the constructor are its targets. Before
  /// `prepare`.
  void set_schema(config::Schema* schema) { commands_.set_schema(schema); }
  /// Told on the executor when settings have changed; before `run`.
  void on_config_change(std::function<void()> told) { told_of_change_ = std::move(told); }
  /// Which tokens beside `token` let a worker in, and what shard servers are told of them; before
  /// `run`.
  void set_tokens(std::function<bool(std::string_view)> accepts,
                  std::function<proto::Tokens()> told);

 private:
  class MemberSink;
  friend class MemberSink;
  friend class Control;
  // cluster.cc
  Task<void> accept_loop(transport::Listener& listener);
  Task<void> serve(std::unique_ptr<transport::Connection> connection);
  Task<void> watch_leases();
  // RoundControl
  void decide(RoundDecision decision) override { attempts_.decide(std::move(decision)); }
  void chunk_complete(ChunkId chunk, double total_weight) override {
    merge_.chunk_complete(chunk, total_weight);
  }
  void member_gone(MemberId member, std::optional<Error> tell) override;
  Task<void> finish_everybody(proto::FinishReason reason, std::string text);

  // leading.cc
  Task<Status> take_the_lead();
  Task<void> write_last_checkpoint();
  Task<void> send_workers_away();

  // job.cc: pause, resume, and a stop that a restart does not forget
  Task<void> heed_stop();
  Task<void> stay_stopped();
  bool keeps_halts() const;
  Task<void> keep_halt(const Error& why);

  // sessions.cc
  Task<void> expect_join(transport::Session& session, const MemberSink& sink);

  // cluster_rows.cc: tables
  Task<Status> load_rows();
  Status prepare_rows();
  Task<Status> checkpoint_of_rows();
  Status start_rows_journal();

  class Pulls;
  void settings_changed();
  transport::Greeting greeting() const;

  Executor executor_;
  FileThread disk_;
  StateUse use_;
  const ServerConfig& config_;
  const Clock& clock_;
  Probe probe_;
  EventLog events_;
  RowsService rows_;                           ///< its clients are no members
  std::unique_ptr<RowsServers> rows_servers_;  ///< none: all rows are here
  std::optional<Error> rows_failure_;
  std::function<void()> told_of_change_;
  std::function<bool(std::string_view)> accepts_token_;
  TimePoint started_;
  JobPhase phase_;
  StopRequest stopping_;
  Event changed_;  ///< members, decisions, requests: wakes the round loop
  LeaderGate gate_;
  OperatorCommands commands_;

  Members members_;
  RoundPolicy policy_;
  const AggregateRule aggregate_;
  JobState job_;
  OpenRound open_;
  JobTotals totals_;
  ShardGroup shards_;
  Spread spread_;
  Waits waits_;
  Journal journal_;
  std::unique_ptr<Replay> replay_;         ///< until it is over
  std::optional<proto::Finish> epilogue_;  ///< what members hear that come when the rounds are over
  Event outgoing_;                         ///< wakes the outboxes
  std::optional<CheckpointDirectory> checkpoints_;
  DataShares data_;
  LocalShard local_;
  RoundServers round_servers_;
  ModelServers servers_;
  RoundJournal round_journal_;
  StateImages images_;
  ElasticRound elastic_;
  Contributions contributions_;
  InitialValues initial_values_;
  ChunkMoves moves_;
  StateLoader loader_;
  Checkpointer checkpointer_;
  PeerExchange exchange_;
  WaitReport wait_report_;
  std::shared_ptr<RestoreWanted> restore_;  ///< a checkpoint that an operator wants back
  RoundAttempts attempts_;
  RoundMerge merge_;
  JobStart start_;
  ServerChanges server_changes_;
  Restoration restoration_;
  Outbox outbox_;
  Admission admission_;
  RoundLoop rounds_;

  std::unique_ptr<Pulls> pulls_;
  FetchedVersions fetched_;
  TaskGroup tasks_;
};

}  // namespace centroid::server
