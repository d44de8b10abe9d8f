#include "server/shard/leader_sink.h"

#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "common/proto/about.h"
#include "server/shard/read_manifest.h"
#include "server/shard/reply_of.h"

namespace centroid::server {

using proto::ServersKind;
using transport::InFrame;
using transport::Session;

namespace {

constexpr std::chrono::seconds kJoinWait{5};

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

template <class M>
Task<Status> LeaderSink::act(Session& session, const InFrame& frame,
                             Status (HostedModel::*what)(M)) {
  CENTROID_CO_ASSIGN(auto message, proto::decode<std::remove_cvref_t<M>>(frame.head));
  const Status done = (model_.*what)(std::move(message));
  co_return co_await session.respond(frame.header, done);
}

template <class M>
Task<Status> LeaderSink::act(Session& session, const InFrame& frame,
                             Task<Status> (HostedModel::*what)(M)) {
  CENTROID_CO_ASSIGN(auto message, proto::decode<M>(frame.head));
  const Status done = co_await (model_.*what)(std::move(message));
  co_return co_await session.respond(frame.header, done);
}

template <class M, class R>
Task<Status> LeaderSink::act_beside(Session& session, const InFrame& frame,
                                    Task<R> (HostedModel::*what)(M)) {
  CENTROID_CO_ASSIGN(auto message, proto::decode<M>(frame.head));
  tasks_.spawn(answer(session, frame.header, (model_.*what)(std::move(message))));
  co_return Status();
}

template <class R>
Task<void> LeaderSink::answer(Session& session, transport::FrameHeader request, Task<R> work) {
  const R done = co_await std::move(work);
  auto reply = reply_of(done);
  (void)co_await session.respond(request, std::move(reply));
}

Task<Status> LeaderSink::dispatch(Session& session, const InFrame& frame) {
  switch (static_cast<ServersKind>(frame.header.kind)) {
    case ServersKind::kModel:
      return on_model(session, frame);
    case ServersKind::kPlace:
      return act(session, frame, &HostedModel::place);
    case ServersKind::kLoad:
      return on_load(session, frame);
    case ServersKind::kBegin:
      return act(session, frame, &HostedModel::begin);
    case ServersKind::kFetch:
      return on_fetch(session, frame);
    case ServersKind::kFreeze:
      return act(session, frame, &HostedModel::freeze);
    case ServersKind::kMerge:
      return act_beside(session, frame, &HostedModel::merge);
    case ServersKind::kStep:
      return act_beside(session, frame, &HostedModel::step);
    case ServersKind::kCommit:
      return act_beside(session, frame, &HostedModel::commit);
    case ServersKind::kOptimizer:
      return act(session, frame, &HostedModel::set_optimizer);
    case ServersKind::kRecall:
      return on_recall(session, frame);
    case ServersKind::kStatistics:
      return act_beside(session, frame, &HostedModel::statistics);
    case ServersKind::kTokens:
      return on_tokens(session, frame);
    case ServersKind::kOpened:
      return on_opened(frame);
    case ServersKind::kMemoryPlan:
      return act(session, frame, &HostedModel::resize);
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
  co_return co_await session.respond(frame.header, taken);
}

Task<Status> LeaderSink::on_load(Session& session, const InFrame& frame) {
  CENTROID_CO_ASSIGN(const auto head, proto::decode<proto::ServerChunk>(frame.head));
  Buffer buffer(frame.header.payload_bytes);
  const auto values = buffer.bytes().first(frame.header.payload_bytes);
  CENTROID_CO_TRY(co_await session.read_payload(values));
  const Status taken = model_.load(head, values);
  co_return co_await session.respond(frame.header, taken);
}

Task<Status> LeaderSink::on_fetch(Session& session, const InFrame& frame) {
  CENTROID_CO_ASSIGN(const auto head, proto::decode<proto::ServerChunk>(frame.head));
  tasks_.spawn(send_chunk(session, frame.header, head));
  co_return Status();
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

Task<Status> LeaderSink::on_tokens(Session& session, const InFrame& frame) {
  CENTROID_CO_ASSIGN(auto tokens, proto::decode<proto::Tokens>(frame.head));
  workers_.set_tokens(std::move(tokens));
  co_return co_await session.respond(frame.header, Bytes());
}

Task<Status> LeaderSink::on_opened(const InFrame& frame) {
  CENTROID_CO_ASSIGN(auto opened, proto::decode<proto::Opened>(frame.head));
  model_.open(opened);  // before the fence: a push that waits for the fence must then be expected
  workers_.set_opened(std::move(opened));
  co_return Status();
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

}  // namespace centroid::server
