#include "client/rows_client.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <future>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>

#include "common/async/task_group.h"
#include "common/base/log.h"
#include "common/proto/rows.h"
#include "common/proto/servers.h"
#include "transport/session.h"

namespace centroid::client {

using transport::Reply;
using transport::Session;

namespace {

constexpr std::chrono::milliseconds kFirstPause{20}, kLongestPause{1000};
/// To connect to a server that the route names: it may be another one since.
constexpr std::chrono::seconds kOneTry{3};

std::uint64_t draw() {
  std::random_device device;
  // 0 is nobody.
  return ((std::uint64_t{device()} << 32) ^ device()) | 1;
}

TimePoint in(std::chrono::milliseconds time) { return std::chrono::steady_clock::now() + time; }

/// One of the servers on which rows of the table lie. To it this is a client of its own, whose
/// pushes have numbers of their own and go one at a time: so the newest that a server has says of
/// every one whether it was applied.
struct Lane {
  std::string name;  ///< of the server; empty: the one that was given, which has the route
  transport::Endpoint endpoint;
  const std::uint64_t client = draw();
  std::uint64_t sequence = 0;                  ///< of the last push
  std::uint64_t answered = 0;                  ///< highest that was answered as applied
  std::optional<proto::RowsOpenReply> opened;  ///< the last
  TimePoint used{};                            ///< when something was sent last
  bool is_gone = false;                        ///< it holds no rows any more
  bool is_connecting = false;
  std::unique_ptr<TaskGroup> tasks;
  std::unique_ptr<Session> session;

  bool is_open() const { return session && !session->is_closed(); }
};

/// A call of one message's rows, and the part of it that goes to one server.
struct Call {
  proto::RowsKind kind;
  std::span<const std::uint64_t> keys;
  std::span<const float> gradients;
  std::span<float> out;
  TimePoint deadline;
  bool has_done = false;  ///< a part of it
};
struct Part {
  Lane* lane = nullptr;
  std::vector<std::uint32_t> rows;  ///< of the call's keys
  std::vector<std::byte> payload;
  std::uint64_t sequence = 0;
  bool is_alone = false, is_sent = false, is_moved = false;
  Status status;
};

}  // namespace

struct RowsClient::Impl final : transport::FrameSink {
  RowsClientOptions options;
  std::string table;
  std::uint64_t answered_before = 0;  ///< of lanes that are gone
  std::uint64_t lost = 0;             ///< of those that were answered: not in the rows
  std::optional<Error> notice;        ///< of a loss, for the call that found it or the next
  std::map<std::string, std::unique_ptr<Lane>> lanes;  ///< by name
  std::optional<proto::Route> route;
  std::uint32_t dim = 0;

  // Run by whoever calls: a thread of its own would cost each call two wake-ups.
  boost::asio::io_context context{1};
  std::mutex turn;  ///< who runs the context
  std::unique_ptr<transport::Transport> transport;

  // Says that this client lives, while nobody calls.
  std::thread keeper;
  std::condition_variable ended;
  bool is_ending = false;

  Lane& leader() { return *lanes.at(""); }

  /// Run a coroutine to its end; the turn is the caller's.
  template <class T>
  T run(Task<T> task) {
    auto result =
        boost::asio::co_spawn(context, to_optional(std::move(task)), boost::asio::use_future);
    const std::chrono::seconds now{0};
    while (result.wait_for(now) != std::future_status::ready)
      if (context.run_one() == 0) context.restart();
    return *result.get();
  }

  Task<Status> on_frame(Session&, transport::InFrame frame) override {
    if (frame.header.kind == static_cast<std::uint16_t>(proto::Kind::kHeartbeat))
      co_return Status();
    if (frame.header.kind == static_cast<std::uint16_t>(proto::Kind::kWait)) {
      CENTROID_CO_ASSIGN(const auto wait, proto::decode<proto::Wait>(frame.head));
      log::info("rows.waits", {{"table", table}, {"ms", wait.ms}, {"why", wait.what}});
      co_return Status();
    }
    co_return Error(ErrorCode::kInvalidArgument, "the server sent kind " +
                                                     std::to_string(frame.header.kind) +
                                                     " to a client of rows, unasked");
  }

