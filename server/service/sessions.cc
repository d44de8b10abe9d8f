#include <algorithm>

#include <boost/asio/this_coro.hpp>

#include "common/base/log.h"
#include "common/proto/about.h"
#include "common/proto/standby.h"
#include "server/service/buffers.h"
#include "server/service/cluster.h"
#include "server/service/kept.h"
#include "server/service/pulls.h"
#include "server/shard/read_manifest.h"
#include "transport/echo.h"

namespace centroid::server {

using proto::Kind;
using transport::InFrame;
using transport::Session;

namespace {
constexpr std::chrono::seconds kJoinTimeout{10};
constexpr auto kServerJoin = static_cast<std::uint16_t>(proto::ServersKind::kServerJoin);

}  // namespace

/// Frames of one session, from Join to its end.
class Cluster::MemberSink final : public transport::FrameSink {
 public:
  MemberSink(Cluster& cluster, TaskGroup& tasks) : cluster_(cluster), tasks_(tasks) {}

  Task<Status> on_frame(Session& session, InFrame frame) override {
    const auto kind = static_cast<Kind>(frame.header.kind);
    const bool is_request = (frame.header.flags & transport::kFlagRequest) != 0;
    // Whoever passed the handshake may measure the way here; without Join it ends after 10 s.
    if (!link_ && !rows_ && frame.header.kind == transport::kEcho)
      co_return co_await transport::answer_echo(session, frame);
    const Status is_legal = proto::check_frame(frame.header.kind, is_request, frame.head.size(),
                                               frame.header.payload_bytes);
    // Who is to come again when the server is ready is answered; others are sent away.
    const bool is_join = kind == Kind::kJoin || frame.header.kind == kServerJoin;
    if (!link_ && !(is_join && cluster_.gate_.is_beginning()))
      CENTROID_CO_TRY(cluster_.gate_.check_lead());
    if (shard_ || (!link_ && frame.header.kind == kServerJoin)) {
      CENTROID_CO_TRY(is_legal);
      co_return co_await serve_shard(session, std::move(frame));
    }
    if (is_pulling_ || (!link_ && !rows_ && Pulls::opens(frame.header.kind))) {
      CENTROID_CO_TRY(is_legal);
      co_return pull(session, frame);
    }
    if (!link_ && (rows_ || RowsService::opens(frame.header.kind))) {
      CENTROID_CO_TRY(is_legal);
      if (!rows_) rows_.emplace(cluster_.rows_, session);
      co_return co_await cluster_.rows_.on_frame(session, frame, *rows_);
    }
    if (!link_) {
      if (kind != Kind::kJoin)
        co_return Error(ErrorCode::kFailedPrecondition,
                        "the first message must be Join (16), RowsOpen (64) or Pull (80), not " +
                            std::to_string(frame.header.kind));
      CENTROID_CO_TRY(is_legal);
      co_return co_await join(session, std::move(frame));
    }
    if (link_->is_gone)
      co_return Error(ErrorCode::kAborted,
                      "fenced: this member is no longer part of the cluster; join again");
    CENTROID_CO_TRY(is_legal);
    if (frame.header.kind == static_cast<std::uint16_t>(proto::AboutKind::kKept)) {
      CENTROID_CO_ASSIGN(const auto kept, proto::decode<proto::Kept>(frame.head));
      keep_answered(cluster_.events_, *link_, kept);
      co_return Status();
    }
    switch (kind) {
      case Kind::kPush: {
        CENTROID_CO_ASSIGN(const auto head, proto::decode<proto::Push>(frame.head));
        co_return co_await cluster_.contributions_.take_push(session, link_, head,
                                                             frame.header.payload_bytes);
      }
      case Kind::kPushEnd: {
        CENTROID_CO_ASSIGN(const auto end, proto::decode<proto::PushEnd>(frame.head));
        co_return cluster_.contributions_.take_push_end(*link_, end);
      }
      case Kind::kHeartbeat: {
        if (!frame.head.empty()) {
          CENTROID_CO_ASSIGN(const auto beat, proto::decode<proto::Beat>(frame.head));
          link_->clock.heard(beat.unix_seconds, cluster_.clock_.unix_seconds());
          link_->program = beat.version;
        }
        const std::uint16_t answer = static_cast<std::uint16_t>(Kind::kHeartbeat);
        proto::BeatReply reply;
        reply.takes = proto::BeatReply::kTakesKept;
        const auto head = proto::encode(reply);
        co_return co_await session.send(answer, head, Bytes(), TimePoint::max());
      }
      case Kind::kInitChunk: {
        CENTROID_CO_ASSIGN(const auto head, proto::decode<proto::InitChunk>(frame.head));
        co_return co_await cluster_.initial_values_.take_init_chunk(session, link_, head,
                                                                    frame.header.payload_bytes);
      }
      case Kind::kInitDone:
        co_return cluster_.initial_values_.init_done(*link_);
      case Kind::kStateChunk: {
        CENTROID_CO_ASSIGN(const auto head, proto::decode<proto::StateChunk>(frame.head));
        co_return co_await cluster_.exchange_.take_state_chunk(session, link_, head,
                                                               frame.header.payload_bytes);
      }
      case Kind::kStateDone: {
        CENTROID_CO_ASSIGN(const auto mark, proto::decode<proto::StateMark>(frame.head));
        co_return cluster_.exchange_.state_done(*link_, mark);
      }
      case Kind::kComputed: {
        CENTROID_CO_ASSIGN(const auto head, proto::decode<proto::Computed>(frame.head));
        link_->computed = {head.generation, head.round, head.attempt};
        co_return Status();
      }
      case Kind::kReady: {
        CENTROID_CO_ASSIGN(const auto done, proto::decode<proto::Computed>(frame.head));
        cluster_.elastic_.member_ready(*link_, done);
        co_return Status();
      }
      case Kind::kExchangeFailed: {
        CENTROID_CO_ASSIGN(const auto failed, proto::decode<proto::ExchangeFailed>(frame.head));
        cluster_.exchange_.exchange_failed(*link_, failed);
        co_return Status();
      }
      case Kind::kReport: {
        CENTROID_CO_ASSIGN(const auto report, proto::decode<proto::Report>(frame.head));
        co_return cluster_.contributions_.take_report(*link_, report);
      }
      case Kind::kLeave: {
        CENTROID_CO_ASSIGN(const auto leave, proto::decode<proto::Leave>(frame.head));
        if (cluster_.members_.roster.leave(link_->id, leave.reason)) {
          tell(cluster_.events_, log::Level::kInfo, "member.left",
               {{"worker", link_->join.name}, {"member", link_->id.value}, {"why", leave.reason}});
          cluster_.probe_.member_left();
          link_->keeping.reset();  // who leaves keeps its part as it goes
          cluster_.member_gone(link_->id, std::nullopt);
        }
        co_return co_await session.respond(frame.header, Bytes());
      }
      default:
        co_return Error(ErrorCode::kInvalidArgument,
                        "unexpected message kind " + std::to_string(frame.header.kind) +
                            " (docs/wire.md lists what a worker may send)");
    }
  }

