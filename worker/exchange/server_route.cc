#include <algorithm>

#include <boost/asio/this_coro.hpp>

#include "common/base/log.h"
#include "worker/exchange/server_link.h"

/// A model that lies on several servers: one session with each, beside the leader's. Chunks go to
/// their owners and results come from there; everything else is between worker and leader. When one
/// of the sessions is lost the leader's is given up too, so that the worker joins again and gets
/// the route and the state that are valid then.
namespace centroid::worker {

using proto::ServersKind;
using transport::InFrame;
using transport::Session;

namespace {

constexpr std::chrono::seconds kConnect{10};

}  // namespace

/// What a shard server sends: results.
class ServerLink::ShardSink final : public transport::FrameSink {
 public:
  explicit ShardSink(ServerLink& link) : link_(link) {}

  Task<Status> on_frame(Session& session, InFrame frame) override {
    const bool is_request = (frame.header.flags & transport::kFlagRequest) != 0;
    CENTROID_CO_TRY(proto::check_frame(frame.header.kind, is_request, frame.head.size(),
                                       frame.header.payload_bytes));
    if (frame.header.kind != static_cast<std::uint16_t>(proto::Kind::kResult))
      co_return Error(
          ErrorCode::kInvalidArgument,
          "unexpected message kind " + std::to_string(frame.header.kind) + " from a shard server");
    CENTROID_CO_ASSIGN(const auto head, proto::decode<proto::ResultChunk>(frame.head));
    if (!link_.open_ || head.round != link_.open_->round || head.attempt != link_.open_->attempt)
      co_return co_await session.skip_payload();  // the leader has given that attempt up
    CENTROID_CO_TRY(co_await link_.take_result(session, head, frame.header.payload_bytes));
    link_.arrived_.notify_all();
    co_return Status();
  }

