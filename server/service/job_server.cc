#include "server/service/job_server.h"

#include <algorithm>
#include <thread>

#include <boost/asio/this_coro.hpp>

#include "common/base/log.h"
#include "common/base/log_level.h"
#include "server/service/peer_session.h"
#include "server/service/waits.h"
#include "server/shard/read_manifest.h"

namespace centroid::server {

namespace asio = boost::asio;

namespace {
/// More than heartbeats in the time in which a member is to leave.
constexpr std::uint64_t kMoving = 64 << 10;
}  // namespace

JobServer::JobServer(Executor executor, Executor blocking, const ServerConfig& config,
                     const Clock& clock, metrics::Registry& registry)
    : ctx_(std::move(executor), std::move(blocking), config, clock, registry),
      parts_(ctx_, registry),
      stop_(ctx_, parts_.data, parts_.rows),
      started_(clock.now()) {}

void JobServer::set_tokens(std::function<bool(std::string_view)> accepts,
                           std::function<proto::Tokens()> told) {
  accepts_token_ = std::move(accepts);
  parts_.servers.set_tokens(std::move(told));
}

transport::Greeting JobServer::greeting() const {
  transport::Greeting greeting;
  greeting.role = "server";
  greeting.accepts_roles = {"worker", "client", "server"};
  greeting.name = "server";
  greeting.run_id = ctx_.job.run_id;
  greeting.token = ctx_.config.token;
  greeting.also_accepts = [this](std::string_view secret) {  // it is not `token`
    const bool is_known = accepts_token_ && accepts_token_(secret);
    if (!is_known) ctx_.probe.token_refused();
    return is_known;
  };
  greeting.keyed_role = "server";
  greeting.keyed_token = ctx_.config.servers_token;
  greeting.limits.max_head_bytes = transport::kMaxHeadBytes;
  greeting.limits.max_payload_bytes = max_payload_bytes(ctx_.config.transfer.chunk_bytes);
  greeting.credit_bytes = ctx_.config.transfer.credit_bytes;
  return greeting;
}

Task<Status> JobServer::run(transport::Listener& listener) {
  auto serve_one = [this](std::unique_ptr<transport::Connection> connection,
                          std::unique_ptr<transport::Strangers::Place> place) {
    ctx_.tasks.spawn(serve(std::move(connection), std::move(place)));
  };
  ctx_.tasks.spawn(transport::accept_all(listener, ctx_.strangers, ctx_.stopping.is_closing,
                                         std::move(serve_one)));
  ctx_.tasks.spawn(watch_leases());
  ctx_.tasks.spawn(parts_.wait_report.watch_waits());
  Ending ending;
  ending.result = co_await take_the_lead();
  if (!ending.result.ok()) {  // nobody is here yet, nothing has begun
    co_await close(listener);
    co_return ending.result;
  }
  const bool leads = !ctx_.phase.is(Phase::kStandby);
  if (leads && parts_.table_servers) ctx_.tasks.spawn(parts_.table_servers->run());
  if (leads && parts_.table_servers) ctx_.tasks.spawn(parts_.table_servers->move_buckets());
  if (ctx_.commands.stop) co_await stop_.stay_stopped();
  if (leads && !ctx_.commands.stop) ending.result = co_await parts_.rounds.run_rounds();
  if (rows_failure_ && ending.result.ok()) ending.result = *rows_failure_;
  if (ctx_.commands.stop && ending.result.ok() && parts_.data.goal_reached())
    co_await stop_.honour_stop();  // a larger goal may be set
  ctx_.stopping.rounds_ended = true;
  ctx_.changed.notify_all();
  co_await end_job(ending);
  const auto is_over = [&] {
    return ctx_.stopping.is_requested || ctx_.config.leaving.when_finished || ending.is_elsewhere ||
           ending.may_pass || ctx_.gate.is_deposed();
  };
  (void)co_await ctx_.waits.until(is_over, kShownElsewhere);
  co_await keep_last_state(ending);
  if (ending.is_elsewhere) co_await send_workers_away();
  Error dismissal(ErrorCode::kCancelled, "the job is over");
  if (ending.is_coming_back)
    dismissal = Error(ErrorCode::kUnavailable, "the leader is coming back");
  co_await parts_.shards.dismiss_all(dismissal);
  co_await close(listener);
  if (rows_failure_ && ending.result.ok()) ending.result = *rows_failure_;  // of meanwhile
  co_return ending.result;
}

/// No session, and no thread of the journal, outlives this.
Task<void> JobServer::close(transport::Listener& listener) {
  ctx_.stopping.is_closing = true;
  listener.close();
  for (const auto& [id, worker] : ctx_.members.present)
    worker->session->close(Error(ErrorCode::kCancelled, "the server is stopping"));
  ctx_.members.wake_all();
  ctx_.changed.notify_all();
  ctx_.tasks.cancel();
  co_await ctx_.tasks.join();
  co_await ctx_.journal.stop(ctx_.disk.executor);  // its thread asks the fence, and posts to us
  ctx_.open.attempt.reset();
}

/// The rounds are over: the last checkpoint, the last phase, and everybody hears of it. Where
/// another server has the job, or may, nothing is written and nobody is told that it is over. An
/// unavailable disk ends this server and not the job: started again, the server may continue.
Task<void> JobServer::end_job(Ending& ending) {
  Status& result = ending.result;
  const auto is_elsewhere = [&] {
    return ctx_.gate.is_deposed() || (ctx_.gate.has_election() && !result.ok() &&
                                      result.error().code() == ErrorCode::kAborted);
  };
  auto& stop = ctx_.commands.stop;
  const bool is_remembered = result.ok() && !is_elsewhere() && stop && !stop->halted.empty();
  (void)ctx_.disk.hurried();  // the end waits for a checkpoint that is being written
  if (is_remembered) result = Error(ErrorCode::kFailedPrecondition, stop->halted);
  ending.may_pass =
      !result.ok() && !rows_failure_ && result.error().code() == ErrorCode::kUnavailable;
  bool halted = !result.ok() && !ending.may_pass && !is_elsewhere();
  if (halted && !is_remembered) log::error("job.halted", {{"error", result.error()}});
  if (halted && ctx_.job.shard && !ctx_.job.store().is_current())
    (void)co_await parts_.exchange.fetch_state();
  if (!ending.may_pass && !is_elsewhere() && !ctx_.phase.is(Phase::kStandby))
    co_await write_last_checkpoint();
  ending.is_elsewhere = is_elsewhere();
  halted = halted && !ending.is_elsewhere;
  if (ending.is_elsewhere)
    log::error("leader.deposed",
               {{"term", ctx_.gate.term()},
                {"error", result.ok() ? ctx_.gate.holds().error() : result.error()},
                {"action", "this server writes nothing more, its workers look for the leader"}});
  ending.writes_nothing = ending.is_elsewhere || ending.may_pass || ctx_.phase.is(Phase::kStandby);
  const bool is_signalled = ctx_.stopping.is_requested;
  if (halted && !stop && !is_signalled) co_await stop_.keep_halt(result.error());
  const proto::FinishReason reason = set_last_phase(ending, halted);
  ending.is_coming_back = ending.is_elsewhere || ending.may_pass ||
                          (ctx_.stopping.leaves_workers && !halted && !parts_.data.goal_reached());
  if (ending.is_coming_back)
    log::info("server.workers_released", {{"workers", ctx_.members.present.size()}});
  if (!ending.is_coming_back) co_await finish_everybody(reason, ctx_.phase.reason());
  // After the workers have heard of it: this waits for the disk.
  const bool is_kept = ctx_.commands.is_saved();
  if (stop && !ending.writes_nothing &&
      (stop->version != ctx_.job.checkpointed.value || !is_kept)) {
    stop->version = ctx_.job.checkpointed.value;
    co_await ctx_.commands.save_now();
  }
}

proto::FinishReason JobServer::set_last_phase(const Ending& ending, bool halted) {
  const bool is_requested = ctx_.stopping.is_requested || ending.is_elsewhere || ending.may_pass;
  const bool is_stopped = is_requested || ctx_.commands.stop;
  const std::string why_stopped = ctx_.stopping.is_requested ? ctx_.stopping.reason
                                  : ending.is_elsewhere      ? "another server leads"
                                  : ending.may_pass          ? ending.result.error().message()
                                                             : ctx_.phase.reason();
  ctx_.phase.set(halted               ? Phase::kHalted
                 : is_requested       ? Phase::kStopping
                 : ctx_.commands.stop ? Phase::kStopped
                                      : Phase::kFinished,
                 halted       ? ending.result.error().message()
                 : is_stopped ? why_stopped
                              : "the goal is reached");
  log::info("job.ended", {{"state", halted       ? "halted"
                                    : is_stopped ? "stopped"
                                                 : "finished"},
                          {"round", ctx_.job.round.value - 1},
                          {"version", ctx_.job.version().value}});
  return halted       ? proto::FinishReason::kHalted
         : is_stopped ? proto::FinishReason::kStopped
                      : proto::FinishReason::kFinished;
}

/// A checkpoint asked for in the meantime may have kept it; of rows that were pushed since, too.
Task<void> JobServer::keep_last_state(Ending& ending) {
  if (ending.writes_nothing) co_return;
  if (parts_.table_servers) {
    parts_.table_servers->end();
    co_await parts_.table_servers->await_all(ctx_.config.timeouts.servers);
    co_await parts_.table_servers->refresh();
  }
  co_await write_last_checkpoint();
  if (ending.result.ok() && parts_.checkpointer.needs_checkpoint())
    ending.result = Error(ErrorCode::kResourceExhausted,
                          "the final state, version " + std::to_string(ctx_.job.version().value) +
                              ", is in no checkpoint: the log says why");
}

Task<void> JobServer::serve(std::unique_ptr<transport::Connection> connection,
                            std::unique_ptr<transport::Strangers::Place> place) {
  const std::string peer = connection->peer();
  const Status turn = co_await place->turn();
  if (!turn.ok()) {
    place.reset();
    log_refused(peer, turn.error());
    co_return connection->close(turn.error());
  }
  auto accepted = co_await transport::Session::accept(std::move(connection), greeting(),
                                                      ctx_.clock.now() + std::chrono::seconds(5));
  if (!accepted.ok()) {
    place.reset();  // its connection is gone
    log_refused(peer, accepted.error());
    co_return;
  }
  place->greeted();
  const auto session = std::move(accepted).value();
  co_await serve(*session, *place);
  ctx_.changed.notify_all();  // nothing of it uses the state any more
}

void JobServer::log_refused(const std::string& peer, const Error& why) {
  if (ctx_.strangers.log_refused(peer, why)) ctx_.probe.handshake_refused();
}

Task<void> JobServer::serve(transport::Session& session, transport::Strangers::Place& place) {
  TaskGroup children(ctx_.executor);
  PeerSession sink(ctx_, parts_, children, place);
  children.spawn(sink.expect_first_message(session));
  const Error cause = co_await session.run(sink);
  // What follows must happen even when this task was cancelled: others hold pointers to the
  // session.
  co_await boost::asio::this_coro::reset_cancellation_state(boost::asio::disable_cancellation());
  session.close(cause);
  if (sink.is_unexplained()) log_refused(session.peer().address, cause);
  sink.ended(cause);
  children.cancel();
  co_await children.join();
}

Task<void> JobServer::watch_leases() {
  while (!ctx_.stopping.is_closing) {
    const TimePoint next = ctx_.clock.now() + ctx_.config.timeouts.lease / 8;
    const bool goes_on = co_await sleep_until(next);  // lint-ok: a tick
    if (!goes_on) co_return;
    ctx_.changed.notify_all();  // conditions that the clock changes
    for (const auto& [id, worker] : ctx_.members.present) {
      ctx_.members.roster.heard(id, worker->session->connection().last_received());
      worker->traffic = worker->session->connection().traffic();
    }
    if (ctx_.gate.held()) ctx_.tasks.spawn(ctx_.gate.look());
    for (const MemberId dead : ctx_.members.roster.tick(ctx_.clock.now())) {
      const std::string reason = ctx_.members.roster.find(dead)->reason;
      if (const auto why = ctx_.strangers.arrival_line(reason)) {
        const std::string name = ctx_.members.name_of(dead);
        log::warn("member.lease_expired",
                  {{"worker", name}, {"member", dead.value}, {"why", *why}});
        ctx_.events.publish("member.lost",
                            {{"worker", name}, {"member", dead.value}, {"why", *why}});
      }
      ctx_.probe.member_dead();
      parts_.member_gone(dead, Error(ErrorCode::kAborted, "fenced: " + reason + "; join again"));
    }
    ctx_.strangers.show();
    ctx_.probe.events(ctx_.events.usage());
    ctx_.probe.places(ctx_.members.roster.present(), ctx_.config.workers.max);
    parts_.rows.tick();
    parts_.shards.expire(ctx_.config.timeouts.lease);
    const std::size_t here = parts_.shards.present().size() + 1;
    const std::size_t wanted =
        std::max<std::size_t>(ctx_.config.servers, ctx_.spread.present.size());
    ctx_.probe.shards(here - 1, wanted - std::min(wanted, here));
    if (const auto rows = parts_.rows.journal().state(); ctx_.journal.is_on() || rows)
      ctx_.probe.journal(ctx_.journal.state(rows));
    if (parts_.checkpointer.is_checkpoint_due())
      ctx_.tasks.spawn(parts_.checkpointer.checkpoint_in_background());
    if (!ctx_.use.is_writing && ctx_.journal.requires_checkpoint(ctx_.clock.now()))
      ctx_.tasks.spawn(parts_.checkpointer.checkpoint_in_background());
    if (ctx_.use.is_writing && ctx_.journal.state().is_broken) (void)ctx_.disk.hurried();
    if (ctx_.job.pool && ctx_.job.aggregator)
      ctx_.probe.buffers(ctx_.job.pool->in_use(), ctx_.job.pool->capacity(),
                         ctx_.job.aggregator->waiting());
    Duration silence{};
    std::size_t unsent = 0;
    for (const auto& [id, worker] : ctx_.members.present) {
      if (const Member* const member = ctx_.members.roster.find(id))
        silence = std::max(silence, ctx_.clock.now() - member->heard);
      unsent += worker->results.unsent();
    }
    const auto in_seconds = [](Duration d) { return std::chrono::duration<double>(d).count(); };
    ctx_.probe.silence(in_seconds(silence), in_seconds(ctx_.config.timeouts.lease));
    ctx_.probe.unsent(unsent);
    const bool is_open = ctx_.open.attempt && !ctx_.open.attempt->closed;
    ctx_.probe.round_is_open(
        is_open ? std::chrono::duration<double>(ctx_.clock.now() - ctx_.open.opened).count() : 0);
    std::array<std::size_t, kWorkerStates.size()> states{};
    for (const auto& [id, member] : ctx_.members.roster.members())
      ++states[static_cast<std::size_t>(member.state)];
    ctx_.probe.workers(states);
    ctx_.probe.waits(parts_.wait_report.count_waits());
    ctx_.probe.members(ctx_.members.roster.present(),
                       ctx_.open.attempt ? ctx_.open.attempt->members.size() : 0,
                       ctx_.members.roster.generation().value);
  }
}

Task<void> JobServer::finish_everybody(proto::FinishReason reason, std::string text) {
  MemberId evaluator;
  const auto ranked = ctx_.members.roster.ranked();
  if (!ranked.empty()) evaluator = ranked.front();
  if (ctx_.policy.is_elastic())
    for (auto it = ranked.rbegin(); it != ranked.rend(); ++it)
      if (const auto worker = ctx_.members.find(*it);
          worker && parts_.exchange.holds_newest(*worker))
        evaluator = *it;
  for (const auto& [id, worker] : ctx_.members.present) {
    if (worker->late && !worker->late->outcome)
      parts_.elastic.resolve_late(*worker, proto::Outcome::kLate);
    const bool evaluate = id == evaluator && reason != proto::FinishReason::kHalted &&
                          parts_.exchange.holds_newest(*worker);
    worker->finish =
        proto::Finish{.reason = reason,
                      .evaluate = evaluate,
                      .version = ctx_.job.shard ? ctx_.job.store().version() : Version(),
                      .text = text};
  }
  ctx_.epilogue = proto::Finish{.reason = reason,
                                .version = ctx_.job.shard ? ctx_.job.store().version() : Version(),
                                .text = std::move(text)};
  ctx_.members.wake_all();
  co_await await_leaves();
  for (const auto& [id, worker] : ctx_.members.present)
    log::warn("member.leave_timed_out", {{"worker", worker->join.name}});
}

/// For `drain_timeout`, and again as long as they are sent more than heartbeats: the last state.
Task<void> JobServer::await_leaves() {
  const auto waits = ctx_.waits.begin(WaitCause::kWorkers, "job", "workers",
                                      "their leave: they know that the job is over");
  const auto sent = [this] {
    std::uint64_t bytes = 0;
    for (const auto& [id, worker] : ctx_.members.present)
      bytes += worker->session->connection().traffic().bytes_out;
    return bytes;
  };
  const auto are_gone = [this] { return ctx_.members.present.empty(); };
  std::uint64_t seen = sent();
  TimePoint deadline = ctx_.clock.now() + ctx_.config.timeouts.drain;
  bool have_left = false;
  while (!have_left && ctx_.clock.now() < deadline) {
    // No event tells that bytes have left: their counters are read.
    const TimePoint look = std::min(deadline, ctx_.clock.now() + kRetryPause);
    have_left = co_await ctx_.waits.until(are_gone, kShownElsewhere, look);
    seen = std::min(seen, sent());  // somebody may have left
    if (sent() < seen + kMoving) continue;
    seen = sent();
    deadline = ctx_.clock.now() + ctx_.config.timeouts.drain;
  }
}

}  // namespace centroid::server
