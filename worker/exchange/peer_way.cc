#include "common/base/log.h"
#include "worker/exchange/server_link.h"

/// How fast the way to another worker is, when the server asks.
namespace centroid::worker {

using transport::Session;

namespace {

proto::Measured to_measured(const transport::EchoReport& report) {
  proto::Measured out;
  out.round_trips = report.round_trips;
  out.median_seconds = report.median_seconds;
  out.p99_seconds = report.p99_seconds;
  out.bytes_per_second_out = report.bytes_per_second_out;
  out.bytes_per_second_in = report.bytes_per_second_in;
  return out;
}

/// Set while this lives.
struct Flag {
  explicit Flag(bool& one) : flag(one) { flag = true; }
  ~Flag() { flag = false; }
  Flag(const Flag&) = delete;
  Flag& operator=(const Flag&) = delete;
  bool& flag;
};

}  // namespace

Status ServerLink::measure_asked(Session& session, const transport::InFrame& frame) {
  auto asked = std::make_shared<AskedWay>();
  asked->request = frame.header;
  CENTROID_ASSIGN(asked->measure, proto::decode<proto::Measure>(frame.head));
  tasks_->spawn(measure_way(session, std::move(asked)));
  return {};
}

Task<void> ServerLink::measure_way(Session& session, std::shared_ptr<const AskedWay> asked) {
  const proto::Measure& measure = asked->measure;
  const auto there = transport::Endpoint::parse(measure.endpoint);
  if (!options_.peers || !there.ok() || is_measuring_) {
    Error why =
        !options_.peers
            ? Error(ErrorCode::kFailedPrecondition,
                    "this worker meets no others: the exchange is " + options_.join.exchange)
        : is_measuring_ ? Error(ErrorCode::kAborted, "another way is being measured: repeat")
                        : there.error();
    (void)co_await session.respond_error(asked->request, std::move(why));
    co_return;
  }
  const Flag flag(is_measuring_);
  const std::chrono::milliseconds time(measure.ms);
  auto report = co_await options_.peers->measure(*there, terms_.run_id, time, measure.bytes);
  if (!report.ok()) {
    (void)co_await session.respond_error(asked->request, report.error());
    co_return;
  }
  const auto head = proto::encode(to_measured(*report));
  (void)co_await session.respond(asked->request, head);
}

}  // namespace centroid::worker
