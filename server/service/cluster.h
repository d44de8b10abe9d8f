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
#include "server/service/cluster_parts.h"
#include "server/service/contributions.h"
#include "server/service/initial_values.h"
#include "server/service/leader_gate.h"
#include "server/service/link.h"
#include "server/service/members.h"
#include "server/service/open_round.h"
#include "server/service/operator_commands.h"
#include "server/service/peer_exchange.h"
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
  Result<proto::JoinReply> admit(transport::Session& session, proto::Join join);
  Status check_join(const transport::Session& session, const proto::Join& join);
  Task<void> expect_join(transport::Session& session, const MemberSink& sink);

  // contributions.cc

  // outbox.cc
  Task<void> outbox(std::shared_ptr<Link> link, transport::Session& session);
  Task<Status> outbox_loop(std::shared_ptr<Link> link, transport::Session& session);
  void results_taken();
  Task<Status> send_state(std::shared_ptr<Link> link, transport::Session& session, Version version);

  // rounds.cc
  Task<Status> run_rounds();
  Task<Status> one_round();
  Task<bool> wait_for_members();
  void await_members_again();
  void dismiss_drained();
  void open_attempt(std::vector<MemberId> members, std::vector<proto::RoundOpen> shares,
                    bool resend);
  bool retry(const RoundDecision& decision);
  TimePoint round_limit() const;
  void leave_silent_out();
  void set_silent(Link& link);
  Task<Status> merge(RoundDecision decision);
  Task<void> snapshot_room();
  void chunk_complete(ChunkId chunk, double total_weight) override;
  void emit(const Chunk& chunk);
  void decide(RoundDecision decision) override;
  void close_attempt(proto::Outcome outcome, double weight, std::uint32_t contributors,
                     std::string reason);
  void round_over();

  // replies.cc
  void encode_reply(ChunkId chunk);

  // handover.cc: the state of a peer-to-peer exchange is with the workers

  // elastic.cc: policies that close a round without some members
  Task<void> sum_parts(double total_weight);

  // state.cc
  void go_on_from(JobState next);
  Task<Status> load_rows();
  Status prepare_rows();
  Task<Status> checkpoint_of_rows();
  Status start_rows_journal();

  // operations.cc, restore.cc: what an operator may do
  Task<void> apply_changes();
  void settings_changed();
  Task<Status> restore_wanted();
  Task<Result<RestoreView>> restore(Version version, bool delete_newer);
  Task<void> dismiss_everybody(std::string why);

  // spread.cc, spread_room.cc: several servers
  class Pulls;
  Result<proto::ServerTerms> admit_server(transport::Session& session, TaskGroup& tasks,
                                          const proto::ServerJoin& join,
                                          std::shared_ptr<ShardGroup::Link>& link);
  Task<Result<bool>> settle_servers();
  bool is_first_placement() const;
  Task<Status> drain_while_paused();

  // spread_moves.cc: chunks that change their server while rounds go on
  Task<bool> may_move();
  void lose_server();
  Task<Result<bool>> recover_servers();
  void refused_elsewhere(const ShardGroup::Link& server, const proto::Refused& refused);
  Task<Status> give_up_merge(Error why);

  // durability.cc: the journal of rounds
  Task<Status> start_journal();

  // replay.cc: the journal read again
  Status begin_replay();
  Task<Result<bool>> replay_on();

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
  bool is_changed_ = false;  ///< settings that are looked at between rounds
  std::function<void()> told_of_change_;
  std::function<bool(std::string_view)> accepts_token_;
  const std::string node_ = transport::this_node();
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

  // what operators asked for
  using Restore = RestoreWanted;
  std::shared_ptr<Restore> restore_;
  std::unique_ptr<Pulls> pulls_;
  Generation generation_told_;
  FetchedVersions fetched_;
  std::uint64_t trained_rounds_ = 0;  // by this process, of the state that it has
  bool was_restored_ = false;         // while it ran
  std::optional<TimePoint> members_until_;
  TaskGroup tasks_;
};

}  // namespace centroid::server
