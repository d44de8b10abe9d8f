#include <algorithm>

#include "client/rows_client/impl.h"
#include "common/base/log.h"
#include "common/base/random.h"

namespace centroid::client {

using transport::Reply;
using transport::Session;

namespace {

/// Time to connect to a server of the route: the route may have changed since.
constexpr std::chrono::seconds kOneTry{3};

bool is_worth_another(const Error& why) {
  return why.code() == ErrorCode::kUnavailable || why.code() == ErrorCode::kDeadlineExceeded ||
         why.code() == ErrorCode::kResourceExhausted;
}

}  // namespace

std::uint64_t draw_client() { return random_seed() | 1; }

Task<Status> RowsClient::Impl::on_frame(Session& session, transport::InFrame frame) {
  if (frame.header.kind == static_cast<std::uint16_t>(proto::Kind::kHeartbeat)) co_return Status();
  if (frame.header.kind == static_cast<std::uint16_t>(proto::Kind::kWait)) {
    CENTROID_CO_ASSIGN(const auto wait, proto::decode<proto::Wait>(frame.head));
    const std::chrono::milliseconds stalled{wait.ms};
    for (const auto& [name, lane] : lanes) {
      if (lane->session.get() != &session) continue;
      lane->trouble = wait.what;
      tell(*lane, in(-stalled));
    }
    co_return Status();
  }
  co_return Error(ErrorCode::kInvalidArgument, "the server sent kind " +
                                                   std::to_string(frame.header.kind) +
                                                   " to a client of rows, unasked");
}

Task<void> RowsClient::Impl::read(Impl* self, Session* session) {
  (void)co_await session->run(*self);
}

/// Logs each long wait once; if the server reports its reason, that is logged instead.
void RowsClient::Impl::report_stalled() {
  for (const auto& [name, lane] : lanes)
    if (lane->stalled.depth > 0 && !lane->stalled.is_reported &&
        lane->stalled.since <= in(-kStalled))
      tell(*lane, lane->stalled.since);
}

void RowsClient::Impl::tell(Lane& lane, TimePoint since) const {
  const auto ms = [](TimePoint from) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(centroid::now() - from).count();
  };
  std::string asked = lane.stalled.asked, why = "no connection";
  if (lane.stalled.rows > 0) asked += " of " + std::to_string(lane.stalled.rows) + " rows";
  if (lane.is_open())
    why = "no answer, last frame received " +
          std::to_string(ms(lane.session->connection().last_received())) + " ms ago";
  if (!lane.trouble.empty()) (why += ": ") += lane.trouble;
  lane.stalled.is_reported = true;
  log::warn("rows.stalled", {{"table", table},
                             {"server", lane.name.empty() ? std::string("the leader") : lane.name},
                             {"endpoint", lane.endpoint.to_string()},
                             {"asked", asked},
                             {"ms", ms(since)},
                             {"since_unix_seconds",
                              SystemClock().unix_seconds() - static_cast<double>(ms(since)) / 1000},
                             {"why", why}});
}

void RowsClient::Impl::keep(std::chrono::milliseconds every) {
  std::unique_lock lock(turn);
  while (!is_ending) {
    (void)ended.wait_until(lock, now() + every);
    if (is_ending) continue;
    for (const auto& [name, lane] : lanes)
      if (lane->is_open() && lane->used <= in(-every) && !std::exchange(lane->is_beating, true))
        lane->tasks->spawn(beat(lane.get(), lane->session.get(), in(every)));
    context.poll();  // received meanwhile
  }
}

Task<void> RowsClient::Impl::beat(Lane* lane, Session* session, TimePoint deadline) {
  const auto kind = static_cast<std::uint16_t>(proto::Kind::kHeartbeat);
  (void)co_await session->send(kind, Bytes(), Bytes(), deadline);
  lane->is_beating = false;
}

/// If several servers may lead: disconnect one that is silent while an answer is awaited. A server
/// reports the reason of a late answer every two seconds.
Task<void> RowsClient::Impl::watch(Impl* self, Lane* lane, Session* session) {
  constexpr transport::Pulse pulse = transport::kPulseOfSeveral;
  while (!session->is_closed()) {
    if (!co_await sleep_until(in(pulse.beat))) co_return;
    if (lane->waiting == 0 || !self->connector->is_several()) continue;
    const TimePoint last_frame = std::max(session->connection().last_received(), lane->used);
    if (last_frame < in(-pulse.silence)) {
      const Error silent(ErrorCode::kDeadlineExceeded, "silent");
      if (lane->name.empty()) self->connector->pass_over(silent);
      session->close(
          Error(ErrorCode::kUnavailable, lane->endpoint.to_string() + " was silent for more than " +
                                             std::to_string(pulse.silence.count()) + " ms"));
      co_return;
    }
    if (std::exchange(lane->is_beating, true)) continue;  // one is still on its way
    lane->tasks->spawn(beat(lane, session, in(pulse.silence)));
  }
}

