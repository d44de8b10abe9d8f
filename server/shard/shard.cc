#include "server/shard/shard.h"

#include <algorithm>
#include <random>

#include <boost/asio/this_coro.hpp>

#include "common/base/log.h"
#include "common/base/random.h"
#include "common/base/version.h"
#include "common/proto/about.h"
#include "common/proto/standby.h"
#include "server/shard/read_manifest.h"
#include "transport/echo.h"

namespace centroid::server {

using proto::ServersKind;
using transport::InFrame;
using transport::Session;

namespace {

constexpr std::chrono::seconds kHandshake{5}, kConnect{10}, kEnterTimeout{10};
/// Where another server may lead: as workers look for it (server_link.cc).
constexpr std::chrono::milliseconds kSilence{3000}, kBeat{500}, kCall{1500}, kLongestPause{400};

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

template <class M>
Task<Status> answer(Session& session, transport::FrameHeader request, Result<M> reply) {
  if (!reply.ok()) co_return co_await session.respond_error(request, reply.error());
  const auto head = proto::encode(reply.value());
  co_return co_await session.respond(request, head);
}

}  // namespace

/// What the leader sends. Sums and steps are made beside the reading, so that heartbeats go on.
class Shard::LeaderSink final : public transport::FrameSink {
 public:
  LeaderSink(Shard& shard, TaskGroup& tasks) : shard_(shard), tasks_(tasks) {}

