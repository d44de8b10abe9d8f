#include <algorithm>
#include <limits>

#include "common/base/log.h"
#include "common/base/version.h"
#include "server/service/cluster.h"
#include "server/shard/placement.h"

namespace centroid::server {

namespace {

double seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

/// NaN: none was shown.
double certificate_end(transport::Session& session) {
  const auto end = session.connection().peer_certificate_end();
  return end.value_or(std::numeric_limits<double>::quiet_NaN());
}

}  // namespace

WorkerView Cluster::view_of(const Member& member, const Link* link) const {
  WorkerView view;
  view.member = member.id.value;
  view.name = member.name;
  view.address = member.address;
  view.state = to_string(member.state);
  view.rank = member.rank ? static_cast<std::int64_t>(member.rank->value) : -1;
  view.joined_unix_seconds = member.joined_unix_seconds;
  view.silent_seconds =
      is_present(member.state) ? std::max(0.0, seconds(clock_.now() - member.heard)) : 0;
  view.reason = member.reason;
  if (link == nullptr) return view;
  view.devices = link->join.devices;
  view.samples = link->sums.samples;
  view.rounds = link->sums.rounds;
  const auto traffic = link->is_gone || link->session == nullptr
                           ? link->traffic
                           : link->session->connection().traffic();
  view.bytes_in = traffic.bytes_in;
  view.bytes_out = traffic.bytes_out;
  view.step_seconds = link->step_seconds;
  view.compute_seconds = link->sums.compute_seconds;
  view.wait_seconds = link->sums.wait_seconds;
  view.encode_seconds = link->sums.encode_seconds;
  view.decode_seconds = link->sums.decode_seconds;
  view.send_seconds = link->send_seconds;
  view.exchange_seconds = link->addition_seconds;
  view.apply_seconds = link->apply_seconds;
  view.receive_seconds = link->receive_seconds;
  view.last_loss = link->last_loss;
  view.local_steps = link->local_steps;
  view.pace_seconds = coordinator_.cadence().seconds_per_step(link->id);
  view.share_ratio = link->share_ratio;
  view.divergence = std::min(link->divergence, proto::kMaxLoss);
  view.parameter_norm = link->parameter_norm;
  view.scalars = link->scalars;
  view.version = link->program;
  view.clock_ahead_seconds = link->clock.ahead();
  if (!link->is_gone && link->session != nullptr)
    view.certificate_expires_unix_seconds = certificate_end(*link->session);
  return view;
}

Task<ClusterView> Cluster::cluster() {
  auto read = [this] {
    ClusterView view;
    view.run_id = run_id_;
    view.state = kJobStates[static_cast<std::size_t>(phase_)];
    view.state_reason = phase_reason_;
    if (stop_requested_ && !rounds_ended_ && phase_ != Phase::kStandby) {
      view.state = kJobStates[static_cast<std::size_t>(Phase::kStopping)];
      view.state_reason = stop_reason_ + ": the open round is finished, then a checkpoint written";
    }
    view.generation = roster_.generation().value;
    view.world = roster_.ranked().size();
    view.round = round_.value;
    view.epoch = epoch_;
    view.offset = offset_;
    view.samples_total = samples_total_;
    view.epochs = config_.epochs;
    view.rounds = config_.rounds;
    view.train_samples = agreed_ ? agreed_->train_samples : 0;
    if (config_.epochs > 0 && agreed_) {
      const double position =
          static_cast<double>(epoch_) +
          static_cast<double>(offset_) / static_cast<double>(agreed_->train_samples);
      view.progress = std::min(1.0, position / static_cast<double>(config_.epochs));
    } else if (config_.rounds > 0) {
      view.progress = std::min(
          1.0, static_cast<double>(round_.value - 1) / static_cast<double>(config_.rounds));
    }
    view.samples_per_second = samples_per_second_;
    view.loss = loss_;
    view.train_accuracy = train_accuracy_;
    view.test_accuracy = test_accuracy_;
    view.test_loss = test_loss_;
    view.test_version = test_version_.value;
    view.uptime_seconds = seconds(clock_.now() - started_);
    view.data_endpoint = data_endpoint_;
    view.api_endpoint = api_endpoint_;
    view.policy = config_.policy;
    view.apply = config_.applies_on_worker() ? "worker" : "server";
    view.optimizer = config_.optimizer.name;
    if (agreed_) {
      view.exchange = agreed_->exchange;
      view.codec = agreed_->codec;
      view.model = agreed_->model;
    }
    if (store_) {
      view.version = store_->version().value;
      view.parameters = store_->plan().total_elements();
      view.chunks = store_->plan().chunks().size();
      view.learning_rate = store_->optimizer().learning_rate(store_->optimizer_step() + 1);
    }
    view.gradient_norm = gradient_norm_;
    view.clipped_rounds = clipped_;
    const Cadence& cadence = coordinator_.cadence();
    view.cadence_steps = cadence.anchor();
    view.exchange_seconds = cadence.exchange_seconds();
    view.exchange_overhead = cadence.overhead();
    view.divergence = std::min(coordinator_.divergence(), proto::kMaxLoss);
    view.returned_samples = returned_.returned();
    view.late_dropped = late_dropped_;
    view.late_carried = late_carried_;
    view.role = fence_ == nullptr           ? "alone"
                : phase_ == Phase::kStandby ? "standby"
                : held()                    ? "held"
                                            : "leader";
    view.leader = leadership_.leader;
    view.leader_endpoint = leadership_.data;
    view.leader_api = leadership_.api;
    view.term = leadership_.term;
    view.skipped_rounds = skipped_;
    view.aborted_attempts = aborted_;
    view.lost_contributions = lost_contributions_;
    return view;
  };
  co_return co_await run_on(executor_, std::move(read));
}

Task<void> Cluster::ping() {
  auto answer = [] { return true; };
  (void)co_await run_on(executor_, std::move(answer));
}

Task<std::vector<WorkerView>> Cluster::workers() {
  auto read = [this] {
    std::vector<WorkerView> views;
    for (const auto& [id, member] : roster_.members()) {
      const auto link = find(id);
      if (link)
        views.push_back(view_of(member, link.get()));
      else if (const auto gone = gone_.find(id); gone != gone_.end())
        views.push_back(gone->second);
      else
        views.push_back(view_of(member, nullptr));
    }
    return views;
  };
  co_return co_await run_on(executor_, std::move(read));
}

Task<std::vector<RoundView>> Cluster::rounds(std::size_t limit) {
  auto read = [this, limit] {
    std::vector<RoundView> views;
    if (attempt_ && !attempt_->closed) {
      RoundView open;
      open.round = attempt_->round.value;
      open.attempt = attempt_->number;
      open.generation = attempt_->generation.value;
      open.version = attempt_->version.value;
      open.samples = round_samples_;
      open.state = machine_.is_open() ? "open" : "merging";
      open.seconds = seconds(clock_.now() - round_opened_);
      open.opened_unix_seconds = clock_.unix_seconds() - open.seconds;
      for (const MemberId member : machine_.contributed())
        open.contributors.push_back(name_of(member));
      for (const MemberId member : machine_.missing()) open.missing.push_back(name_of(member));
      views.push_back(std::move(open));
    }
    for (const RoundView& view : history_) {
      if (views.size() >= limit) break;
      views.push_back(view);
    }
    return views;
  };
  co_return co_await run_on(executor_, std::move(read));
}

/// For whom the open round waits, and why each of them has not contributed.
void Cluster::round_waits(std::vector<WaitView>& views) const {
  constexpr double kLong = 2;  // seconds from which on the whole cause is told
  const std::string round = present_round();
  const double open = seconds(clock_.now() - round_opened_);
  const std::size_t done = machine_.contributed().size(), needed = machine_.needed();
  const auto add = [&](MemberId member, std::string what) {
    const Duration silent = clock_.now() - roster_.find(member)->heard;
    const auto milliseconds = std::to_string(static_cast<int>(1000 * seconds(silent)));
    if (open > kLong)
      what += "; the round has " + std::to_string(done) + " of the " + std::to_string(needed) +
              " contributions that it needs, of " + std::to_string(attempt_->members.size()) +
              " workers";
    if (silent > config_.lease / 2)  // it should have sent two heartbeats
      what += ", silent for " + milliseconds + " ms";
    else if (open > kLong)
      what += ", last heard " + milliseconds + " ms ago";
    views.push_back(
        {.who = round, .for_whom = name_of(member), .what = std::move(what), .seconds = open});
  };
  for (const MemberId member : machine_.missing()) {
    const auto link = find(member);
    if (link && link->version != attempt_->version) {
      add(member, "contribution, for which it has not got the state yet");
      continue;
    }
    if (link && link->pending_end) {
      add(member, "its chunks on server" + names_of_missing_holders(*link));
      continue;
    }
    const bool adds = link && config_.is_peer_to_peer() && link->computed == attempt_->key();
    add(member, adds ? "addition with its peers" : "contribution");
  }
  if (!policy_.is_elastic()) return;
  if (done < needed)
    for (const MemberId member : unseated()) {
      const auto link = find(member);
      const auto late = link->late     ? link->late->key.round
                        : link->behind ? link->behind->round
                                       : link->opened.round;
      add(member, "the end of its work on round " + to_string(late) + ", which closed without it");
    }
  if (const auto deadline = machine_.deadline())
    views.push_back({.who = round,
                     .for_whom = "workers that are expected soon",
                     .what = "the quorum is there; the round closes in " +
                             std::to_string(static_cast<int>(
                                 1000 * std::max(0.0, seconds(*deadline - clock_.now())))) +
                             " ms at the latest",
                     .seconds = open});
}

/// Who is held back for slower members, whether or not a round is open.
void Cluster::pace_waits(std::vector<WaitView>& views) const {
  for (const auto& [id, link] : links_) {
    if (link->is_away || machine_.may_begin(id)) continue;
    const MemberId slowest = machine_.slowest();
    const Member* const member = roster_.find(slowest);
    if (member == nullptr) continue;
    const double silent = seconds(clock_.now() - member->heard);
    views.push_back(
        {.who = "worker " + link->join.name,
         .for_whom = name_of(slowest),
         .what = "it is " + std::to_string(machine_.steps_ahead(id)) +
                 " steps ahead of the slowest worker, and policy " + config_.policy + " allows " +
                 std::to_string(policy_.count) + "; that one was heard " +
                 std::to_string(static_cast<int>(1000 * silent)) + " ms ago",
         .seconds = seconds(clock_.now() - link->contributed_at.value_or(phase_since_))});
  }
}

/// For which servers the round, or chunks that go to them, wait.
void Cluster::shard_waits(std::vector<WaitView>& views) const {
  for (const auto& [name, link] : shards_.present()) {
    if (link->work.empty()) continue;
    const bool is_move = link->work.front().kind == proto::ServersKind::kLoad;
    const std::string what = is_move ? "the values of chunks" : "its part of the commit";
    views.push_back({.who = is_move ? "chunks that move" : present_round(),
                     .for_whom = "server '" + name + "'",
                     .what = link->report.busy.empty() ? what : what + ": " + link->report.busy,
                     .seconds = seconds(clock_.now() - link->work.front().since)});
  }
}

/// With the fragment whose turn it is, where there are several.
std::string Cluster::present_round() const {
  std::string text = "round " + to_string(round_);
  if (store_ && fragments_.count() > 1)
    text += ", fragment " + std::to_string(fragments_.turn(store_->optimizer_step()) + 1) + " of " +
            std::to_string(fragments_.count());
  return text;
}

bool Cluster::waits_for_operator() const {
  return phase_ == Phase::kPaused || phase_ == Phase::kStopped;
}

std::vector<WaitView> Cluster::present_waits() const {
  std::vector<WaitView> views;
  const bool begins = is_beginning();  // then Guards say what is waited for
  if (phase_ == Phase::kStandby && !begins)
    views.push_back(
        {.who = "this server",
         .for_whom = leadership_.leader.empty() ? "etcd" : "leader " + leadership_.leader,
         .what = phase_reason_,
         .seconds = seconds(clock_.now() - phase_since_)});
  else if (const auto why = held())
    views.push_back(
        {.who = "job",
         .for_whom = "etcd",
         .what = why->message() + (leadership_.trouble.empty() ? "" : ": " + leadership_.trouble),
         .seconds = seconds(clock_.now() - round_opened_)});
  else if (!begins &&
           (phase_ == Phase::kWaiting || phase_ == Phase::kInitializing || waits_for_operator()))
    views.push_back({.who = "job",
                     .for_whom = waits_for_operator()  ? "operator"
                                 : is_loop_writing_    ? "checkpoint"
                                 : waits_for_servers() ? "servers"
                                                       : "workers",
                     .what = phase_reason_,
                     .seconds = seconds(clock_.now() - phase_since_)});
  if (attempt_ && !attempt_->closed && machine_.is_open()) round_waits(views);
  pace_waits(views);
  waits_.list(views);
  if (const auto journal = journal_.state();
      !journal.trouble.empty() && !journal.is_broken && !waits_.has(WaitCause::kJournal))
    views.push_back({.who = present_round(),
                     .for_whom = "journal",
                     .what = journal.trouble,
                     .seconds = seconds(clock_.now() - round_opened_)});
  shard_waits(views);
  if (upload_)
    views.push_back({.who = "server",
                     .for_whom = name_of(upload_->from),
                     .what = "the state, piece " + std::to_string(upload_->received) + " of " +
                             std::to_string(upload_->pieces()),
                     .seconds = seconds(clock_.now() - upload_->begun)});
  rows_.waits(views);
  if (rows_servers_) rows_servers_->waits(views);
  for (const auto& [id, link] : links_)
    for (const std::string& what : link->session->waits(clock_.now()))
      views.push_back({.who = "session of " + link->join.name,
                       .for_whom = link->join.name,
                       .what = what,
                       .seconds = 0});
  return views;
}

/// The waits of `waits`, counted by cause.
std::array<std::size_t, kWaitCauses.size()> Cluster::count_waits() const {
  std::array<std::size_t, kWaitCauses.size()> counts{};
  const auto count = [&](WaitCause cause) { ++counts[static_cast<std::size_t>(cause)]; };
  if (!is_beginning() && (phase_ == Phase::kWaiting || phase_ == Phase::kInitializing))
    count(WaitCause::kWorkers);
  if (waits_for_operator()) count(WaitCause::kOperator);
  if (attempt_ && !attempt_->closed && machine_.is_open())
    for (const MemberId member : machine_.missing()) {
      const auto link = find(member);
      const bool adds = link && config_.is_peer_to_peer() && link->computed == attempt_->key();
      count(adds ? WaitCause::kAddition : WaitCause::kContribution);
    }
  const auto journal = journal_.state();
  if (!journal.trouble.empty() && !journal.is_broken && !waits_.has(WaitCause::kJournal))
    count(WaitCause::kJournal);
  waits_.count(count);
  for (const auto& [name, link] : shards_.present())
    if (!link->work.empty()) count(WaitCause::kServers);
  if (upload_) count(WaitCause::kState);
  for (const auto& [id, link] : links_) {
    if (!link->is_away && !machine_.may_begin(id)) count(WaitCause::kPace);
    if (!link->session->waits(clock_.now()).empty()) count(WaitCause::kCredit);
  }
  return counts;
}

Task<std::vector<WaitView>> Cluster::waits() {
  auto read = [this] { return present_waits(); };
  co_return co_await run_on(executor_, std::move(read));
}

/// It has done its part, or has none at the moment.
bool Cluster::awaits_others(const Link& link) const {
  if (link.finish) return false;
  if (!attempt_ || attempt_->closed || !machine_.is_open()) return true;
  const auto missing = machine_.missing();
  return link.pending_end || std::ranges::find(missing, link.id) == missing.end();
}

/// Tell every worker that waits for others why, as long as it does.
void Cluster::tell_waits(const std::vector<WaitView>& lasting) {
  constexpr std::chrono::seconds kEvery{2};
  bool has_news = false;
  for (const auto& [id, link] : links_) {
    if (clock_.now() - link->wait_told < kEvery || !awaits_others(*link)) continue;
    proto::Wait wait;
    for (const WaitView& one : lasting) {
      const bool is_of_all = one.who.starts_with("round ") || one.who == "job" ||
                             one.who == "server" || one.who == "state" ||
                             one.who == "chunks that move";
      if (!is_of_all && one.who != "worker " + link->join.name) continue;
      if (one.for_whom == link->join.name) continue;
      wait.ms = std::max(wait.ms, static_cast<std::uint32_t>(1000 * std::min(one.seconds, 4e6)));
      wait.what += (wait.what.empty() ? "" : "; ") + one.who + " waits for " + one.for_whom + ": " +
                   one.what;
    }
    if (wait.what.empty()) continue;
    if (wait.what.size() > proto::kMaxTextBytes) wait.what.resize(proto::kMaxTextBytes);
    link->wait = std::move(wait);
    link->wait_told = clock_.now();
    has_news = true;
  }
  if (has_news) outgoing_.notify_all();
}

/// An event for each wait that lasts: once, when it has.
Task<void> Cluster::watch_waits() {
  constexpr double kLasting = 2;
  std::set<std::pair<std::string, std::string>> told;
  while (!closing_) {
    if (!co_await sleep_until(clock_.now() + std::chrono::milliseconds(500))) co_return;
    std::set<std::pair<std::string, std::string>> lasting;
    std::vector<WaitView> waits = present_waits();
    std::erase_if(waits, [](const WaitView& wait) { return wait.seconds < kLasting; });
    tell_waits(waits);
    for (const WaitView& wait : waits) {
      auto key = std::make_pair(wait.who, wait.for_whom);
      if (!told.contains(key) && !lasting.contains(key))
        events_.publish("wait.lasted", {{"who", wait.who},
                                        {"for_whom", wait.for_whom},
                                        {"what", wait.what},
                                        {"seconds", wait.seconds}});
      lasting.insert(std::move(key));
    }
    told = std::move(lasting);
  }
}

Task<std::vector<ServerView>> Cluster::servers() {
  auto read = [this] {
    std::vector<ServerView> views;
    const auto add = [&](std::size_t index, const ShardGroup::Link* link) {
      ServerView view;
      view.name = link == nullptr ? config_.leader_name() : link->name;
      view.endpoint = link == nullptr ? data_endpoint_ : link->endpoint;
      if (link != nullptr) {
        view.address = link->address;
        view.joined_unix_seconds = link->joined_unix_seconds;
      }
      view.state = link == nullptr     ? "leader"
                   : link->is_draining ? "draining"
                   : index == kNobody  ? "joining"
                                       : "serving";
      for (std::size_t i = 0; store_ && index != kNobody && i < store_->plan().chunks().size();
           ++i) {
        const bool is_here =
            spread_.route.owners.empty() ? index == 0 : spread_.route.owners[i] == index;
        const bool is_to_be = spread_.target.empty() ? is_here : spread_.target[i] == index;
        view.moves += is_here != is_to_be ? 1 : 0;
        if (!is_here) continue;
        ++view.chunks;
        view.bytes += store_->plan().chunks()[i].elements * sizeof(float);
      }
      if (rows_servers_) {
        const auto share = rows_servers_->share_of(view.name);
        view.buckets = share.buckets;
        view.bucket_moves = share.moves;
        if (share.buckets > 0 && view.state == "joining") view.state = "serving";
      }
      if (link == nullptr) {
        view.memory_bytes = store_ ? view.bytes * (2 + store_->optimizer().slots()) : 0;
        const auto journal = journal_.state();
        view.journal_bytes = journal.bytes;
        view.trouble = journal.trouble;
        view.version = kVersion;
        view.clock_ahead_seconds = 0;
      } else {
        const proto::ServerReport& told = link->report;
        view.memory_bytes = told.memory_bytes;
        view.journal_bytes = told.journal_bytes;
        view.staged_bytes = told.staged_bytes;
        view.bytes_in = told.bytes_in;
        view.bytes_out = told.bytes_out;
        view.workers = told.workers;
        if (told.rounds > 0) view.merge_seconds = told.merge_seconds / double(told.rounds);
        view.trouble = told.trouble;
        view.version = link->version;
        view.clock_ahead_seconds = link->clock.ahead();
        view.disk_free_bytes = told.disk_free_bytes;
        view.disk_total_bytes = told.disk_total_bytes;
        if (!link->is_gone())
          view.certificate_expires_unix_seconds = certificate_end(*link->session);
      }
      views.push_back(std::move(view));
    };
    add(0, nullptr);
    for (const auto& [name, link] : shards_.present()) {
      const auto at = std::ranges::find(spread_.links, link);
      add(at == spread_.links.end() ? kNobody
                                    : static_cast<std::size_t>(at - spread_.links.begin()),
          link.get());
    }
    if (replay_ && !replay_->waits_for.empty() && !shards_.find(replay_->waits_for)) {
      ServerView awaited;
      awaited.name = replay_->waits_for;
      awaited.state = "awaited";
      awaited.trouble = replay_->why;
      views.push_back(std::move(awaited));
    }
    return views;
  };
  co_return co_await run_on(executor_, std::move(read));
}

Task<Status> Cluster::drain_server(const std::string& name) {
  auto act = [this, name]() -> Status {
    if (name == config_.leader_name())
      return Error(ErrorCode::kFailedPrecondition,
                   "server '" + name + "' is the leader: the job ends with it (job stop)");
    if (replay_ && replay_->waits_for == name) {  // go on without what its journal has
      replay_->given_up.insert(name);
      changed_.notify_all();
      return {};
    }
    const auto link = shards_.find(name);
    if (!link) return Error(ErrorCode::kNotFound, "there is no server '" + name + "'");
    let_go(*link);
    return {};
  };
  co_return co_await run_on(executor_, std::move(act));
}

namespace {

/// Of all in the folder, newest first; blocks.
std::vector<CheckpointView> views_of(const CheckpointDirectory& directory) {
  std::vector<CheckpointView> views;
  for (const CheckpointEntry& entry : directory.list(false))
    views.push_back({.path = entry.path.string(),
                     .problem = entry.problem,
                     .version = entry.version.value,
                     .number = entry.number,
                     .round = entry.info.round.value,
                     .bytes = entry.bytes,
                     .created_unix_seconds = entry.info.created_unix_seconds});
  return views;
}

}  // namespace

/// For threads that read: they share nothing with the one that writes. Nothing while the server
/// starts.
Task<std::optional<std::filesystem::path>> Cluster::checkpoint_root() {
  auto read = [this]() -> std::optional<std::filesystem::path> {
    if (!checkpoints_) return std::nullopt;
    return checkpoints_->root();
  };
  co_return co_await run_on(executor_, std::move(read));
}

Task<std::vector<CheckpointView>> Cluster::checkpoints() {
  const auto root = co_await checkpoint_root();
  auto list = [root] {
    if (!root) return std::vector<CheckpointView>();
    const auto directory = CheckpointDirectory::view(*root);
    return directory.ok() ? views_of(*directory) : std::vector<CheckpointView>();
  };
  co_return co_await run_on(looks_, std::move(list));
}

Task<std::vector<TableView>> Cluster::tables() {
  auto read = [](Cluster* self) -> Task<std::vector<TableView>> {
    if (self->rows_servers_) co_await self->rows_servers_->refresh();
    std::vector<TableView> views = self->rows_.views();
    if (self->rows_servers_) self->rows_servers_->add_to(views);
    co_return views;
  };
  co_return co_await boost::asio::co_spawn(executor_, read(this), boost::asio::use_awaitable);
}

Task<Result<CheckpointView>> Cluster::make_checkpoint() {
  auto write = [](Cluster* self) -> Task<CheckpointOutcome> {
    if (self->closing_) co_return Error(ErrorCode::kCancelled, "the server is stopping");
    if (const Status lead = self->check_lead(); !lead.ok()) co_return lead.error();
    const auto outcome = std::make_shared<CheckpointOutcome>();
    self->tasks_.spawn(self->checkpoint_for(outcome));
    while (!*outcome) {
      const bool goes_on = co_await self->checkpoint_done_.wait(TimePoint::max());
      if (!goes_on)
        co_return Error(ErrorCode::kCancelled,
                        "the call was cancelled; the checkpoint goes on being written");
    }
    co_return std::move(*outcome);
  };
  auto written = co_await boost::asio::co_spawn(executor_, write(this), boost::asio::use_awaitable);
  co_return std::move(*written);
}

Task<Status> Cluster::drain(std::uint64_t member) {
  auto act = [this, member]() -> Status {
    const Member* const found = roster_.find(MemberId(member));
    if (found == nullptr)
      return Error(ErrorCode::kNotFound,
                   "there is no worker with member id " + std::to_string(member));
    if (!is_present(found->state))
      return Error(ErrorCode::kFailedPrecondition, "worker '" + found->name + "' is not present: " +
                                                       std::string(to_string(found->state)));
    roster_.drain(MemberId(member));
    events_.publish("member.drain_asked", {{"worker", found->name}, {"member", member}});
    changed_.notify_all();
    return {};
  };
  co_return co_await run_on(executor_, std::move(act));
}

Task<Status> Cluster::is_ready() {
  auto read = [this]() -> Status {
    const auto refuse = [](const std::string& why) { return Error(ErrorCode::kUnavailable, why); };
    if (is_beginning()) return refuse("not ready: " + phase_reason_);
    if (phase_ == Phase::kStandby) return refuse("not ready: " + leadership_.to_string());
    if (const auto why = held()) return refuse("not ready: " + why->message());
    if (stop_requested_) return refuse("not ready: the server takes no members now");
    return {};
  };
  co_return co_await run_on(executor_, std::move(read));
}

}  // namespace centroid::server