  const std::shared_ptr<Link>& link() const { return link_; }
  const std::shared_ptr<ShardGroup::Link>& shard() const { return shard_; }
  /// Of a worker, a client of rows or a shard server. A Join that is still coming in is the stall
  /// timeout's: its manifest may be long.
  bool is_known() const { return link_ || rows_ || shard_ || is_joining_ || is_pulling_; }

 private:
  Task<Status> serve_shard(Session& session, InFrame frame) {
    if (shard_) co_return co_await cluster_.shards_.on_frame(session, std::move(frame), shard_);
    CENTROID_CO_ASSIGN(const auto join, proto::decode<proto::ServerJoin>(frame.head));
    std::shared_ptr<ShardGroup::Link> admitted;
    const auto terms = cluster_.server_changes_.admit_server(session, tasks_, join, admitted);
    if (!terms.ok()) {
      log::warn("server.refused", {{"peer", session.peer().address}, {"why", terms.error()}});
      CENTROID_CO_TRY(co_await session.respond_error(frame.header, terms.error()));
      co_return terms.error();
    }
    shard_ = std::move(admitted);
    const auto reply = proto::encode(terms.value());
    CENTROID_CO_TRY(co_await session.respond(frame.header, reply));
    cluster_.servers_.tell_tokens(*shard_);
    co_return Status();
  }