// ---- connections

Task<Status> RowsClient::Impl::drop(Lane* lane) {
  if (!lane->session) co_return Status();
  lane->session->close(Error(ErrorCode::kCancelled, "the client closes"));
  lane->tasks->cancel();
  co_await lane->tasks->join();
  lane->session.reset();
  co_return Status();
}

Task<Status> RowsClient::Impl::connect(Impl* self, Lane* lane, TimePoint deadline) {
  CENTROID_CO_TRY(co_await drop(lane));
  transport::Greeting greeting;
  greeting.role = "client";
  greeting.name = self->options.name;
  greeting.token = self->options.token;
  greeting.run_id = self->run_id;
  const TimePoint limit = self->connector->call_limit(deadline);
  if (lane->name.empty()) self->connector->try_begins();
  auto made =
      co_await transport::connect_session(*self->transport, lane->endpoint, greeting, limit);
  if (!made.ok()) co_return made.error();
  lane->session = std::move(made).value();
  lane->is_beating = false;
  if (!lane->tasks) lane->tasks = std::make_unique<TaskGroup>(self->context.get_executor());
  lane->tasks->spawn(read(self, lane->session.get()));
  lane->tasks->spawn(watch(self, lane, lane->session.get()));
  const Status opened = co_await open_table(self, lane, deadline);
  // Otherwise it would count as connected.
  if (!opened.ok()) CENTROID_CO_TRY(co_await drop(lane));
  if (opened.ok() && self->run_id.empty()) self->run_id = lane->session->peer().run_id;
  co_return opened;
}

Task<Result<Reply>> RowsClient::Impl::ask(Lane* lane, proto::RowsKind kind, Bytes head,
                                          Bytes payload, TimePoint deadline) {
  lane->used = in(std::chrono::milliseconds(0));
  ++lane->waiting;
  auto reply =
      co_await lane->session->request(static_cast<std::uint16_t>(kind), head, payload, deadline);
  --lane->waiting;
  co_return reply;
}

Task<Status> RowsClient::Impl::open_table(Impl* self, Lane* lane, TimePoint deadline) {
  proto::RowsOpen open;
  open.client = lane->client;
  open.table = self->table;
  const auto head = proto::encode(open);
  const auto answer = co_await ask(lane, proto::RowsKind::kOpen, head, Bytes(), deadline);
  if (!answer.ok()) co_return answer.error();
  CENTROID_CO_ASSIGN(const auto reply, proto::decode<proto::RowsOpenReply>(answer->head));
  if (self->dim != 0 && self->dim != reply.dim)
    co_return Error(ErrorCode::kFailedPrecondition,
                    "table '" + self->table + "' has dim " + std::to_string(reply.dim) +
                        " now, it had " + std::to_string(self->dim));
  self->dim = reply.dim;
  if (lane->opened && lane->opened->incarnation != reply.incarnation) self->compare(*lane, reply);
  lane->opened = reply;
  if (lane->name.empty()) self->route.reset();  // it may have restarted, elsewhere too
  co_return Status();
}

/// After a restart of a server: compare its record of our pushes.
void RowsClient::Impl::compare(Lane& lane, const proto::RowsOpenReply& reply) {
  if (reply.newest >= lane.answered) return;
  lost += lane.answered - reply.newest;
  const std::string server = lane.name.empty() ? "the server" : "server '" + lane.name + "'";
  notice = Error(
      ErrorCode::kAborted,
      server + " of table '" + table + "' restarted " +
          (reply.restored_from.empty() ? std::string("with empty tables")
                                       : "from " + reply.restored_from) +
          ": its rows contain the pushes of this client up to number " +
          std::to_string(reply.newest) + " of the " + std::to_string(lane.answered) +
          " that were answered. This call changed nothing; the next one continues from there");
  lane.answered = reply.newest;
}