  Task<Status> on_frame(Session& session, InFrame frame) override {
    const bool is_request = (frame.header.flags & transport::kFlagRequest) != 0;
    CENTROID_CO_TRY(proto::check_frame(frame.header.kind, is_request, frame.head.size(),
                                       frame.header.payload_bytes));
    if (frame.header.kind == static_cast<std::uint16_t>(proto::Kind::kHeartbeat))
      co_return Status();
    while (!shard_.is_joined_) {  // the leader's terms have come before this, and are being read
      const bool goes_on = co_await shard_.changed_.wait(shard_.clock_.now() + kHandshake);
      if (!goes_on) co_return Error(ErrorCode::kFailedPrecondition, "no ServerTerms came first");
    }
    if (ShardRows::is_for_rows(frame.header.kind))
      co_return co_await shard_.rows_.on_leader(session, frame, tasks_, shard_.terms_,
                                                shard_.fatal_);
    switch (static_cast<ServersKind>(frame.header.kind)) {
      case ServersKind::kModel: {
        CENTROID_CO_ASSIGN(auto model, proto::decode<proto::ServerModel>(frame.head));
        CENTROID_CO_ASSIGN(model.manifest,
                           co_await read_manifest(session, frame.header.payload_bytes));
        const Status taken = shard_.take_model(model);
        co_return co_await done(session, frame.header, taken);
      }
      case ServersKind::kPlace: {
        CENTROID_CO_ASSIGN(auto route, proto::decode<proto::Route>(frame.head));
        const Status taken = shard_.take_place(std::move(route));
        co_return co_await done(session, frame.header, taken);
      }
      case ServersKind::kLoad: {
        CENTROID_CO_ASSIGN(const auto head, proto::decode<proto::ServerChunk>(frame.head));
        Buffer buffer(frame.header.payload_bytes);
        CENTROID_CO_TRY(
            co_await session.read_payload(buffer.bytes().first(frame.header.payload_bytes)));
        const Status taken =
            shard_.take_chunk(head, buffer.bytes().first(frame.header.payload_bytes));
        co_return co_await done(session, frame.header, taken);
      }
      case ServersKind::kBegin: {
        CENTROID_CO_ASSIGN(const auto state, proto::decode<proto::ServerState>(frame.head));
        const Status begun = shard_.begin(state);
        co_return co_await done(session, frame.header, begun);
      }
      case ServersKind::kFetch: {
        CENTROID_CO_ASSIGN(const auto head, proto::decode<proto::ServerChunk>(frame.head));
        tasks_.spawn(send_chunk(session, frame.header, head));
        co_return Status();
      }
      case ServersKind::kFreeze: {
        CENTROID_CO_ASSIGN(const auto state, proto::decode<proto::ServerState>(frame.head));
        const Status frozen = shard_.freeze(state);
        co_return co_await done(session, frame.header, frozen);
      }
      case ServersKind::kMerge: {
        CENTROID_CO_ASSIGN(auto merge, proto::decode<proto::Merge>(frame.head));
        tasks_.spawn(run_merge(session, frame.header, std::move(merge)));
        co_return Status();
      }
      case ServersKind::kStep: {
        CENTROID_CO_ASSIGN(const auto step, proto::decode<proto::Step>(frame.head));
        tasks_.spawn(run_step(session, frame.header, step));
        co_return Status();
      }
      case ServersKind::kCommit: {
        CENTROID_CO_ASSIGN(const auto state, proto::decode<proto::ServerState>(frame.head));
        const Status committed = shard_.commit(state);
        co_return co_await done(session, frame.header, committed);
      }
      case ServersKind::kOptimizer: {
        CENTROID_CO_ASSIGN(const auto change, proto::decode<proto::OptimizerChange>(frame.head));
        const Status taken = shard_.take_optimizer(change);
        co_return co_await done(session, frame.header, taken);
      }
      case ServersKind::kRecall: {
        CENTROID_CO_ASSIGN(const auto wanted, proto::decode<proto::Recall>(frame.head));
        const auto numbers = shard_.recall(wanted);
        if (!numbers.ok()) co_return co_await session.respond_error(frame.header, numbers.error());
        proto::RecallReply reply;
        reply.form = static_cast<std::uint8_t>(numbers->form);
        const auto head = proto::encode(reply);
        co_return co_await session.respond(frame.header, head, numbers->bytes);
      }
      case ServersKind::kStatistics: {
        CENTROID_CO_ASSIGN(const auto wanted, proto::decode<proto::Statistics>(frame.head));
        tasks_.spawn(run_statistics(session, frame.header, wanted));
        co_return Status();
      }
      case ServersKind::kTokens: {
        CENTROID_CO_ASSIGN(auto told, proto::decode<proto::Tokens>(frame.head));
        shard_.tokens_.clear();
        for (proto::Token& one : told.tokens)
          shard_.tokens_.push_back({std::move(one.id), std::move(one.salt), std::move(one.hash),
                                    one.expires_unix_seconds});
        co_return co_await done(session, frame.header, Status());
      }
      case ServersKind::kOpened: {
        CENTROID_CO_ASSIGN(auto told, proto::decode<proto::Opened>(frame.head));
        shard_.take_opened(std::move(told));
        co_return Status();
      }
      case ServersKind::kReckon: {
        CENTROID_CO_ASSIGN(const auto wanted, proto::decode<proto::Reckon>(frame.head));
        const Status fits = shard_.reckon_again(wanted);
        co_return co_await done(session, frame.header, fits);
      }
      case ServersKind::kForget: {
        CENTROID_CO_ASSIGN(const auto gone, proto::decode<proto::Forget>(frame.head));
        shard_.forget(gone);
        co_return Status();
      }
      default:
        co_return Error(ErrorCode::kInvalidArgument, "unexpected message kind " +
                                                         std::to_string(frame.header.kind) +
                                                         " from the leader (docs/wire.md)");
    }
  }

 private:
  static Task<Status> done(Session& session, transport::FrameHeader request, Status status) {
    if (!status.ok()) co_return co_await session.respond_error(request, status.error());
    co_return co_await session.respond(request, Bytes());
  }
  Task<void> send_chunk(Session& session, transport::FrameHeader request, proto::ServerChunk head) {
    const auto values = shard_.read_chunk(head);
    if (!values.ok()) {
      (void)co_await session.respond_error(request, values.error());
      co_return;
    }
    (void)co_await session.respond(request, Bytes(), std::as_bytes(std::span(values.value())));
  }
  Task<void> run_merge(Session& session, transport::FrameHeader request, proto::Merge merge) {
    auto reply = co_await shard_.merge(std::move(merge));
    (void)co_await answer(session, request, std::move(reply));
  }
  Task<void> run_step(Session& session, transport::FrameHeader request, proto::Step step) {
    const Status stepped = co_await shard_.step(step);
    (void)co_await done(session, request, stepped);
  }

