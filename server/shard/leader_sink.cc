#include "server/shard/leader_sink.h"

#include <span>
#include <string>
#include <utility>

#include "common/proto/about.h"
#include "server/shard/read_manifest.h"

namespace centroid::server {

using proto::ServersKind;
using transport::InFrame;
using transport::Session;

namespace {

constexpr std::chrono::seconds kJoinWait{5};

Task<Status> done(Session& session, transport::FrameHeader request, Status status) {
  if (!status.ok()) co_return co_await session.respond_error(request, status.error());
  co_return co_await session.respond(request, Bytes());
}

}  // namespace

Task<Status> LeaderSink::on_frame(Session& session, InFrame frame) {
  const bool is_request = (frame.header.flags & transport::kFlagRequest) != 0;
  CENTROID_CO_TRY(proto::check_frame(frame.header.kind, is_request, frame.head.size(),
                                     frame.header.payload_bytes));
  if (frame.header.kind == static_cast<std::uint16_t>(proto::Kind::kHeartbeat)) co_return Status();
  if (!context_.leader.is_joined()) {  // its terms arrived first and are being read
    const bool is_joined = co_await context_.leader.await_joined(context_.clock.now() + kJoinWait);
    if (!is_joined) co_return Error(ErrorCode::kFailedPrecondition, "no ServerTerms came first");
  }
  if (ShardRows::is_for_rows(frame.header.kind))
    co_return co_await rows_.on_leader(session, frame, tasks_, context_.leader);
  co_return co_await dispatch(session, frame);
}

Task<Status> LeaderSink::dispatch(Session& session, const InFrame& frame) {
  switch (static_cast<ServersKind>(frame.header.kind)) {
    case ServersKind::kModel:
      return on_model(session, frame);
    case ServersKind::kPlace:
      return on_place(session, frame);
    case ServersKind::kLoad:
      return on_load(session, frame);
    case ServersKind::kBegin:
      return on_begin(session, frame);
    case ServersKind::kFetch:
      return on_fetch(session, frame);
    case ServersKind::kFreeze:
      return on_freeze(session, frame);
    case ServersKind::kMerge:
      return on_merge(session, frame);
    case ServersKind::kStep:
      return on_step(session, frame);
    case ServersKind::kCommit:
      return on_commit(session, frame);
    case ServersKind::kOptimizer:
      return on_optimizer(session, frame);
    case ServersKind::kRecall:
      return on_recall(session, frame);
    case ServersKind::kStatistics:
      return on_statistics(session, frame);
    case ServersKind::kTokens:
      return on_tokens(session, frame);
    case ServersKind::kOpened:
      return on_opened(frame);
    case ServersKind::kMemoryPlan:
      return on_memory_plan(session, frame);
    case ServersKind::kForget:
      return on_forget(frame);
    default:
      return refuse(frame);
  }
}

Task<Status> LeaderSink::refuse(const InFrame& frame) {
  co_return Error(ErrorCode::kInvalidArgument, "unexpected message kind " +
                                                   std::to_string(frame.header.kind) +
                                                   " from the leader (docs/reference/wire.md)");
}

Task<Status> LeaderSink::on_model(Session& session, const InFrame& frame) {
  CENTROID_CO_ASSIGN(auto model, proto::decode<proto::ServerModel>(frame.head));
  CENTROID_CO_ASSIGN(model.manifest, co_await read_manifest(session, frame.header.payload_bytes));
  const Status taken = co_await model_.take_model(std::move(model));
  co_return co_await done(session, frame.header, taken);
}

Task<Status> LeaderSink::on_place(Session& session, const InFrame& frame) {
  CENTROID_CO_ASSIGN(auto route, proto::decode<proto::Route>(frame.head));
  const Status taken = model_.place(std::move(route));
  co_return co_await done(session, frame.header, taken);
}

Task<Status> LeaderSink::on_load(Session& session, const InFrame& frame) {
  CENTROID_CO_ASSIGN(const auto head, proto::decode<proto::ServerChunk>(frame.head));
  Buffer buffer(frame.header.payload_bytes);
  const auto values = buffer.bytes().first(frame.header.payload_bytes);
  CENTROID_CO_TRY(co_await session.read_payload(values));
  const Status taken = model_.load(head, values);
  co_return co_await done(session, frame.header, taken);
}

Task<Status> LeaderSink::on_begin(Session& session, const InFrame& frame) {
  CENTROID_CO_ASSIGN(const auto state, proto::decode<proto::ServerState>(frame.head));
  const Status begun = co_await model_.begin(state);
  co_return co_await done(session, frame.header, begun);
}

Task<Status> LeaderSink::on_fetch(Session& session, const InFrame& frame) {
  CENTROID_CO_ASSIGN(const auto head, proto::decode<proto::ServerChunk>(frame.head));
  tasks_.spawn(send_chunk(session, frame.header, head));
  co_return Status();
}

Task<Status> LeaderSink::on_freeze(Session& session, const InFrame& frame) {
  CENTROID_CO_ASSIGN(const auto state, proto::decode<proto::ServerState>(frame.head));
  const Status frozen = co_await model_.freeze(state);
  co_return co_await done(session, frame.header, frozen);
}

Task<Status> LeaderSink::on_merge(Session& session, const InFrame& frame) {
  CENTROID_CO_ASSIGN(auto merge, proto::decode<proto::Merge>(frame.head));
  tasks_.spawn(run_merge(session, frame.header, std::move(merge)));
  co_return Status();
}

Task<Status> LeaderSink::on_step(Session& session, const InFrame& frame) {
  CENTROID_CO_ASSIGN(const auto step, proto::decode<proto::Step>(frame.head));
  tasks_.spawn(run_step(session, frame.header, step));
  co_return Status();
}

Task<Status> LeaderSink::on_commit(Session& session, const InFrame& frame) {
  CENTROID_CO_ASSIGN(const auto state, proto::decode<proto::ServerState>(frame.head));
  tasks_.spawn(run_commit(session, frame.header, state));
  co_return Status();
}

Task<Status> LeaderSink::on_optimizer(Session& session, const InFrame& frame) {
  CENTROID_CO_ASSIGN(const auto change, proto::decode<proto::OptimizerChange>(frame.head));
  const Status taken = model_.set_optimizer(change);
  co_return co_await done(session, frame.header, taken);
}

Task<Status> LeaderSink::on_recall(Session& session, const InFrame& frame) {
  CENTROID_CO_ASSIGN(const auto wanted, proto::decode<proto::Recall>(frame.head));
  const auto numbers = co_await model_.recall(wanted);
  if (!numbers.ok()) co_return co_await session.respond_error(frame.header, numbers.error());
  proto::RecallReply reply;
  reply.form = static_cast<std::uint8_t>(numbers->form);
  const auto head = proto::encode(reply);
  co_return co_await session.respond(frame.header, head, numbers->bytes);
}

Task<Status> LeaderSink::on_statistics(Session& session, const InFrame& frame) {
  CENTROID_CO_ASSIGN(const auto wanted, proto::decode<proto::Statistics>(frame.head));
  tasks_.spawn(run_statistics(session, frame.header, wanted));
  co_return Status();
}

Task<Status> LeaderSink::on_tokens(Session& session, const InFrame& frame) {
  CENTROID_CO_ASSIGN(auto tokens, proto::decode<proto::Tokens>(frame.head));
  workers_.set_tokens(std::move(tokens));
  co_return co_await done(session, frame.header, Status());
}

Task<Status> LeaderSink::on_opened(const InFrame& frame) {
  CENTROID_CO_ASSIGN(auto opened, proto::decode<proto::Opened>(frame.head));
  model_.open(opened);  // before the fence: a push that waits for the fence must then be expected
  workers_.set_opened(std::move(opened));
  co_return Status();
}

Task<Status> LeaderSink::on_memory_plan(Session& session, const InFrame& frame) {
  CENTROID_CO_ASSIGN(const auto wanted, proto::decode<proto::MemoryPlan>(frame.head));
  const Status fits = model_.resize(wanted);
  co_return co_await done(session, frame.header, fits);
}

Task<Status> LeaderSink::on_forget(const InFrame& frame) {
  CENTROID_CO_ASSIGN(const auto gone, proto::decode<proto::Forget>(frame.head));
  workers_.forget(gone);
  co_return Status();
}

Task<void> LeaderSink::send_chunk(Session& session, transport::FrameHeader request,
                                  proto::ServerChunk head) {
  const auto values = model_.read_chunk(head);
  if (!values.ok()) {
    (void)co_await session.respond_error(request, values.error());
    co_return;
  }
  (void)co_await session.respond(request, Bytes(), std::as_bytes(std::span(values.value())));
}

Task<void> LeaderSink::run_merge(Session& session, transport::FrameHeader request,
                                 proto::Merge merge) {
  const auto reply = co_await model_.merge(std::move(merge));
  if (!reply.ok()) {
    (void)co_await session.respond_error(request, reply.error());
    co_return;
  }
  const auto head = proto::encode(reply.value());
  (void)co_await session.respond(request, head);
}

Task<void> LeaderSink::run_step(Session& session, transport::FrameHeader request,
                                proto::Step step) {
  const auto reply = co_await model_.step(step);
  if (!reply.ok()) {
    (void)co_await session.respond_error(request, reply.error());
    co_return;
  }
  const auto head = proto::encode(reply.value());
  (void)co_await session.respond(request, head);
}

Task<void> LeaderSink::run_commit(Session& session, transport::FrameHeader request,
                                  proto::ServerState state) {
  const Status committed = co_await model_.commit(state);
  (void)co_await done(session, request, committed);
}

Task<void> LeaderSink::run_statistics(Session& session, transport::FrameHeader request,
                                      proto::Statistics wanted) {
  const auto parts = co_await model_.statistics(wanted);
  if (!parts.ok()) {
    (void)co_await session.respond_error(request, parts.error());
    co_return;
  }
  (void)co_await session.respond(request, Bytes(), std::as_bytes(std::span(parts.value())));
}

}  // namespace centroid::server