/// Connect unless connected, repeatedly until the deadline. fails aborted: the server has no rows
/// any more.
Task<Status> RowsClient::Impl::ensure(Impl* self, Lane* lane, TimePoint deadline) {
  const bool is_leader = lane->name.empty();
  transport::Connector& connector = *self->connector;
  std::chrono::milliseconds pause = kFirstPause;
  if (is_leader && !lane->is_connecting) connector.begin();
  for (;;) {
    while (lane->is_connecting) {
      const bool goes_on = co_await sleep_until(in(kFirstPause));
      if (!goes_on) co_return Error(ErrorCode::kCancelled, "the client closes");
    }
    if (lane->is_open()) co_return Status();
    lane->is_connecting = true;
    TimePoint limit = deadline;
    if (!is_leader || connector.is_several()) limit = std::min(deadline, in(kOneTry));
    if (is_leader) lane->endpoint = connector.present();
    const Status connected = co_await connect(self, lane, limit);
    lane->is_connecting = false;
    if (connected.ok()) {
      lane->trouble.clear();
      if (is_leader) connector.joined();
      co_return connected;
    }
    const Error& why = connected.error();
    lane->trouble = why.message();
    if (!is_worth_another(why)) co_return self->named(*lane, why);
    if (is_leader) {
      const Status again = co_await connector.retry(why, deadline);
      if (!again.ok()) co_return self->named(*lane, why);
      continue;
    }
    const TimePoint again = in(pause);
    if (again >= deadline) co_return self->named(*lane, why);
    if (!co_await sleep_until(again)) co_return self->named(*lane, why);
    pause = std::min(2 * pause, kLongestPause);
    const Status asked = co_await request_route(self, deadline);
    if (!asked.ok()) co_return self->named(*lane, why);
    if (lane->is_gone)
      co_return Error(ErrorCode::kAborted, "server '" + lane->name + "' has no rows any more");
  }
}

Error RowsClient::Impl::named(const Lane& lane, const Error& why) const {
  if (lane.name.empty()) return why;
  return why.with_context("server '" + lane.name + "' of table '" + table + "'");
}

/// Request the route of the rows from the leader.
Task<Status> RowsClient::Impl::request_route(Impl* self, TimePoint deadline) {
  const StalledScope hold(self->leader(), "where the rows are");
  for (;;) {
    CENTROID_CO_TRY(co_await ensure(self, &self->leader(), deadline));
    const auto answer =
        co_await ask(&self->leader(), proto::RowsKind::kRoute, Bytes(), Bytes(), deadline);
    if (answer.ok()) {
      CENTROID_CO_ASSIGN(auto route, proto::decode<proto::Route>(answer->head));
      co_return self->adopt(std::move(route));
    }
    if (answer.error().code() != ErrorCode::kUnavailable) co_return answer.error();
    self->leader().trouble = answer.error().message();
    const TimePoint again = in(kFirstPause);
    if (again >= deadline) co_return answer.error();
    if (!co_await sleep_until(again)) co_return answer.error();
  }
}

Status RowsClient::Impl::adopt(proto::Route found) {
  if (found.servers.size() > 1 && found.owners.size() != proto::kRowBuckets)
    return Error(ErrorCode::kInvalidArgument, "the route of the rows names the owners of " +
                                                  std::to_string(found.owners.size()) +
                                                  " buckets, there are " +
                                                  std::to_string(proto::kRowBuckets));
  for (const auto& [name, lane] : lanes) lane->is_gone = !name.empty();
  for (std::size_t i = 1; i < found.servers.size(); ++i) {
    const proto::RouteServer& server = found.servers[i];
    auto endpoint = transport::Endpoint::parse(server.endpoint);
    if (!endpoint.ok())
      return std::move(endpoint).error().with_context("server '" + server.name + "'");
    std::unique_ptr<Lane>& lane = lanes[server.name];
    if (!lane) lane = std::make_unique<Lane>();
    lane->name = server.name;
    lane->is_gone = false;
    if (lane->is_open() && lane->endpoint.to_string() != endpoint->to_string())
      lane->session->close(Error(ErrorCode::kUnavailable, "the server is elsewhere now"));
    lane->endpoint = std::move(endpoint).value();
  }
  route = std::move(found);
  return {};
}

/// For a server without rows any more: the leader has its record of our pushes.
Task<Status> RowsClient::Impl::refresh_route(Impl* self, Lane* lane, TimePoint deadline) {
  for (;;) {
    CENTROID_CO_TRY(co_await ensure(self, &self->leader(), deadline));
    lane->endpoint = self->leader().endpoint;
    const Status asked = co_await connect(self, lane, std::min(deadline, in(kOneTry)));
    if (asked.ok() || !is_worth_another(asked.error())) co_return asked;
    const TimePoint again = in(kFirstPause);
    if (again >= deadline) co_return asked;
    if (!co_await sleep_until(again)) co_return asked;
  }
}

Task<Status> RowsClient::Impl::settle_lost(Impl* self, TimePoint deadline) {
  for (auto at = self->lanes.begin(); at != self->lanes.end();) {
    Lane* const lane = at->second.get();
    if (!lane->is_gone || lane->has_open_part) {
      ++at;
      continue;
    }
    if (lane->answered > 0) CENTROID_CO_TRY(co_await refresh_route(self, lane, deadline));
    CENTROID_CO_TRY(co_await drop(lane));
    self->answered_before += lane->answered;
    at = self->lanes.erase(at);
  }
  co_return Status();
}

}  // namespace centroid::client
