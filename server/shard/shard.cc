#include "server/shard/shard.h"

#include <algorithm>
#include <optional>
#include <random>
#include <utility>

#include <boost/asio/this_coro.hpp>

#include "common/base/log.h"
#include "common/base/random.h"
#include "common/base/refusal.h"
#include "common/base/version.h"
#include "common/checkpoint/fault_point.h"
#include "common/proto/about.h"
#include "server/shard/leader_sink.h"

namespace centroid::server {

using proto::ServersKind;
using transport::Session;

namespace {

constexpr std::chrono::seconds kHandshake{5}, kConnect{10}, kEnterTimeout{10};
/// Where another server may lead: as workers look for it (server_link.cc).
constexpr std::chrono::milliseconds kSilence{3000}, kBeat{500}, kCall{1500}, kLongestPause{400};
constexpr std::chrono::milliseconds kFirstPause{100};

/// Errors that another try cannot mend.
bool is_final(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kFailedPrecondition:
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnimplemented:
    case ErrorCode::kInternal:
      return true;
    default:
      return false;
  }
}

}  // namespace

Shard::Shard(Executor executor, Executor files, transport::Transport& transport,
             ShardOptions options, const Clock& clock, metrics::Registry& registry)
    : context_(executor, std::move(files), std::move(options), clock, registry),
      transport_(transport),
      leaders_(context_.options.leaders),
      stopped_(executor),
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
  LeaderLink& leader = context_.leader;
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
  stopped_.notify_all();
}

Task<Status> Shard::run(transport::Listener& listener) {
  fault::forbid_storage_here("the service thread");
  tasks_.spawn(accept_loop(listener));
  const Status result = co_await follow_leaders();
  is_stopping_ = true;
  listener.close();
  tasks_.cancel();
  co_await tasks_.join();
  co_return result;
}

/// How the next leader is looked for.
struct Shard::Search {
  TimePoint alone_since;  ///< no leader has answered since
  std::chrono::milliseconds backoff = kFirstPause;
  std::mt19937_64 jitter{random_seed()};
  std::chrono::milliseconds pause{};  ///< before the next try; 0: none
};

/// Join the leader, and the next one when it is lost. Returns the result of this server.
Task<Status> Shard::follow_leaders() {
  const Clock& clock = context_.clock;
  Search search;
  search.alone_since = clock.now();
  while (!is_stopping_) {
    const Error failure = co_await serve_next(search);
    const bool is_put_off = refusal_of<NotReady>(failure) != nullptr;  // the leader lives, and says why
    if (is_put_off) search.alone_since = clock.now();
    co_await forget_everything(failure);
    if (const auto result = result_of(failure)) co_return *result;
    if (const auto result = next_try(failure, is_put_off, search)) co_return *result;
    if (search.pause.count() == 0) continue;
    const TimePoint again = clock.now() + search.pause;
    while (!is_stopping_ && clock.now() < again) co_await stopped_.wait(again);
    if (is_put_off) search.alone_since = clock.now();
    const std::chrono::milliseconds longest(2000);
    search.backoff = std::min(search.backoff * 2, leaders_.is_several() ? kLongestPause : longest);
  }
  co_return Status();
}

/// One session with the leader, until it ends.
Task<Error> Shard::serve_next(Search& search) {
  auto session = co_await connect();
  if (!session.ok()) co_return session.error();
  const Error failure = co_await serve_leader(*session.value());
  if (context_.leader.leave()) {
    search.backoff = kFirstPause;
    search.alone_since = context_.clock.now();
  }
  co_return failure;
}

/// What this server ends with after that error; none: it looks for a leader again.
std::optional<Status> Shard::result_of(const Error& failure) const {
  if (is_stopping_) return Status();
  if (context_.leader.fatal()) return Status(*context_.leader.fatal());
  if (failure.code() == ErrorCode::kCancelled) {  // the leader's goodbye
    log::info("leader.dismissed", {{"why", failure.message()}});
    return Status();
  }
  if (context_.readiness.is_leaving()) return Status();  // the leader went first
  if (is_final(failure)) return Status(failure);
  return std::nullopt;
}