  Task<void> run_statistics(Session& session, transport::FrameHeader request,
                            proto::Statistics wanted) {
    const auto parts = co_await shard_.statistics(wanted);
    if (!parts.ok()) {
      (void)co_await session.respond_error(request, parts.error());
      co_return;
    }
    (void)co_await session.respond(request, Bytes(), std::as_bytes(std::span(parts.value())));
  }

  Shard& shard_;
  TaskGroup& tasks_;
};

Shard::Shard(Executor executor, transport::Transport& transport, ShardOptions options,
             const Clock& clock, metrics::Registry& registry)
    : executor_(executor),
      transport_(transport),
      options_(std::move(options)),
      clock_(clock),
      probe_(registry),
      changed_(executor),
      leaders_(options_.leaders),
      journal_(executor),
      disk_(options_.journal_dir),
      rows_(executor, {options_.name, options_.journal_dir, options_.memory_limit}, clock),
      tasks_(executor) {}

Shard::~Shard() = default;

Status Shard::is_ready() const {
  const std::lock_guard lock(ready_mutex_);
  if (why_not_ready_.empty()) return {};
  return Error(ErrorCode::kUnavailable, "not ready: " + why_not_ready_);
}

void Shard::set_ready(const std::string& why) {
  const std::lock_guard lock(ready_mutex_);
  why_not_ready_ = why;
}

void Shard::request_stop(const std::string& why) {
  if (!stopping_ && !leaving_) log::info("server.stop_requested", {{"why", why}});
  stop_reason_ = why;
  const bool drains = options_.drain_timeout.count() > 0;
  if (drains && is_joined_ && leader_ != nullptr && !leaving_) {
    leaving_ = true;
    set_ready("its chunks move to other servers, then it ends");
    leader_tasks_->spawn(leave(*leader_));
    return;
  }
  stopping_ = true;
  if (leader_ != nullptr) leader_->close(Error(ErrorCode::kCancelled, why));
  changed_.notify_all();
}

Task<Status> Shard::run(transport::Listener& listener) {
  tasks_.spawn(accept_loop(listener));
  std::mt19937_64 jitter(random_seed());
  Status result;
  TimePoint alone_since = clock_.now();
  std::chrono::milliseconds backoff{100};
  while (!stopping_) {
    Error failure(ErrorCode::kInternal, "");
    auto session = co_await connect();
    if (session.ok()) {
      failure = co_await serve_leader(*session.value());
      if (std::exchange(is_joined_, false)) {
        backoff = std::chrono::milliseconds(100);
        alone_since = clock_.now();
      }
    } else {
      failure = session.error();
    }
    const bool is_put_off = proto::is_not_yet(failure);  // the leader lives, and says why
    if (is_put_off) alone_since = clock_.now();
    forget_everything(failure);
    if (stopping_) break;
    if (fatal_) {
      result = *fatal_;
      break;
    }
    if (failure.code() == ErrorCode::kCancelled) {  // the leader's goodbye
      log::info("leader.dismissed", {{"why", failure.message()}});
      break;
    }
    if (leaving_) break;  // the leader went first
    if (is_final(failure)) {
      result = failure;
      break;
    }
    const transport::Endpoint called = leaders_.present();
    if (leaders_.failed(failure, proto::leader_named_by(failure))) {
      log::info("leader.next", {{"server", called.to_string()},
                                {"why", failure},
                                {"next", leaders_.present().to_string()}});
      continue;
    }
    if (!is_put_off && clock_.now() + backoff >= alone_since + options_.join_timeout) {
      result = Error(ErrorCode::kUnavailable, "no leader at " + called.to_string() + " for " +
                                                  std::to_string(options_.join_timeout.count()) +
                                                  " ms (join_timeout): " + failure.message());
      break;
    }
    const auto pause =
        backoff / 2 +
        std::chrono::milliseconds(jitter() % static_cast<std::uint64_t>(backoff.count() / 2 + 1));
    log::warn("leader.unreachable",
              {{"leader", called.to_string()}, {"why", failure}, {"retry_ms", pause.count()}});
    const TimePoint again = clock_.now() + pause;
    while (!stopping_ && clock_.now() < again) co_await changed_.wait(again);
    if (is_put_off) alone_since = clock_.now();
    const std::chrono::milliseconds longest(2000);
    backoff = std::min(backoff * 2, leaders_.is_several() ? kLongestPause : longest);
  }
  stopping_ = true;
  listener.close();
  tasks_.cancel();
  co_await tasks_.join();
  co_return result;
}

Task<Result<std::unique_ptr<Session>>> Shard::connect() {
  const std::chrono::milliseconds longest(kConnect);
  const auto time = leaders_.is_several() ? kCall : longest;
  const TimePoint limit = clock_.now() + time;
  auto connection = co_await transport_.connect(leaders_.present(), limit);
  if (!connection.ok()) co_return std::move(connection).error();
  transport::Greeting greeting;
  greeting.role = "server";
  greeting.name = options_.name;
  greeting.token = options_.token;
  greeting.limits.max_head_bytes = transport::kMaxHeadBytes;
  greeting.limits.max_payload_bytes = options_.max_payload_bytes;
  co_return co_await Session::open(std::move(connection).value(), std::move(greeting), limit);
}

Task<Status> Shard::join_leader(Session& session) {
  proto::ServerJoin join;
  join.name = options_.name;
  join.endpoint = options_.advertise;
  join.run_id = terms_.run_id;
  const auto head = proto::encode(join);
  const auto kind = static_cast<std::uint16_t>(ServersKind::kServerJoin);
  const TimePoint limit = clock_.now() + kConnect;
  auto reply = co_await session.request(kind, head, Bytes(), limit);
  if (!reply.ok()) co_return std::move(reply).error();
  CENTROID_CO_ASSIGN(auto terms, proto::decode<proto::ServerTerms>(reply->head));
  if (terms.term < terms_.term)
    co_return Error(ErrorCode::kUnavailable,
                    leaders_.present().to_string() + " leads in term " +
                        std::to_string(terms.term) + ", this server has followed term " +
                        std::to_string(terms_.term) + ": that server is deposed");
  terms_ = std::move(terms);
  is_joined_ = true;
  if (!leaving_) set_ready("");
  changed_.notify_all();
  leaders_.joined();
  log::info("leader.joined", {{"leader", leaders_.present().to_string()},
                              {"run_id", terms_.run_id},
                              {"term", terms_.term}});
  co_return Status();
}

Task<Error> Shard::serve_leader(Session& session) {
  leader_ = &session;
  TaskGroup children(executor_);
  leader_tasks_ = &children;
  auto start = [](Shard* self, Session* s, TaskGroup* group) -> Task<void> {
    const Status joined = co_await self->join_leader(*s);
    if (!joined.ok()) {
      s->close(joined.error());
      co_return;
    }
    group->spawn(self->heartbeats(*s));
  };
  children.spawn(start(this, &session, &children));
  LeaderSink sink(*this, children);
  const Error cause = co_await session.run(sink);
  co_await boost::asio::this_coro::reset_cancellation_state(boost::asio::disable_cancellation());
  session.close(cause);
  leader_ = nullptr;
  leader_tasks_ = nullptr;
  children.cancel();
  co_await children.join();
  co_return cause;
}

Task<void> Shard::heartbeats(Session& session) {
  const std::chrono::milliseconds lease(terms_.lease_ms);
  const auto kind = static_cast<std::uint16_t>(proto::Kind::kHeartbeat);
  const auto report_kind = static_cast<std::uint16_t>(ServersKind::kServerReport);
  const auto beat = leaders_.is_several() ? std::min(kBeat, lease / 4) : lease / 4;
  const auto longest = leaders_.is_several() ? kSilence : 3 * lease;
  proto::Beat about;
  about.version = kVersion;
  while (!session.is_closed()) {
    if (!co_await sleep_until(clock_.now() + beat)) co_return;
    const auto silent = clock_.now() - session.connection().last_received();
    if (silent > longest) {
      const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(silent).count();
      session.close(Error(ErrorCode::kUnavailable,
                          "the leader was silent for " + std::to_string(ms) + " ms"));
      co_return;
    }
    about.unix_seconds = clock_.unix_seconds();
    const auto said = proto::encode(about);
    (void)co_await session.send(kind, said, Bytes(), clock_.now() + lease);
    if (waits_) ++progress_;
    const proto::ServerReport now = report();
    tell_probe(now);
    const auto head = proto::encode(now);
    (void)co_await session.send(report_kind, head, Bytes(), clock_.now() + lease);
    rows_.tick();
  }
}

/// The others take its chunks, then the leader says goodbye.
Task<void> Shard::leave(Session& session) {
  const TimePoint limit = clock_.now() + options_.drain_timeout;
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
             {"drain_timeout_ms", options_.drain_timeout.count()}});
  session.close(Error(ErrorCode::kCancelled, stop_reason_ + ", not drained"));
}

