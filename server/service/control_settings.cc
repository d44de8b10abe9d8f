#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "common/base/log_level.h"
#include "server/service/buffers.h"
#include "server/service/control.h"
#include "server/store/statistics.h"

/// What an operator may do beside the job's course: settings, checkpoints on disk, a look at the
/// parameters.
namespace centroid::server {

namespace {

constexpr std::size_t kSnapshotBudgetBytes = 64u << 20;
constexpr std::chrono::seconds kSnapshotPatience{8};
constexpr std::chrono::seconds kMeasuredAge{1};  ///< younger ones are told again

Error starting() { return {ErrorCode::kUnavailable, "the server is starting"}; }

/// `elsewhere`: by chunk, what another server told of it; empty: all are in the snapshot.
Result<ParametersView> measure(Snapshot& snapshot, const ChunkPlan& plan,
                               const std::vector<std::optional<StatisticsPart>>& elsewhere,
                               ParametersView view) {
  std::vector<float> values;
  for (std::uint32_t number = 0; number < plan.manifest().size(); ++number) {
    const TensorInfo& tensor = plan.manifest()[number];
    StatisticsSum sum;
    for (const Chunk& chunk : plan.chunks_of(TensorId(number))) {
      if (!elsewhere.empty() && elsewhere[chunk.id.value]) {
        sum.add(*elsewhere[chunk.id.value]);
        continue;
      }
      values.resize(chunk.elements);
      CENTROID_TRY(snapshot.read(0, chunk.position, values));
      StatisticsSum of_chunk;  // as elsewhere: the same bits on any number of servers
      of_chunk.add(values);
      sum.add(of_chunk.part());
    }
    const TensorStatistics found = sum.result();
    ParameterView one;
    one.name = tensor.name;
    one.dtype = to_string(tensor.dtype);
    one.shape.assign(tensor.shape.begin(), tensor.shape.end());
    one.elements = tensor.elements();
    one.bytes = tensor.bytes();
    one.nonfinite = found.nonfinite;
    one.min = found.min;
    one.max = found.max;
    one.mean = found.mean;
    one.deviation = found.deviation;
    one.norm = found.norm;
    view.parameters.push_back(std::move(one));
  }
  return view;
}

/// A server that has said nothing for so long is why there was nothing to read.
constexpr std::chrono::seconds kSilence{2};

/// There was nothing to read in all that time: mostly a round waits for a server to commit it.
Error held_up_by(const Error& why, const ShardGroup& shards, TimePoint now) {
  const ShardSession* silent = nullptr;
  const auto heard = [](const ShardSession& shard) {
    return shard.session->connection().last_received();
  };
  for (const auto& [name, shard] : shards.present())
    if (silent == nullptr || heard(*shard) < heard(*silent)) silent = shard.get();
  if (silent == nullptr || now - heard(*silent) < kSilence) return why;
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now - heard(*silent));
  return Error(ErrorCode::kDeadlineExceeded, "no version was at rest on all servers within " +
                                                 std::to_string(kSnapshotPatience.count()) +
                                                 " s: server '" + silent->name +
                                                 "' was heard last " + std::to_string(ms.count()) +
                                                 " ms ago (" + why.message() + ")");
}

/// Work for one of the threads of files, behind what that does already: under a name in the waits,
/// which are of the thread `home`, while somebody waits for it.
template <class Work>
Task<std::invoke_result_t<Work>> held_for(Executor home, Waits& waits, std::string waiter,
                                          Waits::Text what, Executor where, Work work) {
  auto wait = [](Waits& in, std::string name, Waits::Text text, Executor on,
                 Work act) -> Task<std::invoke_result_t<Work>> {
    const auto guard = in.begin(WaitCause::kCheckpoint, std::move(name), "disk", std::move(text));
    co_return co_await run_on(on, std::move(act));
  };
  auto held = wait(waits, std::move(waiter), std::move(what), std::move(where), std::move(work));
  co_return co_await run_on(std::move(home), std::move(held));
}

/// Also behind the deadline of the call that has found something out.
template <class Work>
Task<void> surely_on(Executor where, Work work) {
  co_await boost::asio::this_coro::throw_if_cancelled(false);
  co_await run_on(std::move(where), std::move(work));
  co_await boost::asio::this_coro::throw_if_cancelled(true);
}

}  // namespace

Task<std::string> Control::config_json() {
  auto read = [this] {
    return commands_.schema() == nullptr ? "{}" : commands_.schema()->effective_json();
  };
  co_return co_await run_on(executor_, std::move(read));
}

namespace {

/// A setting of this process, which a standby may have another one of.
bool is_of_process(const std::string& name) {
  return name.starts_with("api.") || name.starts_with("log.");
}

/// What is of use without rounds, too.
bool outlives_job(const std::string& name) {
  return is_of_process(name) || name.starts_with("checkpoint.");
}

}  // namespace

