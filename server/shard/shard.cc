#include "server/shard/shard.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <boost/asio/this_coro.hpp>

#include "common/base/log.h"
#include "common/base/version.h"
#include "common/checkpoint/fault_point.h"
#include "common/proto/about.h"
#include "server/shard/leader_sink.h"

namespace centroid::server {

using proto::ServersKind;
using transport::Session;

namespace {

constexpr std::chrono::seconds kHandshake{5}, kJoin{10}, kEnterTimeout{10};

}  // namespace

Shard::Shard(Executor executor, Executor files, transport::Transport& transport,
             ShardOptions options, const Clock& clock, metrics::Registry& registry)
    : context_(executor, std::move(files), std::move(options), clock, registry),
      transport_(transport),
      connector_(executor, {.servers = context_.options.leaders,
                            .timeout = context_.options.join_timeout,
                            .timeout_name = "join_timeout"}),
      rows_(executor, context_.files,
            {context_.options.name, context_.options.journal_dir, context_.options.memory_limit},
            clock),
      model_(
          context_, rows_,
          [this](const std::vector<MemberId>& members, const ShardResult& result) {
            workers_.send(members, result);
          },
          [this](MemberId member, std::size_t bytes) { workers_.release(member, bytes); }),
      workers_(context_, model_),
      tasks_(executor) {}

Shard::~Shard() = default;

void Shard::request_stop(const std::string& why) {
  LeaderSession& leader = context_.leader;
  const bool is_leaving = context_.readiness.is_leaving();
  if (!is_stopping_ && !is_leaving) log::info("server.stop_requested", {{"why", why}});
  stop_reason_ = why;
  const bool drains = context_.options.drain_timeout.count() > 0;
  if (drains && leader.is_joined() && leader.is_open() && !is_leaving) {
    context_.readiness.leave("its chunks move to other servers, then it ends");
    leader.tasks().spawn(leave(leader.session()));
    return;
  }
  is_stopping_ = true;
  if (leader.is_open()) leader.session().close(Error(ErrorCode::kCancelled, why));
  connector_.stop();
}

Task<Status> Shard::run(transport::Listener& listener) {
  fault::forbid_storage_here("the service thread");
  auto serve_one = [this](std::unique_ptr<transport::Connection> connection,
                          std::unique_ptr<transport::Strangers::Place> place) {
    tasks_.spawn(serve_worker(std::move(connection), std::move(place)));
  };
  tasks_.spawn(
      transport::accept_all(listener, context_.strangers, is_stopping_, std::move(serve_one)));
  const Status result = co_await follow_leader();
  is_stopping_ = true;
  listener.close();
  tasks_.cancel();
  co_await tasks_.join();
  co_return result;
}

/// Join the leader, and again after it is lost. Returns the result of this server.
Task<Status> Shard::follow_leader() {
  while (!is_stopping_) {
    const Error failure = co_await serve_next();
    co_await forget_everything(failure);
    if (const auto result = result_of(failure)) co_return *result;
    const Status again = co_await connector_.retry(failure);
    if (!again.ok() && !is_stopping_) co_return again;
  }
  co_return Status();
}

/// One session with the leader, until it ends.
Task<Error> Shard::serve_next() {
  auto session = co_await connector_.connect(transport_, greeting());
  if (!session.ok()) co_return session.error();
  const Error failure = co_await serve_leader(*session.value());
  context_.leader.leave();
  co_return failure;
}

/// Final result of this server after that error; none: the connector decides.
std::optional<Status> Shard::result_of(const Error& failure) const {
  if (is_stopping_) return Status();
  if (context_.leader.fatal()) return Status(*context_.leader.fatal());
  if (failure.code() == ErrorCode::kCancelled) {  // the leader's goodbye
    log::info("leader.finished", {{"why", failure.message()}});
    return Status();
  }
  if (context_.readiness.is_leaving()) return Status();  // the leader ended first
  return std::nullopt;
}

transport::Greeting Shard::greeting() const {
  transport::Greeting greeting;
  greeting.role = "server";
  greeting.name = context_.options.name;
  const std::string& own = context_.options.servers_token;
  greeting.token = own.empty() ? context_.options.token : own;
  greeting.limits.max_head_bytes = transport::kMaxHeadBytes;
  greeting.limits.max_payload_bytes = context_.options.max_payload_bytes;
  return greeting;
}

Task<Status> Shard::join_leader(Session& session) {
  LeaderSession& leader = context_.leader;
  proto::ServerJoin join;
  join.name = context_.options.name;
  join.endpoint = context_.options.advertise;
  join.run_id = leader.terms().run_id;
  const auto head = proto::encode(join);
  const auto kind = static_cast<std::uint16_t>(ServersKind::kServerJoin);
  const TimePoint limit = context_.clock.now() + kJoin;
  auto reply = co_await session.request(kind, head, Bytes(), limit);
  if (!reply.ok()) co_return std::move(reply).error();
  CENTROID_CO_ASSIGN(auto terms, proto::decode<proto::ServerTerms>(reply->head));
  if (terms.term < leader.terms().term)
    co_return Error(ErrorCode::kUnavailable,
                    connector_.present().to_string() + " leads in term " +
                        std::to_string(terms.term) + ", this server has followed term " +
                        std::to_string(leader.terms().term) + ": that server is deposed");
  leader.join(std::move(terms));
  context_.readiness.set_ready();
  connector_.joined();
  log::info("leader.joined", {{"leader", connector_.present().to_string()},
                              {"run_id", leader.terms().run_id},
                              {"term", leader.terms().term}});
  co_return Status();
}

Task<Error> Shard::serve_leader(Session& session) {
  TaskGroup children(context_.executor);
  context_.leader.begin(session, children);
  auto start = [](Shard* self, Session* s, TaskGroup* group) -> Task<void> {
    const Status joined = co_await self->join_leader(*s);
    if (!joined.ok()) {
      s->close(joined.error());
      co_return;
    }
    group->spawn(self->heartbeats(*s));
  };
  children.spawn(start(this, &session, &children));
  LeaderSink sink(context_, model_, workers_, rows_, children);
  const Error cause = co_await session.run(sink);
  co_await boost::asio::this_coro::reset_cancellation_state(boost::asio::disable_cancellation());
  session.close(cause);
  context_.leader.end();
  children.cancel();
  co_await children.join();
  co_return cause;
}

Task<void> Shard::heartbeats(Session& session) {
  const Clock& clock = context_.clock;
  const std::chrono::milliseconds lease(context_.leader.terms().lease_ms);
  const auto kind = static_cast<std::uint16_t>(proto::Kind::kHeartbeat);
  const auto report_kind = static_cast<std::uint16_t>(ServersKind::kServerReport);
  transport::Pulse pulse = connector_.pulse(lease);
  proto::Beat about;
  about.version = kVersion;
  while (!session.is_closed()) {
    const bool goes_on = co_await pulse.rest();
    if (!goes_on) co_return;
    const Status heard = pulse.check(session.connection().last_received(), "the leader");
    if (!heard.ok()) co_return session.close(heard.error());
    about.unix_seconds = clock.unix_seconds();
    const auto said = proto::encode(about);
    (void)co_await session.send(kind, said, Bytes(), clock.now() + lease);
    context_.progress.before_report();
    const proto::ServerReport now = report();
    model_.show(now);
    const auto head = proto::encode(now);
    (void)co_await session.send(report_kind, head, Bytes(), clock.now() + lease);
    rows_.tick();
    context_.strangers.show();
  }
}

proto::ServerReport Shard::report() const {
  proto::ServerReport report;
  model_.add_to(report);
  workers_.add_to(report);
  report.busy = context_.progress.what();
  report.progress = context_.progress.count();
  return report;
}

/// Request to leave: the other servers take its chunks, then the leader ends the session.
Task<void> Shard::leave(Session& session) {
  const TimePoint limit = context_.clock.now() + context_.options.drain_timeout;
  proto::Leave leave;
  leave.reason = stop_reason_;
  const auto head = proto::encode(leave);
  const auto kind = static_cast<std::uint16_t>(proto::Kind::kLeave);
  const auto reply = co_await session.request(kind, head, Bytes(), limit);
  if (reply.ok()) {
    const bool is_late = co_await sleep_until(limit);  // lint-ok: a deadline
    if (!is_late) co_return;
  }
  if (session.is_closed()) co_return;
  log::warn("server.drain_failed",
            {{"why", reply.ok() ? "its chunks were not moved within drain_timeout" : "no answer"},
             {"drain_timeout_ms", context_.options.drain_timeout.count()}});
  session.close(Error(ErrorCode::kCancelled, stop_reason_ + ", not drained"));
}

/// Drop all state: it belongs to a session with the leader that has ended.
Task<void> Shard::forget_everything(Error why) {
  const Error cause(ErrorCode::kUnavailable,
                    "server '" + context_.options.name + "' lost its leader: " + why.message());
  context_.readiness.set_not_ready("no leader: " + why.message());
  context_.probe.leader_lost();
  workers_.close_all(cause);
  rows_.forget(cause);
  co_await model_.forget();
}

/// Close a session without a worker or client after kEnterTimeout.
Task<void> Shard::expect_enter(Session& session, const WorkerSink& sink) {
  const TimePoint limit = context_.clock.now() + kEnterTimeout;
  const bool in_time = co_await sleep_until(limit);  // lint-ok: a deadline
  if (!in_time || sink.is_known() || session.is_closed()) co_return;
  const Error late(ErrorCode::kDeadlineExceeded,
                   "no Enter or RowsOpen came within 10 s of the handshake");
  co_await session.goodbye(late);
}

void Shard::log_refused(const std::string& peer, const Error& why) {
  if (context_.strangers.log_refused(peer, why)) context_.probe.handshake_refused();
}

Task<void> Shard::serve_worker(std::unique_ptr<transport::Connection> connection,
                               std::unique_ptr<transport::Strangers::Place> place) {
  const std::string peer = connection->peer();
  if (!context_.leader.is_joined()) {
    connection->close(Error(ErrorCode::kUnavailable,
                            "server '" + context_.options.name + "' has no leader at the moment"));
    co_return;
  }
  const Status turn = co_await place->turn();
  if (!turn.ok()) {
    place.reset();
    log_refused(peer, turn.error());
    co_return connection->close(turn.error());
  }
  transport::Greeting ours = greeting();
  ours.accepts_roles = {"worker", "client"};
  ours.token = context_.options.token;
  ours.run_id = context_.leader.terms().run_id;
  ours.also_accepts = [this](std::string_view secret) { return workers_.accepts(secret); };
  ours.credit_bytes = context_.leader.terms().credit_bytes;
  auto accepted = co_await Session::accept(std::move(connection), std::move(ours),
                                           context_.clock.now() + kHandshake);
  if (!accepted.ok()) {
    place.reset();  // its connection is gone
    log_refused(peer, accepted.error());
    co_return;
  }
  place->greeted();
  const auto session = std::move(accepted).value();
  TaskGroup children(context_.executor);
  WorkerSink sink(workers_, rows_, children, *place);
  children.spawn(expect_enter(*session, sink));
  const Error cause = co_await session->run(sink);
  co_await boost::asio::this_coro::reset_cancellation_state(boost::asio::disable_cancellation());
  session->close(cause);
  if (sink.is_unexplained()) log_refused(peer, cause);
  if (const auto& worker = sink.worker()) workers_.left(worker, cause);
  children.cancel();
  co_await children.join();
}

}  // namespace centroid::server