/// What lies here belongs to a session with the leader that has ended.
void Shard::forget_everything(const Error& why) {
  const Error cause(ErrorCode::kUnavailable,
                    "server '" + options_.name + "' lost its leader: " + why.message());
  set_ready("no leader: " + why.message());
  probe_.leader_lost();
  for (const auto& [id, worker] : workers_) worker->session->close(cause);
  workers_.clear();
  rows_.forget(cause);
  away_.clear();
  take_opened({});
  newest_member_ = {};
  tokens_.clear();
  staged_.clear();
  merging_.reset();
  frozen_.reset();
  journal_.stop();  // it may be reading memory of the store
  recalled_.reset();
  reply_reader_.reset();
  replies_.reset();
  encoded_.clear();
  store_.reset();
  route_ = {};
  parts_.clear();
}

Task<void> Shard::accept_loop(transport::Listener& listener) {
  while (!stopping_) {
    auto connection = co_await listener.accept();
    if (!connection.ok()) {
      if (connection.error().code() == ErrorCode::kCancelled) co_return;
      log::warn("connection.accept_failed", {{"error", connection.error()}});
      if (!co_await sleep_until(clock_.now() + std::chrono::milliseconds(100))) co_return;
      continue;
    }
    if (tasks_.size() > options_.max_workers + 64) {
      connection.value()->close(Error(ErrorCode::kResourceExhausted, "too many connections"));
      continue;
    }
    tasks_.spawn(serve_worker(std::move(connection).value()));
  }
}