  Status pull(Session& session, const InFrame& frame) {
    if (std::exchange(is_pulling_, true))
      return Error(ErrorCode::kFailedPrecondition, "a session that pulls sends nothing else");
    CENTROID_ASSIGN(auto wanted, proto::decode<proto::Pull>(frame.head));
    auto request = std::make_shared<Pulls::Request>();
    request->header = frame.header;
    request->pull = std::move(wanted);
    tasks_.spawn(cluster_.pulls_->serve(session, tasks_, std::move(request)));
    return {};
  }

  Task<Status> join(Session& session, InFrame frame) {
    auto message = proto::decode<proto::Join>(frame.head);
    if (!message.ok()) co_return std::move(message).error();
    is_joining_ = true;
    CENTROID_CO_ASSIGN(message->manifest,
                       co_await read_manifest(session, frame.header.payload_bytes));
    Result<proto::JoinReply> admitted = proto::JoinReply();
    Status fits;
    const bool is_valid =
        cluster_.admission_.check_join(session, *message).ok();  // else `admit` says why
    if (is_valid) fits = co_await cluster_.servers_.reckon_worker(*message);
    if (fits.ok())
      admitted = cluster_.admission_.admit(session, std::move(message).value());
    else
      admitted = fits.error();
    if (!admitted.ok()) {
      cluster_.probe_.handshake_refused();
      log::warn("member.refused", {{"peer", session.peer().address},
                                   {"worker", session.peer().name},
                                   {"why", admitted.error()}});
      CENTROID_CO_TRY(co_await session.respond_error(frame.header, admitted.error()));
      co_return std::move(admitted).error();
    }
    link_ = cluster_.members_.find(admitted->member);
    link_->tasks = &tasks_;
    const auto reply = proto::encode(admitted.value());
    CENTROID_CO_TRY(co_await session.respond(frame.header, reply));
    tasks_.spawn(cluster_.outbox_.outbox(link_, session));
    co_return Status();
  }

  Cluster& cluster_;
  TaskGroup& tasks_;
  std::shared_ptr<Link> link_;
  bool is_joining_ = false, is_pulling_ = false;
  std::optional<RowsService::Client> rows_;
  std::shared_ptr<ShardGroup::Link> shard_;
};

namespace {

/// Closed before the first byte: it looked whether the port is open, as `centroidctl doctor` and
/// the probes of platforms do. What FramedConnection says of more bytes or a failure ends
/// otherwise.
bool is_knock(const Error& error) {
  return error.code() == ErrorCode::kUnavailable &&
         error.message().ends_with(" closed the connection");
}

}  // namespace

/// A session that does not join is not kept.
Task<void> Cluster::expect_join(Session& session, const MemberSink& sink) {
  const bool in_time = co_await sleep_until(clock_.now() + kJoinTimeout);
  if (!in_time || sink.is_known() || session.is_closed()) co_return;
  const Error late(ErrorCode::kDeadlineExceeded, "no Join came within 10 s of the handshake");
  co_await session.goodbye(late);
}

Task<void> Cluster::serve(std::unique_ptr<transport::Connection> connection) {
  const std::string peer = connection->peer();
  auto accepted = co_await Session::accept(std::move(connection), greeting(),
                                           clock_.now() + std::chrono::seconds(5));
  if (!accepted.ok()) {
    if (is_knock(accepted.error())) {
      log::debug("connection.refused", {{"peer", peer}, {"why", accepted.error()}});
    } else {
      probe_.handshake_refused();
      log::warn("connection.refused", {{"peer", peer}, {"why", accepted.error()}});
    }
    co_return;
  }
  const auto session = std::move(accepted).value();
  TaskGroup children(executor_);
  MemberSink sink(*this, children);
  children.spawn(expect_join(*session, sink));
  const Error cause = co_await session->run(sink);
  // What follows must happen even when this task was cancelled: others hold pointers to the
  // session.
  co_await boost::asio::this_coro::reset_cancellation_state(boost::asio::disable_cancellation());
  session->close(cause);
  if (sink.shard()) shards_.left(sink.shard(), cause);
  if (const auto& link = sink.link(); link && !link->is_gone) {
    if (members_.roster.lost(link->id, cause.to_string())) {
      tell(events_, log::Level::kWarn, "member.lost",
           {{"worker", link->join.name}, {"member", link->id.value}, {"why", cause}});
      probe_.member_dead();
    }
    member_gone(link->id, std::nullopt);
  }
  outgoing_.notify_all();
  children.cancel();
  co_await children.join();
}

}  // namespace centroid::server