  static Task<void> read(Impl* self, Session* session) { (void)co_await session->run(*self); }

  void keep(std::chrono::milliseconds every) {
    std::unique_lock lock(turn);
    while (!is_ending) {
      ended.wait_for(lock, every);
      if (is_ending) continue;
      for (const auto& [name, lane] : lanes)
        if (lane->is_open() && lane->used <= in(-every))
          (void)run(beat(lane->session.get(), in(every)));
      context.poll();  // what has come meanwhile
    }
  }
  static Task<Status> beat(Session* session, TimePoint deadline) {
    const auto kind = static_cast<std::uint16_t>(proto::Kind::kHeartbeat);
    co_return co_await session->send(kind, Bytes(), Bytes(), deadline);
  }

  // ---- connections

  static Task<Status> drop(Lane* lane) {
    if (!lane->session) co_return Status();
    lane->session->close(Error(ErrorCode::kCancelled, "the client closes"));
    lane->tasks->cancel();
    co_await lane->tasks->join();
    lane->session.reset();
    co_return Status();
  }

  static Task<Status> connect(Impl* self, Lane* lane, TimePoint deadline) {
    CENTROID_CO_TRY(co_await drop(lane));
    transport::Greeting greeting;
    greeting.role = "client";
    greeting.name = self->options.name;
    greeting.token = self->options.token;
    auto made =
        co_await transport::connect_session(*self->transport, lane->endpoint, greeting, deadline);
    if (!made.ok()) co_return made.error();
    lane->session = std::move(made).value();
    if (!lane->tasks) lane->tasks = std::make_unique<TaskGroup>(self->context.get_executor());
    lane->tasks->spawn(read(self, lane->session.get()));
    const Status opened = co_await open_table(self, lane, deadline);
    // Else it would count as connected.
    if (!opened.ok()) CENTROID_CO_TRY(co_await drop(lane));
    co_return opened;
  }

  static Task<Status> open_table(Impl* self, Lane* lane, TimePoint deadline) {
    proto::RowsOpen open;
    open.client = lane->client;
    open.table = self->table;
    const auto head = proto::encode(open);
    const auto answer = co_await lane->session->request(
        static_cast<std::uint16_t>(proto::RowsKind::kOpen), head, Bytes(), deadline);
    if (!answer.ok()) co_return answer.error();
    CENTROID_CO_ASSIGN(const auto reply, proto::decode<proto::RowsOpenReply>(answer->head));
    if (self->dim != 0 && self->dim != reply.dim)
      co_return Error(ErrorCode::kFailedPrecondition,
                      "table '" + self->table + "' has dim " + std::to_string(reply.dim) +
                          " now, it had " + std::to_string(self->dim));
    self->dim = reply.dim;
    if (lane->opened && lane->opened->incarnation != reply.incarnation) self->compare(*lane, reply);
    lane->opened = reply;
    if (lane->name.empty()) self->route.reset();  // it may have begun anew, elsewhere too
    co_return Status();
  }

  /// With a server that began anew: what it has of our pushes.
  void compare(Lane& lane, const proto::RowsOpenReply& reply) {
    if (reply.newest >= lane.answered) return;
    lost += lane.answered - reply.newest;
    const std::string who = lane.name.empty() ? "the server" : "server '" + lane.name + "'";
    notice = Error(
        ErrorCode::kAborted,
        who + " of table '" + table + "' began anew " +
            (reply.restored_from.empty() ? std::string("with empty tables")
                                         : "from " + reply.restored_from) +
            ": its rows hold the pushes of this client up to number " +
            std::to_string(reply.newest) + " of the " + std::to_string(lane.answered) +
            " that were answered. Nothing of this call was done; the next one goes on from there");
    lane.answered = reply.newest;
  }