 private:
  ServerLink& link_;
};

/// The session by which a chunk reaches its owner; nullptr: it has just been lost.
Session* ServerLink::session_for(ChunkId chunk, Session& leader) const {
  if (route_.owners.empty()) return &leader;
  const std::uint16_t owner = route_.owners[chunk.value];
  return owner == 0 ? &leader : shards_[owner]->session;
}

/// Between rounds: open the sessions that the route needs, close those that it does not.
Task<Status> ServerLink::route_told(Session& leader, proto::Route route) {
  if (route.owners.size() != plan_.chunks().size())
    co_return Error(ErrorCode::kInvalidArgument,
                    "the route names the owners of " + std::to_string(route.owners.size()) +
                        " chunks, the model has " + std::to_string(plan_.chunks().size()));
  std::vector<std::shared_ptr<ShardLink>> shards(route.servers.size());
  for (std::size_t i = 1; i < shards.size(); ++i) {
    const proto::RouteServer& server = route.servers[i];
    const auto known = std::ranges::find_if(shards_, [&](const auto& shard) {
      return shard && shard->server == server && shard->session != nullptr;
    });
    if (known != shards_.end()) {
      shards[i] = *known;
      continue;
    }
    shards[i] = std::make_shared<ShardLink>();
    shards[i]->server = server;
    tasks_->spawn(serve_shard(leader, shards[i], route.version));
  }
  for (const auto& old : shards_) {
    if (!old || std::ranges::find(shards, old) != shards.end()) continue;
    old->is_dropped = true;
    if (old->session != nullptr)
      old->session->close(Error(ErrorCode::kCancelled, "the route does not need it any more"));
  }
  const auto is_missing = [](const auto& shard) { return shard && shard->session == nullptr; };
  while (!leader.is_closed() && std::ranges::any_of(shards, is_missing))
    co_await arrived_.wait(now() + std::chrono::seconds(1));
  log::info("route.told", {{"route", route.version}, {"servers", route.servers.size()}});
  shards_ = std::move(shards);
  route_ = std::move(route);
  co_return Status();
}

Task<Status> ServerLink::enter_shard(Session& session, std::shared_ptr<ShardLink> shard,
                                     std::uint64_t route) {
  proto::Enter enter;
  enter.member = terms_.member;
  enter.name = options_.join.name;
  enter.codec = options_.join.codec;
  enter.route = route;
  const auto head = proto::encode(enter);
  const auto kind = static_cast<std::uint16_t>(ServersKind::kEnter);
  const TimePoint limit = now() + kConnect;
  const auto reply = co_await session.request(kind, head, Bytes(), limit);
  if (!reply.ok()) co_return reply.error();
  shard->session = &session;
  arrived_.notify_all();
  co_return Status();
}

Task<Error> ServerLink::run_shard(std::shared_ptr<ShardLink> shard, std::uint64_t route) {
  auto endpoint = transport::Endpoint::parse(shard->server.endpoint);
  if (!endpoint.ok()) co_return endpoint.error();
  const TimePoint limit = now() + kConnect;
  auto connection = co_await transport_->connect(*endpoint, limit);
  if (!connection.ok()) co_return connection.error();
  transport::Greeting greeting;
  greeting.role = "worker";
  greeting.name = options_.join.name;
  greeting.run_id = terms_.run_id;
  greeting.token = options_.token;
  greeting.limits.max_head_bytes = transport::kMaxHeadBytes;
  greeting.limits.max_payload_bytes = 256u << 20;
  auto opened = co_await Session::open(std::move(connection).value(), std::move(greeting), limit);
  if (!opened.ok()) co_return opened.error();
  const auto session = std::move(opened).value();
  TaskGroup children(executor_);
  auto start = [](ServerLink* self, Session* s, std::shared_ptr<ShardLink> of,
                  std::uint64_t version) -> Task<void> {
    const Status entered = co_await self->enter_shard(*s, of, version);
    if (!entered.ok()) s->close(entered.error());
  };
  children.spawn(start(this, session.get(), shard, route));
  ShardSink sink(*this);
  const Error cause = co_await session->run(sink);
  co_await boost::asio::this_coro::reset_cancellation_state(boost::asio::disable_cancellation());
  shard->session = nullptr;
  session->close(cause);
  children.cancel();
  co_await children.join();
  const auto traffic = session->connection().traffic();
  const std::lock_guard lock(traffic_mutex_);
  closed_traffic_.bytes_in += traffic.bytes_in;
  closed_traffic_.bytes_out += traffic.bytes_out;
  co_return cause;
}

/// A child of the leader's session.
Task<void> ServerLink::serve_shard(Session& leader, std::shared_ptr<ShardLink> shard,
                                   std::uint64_t route) {
  const Error cause = co_await run_shard(shard, route);
  arrived_.notify_all();
  // A server that was drained may end before its leader's new route has come.
  const TimePoint limit = now() + std::chrono::seconds(1);
  while (!shard->is_dropped && !leader.is_closed() && now() < limit)
    co_await arrived_.wait(std::min(limit, now() + std::chrono::milliseconds(20)));
  if (shard->is_dropped || leader.is_closed()) co_return;
  // What it refuses for good it refuses again; anything else is worth another try.
  const bool is_refused = cause.code() == ErrorCode::kInvalidArgument;
  leader.close(Error(
      is_refused ? ErrorCode::kInvalidArgument : ErrorCode::kUnavailable,
      "server '" + shard->server.name + "' at " + shard->server.endpoint + ": " + cause.message()));
  arrived_.notify_all();
}

/// The round is committed: what other servers have sent of it is still to arrive.
Task<Status> ServerLink::await_results(Session& leader, proto::RoundClosed closed) {
  if (shards_.size() < 2 || closed.outcome != proto::Outcome::kCommitted || !open_ ||
      closed.round != open_->round || closed.attempt != open_->attempt)
    co_return Status();
  const std::size_t wanted = fragment_of(*open_).chunks.size();
  std::size_t seen = have_count_;
  TimePoint limit = now() + 2 * options_.stall_timeout;
  while (!leader.is_closed() && have_count_ < wanted) {
    if (seen != have_count_) limit = now() + 2 * options_.stall_timeout;  // they are on their way
    seen = have_count_;
    if (now() > limit)
      co_return Error(ErrorCode::kUnavailable,
                      "round " + to_string(closed.round) + " was committed, but " +
                          std::to_string(wanted - have_count_) + " of " + std::to_string(wanted) +
                          " result chunks did not come from their servers");
    co_await arrived_.wait(now() + std::chrono::seconds(1));
  }
  co_return Status();
}

}  // namespace centroid::worker
