#include "server/shard/worker_sink.h"

#include <string>
#include <utility>

#include "common/proto/about.h"
#include "transport/echo.h"

namespace centroid::server {

using proto::ServersKind;
using transport::InFrame;
using transport::Session;

Task<Status> WorkerSink::on_frame(Session& session, InFrame frame) {
  if (frame.header.kind == transport::kEcho && !worker_)  // an operator measures the connection
    co_return co_await transport::answer_echo(session, frame);
  const bool is_request = (frame.header.flags & transport::kFlagRequest) != 0;
  CENTROID_CO_TRY(proto::check_frame(frame.header.kind, is_request, frame.head.size(),
                                     frame.header.payload_bytes));
  if (client_ || (!worker_ && RowsService::opens(frame.header.kind)))
    co_return co_await serve_rows(session, frame);
  if (frame.header.kind == static_cast<std::uint16_t>(proto::Kind::kHeartbeat)) co_return Status();
  if (frame.header.kind == static_cast<std::uint16_t>(ServersKind::kEnter) && !worker_)
    co_return co_await enter(session, std::move(frame));
  if (frame.header.kind != static_cast<std::uint16_t>(proto::Kind::kPush) || !worker_)
    co_return Error(
        ErrorCode::kInvalidArgument,
        "a shard server takes Enter (125) and then Push (22), or RowsOpen (64), not kind " +
            std::to_string(frame.header.kind) + ": workers join the leader (--server)");
  CENTROID_CO_ASSIGN(const auto push, proto::decode<proto::Push>(frame.head));
  co_return co_await workers_.take_push(session, worker_, push, frame.header.payload_bytes);
}

Task<Status> WorkerSink::serve_rows(Session& session, const InFrame& frame) {
  if (!client_) {
    auto service = rows_.service();
    if (!service.ok()) co_return co_await session.respond_error(frame.header, service.error());
    CENTROID_CO_TRY(place_.admit_guest());
    service_ = std::move(service).value();
    client_.emplace(service_->sessions(), session);
  }
  co_return co_await service_->on_frame(session, frame, *client_);
}

Task<Status> WorkerSink::enter(Session& session, InFrame frame) {
  CENTROID_CO_ASSIGN(const auto message, proto::decode<proto::Enter>(frame.head));
  auto entered = co_await workers_.enter(session, tasks_, message);
  if (!entered.ok()) {
    is_refused_ = true;
    CENTROID_CO_TRY(co_await session.respond_error(frame.header, entered.error()));
    co_return std::move(entered).error();
  }
  place_.admit_member();
  worker_ = std::move(entered).value();
  co_return co_await session.respond(frame.header, Bytes());
}

}  // namespace centroid::server
