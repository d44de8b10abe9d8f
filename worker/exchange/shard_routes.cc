#include "worker/exchange/shard_routes.h"

#include <algorithm>

#include <boost/asio/this_coro.hpp>

#include "common/base/log.h"

namespace centroid::worker {

using proto::ServersKind;
using transport::InFrame;
using transport::Session;

namespace {

constexpr std::chrono::seconds kConnect{10};

}  // namespace

/// What a shard server sends: results.
Task<Status> ShardRoutes::on_frame(Session& session, InFrame frame) {
  const bool is_request = (frame.header.flags & transport::kFlagRequest) != 0;
  const std::uint64_t bytes = frame.header.payload_bytes;
  CENTROID_CO_TRY(proto::check_frame(frame.header.kind, is_request, frame.head.size(), bytes));
  if (frame.header.kind != static_cast<std::uint16_t>(proto::Kind::kResult))
    co_return Error(
        ErrorCode::kInvalidArgument,
        "unexpected message kind " + std::to_string(frame.header.kind) + " from a shard server");
  CENTROID_CO_ASSIGN(const auto head, proto::decode<proto::ResultChunk>(frame.head));
  if (!round_.is_open(head.round, head.attempt))
    co_return co_await session.skip_payload();  // the leader has given that attempt up
  co_return co_await receive_result(session, head, bytes);
}

void ShardRoutes::clear() {
  route_ = {};
  shards_.clear();
}

Session* ShardRoutes::session_of(ChunkId chunk, Session& leader) const {
  if (route_.owners.empty()) return &leader;
  const std::uint16_t owner = route_.owners[chunk.value];
  return owner == 0 ? &leader : shards_[owner]->session;
}

Task<Session*> ShardRoutes::owner_of(ChunkId chunk, Session& leader) {
  Session* owner = session_of(chunk, leader);
  while (owner == nullptr && !leader.is_closed()) {  // its loss ends the leader's session too
    co_await changed_.wait(now() + std::chrono::milliseconds(100));
    owner = session_of(chunk, leader);
  }
  co_return owner;
}

void ShardRoutes::close(const Error& cause) {
  changed_.notify_all();
  for (const auto& shard : shards_)
    if (shard && shard->session != nullptr) shard->session->close(cause);
}

Task<Status> ShardRoutes::adopt(proto::Route route) {
  Session& leader = *link_.leader;
  if (route.owners.size() != link_.model.plan().chunks().size())
    co_return Error(ErrorCode::kInvalidArgument,
                    "the route names the owners of " + std::to_string(route.owners.size()) +
                        " chunks, the model has " +
                        std::to_string(link_.model.plan().chunks().size()));
  std::vector<std::shared_ptr<Shard>> shards(route.servers.size());
  for (std::size_t i = 1; i < shards.size(); ++i) {
    const proto::RouteServer& server = route.servers[i];
    const auto known = std::ranges::find_if(shards_, [&](const auto& shard) {
      return shard && shard->server == server && shard->session != nullptr;
    });
    if (known != shards_.end()) {
      shards[i] = *known;
      continue;
    }
    shards[i] = std::make_shared<Shard>();
    shards[i]->server = server;
    link_.tasks->spawn(serve(leader, shards[i], route.version));
  }
  for (const auto& old : shards_) {
    if (!old || std::ranges::find(shards, old) != shards.end()) continue;
    old->is_dropped = true;
    if (old->session != nullptr)
      old->session->close(Error(ErrorCode::kCancelled, "the route does not need it any more"));
  }
  const auto is_missing = [](const auto& shard) { return shard && shard->session == nullptr; };
  while (!leader.is_closed() && std::ranges::any_of(shards, is_missing))
    co_await changed_.wait(now() + std::chrono::seconds(1));
  log::info("route.updated", {{"route", route.version}, {"servers", route.servers.size()}});
  shards_ = std::move(shards);
  route_ = std::move(route);
  co_return Status();
}

Task<Status> ShardRoutes::enter(Session& session, std::shared_ptr<Shard> shard,
                                std::uint64_t route) {
  proto::Enter enter;
  enter.member = link_.model.terms().member;
  enter.name = link_.options.join.name;
  enter.codec = link_.options.join.codec;
  enter.route = route;
  const auto head = proto::encode(enter);
  const auto kind = static_cast<std::uint16_t>(ServersKind::kEnter);
  const TimePoint limit = now() + kConnect;
  const auto reply = co_await session.request(kind, head, Bytes(), limit);
  if (!reply.ok()) co_return reply.error();
  shard->session = &session;
  changed_.notify_all();
  co_return Status();
}

Task<Error> ShardRoutes::run(std::shared_ptr<Shard> shard, std::uint64_t route) {
  auto endpoint = transport::Endpoint::parse(shard->server.endpoint);
  if (!endpoint.ok()) co_return endpoint.error();
  const TimePoint limit = now() + kConnect;
  auto greeting = link_.greeting();
  auto opened =
      co_await transport::connect_session(*link_.transport, *endpoint, std::move(greeting), limit);
  if (!opened.ok()) co_return opened.error();
  const auto session = std::move(opened).value();
  TaskGroup children(link_.executor);
  auto start = [](ShardRoutes* self, Session* s, std::shared_ptr<Shard> of,
                  std::uint64_t version) -> Task<void> {
    const Status entered = co_await self->enter(*s, of, version);
    if (!entered.ok()) s->close(entered.error());
  };
  children.spawn(start(this, session.get(), shard, route));
  const Error cause = co_await session->run(*this);
  co_await boost::asio::this_coro::reset_cancellation_state(boost::asio::disable_cancellation());
  shard->session = nullptr;
  session->close(cause);
  children.cancel();
  co_await children.join();
  link_.counters.add_ended(session->connection().traffic(), false);
  co_return cause;
}

/// A child of the leader's session.
Task<void> ShardRoutes::serve(Session& leader, std::shared_ptr<Shard> shard, std::uint64_t route) {
  const Error cause = co_await run(shard, route);
  changed_.notify_all();
  // A server that was drained may end before its leader's new route has come.
  const TimePoint limit = now() + std::chrono::seconds(1);
  while (!shard->is_dropped && !leader.is_closed() && now() < limit)
    co_await changed_.wait(std::min(limit, now() + std::chrono::milliseconds(20)));
  if (shard->is_dropped || leader.is_closed()) co_return;
  // What it refuses for good it refuses again; anything else is worth another try.
  const bool is_refused = cause.code() == ErrorCode::kInvalidArgument;
  leader.close(Error(
      is_refused ? ErrorCode::kInvalidArgument : ErrorCode::kUnavailable,
      "server '" + shard->server.name + "' at " + shard->server.endpoint + ": " + cause.message()));
  changed_.notify_all();
}

Task<Status> ShardRoutes::receive_result(Session& session, proto::ResultChunk head,
                                         std::uint64_t bytes) {
  CENTROID_CO_ASSIGN(const bool is_wanted, round_.expects(head));
  if (!is_wanted) co_return Status();
  const Chunk& chunk = link_.model.plan().chunk(head.chunk);
  CENTROID_CO_ASSIGN(const auto memory, link_.model.result_memory(chunk, bytes));
  CENTROID_CO_TRY(co_await session.read_payload(memory));
  link_.counters.bytes_in.add(static_cast<double>(bytes));
  // Of another server: the leader may have given the attempt up meanwhile.
  if (!round_.received(head)) co_return Status();
  link_.counters.update([&](CodecTotals& totals) {
    totals.raw_in += chunk.elements * sizeof(float);
    totals.encoded_in += bytes;
  });
  changed_.notify_all();
  co_return Status();
}

Task<Status> ShardRoutes::await_results(Session& leader, proto::RoundClosed closed) {
  if (shards_.size() < 2 || closed.outcome != proto::Outcome::kCommitted ||
      !round_.is_open(closed.round, closed.attempt))
    co_return Status();
  std::size_t missing = round_.missing_results();
  TimePoint limit = now() + 2 * link_.options.stall_timeout;
  while (!leader.is_closed() && round_.missing_results() > 0) {
    const bool is_moving = std::exchange(missing, round_.missing_results()) != missing;
    if (is_moving) limit = now() + 2 * link_.options.stall_timeout;
    if (now() > limit)
      co_return Error(ErrorCode::kUnavailable,
                      "round " + to_string(closed.round) + " was committed, but " +
                          std::to_string(missing) +
                          " result chunks did not come from their servers");
    co_await changed_.wait(now() + std::chrono::seconds(1));
  }
  co_return Status();
}

}  // namespace centroid::worker