/// Choose the server to try next, and how long to wait before. Returns an error when no leader has
/// answered for too long.
std::optional<Status> Shard::next_try(const Error& failure, bool is_put_off, Search& search) {
  search.pause = {};
  const transport::Endpoint called = leaders_.present();
  if (leaders_.failed(failure)) {
    log::info("leader.next", {{"server", called.to_string()},
                              {"why", failure},
                              {"next", leaders_.present().to_string()}});
    return std::nullopt;
  }
  const std::chrono::milliseconds timeout = context_.options.join_timeout;
  if (!is_put_off && context_.clock.now() + search.backoff >= search.alone_since + timeout)
    return Status(Error(ErrorCode::kUnavailable, "no leader at " + called.to_string() + " for " +
                                                     std::to_string(timeout.count()) +
                                                     " ms (join_timeout): " + failure.message()));
  const auto half = static_cast<std::uint64_t>(search.backoff.count() / 2 + 1);
  search.pause = search.backoff / 2 + std::chrono::milliseconds(search.jitter() % half);
  log::warn("leader.unreachable",
            {{"leader", called.to_string()}, {"why", failure}, {"retry_ms", search.pause.count()}});
  return std::nullopt;
}

transport::Greeting Shard::greeting() const {
  transport::Greeting greeting;
  greeting.role = "server";
  greeting.name = context_.options.name;
  greeting.token = context_.options.token;
  greeting.limits.max_head_bytes = transport::kMaxHeadBytes;
  greeting.limits.max_payload_bytes = context_.options.max_payload_bytes;
  return greeting;
}

Task<Result<std::unique_ptr<Session>>> Shard::connect() {
  const std::chrono::milliseconds longest(kConnect);
  const auto time = leaders_.is_several() ? kCall : longest;
  const TimePoint limit = context_.clock.now() + time;
  auto connection = co_await transport_.connect(leaders_.present(), limit);
  if (!connection.ok()) co_return std::move(connection).error();
  transport::Greeting ours = greeting();
  co_return co_await Session::open(std::move(connection).value(), std::move(ours), limit);
}

