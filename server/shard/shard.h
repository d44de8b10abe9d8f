#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/async/task_group.h"
#include "common/base/clock.h"
#include "common/base/trace.h"
#include "common/checkpoint/journal_parts.h"
#include "common/codec/codec.h"
#include "common/proto/servers.h"
#include "common/tensor/fragments.h"
#include "server/aggregate/contribution_stage.h"
#include "server/aggregate/reply_encoder.h"
#include "server/shard/reply_reader.h"
#include "server/shard/shard_probe.h"
#include "server/shard/shard_rows.h"
#include "server/store/disk_watch.h"
#include "server/store/journal.h"
#include "server/store/parameter_store.h"
#include "server/store/statistics.h"
#include "server/tokens/digest.h"
#include "transport/server_list.h"
#include "transport/session.h"

namespace centroid::server {

struct ShardOptions {
  std::string name;  ///< unique among the servers
  /// Whom to join: the leader, or servers one of which leads, and which know who does.
  std::vector<transport::Endpoint> leaders;
  std::string advertise;  ///< HOST:PORT where workers reach this server
  std::string token;
  std::uint64_t memory_limit = 0;  ///< bytes; 0: the cgroup's or the machine's
  std::string journal_dir;         ///< used where the leader keeps a journal
  std::uint64_t max_workers = 256;
  std::uint64_t max_payload_bytes = 128u << 20;
  std::chrono::milliseconds join_timeout{60'000};  ///< give up after so long without a leader
  std::chrono::milliseconds stall_timeout{30'000};
  std::uint64_t snapshot_budget = UINT64_MAX;  ///< bytes at most; else as much memory as is free
  std::chrono::milliseconds drain_timeout{
      30'000};  ///< how long a stop waits for its chunks to move; 0: the leader loses them
};

/// A server that holds some chunks of a model and does what its leader says: it keeps the
/// contributions that workers bring, sums those that the leader's decision names, makes the step
/// and sends the results.
///
/// state   lives as long as the session with the leader: who lost it begins empty with the next. So
///         nothing that an old leader, or a leader that has given this server up, still does can
///         reach a job
/// journal where the leader keeps one, so does each server, of its own chunks: what is prepared is
///         on disk before the leader hears of it, so a round that the leader has committed can be
///         recalled from here, also after a restart. What it has not is never asked for
/// counts  a contribution is kept until a Merge names it, a newer one of its worker comes, or its
///         worker is gone: what no Merge names leaves no trace
/// thread  one executor
class Shard {
 public:
  Shard(Executor executor, transport::Transport& transport, ShardOptions options,
        const Clock& clock, metrics::Registry& registry);
  ~Shard();

  /// Serve until the leader says that the job is over or this server drained.
  /// fails unavailable (no leader within join_timeout), or as the leader refuses.
  Task<Status> run(transport::Listener& listener);
  /// Give its chunks to the other servers, at most `drain_timeout` long, then end.
  void request_stop(const std::string& why);
  /// It has a leader, and of that one's model what lies here.
  /// fails  unavailable: why not
  /// thread  any
  Status is_ready() const;

 private:
  class LeaderSink;
  class WorkerSink;

  /// A result on its way to workers.
  struct Piece {
    proto::ResultChunk head;
    std::shared_ptr<const std::vector<std::byte>> values;
    std::uint32_t crc = 0;
  };
  struct Worker {
    proto::Enter enter;
    std::shared_ptr<const Codec> codec;
    transport::Session* session = nullptr;
    TaskGroup* tasks = nullptr;
    trace::Lane lane;
    std::deque<Piece> outgoing;
    Event wake;
    explicit Worker(Executor executor) : wake(executor) {}
  };
  /// Contributions kept of one worker: the newest, and what of earlier ones still waits for a
  /// round.
  static constexpr std::size_t kKept = 4;
  struct Staged {
    proto::ContributionKey key;
    std::shared_ptr<StagedContribution> contribution;  ///< a merge holds it while its worker goes
  };

  // shard.cc: life
  Task<void> accept_loop(transport::Listener& listener);
  Task<void> expect_enter(transport::Session& session, const WorkerSink& sink);
  Task<void> serve_worker(std::unique_ptr<transport::Connection> connection);
  Task<Error> serve_leader(transport::Session& session);
  Task<Status> join_leader(transport::Session& session);
  Task<void> heartbeats(transport::Session& session);
  Task<void> leave(transport::Session& session);
  Task<Result<std::unique_ptr<transport::Session>>> connect();
  void forget_everything(const Error& why);
  /// `why` it is not ready; empty: it is.
  void set_ready(const std::string& why);

  /// What is done for the leader, or `waits` for something that is not in this server's hands.
  class Busy {
   public:
    Busy(Shard& shard, std::string what, bool waits)
        : shard_(shard),
          what_(std::exchange(shard.busy_, std::move(what))),
          waits_(std::exchange(shard.waits_, waits)) {}
    ~Busy() { shard_.busy_ = std::move(what_), shard_.waits_ = waits_; }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;

   private:
    Shard& shard_;
    std::string what_;
    bool waits_;
  };
  friend class Busy;
  /// The leader of the round that is merged is still there; a task of its session is cancelled
  /// before what it works on is taken away.
  bool is_led() const { return merging_ && leader_ != nullptr; }

  // shard_state.cc: what the leader asks for
  Status take_model(const proto::ServerModel& model);
  Status check_room(const proto::ServerModel& model, std::size_t slots);
  Status reckon_again(const proto::Reckon& wanted);
  Status take_optimizer(const proto::OptimizerChange& change);
  OptimizerConfig optimizer_config() const;
  proto::ServerReport report() const;
  void tell_probe(const proto::ServerReport& now);
  Status take_place(proto::Route route);
  Status take_chunk(const proto::ServerChunk& head, Bytes values);
  Status begin(const proto::ServerState& state);
  Result<std::vector<float>> read_chunk(const proto::ServerChunk& head);
  Status freeze(const proto::ServerState& state);
  Task<Result<proto::MergeReply>> merge(proto::Merge merge);
  Task<Status> step(proto::Step step);
  Status commit(const proto::ServerState& state);
  void forget(const proto::Forget& gone);
  const std::vector<Chunk>& part() const;
  void settle();

  // shard_results.cc: what workers get, and what the leader tells of the parameters
  Status make_replies();
  void begin_replies();
  void emit(const Chunk& chunk, Bytes values);
  Status encode_reply(const Chunk& chunk);
  Task<Status> measure_replies(std::vector<double>* squares);
  Status apply_reply(const Chunk& chunk);
  Task<Result<std::vector<StatisticsPart>>> statistics(proto::Statistics wanted);

  // shard_journal.cc
  journal::Form journal_form() const;
  std::string journal_terms() const;
  journal::Base journal_base(Round over) const;
  Status look_at_journal(const std::string& run_id);
  Status open_journal(const proto::ServerState& state);
  Task<Status> end_journal_round();
  Result<journal::Parts::Numbers> recall(const proto::Recall& wanted);
  void checkpointed(Round round);

  // shard_worker.cc: what workers bring
  void drop_all_but(const proto::Merge& merge);
  Result<std::shared_ptr<Worker>> enter(transport::Session& session, proto::Enter enter);
  void take_opened(proto::Opened told);
  bool is_member(const proto::Enter& enter) const;
  bool is_opened(const proto::ContributionKey& key) const;
  Task<Status> await_member(const proto::Enter& enter);
  Task<Status> await_opened(const proto::Enter& enter, proto::ContributionKey key);
  Task<Status> take_push(transport::Session& session, std::shared_ptr<Worker> worker,
                         proto::Push push, std::uint64_t bytes);
  Status check_push(const Worker& worker, const proto::Push& push, std::uint64_t bytes) const;
  StagedContribution* stage_for(const proto::ContributionKey& key,
                                const std::shared_ptr<const Codec>& codec);
  std::shared_ptr<StagedContribution> staged(const proto::ContributionKey& key);
  Task<void> outbox(std::shared_ptr<Worker> worker);
  void tell_whole(const proto::ContributionKey& key, const StagedContribution& kept);
  void session_ended(const proto::Enter& enter, const Error& why);
  Task<void> tell_refused(transport::Session& leader,
                          std::shared_ptr<const proto::Refused> refused);
  Task<void> tell_if_away(transport::Session& leader,
                          std::shared_ptr<const proto::Refused> refused);

  Executor executor_;
  transport::Transport& transport_;
  const ShardOptions options_;
  const Clock& clock_;
  ShardProbe probe_;
  mutable std::mutex ready_mutex_;  // guards the next
  std::string why_not_ready_ = "no leader has answered yet";
  Event changed_;
  bool stopping_ = false;
  bool leaving_ = false;  ///< asked to stop; its chunks move to other servers
  std::string stop_reason_;

  transport::ServerList leaders_;
  transport::Session* leader_ = nullptr;
  TaskGroup* leader_tasks_ = nullptr;
  bool is_joined_ = false;
  proto::ServerTerms terms_;
  proto::ServerModel model_;
  std::unique_ptr<ParameterStore> store_;
  FragmentPlan fragments_;
  proto::Route route_;
  std::vector<std::vector<Chunk>> parts_;  ///< by fragment: what lies here
  /// By chunk: it is this server's by the route. The store follows with the next Merge or Freeze:
  /// until then what comes is being loaded, and what goes is being fetched.
  std::vector<bool> is_mine_;
  std::shared_ptr<Snapshot> frozen_;
  std::uint64_t snapshot_budget_ = 0;  ///< bytes of its copies
  std::string busy_;                   ///< told in every report
  bool waits_ = false;
  std::uint64_t progress_ = 0;
  std::optional<proto::Merge> merging_;  ///< merged, not committed
  // with codec_down
  std::unique_ptr<ReplyEncoder> replies_;
  std::unique_ptr<ReplyReader> reply_reader_;
  using Payload = std::shared_ptr<const std::vector<std::byte>>;
  std::map<ChunkId, Payload> encoded_;  ///< of the round that is merged
  Journal journal_;
  DiskWatch disk_;
  std::optional<journal::Parts> recalled_;  ///< what the journal had when the leader asked first
  std::optional<Error> fatal_;              ///< why this server cannot serve that leader
  ShardRows rows_;

  std::map<MemberId, std::shared_ptr<Worker>> workers_;
  std::vector<TokenDigest> tokens_;  ///< by which workers may come, beside `options_.token`
  /// What the leader of this session has opened, and for whom: crc32c of its name by member.
  proto::Opened opened_;
  std::map<MemberId, std::uint32_t> members_;
  MemberId newest_member_;   ///< of all that were told: ids are never used again
  std::set<MemberId> away_;  ///< whose sessions have ended, and who may come back
  std::map<MemberId, std::deque<Staged>> staged_;
  Round over_;                              ///< the last one that was merged here
  std::set<proto::ContributionKey> keeps_;  ///< to rounds up to it, that may count in a later one
  AggregateRule aggregate_;
  std::unique_ptr<RobustMean> robust_;  ///< none: the mean
  // for the report: of workers that are gone, and of all rounds
  transport::TrafficCounters traffic_;
  std::uint64_t rounds_ = 0;
  double merge_seconds_ = 0;
  Duration merged_time_{};  ///< of the round that is merged
  TaskGroup tasks_;
};

}  // namespace centroid::server