  /// Connect unless connected, again and again until the deadline. fails aborted: the server holds
  /// no rows any more.
  static Task<Status> ensure(Impl* self, Lane* lane, TimePoint deadline) {
    std::chrono::milliseconds pause = kFirstPause;
    for (;;) {
      while (lane->is_connecting) {
        const bool goes_on = co_await sleep_until(in(kFirstPause));
        if (!goes_on) co_return Error(ErrorCode::kCancelled, "the client closes");
      }
      if (lane->is_open()) co_return Status();
      lane->is_connecting = true;
      const TimePoint limit = lane->name.empty() ? deadline : std::min(deadline, in(kOneTry));
      const Status connected = co_await connect(self, lane, limit);
      lane->is_connecting = false;
      if (connected.ok()) co_return connected;
      const bool is_late = connected.error().code() == ErrorCode::kDeadlineExceeded;
      if (connected.error().code() != ErrorCode::kUnavailable && !(is_late && limit < deadline))
        co_return connected;
      const TimePoint again = in(pause);
      if (again >= deadline) co_return self->named(*lane, connected.error());
      if (!co_await sleep_until(again)) co_return self->named(*lane, connected.error());
      pause = std::min(2 * pause, kLongestPause);
      if (lane->name.empty()) continue;
      const Status asked = co_await ask_route(self, deadline);
      if (!asked.ok()) co_return self->named(*lane, connected.error());
      if (lane->is_gone)
        co_return Error(ErrorCode::kAborted, "server '" + lane->name + "' holds no rows any more");
    }
  }

  Error named(const Lane& lane, const Error& why) const {
    if (lane.name.empty()) return why;
    return why.with_context("server '" + lane.name + "' of table '" + table + "'");
  }

  /// Ask the leader where the rows are.
  static Task<Status> ask_route(Impl* self, TimePoint deadline) {
    for (;;) {
      CENTROID_CO_TRY(co_await ensure(self, &self->leader(), deadline));
      const auto answer = co_await self->leader().session->request(
          static_cast<std::uint16_t>(proto::RowsKind::kRoute), Bytes(), Bytes(), deadline);
      if (answer.ok()) {
        CENTROID_CO_ASSIGN(auto route, proto::decode<proto::Route>(answer->head));
        co_return self->adopt(std::move(route));
      }
      if (answer.error().code() != ErrorCode::kUnavailable) co_return answer.error();
      const TimePoint again = in(kFirstPause);
      if (again >= deadline) co_return answer.error();
      if (!co_await sleep_until(again)) co_return answer.error();
    }
  }