Task<Status> Shard::join_leader(Session& session) {
  LeaderLink& leader = context_.leader;
  proto::ServerJoin join;
  join.name = context_.options.name;
  join.endpoint = context_.options.advertise;
  join.run_id = leader.terms().run_id;
  const auto head = proto::encode(join);
  const auto kind = static_cast<std::uint16_t>(ServersKind::kServerJoin);
  const TimePoint limit = context_.clock.now() + kConnect;
  auto reply = co_await session.request(kind, head, Bytes(), limit);
  if (!reply.ok()) co_return std::move(reply).error();
  CENTROID_CO_ASSIGN(auto terms, proto::decode<proto::ServerTerms>(reply->head));
  if (terms.term < leader.terms().term)
    co_return Error(ErrorCode::kUnavailable,
                    leaders_.present().to_string() + " leads in term " +
                        std::to_string(terms.term) + ", this server has followed term " +
                        std::to_string(leader.terms().term) + ": that server is deposed");
  leader.join(std::move(terms));
  context_.readiness.set_ready();
  leaders_.joined();
  log::info("leader.joined", {{"leader", leaders_.present().to_string()},
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
  const auto beat = leaders_.is_several() ? std::min(kBeat, lease / 4) : lease / 4;
  const auto longest = leaders_.is_several() ? kSilence : 3 * lease;
  proto::Beat about;
  about.version = kVersion;
  while (!session.is_closed()) {
    if (!co_await sleep_until(clock.now() + beat)) co_return;
    const auto silent = clock.now() - session.connection().last_received();
    if (silent > longest) {
      const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(silent).count();
      session.close(Error(ErrorCode::kUnavailable,
                          "the leader was silent for " + std::to_string(ms) + " ms"));
      co_return;
    }
    about.unix_seconds = clock.unix_seconds();
    const auto said = proto::encode(about);
    (void)co_await session.send(kind, said, Bytes(), clock.now() + lease);
    context_.progress.before_report();
    const proto::ServerReport now = report();
    model_.show(now);
    const auto head = proto::encode(now);
    (void)co_await session.send(report_kind, head, Bytes(), clock.now() + lease);
    rows_.tick();
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

/// The others take its chunks, then the leader says goodbye.
Task<void> Shard::leave(Session& session) {
  const TimePoint limit = context_.clock.now() + context_.options.drain_timeout;
  proto::Leave leave;
  leave.reason = stop_reason_;
  const auto head = proto::encode(leave);
  const auto kind = static_cast<std::uint16_t>(proto::Kind::kLeave);
  const auto reply = co_await session.request(kind, head, Bytes(), limit);
  if (reply.ok()) {
    const bool is_late = co_await sleep_until(limit);
    if (!is_late) co_return;
  }
  if (session.is_closed()) co_return;
  log::warn("server.not_drained",
            {{"why", reply.ok() ? "its chunks were not moved within drain_timeout" : "no answer"},
             {"drain_timeout_ms", context_.options.drain_timeout.count()}});
  session.close(Error(ErrorCode::kCancelled, stop_reason_ + ", not drained"));
}

/// What lies here belongs to a session with the leader that has ended.
Task<void> Shard::forget_everything(Error why) {
  const Error cause(ErrorCode::kUnavailable,
                    "server '" + context_.options.name + "' lost its leader: " + why.message());
  context_.readiness.set_not_ready("no leader: " + why.message());
  context_.probe.leader_lost();
  workers_.close_all(cause);
  rows_.forget(cause);
  co_await model_.forget();
}

Task<void> Shard::accept_loop(transport::Listener& listener) {
  while (!is_stopping_) {
    auto connection = co_await listener.accept();
    if (!connection.ok()) {
      if (connection.error().code() == ErrorCode::kCancelled) co_return;
      log::warn("connection.accept_failed", {{"error", connection.error()}});
      if (!co_await sleep_until(context_.clock.now() + std::chrono::milliseconds(100))) co_return;
      continue;
    }
    if (tasks_.size() > context_.options.max_workers + 64) {
      connection.value()->close(Error(ErrorCode::kResourceExhausted, "too many connections"));
      continue;
    }
    tasks_.spawn(serve_worker(std::move(connection).value()));
  }
}

/// A session that brings nobody is not kept.
Task<void> Shard::expect_enter(Session& session, const WorkerSink& sink) {
  const bool in_time = co_await sleep_until(context_.clock.now() + kEnterTimeout);
  if (!in_time || sink.is_known() || session.is_closed()) co_return;
  const Error late(ErrorCode::kDeadlineExceeded,
                   "no Enter or RowsOpen came within 10 s of the handshake");
  co_await session.goodbye(late);
}

Task<void> Shard::serve_worker(std::unique_ptr<transport::Connection> connection) {
  const std::string peer = connection->peer();
  if (!context_.leader.is_joined()) {
    connection->close(Error(ErrorCode::kUnavailable,
                            "server '" + context_.options.name + "' has no leader at the moment"));
    co_return;
  }
  transport::Greeting ours = greeting();
  ours.run_id = context_.leader.terms().run_id;
  ours.also_accepts = [this](std::string_view secret) { return workers_.accepts(secret); };
  ours.credit_bytes = context_.leader.terms().credit_bytes;
  auto accepted = co_await Session::accept(std::move(connection), std::move(ours),
                                           context_.clock.now() + kHandshake);
  if (!accepted.ok()) {
    const bool is_probe = accepted.error().code() == ErrorCode::kUnavailable;  // it only connects
    if (!is_probe) context_.probe.handshake_refused();
    if (is_probe)
      log::debug("connection.refused", {{"peer", peer}, {"why", accepted.error()}});
    else
      log::warn("connection.refused", {{"peer", peer}, {"why", accepted.error()}});
    co_return;
  }
  const auto session = std::move(accepted).value();
  TaskGroup children(context_.executor);
  WorkerSink sink(workers_, rows_, children);
  children.spawn(expect_enter(*session, sink));
  const Error cause = co_await session->run(sink);
  co_await boost::asio::this_coro::reset_cancellation_state(boost::asio::disable_cancellation());
  session->close(cause);
  if (const auto& worker = sink.worker()) workers_.left(worker, cause);
  children.cancel();
  co_await children.join();
}

}  // namespace centroid::server
