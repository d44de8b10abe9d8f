#include "server/service/peer_session.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "common/proto/about.h"
#include "server/service/kept.h"
#include "server/shard/read_manifest.h"
#include "transport/echo.h"

namespace centroid::server {

using proto::Kind;
using transport::InFrame;
using transport::Session;

namespace {
constexpr std::chrono::seconds kJoinTimeout{10};
constexpr std::uint64_t kSlowestJoin = 1u << 20;  ///< bytes a second that a manifest must come with
constexpr std::size_t kShownName = 64;
constexpr auto kServerJoin = static_cast<std::uint16_t>(proto::ServersKind::kServerJoin);
constexpr auto kKept = static_cast<std::uint16_t>(proto::AboutKind::kKept);
}  // namespace

PeerSession::PeerSession(JobContext& context, JobParts& parts, TaskGroup& tasks,
                         transport::Strangers::Place& place)
    : ctx_(context),
      parts_(parts),
      tasks_(tasks),
      place_(place),
      limit_(context.clock.now() + kJoinTimeout),
      late_("no Join came within 10 s of the handshake") {}

Task<Status> PeerSession::on_frame(Session& session, InFrame frame) {
  const auto kind = static_cast<Kind>(frame.header.kind);
  const bool is_request = (frame.header.flags & transport::kFlagRequest) != 0;
  // Whoever passed the handshake may measure the way here; without Join it ends after 10 s.
  if (!is_known() && frame.header.kind == transport::kEcho)
    co_return co_await transport::answer_echo(session, frame);
  const Status is_legal = proto::check_frame(frame.header.kind, is_request, frame.head.size(),
                                             frame.header.payload_bytes);
  // Who is to come again when the server is ready is answered; others are sent away.
  const bool is_join = kind == Kind::kJoin || frame.header.kind == kServerJoin;
  if (!worker_ && !(is_join && ctx_.gate.is_beginning())) CENTROID_CO_TRY(ctx_.gate.check_lead());
  if (shard_ || (!is_known() && frame.header.kind == kServerJoin)) {
    CENTROID_CO_TRY(is_legal);
    co_return co_await on_shard_frame(session, std::move(frame));
  }
  if (is_pulling_ || (!worker_ && !rows_ && Pulls::opens(frame.header.kind))) {
    CENTROID_CO_TRY(is_legal);
    co_return pull(session, frame);
  }
  if (!worker_ && (rows_ || RowsService::opens(frame.header.kind))) {
    CENTROID_CO_TRY(is_legal);
    CENTROID_CO_TRY(place_.admit_guest());
    if (!rows_) rows_.emplace(parts_.rows.sessions(), session);
    co_return co_await parts_.rows.on_frame(session, frame, *rows_);
  }
  if (!worker_) {
    if (kind != Kind::kJoin)
      co_return Error(ErrorCode::kFailedPrecondition,
                      "the first message must be Join (16), RowsOpen (64) or Pull (80), not " +
                          std::to_string(frame.header.kind));
    CENTROID_CO_TRY(is_legal);
    co_return co_await join(session, std::move(frame));
  }
  if (worker_->is_gone)
    co_return Error(ErrorCode::kAborted,
                    "fenced: this member is no longer part of the cluster; join again");
  CENTROID_CO_TRY(is_legal);
  co_return co_await on_worker_frame(session, std::move(frame));
}

Task<Status> PeerSession::on_worker_frame(Session& session, InFrame frame) {
  switch (static_cast<Kind>(frame.header.kind)) {
    case Kind::kPush:
    case Kind::kInitChunk:
    case Kind::kStateChunk:
      co_return co_await on_values(session, std::move(frame));
    case Kind::kHeartbeat:
      co_return co_await on_heartbeat(session, std::move(frame));
    case Kind::kLeave:
      co_return co_await on_leave(session, std::move(frame));
    default:
      co_return on_word(frame);
  }
}

/// Numbers of the model, in the payload.
Task<Status> PeerSession::on_values(Session& session, InFrame frame) {
  const std::uint64_t bytes = frame.header.payload_bytes;
  if (static_cast<Kind>(frame.header.kind) == Kind::kPush) {
    CENTROID_CO_ASSIGN(const auto push, proto::decode<proto::Push>(frame.head));
    co_return co_await parts_.contributions.take_push(session, worker_, push, bytes);
  }
  if (static_cast<Kind>(frame.header.kind) == Kind::kInitChunk) {
    CENTROID_CO_ASSIGN(const auto initial, proto::decode<proto::InitChunk>(frame.head));
    co_return co_await parts_.initial_values.take_init_chunk(session, worker_, initial, bytes);
  }
  CENTROID_CO_ASSIGN(const auto state, proto::decode<proto::StateChunk>(frame.head));
  co_return co_await parts_.exchange.take_state_chunk(session, worker_, state, bytes);
}

/// A message without payload that is not answered.
Status PeerSession::on_word(const InFrame& frame) {
  if (frame.header.kind == kKept) {
    CENTROID_ASSIGN(const auto kept, proto::decode<proto::Kept>(frame.head));
    keep_answered(ctx_, *worker_, kept);
    return {};
  }
  const auto unexpected = [&frame] {
    return Error(ErrorCode::kInvalidArgument,
                 "unexpected message kind " + std::to_string(frame.header.kind) +
                     " (docs/reference/wire.md lists what a worker may send)");
  };
  switch (static_cast<Kind>(frame.header.kind)) {
    case Kind::kPushEnd: {
      CENTROID_ASSIGN(const auto end, proto::decode<proto::PushEnd>(frame.head));
      return parts_.contributions.take_push_end(*worker_, end);
    }
    case Kind::kInitDone:
      return parts_.initial_values.init_done(*worker_);
    case Kind::kStateDone: {
      CENTROID_ASSIGN(const auto mark, proto::decode<proto::StateMark>(frame.head));
      return parts_.exchange.state_done(*worker_, mark);
    }
    case Kind::kComputed: {
      CENTROID_ASSIGN(const auto head, proto::decode<proto::Computed>(frame.head));
      worker_->contribution.computed = {head.generation, head.round, head.attempt};
      return {};
    }
    case Kind::kReady: {
      CENTROID_ASSIGN(const auto done, proto::decode<proto::Computed>(frame.head));
      parts_.elastic.member_ready(*worker_, done);
      return {};
    }
    case Kind::kExchangeFailed: {
      if (!ctx_.config.may_meet_peers()) return unexpected();
      CENTROID_ASSIGN(const auto failed, proto::decode<proto::ExchangeFailed>(frame.head));
      parts_.exchange.exchange_failed(*worker_, failed);
      return {};
    }
    case Kind::kReport: {
      CENTROID_ASSIGN(const auto report, proto::decode<proto::Report>(frame.head));
      return parts_.contributions.take_report(*worker_, report);
    }
    default:
      return unexpected();
  }
}

Task<Status> PeerSession::on_heartbeat(Session& session, InFrame frame) {
  if (!frame.head.empty()) {
    CENTROID_CO_ASSIGN(const auto beat, proto::decode<proto::Beat>(frame.head));
    worker_->clock.heard(beat.unix_seconds, ctx_.clock.unix_seconds());
    worker_->program = beat.version;
  }
  const std::uint16_t answer = static_cast<std::uint16_t>(Kind::kHeartbeat);
  proto::BeatReply reply;
  reply.takes = proto::BeatReply::kAcceptsSaved;
  if (ctx_.config.applies_on_worker())
    reply.set_compare_rounds(static_cast<std::uint32_t>(ctx_.config.replicas.check_rounds));
  const auto head = proto::encode(reply);
  co_return co_await session.send(answer, head, Bytes(), TimePoint::max());
}

Task<Status> PeerSession::on_leave(Session& session, InFrame frame) {
  CENTROID_CO_ASSIGN(auto leave, proto::decode<proto::Leave>(frame.head));
  if (!parts_.exchange.is_last_holder(*worker_))
    co_return co_await let_go(session, frame.header, leave.reason);
  // Its state comes by this session, which goes on meanwhile.
  auto later = [](PeerSession* self, Session* from, transport::FrameHeader asked,
                  std::string why) -> Task<void> {
    co_await self->parts_.exchange.take_over(self->worker_);
    (void)co_await self->let_go(*from, asked, why);
  };
  tasks_.spawn(later(this, &session, frame.header, std::move(leave.reason)));
  co_return Status();
}

Task<Status> PeerSession::let_go(Session& session, transport::FrameHeader asked,
                                 std::string reason) {
  if (ctx_.members.roster.leave(worker_->id, reason)) {
    if (const auto why = ctx_.strangers.arrival_line(reason))
      tell(ctx_.events, log::Level::kInfo, "member.left",
           {{"worker", worker_->join.name}, {"member", worker_->id.value}, {"why", *why}});
    ctx_.probe.member_left();
    worker_->own_state.keeping.reset();  // who leaves keeps its part as it goes
    parts_.member_gone(worker_->id, std::nullopt);
  }
  co_return co_await session.respond(asked, Bytes());
}

Task<Status> PeerSession::on_shard_frame(Session& session, InFrame frame) {
  if (shard_) co_return co_await parts_.shards.on_frame(session, std::move(frame), shard_);
  // The handshake checks the token by the role.
  if (session.peer().role != "server")
    co_return Error(ErrorCode::kFailedPrecondition,
                    "ServerJoin needs the role \"server\" in Hello, not \"" +
                        transport::shortened(session.peer().role, kShownName) + "\"");
  CENTROID_CO_ASSIGN(const auto join, proto::decode<proto::ServerJoin>(frame.head));
  CENTROID_CO_TRY(place_.admit_guest());
  std::shared_ptr<ShardSession> admitted;
  const auto terms = parts_.server_changes.admit_server(session, tasks_, join, admitted);
  if (!terms.ok()) {
    is_refused_ = true;
    if (const auto why = ctx_.strangers.line(terms.error()))
      log::warn("server.refused", {{"peer", session.peer().address}, {"why", *why}});
    CENTROID_CO_TRY(co_await session.respond_error(frame.header, terms.error()));
    co_return terms.error();
  }
  shard_ = std::move(admitted);
  const auto reply = proto::encode(terms.value());
  CENTROID_CO_TRY(co_await session.respond(frame.header, reply));
  parts_.servers.tell_tokens(*shard_);
  co_return Status();
}

Status PeerSession::pull(Session& session, const InFrame& frame) {
  if (is_pulling_)
    return Error(ErrorCode::kFailedPrecondition, "a session that pulls sends nothing else");
  CENTROID_TRY(place_.admit_guest());
  is_pulling_ = true;
  CENTROID_ASSIGN(auto wanted, proto::decode<proto::Pull>(frame.head));
  auto request = std::make_shared<Pulls::Request>();
  request->header = frame.header;
  request->pull = std::move(wanted);
  tasks_.spawn(parts_.pulls.serve(session, tasks_, std::move(request)));
  return {};
}

Task<Status> PeerSession::join(Session& session, InFrame frame) {
  auto message = proto::decode<proto::Join>(frame.head);
  if (!message.ok()) co_return std::move(message).error();
  const std::uint64_t bytes = std::min(frame.header.payload_bytes, proto::kMaxManifestBytes);
  transport::HeldBytes held(ctx_.strangers.bytes());
  Status has_room = held.resize(bytes);
  if (!has_room.ok()) co_return co_await refuse(session, frame.header, has_room.error());
  const std::chrono::seconds time = kJoinTimeout + std::chrono::seconds(bytes / kSlowestJoin);
  limit_ = ctx_.clock.now() + time;
  late_ = "its Join of " + std::to_string(bytes) + " bytes did not come within " +
          std::to_string(time.count()) + " s";
  CENTROID_CO_ASSIGN(message->manifest,
                     co_await read_manifest(session, frame.header.payload_bytes));
  has_joined_ = true;
  has_room = held.resize(memory_of(message->manifest));
  if (!has_room.ok()) co_return co_await refuse(session, frame.header, has_room.error());
  co_await parts_.admission.await_state();
  Result<proto::JoinReply> admitted = proto::JoinReply();
  Status fits = parts_.admission.make_way(session, *message);
  const bool is_valid =
      fits.ok() && parts_.admission.check_join(session, *message).ok();  // else `admit` says why
  if (is_valid) fits = co_await parts_.servers.plan_worker(*message);
  if (fits.ok())
    admitted = parts_.admission.admit(session, std::move(message).value());
  else
    admitted = fits.error();
  if (!admitted.ok()) co_return co_await refuse(session, frame.header, admitted.error());
  place_.admit_member();
  worker_ = ctx_.members.find(admitted->member);
  worker_->tasks = &tasks_;
  const auto reply = proto::encode(admitted.value());
  CENTROID_CO_TRY(co_await session.respond(frame.header, reply));
  tasks_.spawn(parts_.outbox.outbox(worker_, session));
  co_return Status();
}

Task<Status> PeerSession::refuse(Session& session, const transport::FrameHeader& request,
                                 Error why) {
  is_refused_ = true;
  ctx_.probe.handshake_refused();
  if (const auto text = ctx_.strangers.line(why))
    log::warn("member.refused", {{"peer", session.peer().address},
                                 {"worker", transport::shortened(session.peer().name, kShownName)},
                                 {"why", *text}});
  CENTROID_CO_TRY(co_await session.respond_error(request, why));
  co_return why;
}

Task<void> PeerSession::expect_first_message(Session& session) const {
  while (!is_known() && !session.is_closed() && ctx_.clock.now() < limit_) {
    const TimePoint limit = limit_;                    // a Join that has begun moves it
    const bool in_time = co_await sleep_until(limit);  // lint-ok: a deadline
    if (!in_time) co_return;
  }
  if (is_known() || session.is_closed()) co_return;
  const Error late(ErrorCode::kDeadlineExceeded, late_);
  co_await session.goodbye(late);
}

void PeerSession::ended(const Error& cause) {
  if (shard_) parts_.shards.left(shard_, cause);
  if (!worker_ || worker_->is_gone) return;
  if (ctx_.members.roster.lost(worker_->id, cause.to_string())) {
    if (const auto why = ctx_.strangers.arrival_line(cause.to_string()))
      tell(ctx_.events, log::Level::kWarn, "member.lost",
           {{"worker", worker_->join.name}, {"member", worker_->id.value}, {"why", *why}});
    ctx_.probe.member_dead();
  }
  parts_.member_gone(worker_->id, std::nullopt);
}

}  // namespace centroid::server