/// Whether what has changed since `before` may change now. What is changed in a halted job holds
/// when it goes on.
Status Control::check_change(const ServerConfig& before, bool needs_rounds) const {
  const auto refuse = [](const std::string& why) {
    return Error(ErrorCode::kFailedPrecondition, why);
  };
  ServerConfig trial = config_;
  CENTROID_TRY(finish(trial));
  const bool is_halted = phase_.is(Phase::kHalted);
  if (needs_rounds && (phase_.is(Phase::kFinished) || (stopping_.is_requested && !is_halted)))
    return refuse("the job is over: " + phase_.reason());
  if (config_.timeouts.lease < before.timeouts.lease && !members_.present.empty())
    return refuse("lease: the workers that are here send their heartbeats by the longer one of " +
                  std::to_string(before.timeouts.lease.count()) + " ms: it can only grow");
  if (policy_of(config_).kind != server_.context().policy.kind)
    return refuse("policy: " + before.policy + " can get other numbers, but not become " +
                  config_.policy + " while the job runs");
  if (job_.shard) CENTROID_TRY(check_buffers(config_, job_.store().plan().manifest()));
  CENTROID_TRY(log::parse_level(config_.log.level));
  return {};
}

Task<Result<std::string>> Control::change_config(std::string json) {
  struct Done {
    std::string settings;
    OperatorCommands::Copy kept;
  };
  auto change = [this, json = std::move(json)]() -> Result<Done> {
    if (commands_.schema() == nullptr)
      return Error(ErrorCode::kUnimplemented, "this server's settings cannot be changed");
    const ServerConfig before = config_;
    const auto check = [&](const std::vector<config::Schema::Change>& wanted) -> Status {
      bool needs_rounds = false;
      for (const auto& one : wanted) {
        // Where that is not read yet, what was kept would take the place of what is said now.
        const bool is_early = gate_.is_beginning() && !checkpoints_;
        if (is_early || !is_of_process(one.name)) CENTROID_TRY(gate_.check_lead());
        if (!outlives_job(one.name)) needs_rounds = true;
      }
      return check_change(before, needs_rounds);
    };
    auto changed = commands_.schema()->change(json, "PATCH /v1/config", check);
    if (!changed.ok()) return std::move(changed).error();
    std::string text;
    for (const auto& one : *changed)
      text.append(text.empty() ? "" : ", ").append(one.name).append("=").append(one.to);
    tell(events_, log::Level::kInfo, "config.changed", {{"changes", text}});
    server_.context().settings_changed();
    Done done;
    done.settings = commands_.schema()->effective_json();
    if (gate_.is_beginning())
      commands_.set_unsaved();  // kept by `prepare`: of which job it is will only be known then
    else if (!phase_.is(Phase::kStandby))
      done.kept = commands_.copy();
    return done;
  };
  CENTROID_CO_ASSIGN(const Done done, co_await run_on(executor_, std::move(change)));
  if (done.kept.state != nullptr)
    CENTROID_CO_TRY(co_await commands_.save(done.kept.state, done.kept.revision));
  co_return done.settings;
}

/// For threads that read: with the one that writes they share only what is known of damage. Nothing
/// while the server starts.
Task<std::optional<CheckpointDirectory>> Control::checkpoint_reader() {
  auto read = [this]() -> std::optional<CheckpointDirectory> {
    if (!checkpoints_) return std::nullopt;
    return checkpoints_->reader();
  };
  co_return co_await run_on(executor_, std::move(read));
}

Task<Result<CheckpointView>> Control::verify_checkpoint(std::uint64_t version) {
  const auto directory = co_await checkpoint_reader();
  const auto is_begun = std::make_shared<std::atomic<bool>>(false);
  auto read = [this, directory, version, is_begun]() -> Result<CheckpointView> {
    *is_begun = true;
    if (!directory) return starting();
    fetched_.renew(Version(version), clock_.now());  // who has it verified fetches it next
    const auto found = directory->find(Version(version), true);
    if (!found.ok()) fetched_.forget(Version(version));
    if (!found.ok()) return found.error();
    if (found->is_unreadable) return Error(ErrorCode::kUnavailable, found->problem);
    if (found->problem.empty()) fetched_.renew(Version(version), clock_.now());
    return checkpoint_view(*found);
  };
  Waits::Text held = [is_begun] {
    return std::string(*is_begun ? "its files, which are read and compared with their checksums"
                                 : "another one that is verified: one at a time");
  };
  const std::string waiter = "verification of checkpoint " + std::to_string(version);
  auto outcome =
      co_await held_for(executor_, waits_, waiter, std::move(held), verifies_, std::move(read));
  auto lost = [this, version] { server_.parts().checkpointer.checkpoint_lost(Version(version)); };
  if (outcome.ok() && !outcome->problem.empty()) co_await surely_on(executor_, std::move(lost));
  co_return outcome;
}