  Status adopt(proto::Route found) {
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

  /// A server that holds no rows any more: the leader has what it knew of our pushes.
  static Task<Status> ask_leader_for(Impl* self, Lane* lane, TimePoint deadline) {
    lane->endpoint = self->leader().endpoint;
    CENTROID_CO_TRY(co_await connect(self, lane, deadline));
    co_return Status();
  }

  static Task<Status> settle_gone(Impl* self, TimePoint deadline) {
    for (auto at = self->lanes.begin(); at != self->lanes.end();) {
      Lane* const lane = at->second.get();
      if (!lane->is_gone) {
        ++at;
        continue;
      }
      if (lane->answered > 0) CENTROID_CO_TRY(co_await ask_leader_for(self, lane, deadline));
      CENTROID_CO_TRY(co_await drop(lane));
      self->answered_before += lane->answered;
      at = self->lanes.erase(at);
    }
    co_return Status();
  }

  // ---- calls

  /// Of the rows that are left, those that go into one message to each server.
  std::vector<std::unique_ptr<Part>> split(const Call& call,
                                           const std::vector<std::uint32_t>& left) {
    const std::size_t servers = std::max<std::size_t>(route->servers.size(), 1);
    std::vector<std::unique_ptr<Part>> by_owner(servers);
    for (std::size_t i = 0; i < servers; ++i) {
      by_owner[i] = std::make_unique<Part>();
      by_owner[i]->lane = i == 0 ? &leader() : lanes.at(route->servers[i].name).get();
    }
    if (servers == 1) by_owner[0]->rows = left;
    for (const std::uint32_t row : left)
      if (servers > 1)
        by_owner[route->owners[proto::row_bucket(call.keys[row])]]->rows.push_back(row);
    std::erase_if(by_owner, [](const auto& part) { return part->rows.empty(); });
    for (const auto& part : by_owner) part->is_alone = by_owner.size() == 1;
    return by_owner;
  }

  void fill(Part& part, const Call& call) {
    // What is over goes with the next turn.
    if (part.rows.size() > part.lane->opened->max_rows)
      part.rows.resize(part.lane->opened->max_rows);
    const std::size_t n = part.rows.size(), floats = call.gradients.empty() ? 0 : dim;
    part.payload.resize(n * (sizeof(std::uint64_t) + floats * sizeof(float)));
    std::byte* const keys = part.payload.data();
    std::byte* const gradients = keys + n * sizeof(std::uint64_t);
    if (n == call.keys.size()) {  // in their order
      std::memcpy(keys, call.keys.data(), call.keys.size_bytes());
      if (floats > 0) std::memcpy(gradients, call.gradients.data(), call.gradients.size_bytes());
    } else {
      for (std::size_t i = 0; i < n; ++i) {
        const std::uint32_t row = part.rows[i];
        std::memcpy(keys + i * sizeof(std::uint64_t), &call.keys[row], sizeof(std::uint64_t));
        if (floats > 0)
          std::memcpy(gradients + i * floats * sizeof(float), call.gradients.data() + row * floats,
                      floats * sizeof(float));
      }
    }
    if (call.kind == proto::RowsKind::kPush) part.sequence = ++part.lane->sequence;
  }

  Status take(const Part& part, const Reply& reply, const Call& call) {
    if (call.kind == proto::RowsKind::kPush) {
      CENTROID_TRY(proto::decode<proto::RowsPushReply>(reply.head));
      part.lane->answered = part.sequence;
      return {};
    }
    const std::size_t bytes = dim * sizeof(float);
    if (reply.payload.size() != part.rows.size() * bytes)
      return Error(ErrorCode::kDataLoss,
                   "table '" + table + "': " + std::to_string(part.rows.size()) + " rows came as " +
                       std::to_string(reply.payload.size()) + " bytes");
    if (part.rows.size() == call.keys.size()) {  // in their order
      std::memcpy(call.out.data(), reply.payload.data(), reply.payload.size());
      return {};
    }
    for (std::size_t i = 0; i < part.rows.size(); ++i)
      std::memcpy(call.out.data() + part.rows[i] * std::size_t{dim},
                  reply.payload.data() + i * bytes, bytes);
    return {};
  }

  /// One message, sent again after a lost connection.
  static Task<void> send(Impl* self, const Call* call, Part* part) {
    std::chrono::milliseconds pause = kFirstPause;
    const bool is_push = call->kind == proto::RowsKind::kPush;
    Lane* const lane = part->lane;
    for (;;) {
      part->status = co_await ensure(self, lane, call->deadline);
      if (!part->status.ok() && part->status.error().code() == ErrorCode::kAborted) {
        if (is_push && part->is_sent) {
          part->status = co_await ask_leader_for(self, lane, call->deadline);
          if (!part->status.ok()) co_return;
          if (lane->opened->newest >= part->sequence) {
            lane->answered = part->sequence;
            co_return;
          }
        }
        part->is_moved = true;
        co_return;
      }
      if (!part->status.ok()) co_return;
      const bool is_there = is_push && part->is_sent && lane->opened->newest >= part->sequence;
      if (self->notice && part->is_alone && !call->has_done && !is_there) {
        part->status = *std::exchange(self->notice, std::nullopt);
        co_return;
      }
      std::vector<std::byte> head;
      if (is_push) {
        proto::RowsPush push;
        push.table = lane->opened->table;
        push.rows = static_cast<std::uint32_t>(part->rows.size());
        push.sequence = part->sequence;
        head = proto::encode(push);
      } else {
        proto::RowsPull pull;
        pull.table = lane->opened->table;
        pull.rows = static_cast<std::uint32_t>(part->rows.size());
        head = proto::encode(pull);
      }
      part->is_sent = true;
      lane->used = in(std::chrono::milliseconds(0));
      const auto kind = static_cast<std::uint16_t>(call->kind);
      const auto reply = co_await lane->session->request(kind, head, part->payload, call->deadline);
      if (reply.ok()) {
        part->status = self->take(*part, reply.value(), *call);
        co_return;
      }
      part->status = self->named(*lane, reply.error());
      if (reply.error().code() == ErrorCode::kAborted) {
        if (is_push) --lane->sequence;  // it was not applied
        part->is_moved = true;
      }
      if (reply.error().code() != ErrorCode::kUnavailable) co_return;
      const TimePoint again = lane->is_open() ? in(pause) : in(std::chrono::milliseconds(0));
      if (again >= call->deadline) co_return;
      if (lane->is_open()) {  // it does not serve yet
        if (!co_await sleep_until(again)) co_return;
      }
      pause = std::min(2 * pause, kLongestPause);
    }
  }

  /// All rows of the call, wherever they are.
  static Task<Status> serve(Impl* self, Call* call) {
    std::vector<std::uint32_t> left(call->keys.size());
    std::iota(left.begin(), left.end(), 0u);
    std::chrono::milliseconds pause = kFirstPause;
    while (!left.empty()) {
      if (!self->leader().is_open() || !self->route)
        CENTROID_CO_TRY(co_await ask_route(self, call->deadline));
      CENTROID_CO_TRY(co_await settle_gone(self, call->deadline));
      auto parts = self->split(*call, left);
      bool is_moved = false;
      for (const auto& part : parts) {  // all are here before anything is sent
        const Status here = co_await ensure(self, part->lane, call->deadline);
        is_moved = is_moved || (!here.ok() && here.error().code() == ErrorCode::kAborted);
        if (!here.ok() && !is_moved) co_return here;
        if (is_moved) break;
      }
      if (!self->route) continue;  // the leader was lost meanwhile
      if (is_moved) continue;
      if (self->notice && !call->has_done) {
        const Error lost = *std::exchange(self->notice, std::nullopt);
        co_return lost;
      }
      for (const auto& part : parts) self->fill(*part, *call);
      if (parts.size() == 1) {
        co_await send(self, call, parts.front().get());
      } else {
        TaskGroup group(self->context.get_executor());
        for (const auto& part : parts) group.spawn(send(self, call, part.get()));
        co_await group.join();
      }
      std::vector<bool> is_done(call->keys.size());
      Status failed;
      for (const auto& part : parts) {
        is_moved = is_moved || part->is_moved;
        if (part->is_moved) continue;
        if (!part->status.ok() && failed.ok()) failed = part->status;
        if (!part->status.ok()) continue;
        call->has_done = true;
        for (const std::uint32_t row : part->rows) is_done[row] = true;
      }
      CENTROID_CO_TRY(failed);
      std::erase_if(left, [&](std::uint32_t row) { return is_done[row]; });
      if (!is_moved) continue;
      // The servers know of a route that the leader has told them.
      const TimePoint again = in(pause);
      if (again >= call->deadline)
        co_return Error(ErrorCode::kDeadlineExceeded,
                        "table '" + self->table + "': the servers refuse rows that lie there by " +
                            "route " + std::to_string(self->route ? self->route->version : 0));
      if (!co_await sleep_until(again))
        co_return Error(ErrorCode::kCancelled, "the client is closing");
      pause = std::min(2 * pause, kLongestPause);
      self->route.reset();
    }
    co_return Status();
  }

  Status make(Call call) {
    const std::lock_guard lock(turn);
    if (context.stopped()) context.restart();
    context.poll();  // of a server that has gone since the last call it is known then
    return run(serve(this, &call));
  }

  Status check_size(std::size_t keys, std::size_t floats) const {
    if (floats == keys * dim) return {};
    return Error(ErrorCode::kInvalidArgument,
                 "table '" + table + "' has dim " + std::to_string(dim) + ": " +
                     std::to_string(keys) + " keys need " + std::to_string(keys * dim) +
                     " floats, not " + std::to_string(floats));
  }
};

RowsClient::RowsClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

RowsClient::~RowsClient() {
  {
    const std::lock_guard lock(impl_->turn);
    impl_->is_ending = true;
  }
  impl_->ended.notify_all();
  if (impl_->keeper.joinable()) impl_->keeper.join();
  for (const auto& [name, lane] : impl_->lanes) (void)impl_->run(Impl::drop(lane.get()));
}

Result<std::unique_ptr<RowsClient>> RowsClient::open(RowsClientOptions options, std::string table) {
  if (options.timeout >= proto::kRowsClientKept)
    return Error(ErrorCode::kInvalidArgument,
                 "timeout is " + std::to_string(options.timeout.count()) +
                     " ms, it must be below 10 minutes: the server forgets then what was pushed");
  auto impl = std::make_unique<Impl>();
  impl->options = std::move(options);
  impl->table = std::move(table);
  transport::TransportOptions how;
  if (impl->options.tls) {
    CENTROID_ASSIGN(how.layer, transport::make_tls(*impl->options.tls));
  }
  impl->transport = transport::make_tcp(impl->context.get_executor(), how);
  const TimePoint deadline = in(impl->options.timeout);
  std::unique_ptr<RowsClient> client(new RowsClient(std::move(impl)));
  Impl& self = *client->impl_;
  self.lanes[""] = std::make_unique<Lane>();
  self.leader().endpoint = self.options.server;
  CENTROID_TRY(self.run(Impl::ask_route(&self, deadline)));
  const std::chrono::milliseconds every(std::max(self.leader().opened->lease_ms / 4, 10u));
  self.keeper = std::thread([&self, every] { self.keep(every); });
  return client;
}

std::uint32_t RowsClient::dim() const { return impl_->dim; }
std::uint32_t RowsClient::max_rows() const { return impl_->leader().opened->max_rows; }
std::uint64_t RowsClient::lost() const { return impl_->lost; }

std::uint64_t RowsClient::pushed() const {
  std::uint64_t answered = impl_->answered_before;
  for (const auto& [name, lane] : impl_->lanes) answered += lane->answered;
  return answered;
}

Status RowsClient::pull(std::span<const std::uint64_t> keys, std::span<float> out) {
  CENTROID_TRY(impl_->check_size(keys.size(), out.size()));
  const TimePoint deadline = in(impl_->options.timeout);
  while (!keys.empty()) {
    const std::size_t n = std::min<std::size_t>(keys.size(), max_rows());
    CENTROID_TRY(
        impl_->make({proto::RowsKind::kPull, keys.first(n), {}, out.first(n * dim()), deadline}));
    keys = keys.subspan(n);
    out = out.subspan(n * dim());
  }
  return {};
}

Status RowsClient::push(std::span<const std::uint64_t> keys, std::span<const float> gradients) {
  CENTROID_TRY(impl_->check_size(keys.size(), gradients.size()));
  const TimePoint deadline = in(impl_->options.timeout);
  while (!keys.empty()) {
    const std::size_t n = std::min<std::size_t>(keys.size(), max_rows());
    CENTROID_TRY(impl_->make(
        {proto::RowsKind::kPush, keys.first(n), gradients.first(n * dim()), {}, deadline}));
    keys = keys.subspan(n);
    gradients = gradients.subspan(n * dim());
  }
  return {};
}

}  // namespace centroid::client