/// Frames of one worker: Enter, then its contributions; or of a client of rows.
class Shard::WorkerSink final : public transport::FrameSink {
 public:
  WorkerSink(Shard& shard, TaskGroup& tasks) : shard_(shard), tasks_(tasks) {}

  Task<Status> on_frame(Session& session, InFrame frame) override {
    if (frame.header.kind == transport::kEcho && !worker_)  // an operator measures the way here
      co_return co_await transport::answer_echo(session, frame);
    const bool is_request = (frame.header.flags & transport::kFlagRequest) != 0;
    CENTROID_CO_TRY(proto::check_frame(frame.header.kind, is_request, frame.head.size(),
                                       frame.header.payload_bytes));
    if (client_ || (!worker_ && RowsService::opens(frame.header.kind)))
      co_return co_await serve_rows(session, frame);
    if (frame.header.kind == static_cast<std::uint16_t>(proto::Kind::kHeartbeat))
      co_return Status();
    if (frame.header.kind == static_cast<std::uint16_t>(ServersKind::kEnter) && !worker_)
      co_return co_await enter(session, std::move(frame));
    if (frame.header.kind != static_cast<std::uint16_t>(proto::Kind::kPush) || !worker_)
      co_return Error(
          ErrorCode::kInvalidArgument,
          "a shard server takes Enter (125) and then Push (22), or RowsOpen (64), not kind " +
              std::to_string(frame.header.kind) + ": workers join the leader (--server)");
    CENTROID_CO_ASSIGN(const auto push, proto::decode<proto::Push>(frame.head));
    co_return co_await shard_.take_push(session, worker_, push, frame.header.payload_bytes);
  }

  const std::shared_ptr<Worker>& worker() const { return worker_; }
  /// Of a worker or a client of rows; whether they live is the leader's to see, and RowsService's.
  bool is_known() const { return worker_ || client_; }