Task<Result<CheckpointView>> Control::delete_checkpoint(std::uint64_t version) {
  auto may = [this, version]() -> Status {
    CENTROID_TRY(gate_.check_lead());
    if (!restore_ || restore_->outcome) return {};
    return Error(ErrorCode::kFailedPrecondition, "checkpoint " + std::to_string(version) +
                                                     ": the job is going back to checkpoint " +
                                                     to_string(restore_->version) +
                                                     "; repeat when it has");
  };
  CENTROID_CO_TRY(co_await run_on(executor_, std::move(may)));
  auto act = [this, version]() -> Result<CheckpointView> {
    if (!checkpoints_) return starting();
    const auto found = checkpoints_->find(Version(version), false);
    if (!found.ok()) return found.error();
    bool is_newest = found->problem.empty();
    for (const CheckpointEntry& other : checkpoints_->list(false))
      if (other.problem.empty() && other.version > found->version) is_newest = false;
    if (is_newest)
      return Error(ErrorCode::kFailedPrecondition,
                   "version " + std::to_string(version) +
                       " is the newest checkpoint, from which the job would be resumed: write "
                       "another one first");
    if (const Status removed = checkpoints_->remove(*found); !removed.ok()) return removed.error();
    tell(events_, log::Level::kInfo, "checkpoint.deleted",
         {{"path", found->path.string()}, {"version", version}, {"why", "asked for over REST"}});
    return checkpoint_view(*found);
  };
  Waits::Text held = [this] {
    return std::string(use_.is_writing ? "the one that is written: one after the other"
                                       : "its files, which are removed");
  };
  const std::string waiter = "removal of checkpoint " + std::to_string(version);
  auto outcome = co_await held_for(executor_, waits_, waiter, std::move(held), disk_.hurried(),
                                   std::move(act));
  auto lost = [this, version] { server_.parts().checkpointer.checkpoint_lost(Version(version)); };
  if (outcome.ok()) co_await surely_on(executor_, std::move(lost));
  co_return outcome;
}

Task<Result<std::vector<CheckpointFileView>>> Control::checkpoint_files(std::uint64_t version) {
  const auto directory = co_await checkpoint_reader();
  auto read = [this, directory, version]() -> Result<std::vector<CheckpointFileView>> {
    if (!directory) return starting();
    fetched_.renew(Version(version), clock_.now());  // first: else it may be pruned between
    const auto found = directory->find(Version(version), false);
    if (!found.ok()) {
      fetched_.forget(Version(version));
      return found.error();
    }
    if (!found->problem.empty())
      return Error(ErrorCode::kDataLoss,
                   "checkpoint " + found->path.string() + " is damaged: " + found->problem);
    CENTROID_ASSIGN(const auto files, directory->files(*found));
    std::vector<CheckpointFileView> views;
    for (const CheckpointFile& file : files)
      views.push_back({.name = file.name,
                       .path = (found->path / file.name).string(),
                       .bytes = file.bytes,
                       .crc32c = file.crc32c});
    return views;
  };
  co_return co_await run_on(looks_, std::move(read));
}

Task<Result<ParametersView>> Control::parameters() {
  co_return co_await run_on(executor_, measure_parameters());
}

/// What the other servers tell of their chunks in this version; waits for them until `limit`.
/// fails aborted: not now, for chunks move or a round is being committed; deadline_exceeded,
/// unavailable: names the server
Task<Result<Control::PartsElsewhere>> Control::measure_elsewhere(Version version, TimePoint limit) {
  PartsElsewhere parts;
  if (!spread_.has_others()) co_return parts;
  if (spread_.lost_since)
    co_return Error(ErrorCode::kUnavailable,
                    "server '" + spread_.lost + "' is gone with its chunks: " + phase_.reason());
  if (!spread_.moving.empty())
    co_return Error(ErrorCode::kAborted, "chunks are on their way to other servers");
  const auto present = spread_.present;
  const auto owners = spread_.route.owners;
  proto::Statistics wanted;
  wanted.version = version;
  auto head = proto::encode(wanted);
  CENTROID_CO_ASSIGN(const auto answers,
                     co_await shards_.ask_all(spread_.others(), proto::ServersKind::kStatistics,
                                              std::move(head), limit));
  parts.resize(owners.size());
  std::vector<std::size_t> taken(present.size());  // bytes of each answer
  for (std::size_t chunk = 0; chunk < owners.size(); ++chunk) {
    const std::size_t owner = owners[chunk];
    if (owner == 0) continue;
    const auto& payload = answers[owner - 1].payload;
    const std::size_t at = std::exchange(taken[owner], taken[owner] + sizeof(StatisticsPart));
    if (taken[owner] > payload.size()) break;
    std::memcpy(&parts[chunk].emplace(), payload.data() + at, sizeof(StatisticsPart));
  }
  for (std::size_t owner = 1; owner < present.size(); ++owner)
    if (taken[owner] != answers[owner - 1].payload.size())
      co_return Error(ErrorCode::kInvalidArgument,
                      "server '" + present[owner]->name + "' told " +
                          std::to_string(answers[owner - 1].payload.size()) +
                          " bytes of statistics, not what the route calls for");
  co_return parts;
}

