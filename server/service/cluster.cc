#include "server/service/cluster.h"

#include <algorithm>
#include <thread>

#include <boost/asio/this_coro.hpp>

#include "common/base/log.h"
#include "common/base/log_level.h"
#include "server/service/kept.h"
#include "server/service/pulls.h"
#include "server/service/worker_view.h"
#include "server/shard/read_manifest.h"

namespace centroid::server {

namespace asio = boost::asio;

namespace {
/// More than heartbeats in the time in which a member is to leave.
constexpr std::uint64_t kMoving = 64 << 10;
constexpr std::chrono::milliseconds kLook{500};
}  // namespace

Cluster::Cluster(Executor executor, Executor blocking, const ServerConfig& config,
                 const Clock& clock, metrics::Registry& registry)
    : executor_(executor),
      disk_{std::move(blocking),
            std::make_shared<DutyCycle>(config.checkpoint_processor_share * core_count())},
      use_(executor),
      config_(config),
      clock_(clock),
      probe_(registry),
      events_(clock),
      rows_(config.tables, config.lease, clock, registry),
      started_(clock.now()),
      phase_(clock, events_, probe_),
      changed_(executor),
      gate_(clock, changed_, phase_, stopping_),
      commands_(executor, disk_.executor, config, clock, gate_, job_),
      members_(
          {.lease = config.lease, .max_members = static_cast<std::size_t>(config.max_workers)}),
      policy_(policy_of(config)),
      aggregate_(AggregateRule::parse(config.aggregate).value()),
      open_(policy_),
      shards_(executor, clock, 2 * config.stall_timeout,
              {.changed = [this] { changed_.notify_all(); },
               .reported =
                   [this](ShardGroup::Link& server) {
                     probe_.shard(server.name, server.report);
                     servers_.tell_tokens(server);
                   },
               .gone = [this](const ShardGroup::Link& server) { probe_.shard_gone(server.name); },
               .whole =
                   [this](const ShardGroup::Link& server, const proto::Whole& whole) {
                     contributions_.whole_elsewhere(server, whole);
                   },
               .refused =
                   [this](const ShardGroup::Link& server, const proto::Refused& refused) {
                     server_changes_.refused_elsewhere(server, refused);
                   },
               .leaving =
                   [this](const ShardGroup::Link& server) {
                     if (auto link = shards_.find(server.name))
                       tasks_.spawn(servers_.drain_leaving(std::move(link)));
                   }}),
      waits_(clock),
      journal_(executor),
      outgoing_(executor),
      data_(config, clock, policy_, aggregate_, job_, open_, members_, probe_, events_, totals_),
      local_(executor, config, job_, open_, spread_, probe_, totals_),
      round_servers_(config, policy_, job_, open_, members_, shards_, spread_, local_),
      servers_(executor, config, clock, policy_, job_, members_, shards_, spread_, round_servers_,
               journal_, rows_servers_, epilogue_, waits_, changed_, tasks_),
      round_journal_(config, clock, job_, open_, members_, data_, local_, gate_, journal_, waits_,
                     probe_),
      images_(executor, config, clock, policy_, job_, open_, servers_, waits_, probe_, changed_),
      elastic_(config, clock, policy_, job_, open_, members_, data_, local_, round_servers_,
               totals_, probe_, events_, changed_, outgoing_),
      contributions_(config, clock, policy_, aggregate_, job_, open_, members_, spread_, data_,
                     local_, round_servers_, elastic_, *this, probe_, events_, changed_),
      initial_values_(policy_, job_, members_, phase_, stopping_, gate_, probe_, changed_,
                      outgoing_),
      moves_(clock, job_, open_, members_, spread_, local_, servers_, elastic_, images_, *this,
             waits_, changed_, tasks_),
      loader_(config, policy_, aggregate_, job_, open_, members_, servers_, images_, rows_,
              journal_, phase_, gate_, *this, checkpoints_, disk_, use_, waits_, changed_),
      checkpointer_(executor, config, clock, job_, members_, data_, shards_, spread_, servers_,
                    round_servers_, moves_, loader_, rows_, rows_servers_, replay_, journal_, gate_,
                    stopping_, checkpoints_, disk_, use_, probe_, events_, waits_, changed_,
                    outgoing_, tasks_),
      exchange_(config, clock, job_, open_, members_, data_, checkpointer_, loader_, *this,
                stopping_, disk_, use_, probe_, events_, waits_, changed_, outgoing_, tasks_),
      wait_report_(config, clock, policy_, job_, open_, members_, phase_, gate_, waits_, journal_,
                   shards_, spread_, round_servers_, data_, rows_, rows_servers_, replay_,
                   exchange_.upload(), use_, stopping_, events_, outgoing_),
      attempts_(config, clock, probe_, events_, changed_, members_, policy_, aggregate_, job_,
                open_, totals_, spread_, journal_, outgoing_, data_, local_, round_servers_,
                elastic_, wait_report_),
      merge_(executor, config, clock, probe_, events_, changed_, members_, policy_, aggregate_,
             job_, open_, totals_, spread_, waits_, journal_, outgoing_, local_, round_servers_,
             round_journal_, images_, elastic_, moves_, attempts_),
      start_(executor, config, clock, probe_, rows_servers_, phase_, stopping_, changed_, gate_,
             commands_, members_, policy_, job_, open_, shards_, spread_, waits_, journal_, replay_,
             local_, servers_, round_journal_, images_, checkpointer_, disk_, use_, restore_),
      server_changes_(config, clock, probe_, events_, rows_servers_, phase_, stopping_, changed_,
                      gate_, members_, policy_, job_, open_, shards_, spread_, waits_, journal_,
                      replay_, servers_, moves_, loader_, checkpointer_, disk_, use_, tasks_, *this,
                      attempts_, start_),
      restoration_(config, clock, events_, rows_, changed_, gate_, members_, policy_, job_, open_,
                   spread_, journal_, replay_, checkpoints_, servers_, round_journal_, moves_,
                   loader_, checkpointer_, disk_, use_, *this, restore_, start_),
      outbox_(config, clock, probe_, events_, policy_, job_, open_, spread_, waits_, outgoing_,
              round_servers_, servers_, images_, elastic_, attempts_),
      admission_(config, clock, probe_, events_, phase_, stopping_, changed_, gate_, commands_,
                 members_, policy_, aggregate_, job_, shards_, spread_, replay_, epilogue_,
                 servers_, contributions_, initial_values_, loader_, use_, *this, start_),
      rounds_(config, clock, probe_, events_, phase_, stopping_, changed_, gate_, commands_,
              members_, policy_, aggregate_, job_, open_, totals_, shards_, spread_, journal_,
              replay_, outgoing_, data_, servers_, round_journal_, elastic_, initial_values_,
              checkpointer_, exchange_, use_, restore_, attempts_, merge_, start_, server_changes_,
              restoration_),
      pulls_(std::make_unique<Pulls>(*this)),
      tasks_(executor) {
  job_.run_id = config.run_id;
  rows_.bound_payload(2 * config.chunk_bytes);
}

void Cluster::set_tokens(std::function<bool(std::string_view)> accepts,
                         std::function<proto::Tokens()> told) {
  accepts_token_ = std::move(accepts);
  servers_.set_tokens(std::move(told));
}

Cluster::~Cluster() = default;

transport::Greeting Cluster::greeting() const {
  transport::Greeting greeting;
  greeting.role = "server";
  greeting.name = "server";
  greeting.run_id = job_.run_id;
  greeting.token = config_.token;
  greeting.also_accepts = [this](std::string_view secret) {  // it is not `token`
    const bool is_known = accepts_token_ && accepts_token_(secret);
    if (!is_known) probe_.token_refused();
    return is_known;
  };
  greeting.limits.max_head_bytes = transport::kMaxHeadBytes;
  greeting.limits.max_payload_bytes = max_payload_bytes(config_.chunk_bytes);
  greeting.credit_bytes = config_.credit_bytes;
  return greeting;
}

Task<Status> Cluster::run(transport::Listener& listener) {
  tasks_.spawn(accept_loop(listener));
  tasks_.spawn(watch_leases());
  tasks_.spawn(wait_report_.watch_waits());
  Status result = co_await take_the_lead();
  if (!result.ok()) {  // nobody is here yet, nothing has begun
    stopping_.is_closing = true;
    listener.close();
    tasks_.cancel();
    co_await tasks_.join();
    co_return result;
  }
  const bool leads = !phase_.is(Phase::kStandby);
  if (leads && rows_servers_) tasks_.spawn(rows_servers_->run());
  if (leads && rows_servers_) tasks_.spawn(rows_servers_->run_moves());
  if (commands_.stop) co_await stay_stopped();
  if (leads && !commands_.stop) result = co_await rounds_.run_rounds();
  if (rows_failure_ && result.ok()) result = *rows_failure_;
  if (commands_.stop && result.ok() && data_.goal_reached())
    co_await heed_stop();  // a larger goal may be set
  stopping_.rounds_ended = true;
  use_.fetched.notify_all();

  // Another server has the job, or may: nothing is written, nobody is told that it is over.
  const auto is_elsewhere = [&] {
    return gate_.is_deposed() ||
           (gate_.has_election() && !result.ok() && result.error().code() == ErrorCode::kAborted);
  };
  const bool is_remembered =
      result.ok() && !is_elsewhere() && commands_.stop && !commands_.stop->halted.empty();
  (void)disk_.hurried();  // the end waits for a checkpoint that is being written
  if (is_remembered) result = Error(ErrorCode::kFailedPrecondition, commands_.stop->halted);
  bool halted = !result.ok() && !is_elsewhere();
  if (halted && !is_remembered) log::error("job.halted", {{"error", result.error()}});
  if (halted && job_.store && !job_.store->is_current()) (void)co_await exchange_.fetch_state();
  if (!is_elsewhere() && !phase_.is(Phase::kStandby)) co_await write_last_checkpoint();
  const bool is_over_here = is_elsewhere();
  halted = halted && !is_over_here;
  if (is_over_here)
    log::error("leader.deposed",
               {{"term", gate_.term()},
                {"error", result.ok() ? gate_.holds().error() : result.error()},
                {"action", "this server writes nothing more, its workers look for the leader"}});
  const bool writes_nothing = is_over_here || phase_.is(Phase::kStandby);
  if (halted && !commands_.stop && !stopping_.is_requested) co_await keep_halt(result.error());
  const bool is_stopped = stopping_.is_requested || commands_.stop;
  const std::string why_stopped = stopping_.is_requested ? stopping_.reason : phase_.reason();
  phase_.set(halted                   ? Phase::kHalted
             : stopping_.is_requested ? Phase::kStopping
             : commands_.stop         ? Phase::kStopped
                                      : Phase::kFinished,
             halted       ? result.error().message()
             : is_stopped ? why_stopped
                          : "the goal is reached");
  log::info("job.ended", {{"state", halted       ? "halted"
                                    : is_stopped ? "stopped"
                                                 : "finished"},
                          {"round", job_.round.value - 1},
                          {"version", job_.store ? job_.store->version().value : 0}});
  const bool is_coming_back =
      is_over_here || (stopping_.leaves_workers && !halted && !data_.goal_reached());
  if (is_coming_back) log::info("server.leaves_workers", {{"workers", members_.links.size()}});
  if (!is_coming_back)
    co_await finish_everybody(halted       ? proto::FinishReason::kHalted
                              : is_stopped ? proto::FinishReason::kStopped
                                           : proto::FinishReason::kFinished,
                              phase_.reason());
  // After the workers have heard of it: this waits for the disk.
  const bool is_kept = commands_.is_saved();
  if (commands_.stop && !writes_nothing &&
      (commands_.stop->version != job_.checkpointed.value || !is_kept)) {
    commands_.stop->version = job_.checkpointed.value;
    co_await commands_.save_now();
  }
  while (!stopping_.is_requested && !config_.exit_when_finished && !is_over_here &&
         !gate_.is_deposed())
    if (!co_await changed_.wait(TimePoint::max())) break;

  if (rows_servers_ && !writes_nothing) {
    rows_servers_->end();
    co_await rows_servers_->await_all(config_.servers_wait);
    co_await rows_servers_->refresh();
  }
  // A checkpoint asked for in the meantime may have kept it after all.
  if (!writes_nothing) co_await write_last_checkpoint();  // of rows that were pushed since
  if (result.ok() && !writes_nothing && checkpointer_.needs_checkpoint())
    result = Error(ErrorCode::kResourceExhausted,
                   "the final state, version " +
                       std::to_string(job_.store ? job_.store->version().value : 0) +
                       ", is in no checkpoint: the log says why");
  if (is_over_here) co_await send_workers_away();
  Error dismissal(ErrorCode::kCancelled, "the job is over");
  if (is_coming_back) dismissal = Error(ErrorCode::kUnavailable, "the leader is coming back");
  co_await shards_.dismiss_all(dismissal);
  stopping_.is_closing = true;
  listener.close();
  for (const auto& [id, link] : members_.links)
    link->session->close(Error(ErrorCode::kCancelled, "the server is stopping"));
  outgoing_.notify_all();
  tasks_.cancel();
  co_await tasks_.join();
  open_.attempt.reset();
  if (rows_failure_ && result.ok()) result = *rows_failure_;  // of meanwhile
  co_return result;
}

void Cluster::request_stop(const std::string& why, bool leave_workers) {
  if (!stopping_.is_requested) stopping_.leaves_workers = leave_workers;
  if (!stopping_.is_requested) log::info("server.stop_requested", {{"why", why}});
  stopping_.is_requested = true;
  stopping_.reason = why;
  journal_.give_up();
  rows_.give_up();
  (void)disk_.hurried();
  changed_.notify_all();
}

Task<void> Cluster::accept_loop(transport::Listener& listener) {
  while (!stopping_.is_closing) {
    auto connection = co_await listener.accept();
    if (!connection.ok()) {
      if (connection.error().code() == ErrorCode::kCancelled) co_return;
      log::warn("connection.accept_failed", {{"error", connection.error()}});
      if (!co_await sleep_until(clock_.now() + std::chrono::milliseconds(100))) co_return;
      continue;
    }
    const std::size_t limit = config_.max_workers + 64;
    if (tasks_.size() > limit) {
      log::warn("connection.refused", {{"peer", connection.value()->peer()},
                                       {"why", "too many connections"},
                                       {"limit", limit}});
      connection.value()->close(Error(ErrorCode::kResourceExhausted, "too many connections"));
      continue;
    }
    tasks_.spawn(serve(std::move(connection).value()));
  }
}

Task<void> Cluster::watch_leases() {
  while (!stopping_.is_closing) {
    if (!co_await sleep_until(clock_.now() + config_.lease / 8)) co_return;
    for (const auto& [id, link] : members_.links) {
      members_.roster.heard(id, link->session->connection().last_received());
      link->traffic = link->session->connection().traffic();
    }
    if (gate_.held()) tasks_.spawn(gate_.look());
    for (const MemberId dead : members_.roster.tick(clock_.now())) {
      const std::string reason = members_.roster.find(dead)->reason;
      log::warn("member.lease_expired",
                {{"worker", members_.name_of(dead)}, {"member", dead.value}, {"why", reason}});
      events_.publish(
          "member.lost",
          {{"worker", members_.name_of(dead)}, {"member", dead.value}, {"why", reason}});
      probe_.member_dead();
      member_gone(dead, Error(ErrorCode::kAborted, "fenced: " + reason + "; join again"));
    }
    rows_.tick();
    shards_.expire(config_.lease);
    const std::size_t here = shards_.present().size() + 1;
    const std::size_t wanted = std::max<std::size_t>(config_.servers, spread_.links.size());
    probe_.shards(here - 1, wanted - std::min(wanted, here));
    if (const auto rows = rows_.journal(); journal_.is_on() || rows)
      probe_.journal(journal_.state(rows));
    if (checkpointer_.is_checkpoint_due()) tasks_.spawn(checkpointer_.checkpoint_in_background());
    if (!use_.is_writing && journal_.wants_checkpoint())
      tasks_.spawn(checkpointer_.checkpoint_in_background());
    if (use_.is_writing && journal_.state().is_broken) (void)disk_.hurried();
    if (job_.pool && job_.aggregator)
      probe_.buffers(job_.pool->in_use(), job_.pool->capacity(), job_.aggregator->waiting());
    Duration silence{};
    std::size_t unsent = 0;
    for (const auto& [id, link] : members_.links) {
      if (const Member* const member = members_.roster.find(id))
        silence = std::max(silence, clock_.now() - member->heard);
      unsent += link->unsent();
    }
    const auto in_seconds = [](Duration d) { return std::chrono::duration<double>(d).count(); };
    probe_.silence(in_seconds(silence), in_seconds(config_.lease));
    probe_.unsent(unsent);
    const bool is_open = open_.attempt && !open_.attempt->closed;
    probe_.round_is_open(
        is_open ? std::chrono::duration<double>(clock_.now() - open_.opened).count() : 0);
    std::array<std::size_t, kWorkerStates.size()> states{};
    for (const auto& [id, member] : members_.roster.members())
      ++states[static_cast<std::size_t>(member.state)];
    probe_.workers(states);
    probe_.waits(wait_report_.count_waits());
    probe_.members(members_.roster.present(), open_.attempt ? open_.attempt->members.size() : 0,
                   members_.roster.generation().value);
  }
}

void Cluster::member_gone(MemberId id, std::optional<Error> tell) {
  const auto link = members_.find(id);
  if (!link) return;
  members_.links.erase(id);
  link->is_gone = true;
  if (const Member* const member = members_.roster.find(id))
    keep_unanswered(events_, *link, "the worker is gone: " + member->reason);
  round_servers_.departed(id);
  if (!open_.attempt || open_.attempt->closed) round_servers_.forget_departed();
  link->traffic = link->session->connection().traffic();
  if (const Member* const member = members_.roster.find(id))
    members_.gone[id] = worker_view(*member, link.get(), data_.coordinator(), clock_.now());
  std::erase_if(members_.gone,
                [this](const auto& gone) { return members_.roster.find(gone.first) == nullptr; });
  if (tell) link->tasks->spawn(link->session->goodbye(*tell));
  data_.part_lost(*link);

  if (policy_.is_elastic()) {
    if (open_.attempt && open_.machine.expects(id)) {
      ++totals_.lost_contributions;
      probe_.contribution_lost();
    }
    attempts_.decide(open_.machine.gone(id, Progress::kNothing, clock_.now()));
  } else if (open_.attempt && open_.machine.expects(id)) {
    const std::uint32_t rank = *open_.attempt->rank_of(id);
    const Progress progress =
        job_.aggregator->has_part_of(rank) ? Progress::kPart : Progress::kNothing;
    ++totals_.lost_contributions;
    probe_.contribution_lost();
    if (progress == Progress::kNothing && !config_.is_peer_to_peer()) job_.aggregator->absent(rank);
    attempts_.decide(open_.machine.gone(id, progress));
  } else if (open_.attempt) {
    (void)open_.machine.gone(id,
                             Progress::kNothing);  // what it has contributed counts, it does not
  }
  changed_.notify_all();
  outgoing_.notify_all();
}

Task<void> Cluster::finish_everybody(proto::FinishReason reason, std::string text) {
  MemberId evaluator;
  const auto ranked = members_.roster.ranked();
  if (!ranked.empty()) evaluator = ranked.front();
  if (policy_.is_elastic())
    for (auto it = ranked.rbegin(); it != ranked.rend(); ++it)
      if (const auto link = members_.find(*it); link && exchange_.holds_newest(*link))
        evaluator = *it;
  for (const auto& [id, link] : members_.links) {
    if (link->late && !link->late->outcome) elastic_.settle_late(*link, proto::Outcome::kLate);
    const bool evaluate =
        id == evaluator && reason != proto::FinishReason::kHalted && exchange_.holds_newest(*link);
    link->finish = proto::Finish{.reason = reason,
                                 .evaluate = evaluate,
                                 .version = job_.store ? job_.store->version() : Version(),
                                 .text = text};
  }
  epilogue_ = proto::Finish{.reason = reason,
                            .version = job_.store ? job_.store->version() : Version(),
                            .text = std::move(text)};
  outgoing_.notify_all();
  const auto sent = [this] {
    std::uint64_t bytes = 0;
    for (const auto& [id, link] : members_.links)
      bytes += link->session->connection().traffic().bytes_out;
    return bytes;
  };
  std::uint64_t seen = sent();
  TimePoint deadline = clock_.now() + config_.drain_timeout;
  while (!members_.links.empty() && clock_.now() < deadline) {
    co_await changed_.wait(std::min(deadline, clock_.now() + kLook));
    seen = std::min(seen, sent());  // somebody may have left
    if (sent() < seen + kMoving) continue;
    seen = sent();
    deadline = clock_.now() + config_.drain_timeout;  // the last state is on its way
  }
  for (const auto& [id, link] : members_.links)
    log::warn("member.did_not_leave", {{"worker", link->join.name}});
}

/// What looks at settings when it is told to; the rest looks at them between two rounds.
void Cluster::settings_changed() {
  members_.roster.set_limits(config_.lease, static_cast<std::size_t>(config_.max_workers));
  log::set_level(log::parse_level(config_.log_level).value());
  commands_.is_changed = true;
  changed_.notify_all();
  if (told_of_change_) told_of_change_();
}

}  // namespace centroid::server