 private:
  Task<Status> serve_rows(Session& session, const InFrame& frame) {
    if (!client_) {
      auto service = shard_.rows_.service();
      if (!service.ok()) co_return co_await session.respond_error(frame.header, service.error());
      service_ = std::move(service).value();
      client_.emplace(*service_, session);
    }
    co_return co_await service_->on_frame(session, frame, *client_);
  }

  Task<Status> enter(Session& session, InFrame frame) {
    CENTROID_CO_ASSIGN(auto message, proto::decode<proto::Enter>(frame.head));
    const Status known = co_await shard_.await_member(message);
    auto entered = known.ok() ? shard_.enter(session, message)
                              : Result<std::shared_ptr<Worker>>(known.error());
    if (!entered.ok()) {
      shard_.session_ended(message, entered.error());
      log::warn("worker.refused", {{"peer", session.peer().address}, {"why", entered.error()}});
      CENTROID_CO_TRY(co_await session.respond_error(frame.header, entered.error()));
      co_return std::move(entered).error();
    }
    worker_ = std::move(entered).value();
    worker_->tasks = &tasks_;
    tasks_.spawn(shard_.outbox(worker_));
    co_return co_await session.respond(frame.header, Bytes());
  }

  Shard& shard_;
  TaskGroup& tasks_;
  std::shared_ptr<Worker> worker_;
  std::shared_ptr<RowsService> service_;
  std::optional<RowsService::Client> client_;  ///< of it
};

/// A session that brings nobody is not kept.
Task<void> Shard::expect_enter(Session& session, const WorkerSink& sink) {
  const bool in_time = co_await sleep_until(clock_.now() + kEnterTimeout);
  if (!in_time || sink.is_known() || session.is_closed()) co_return;
  const Error late(ErrorCode::kDeadlineExceeded,
                   "no Enter or RowsOpen came within 10 s of the handshake");
  co_await session.goodbye(late);
}

Task<void> Shard::serve_worker(std::unique_ptr<transport::Connection> connection) {
  const std::string peer = connection->peer();
  if (!is_joined_) {
    connection->close(Error(ErrorCode::kUnavailable,
                            "server '" + options_.name + "' has no leader at the moment"));
    co_return;
  }
  transport::Greeting greeting;
  greeting.role = "server";
  greeting.name = options_.name;
  greeting.run_id = terms_.run_id;
  greeting.token = options_.token;
  greeting.also_accepts = [this](std::string_view secret) {
    const bool is_known = opens(tokens_, secret, clock_.unix_seconds());
    if (!is_known) probe_.token_refused();
    return is_known;
  };
  greeting.limits.max_head_bytes = transport::kMaxHeadBytes;
  greeting.limits.max_payload_bytes = options_.max_payload_bytes;
  greeting.credit_bytes = terms_.credit_bytes;
  auto accepted = co_await Session::accept(std::move(connection), std::move(greeting),
                                           clock_.now() + kHandshake);
  if (!accepted.ok()) {
    const bool is_probe = accepted.error().code() == ErrorCode::kUnavailable;  // it only connects
    if (!is_probe) probe_.handshake_refused();
    if (is_probe)
      log::debug("connection.refused", {{"peer", peer}, {"why", accepted.error()}});
    else
      log::warn("connection.refused", {{"peer", peer}, {"why", accepted.error()}});
    co_return;
  }
  const auto session = std::move(accepted).value();
  TaskGroup children(executor_);
  WorkerSink sink(*this, children);
  children.spawn(expect_enter(*session, sink));
  const Error cause = co_await session->run(sink);
  co_await boost::asio::this_coro::reset_cancellation_state(boost::asio::disable_cancellation());
  session->close(cause);
  if (const auto& worker = sink.worker()) {
    log::info("worker.left", {{"worker", worker->enter.name}, {"why", cause}});
    const auto traffic = session->connection().traffic();
    traffic_.bytes_in += traffic.bytes_in;
    traffic_.bytes_out += traffic.bytes_out;
    const auto found = workers_.find(worker->enter.member);
    if (found != workers_.end() && found->second == worker) {
      workers_.erase(found);
      session_ended(worker->enter, cause);
    }
    worker->wake.notify_all();
  }
  children.cancel();
  co_await children.join();
}

}  // namespace centroid::server