/// Statistics of a snapshot, made by the blocking thread and the other servers, while rounds go on.
Task<Result<ParametersView>> Control::measure_parameters() {
  const TimePoint give_up = clock_.now() + kSnapshotPatience;
  Error why(ErrorCode::kUnavailable,
            "the parameters are being read by somebody else, such as a checkpoint: repeat");
  (void)disk_.hurried();
  std::string held = "another call, which reads them, or a checkpoint, which is written";
  const auto waits =
      waits_.begin(WaitCause::kState, "GET /v1/parameters", kStateCopy,
                   [this, &held] { return held + server_.parts().servers.longest_silent(); });
  // With several servers one version is kept aside for a checkpoint, on all of them.
  const auto is_free = [this] {
    return !use_.is_measured && !(use_.is_writing && spread_.has_others());
  };
  const bool has_turn = co_await until(is_free, kShownElsewhere, give_up);
  if (!has_turn && clock_.now() >= give_up) co_return why;
  if (!has_turn) co_return Error(ErrorCode::kCancelled, "the call was cancelled");
  if (job_.shard && job_.measured &&
      (job_.measured->version == job_.store().held().value ||
       clock_.now() - job_.measured_at < kMeasuredAge))
    co_return *job_.measured;
  use_.is_measured = true;
  std::optional<WantsState> wants(std::in_place, use_);
  const auto over = std::shared_ptr<void>(nullptr, [this](void*) {
    use_.is_measured = false;
    changed_.notify_all();
  });
  ParametersView view;
  ChunkPlan plan;
  PartsElsewhere elsewhere;
  std::shared_ptr<Snapshot> snapshot;
  while (!snapshot) {
    if (gate_.is_beginning() || use_.is_loading || replay_)  // its values are being read
      co_return Error(ErrorCode::kUnavailable, "the state is being read: repeat");
    if (!job_.shard || job_.store().held() == Version())
      co_return Error(ErrorCode::kUnavailable,
                      "there are no parameters yet: no worker has sent the initial ones");
    view.version = job_.store().held().value;
    view.is_current = job_.store().is_current();
    plan = job_.store().plan();
    snapshot = job_.store().begin_snapshot(kSnapshotBudgetBytes, context_.notifier());
    held = "a version that is at rest, between two rounds";
    if (snapshot) {
      held = "the other servers, each of which tells of its chunks";
      auto told = co_await measure_elsewhere(snapshot->version(), give_up);
      if (told.ok()) {
        elsewhere = std::move(told).value();
        break;
      }
      if (told.error().code() != ErrorCode::kAborted) co_return told.error();
      held = told.error().message();
      why = Error(ErrorCode::kUnavailable, held + ": repeat");
      snapshot.reset();
    }
    const auto may_begin = [this] {
      const bool is_read = gate_.is_beginning() || use_.is_loading || replay_;
      return is_read || !job_.shard ||
             (job_.store().may_begin_snapshot() && !use_.is_merging && spread_.moving.empty());
    };
    const bool goes_on = co_await until(may_begin, kShownElsewhere, give_up);
    if (!goes_on && clock_.now() >= give_up) co_return held_up_by(why, shards_, clock_.now());
    if (!goes_on) co_return Error(ErrorCode::kCancelled, "the call was cancelled");
  }
  wants.reset();
  held = "the thread of files, which reads them behind whatever else it does";
  view.measured_unix_seconds = clock_.unix_seconds();
  auto work = [view = std::move(view), plan = std::move(plan), elsewhere = std::move(elsewhere),
               snapshot = std::move(snapshot)]() mutable {
    auto outcome = server::measure(*snapshot, plan, elsewhere, std::move(view));
    snapshot.reset();  // rounds need not keep copies for it any more
    return outcome;
  };
  auto outcome = co_await run_on(disk_.hurried(), std::move(work));
  if (!outcome.ok()) co_return outcome;
  job_.measured = std::make_shared<ParametersView>(outcome.value());
  job_.measured_at = clock_.now();
  co_return outcome;
}

}  // namespace centroid::server
