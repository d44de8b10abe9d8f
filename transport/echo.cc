#include "transport/echo.h"

#include <algorithm>
#include <cstring>

namespace centroid::transport {
namespace {

constexpr std::chrono::seconds kSilence{10};
constexpr std::size_t kUnderWay = 4;  // requests: enough to hide the way back
constexpr std::uint64_t kMaxRoundTrips = 100'000;

double seconds_since(TimePoint begin) {
  return std::chrono::duration<double>(centroid::now() - begin).count();
}

/// One direction: requests by several tasks until the deadline.
struct Stream {
  Session& session;
  TimePoint until;
  std::vector<std::byte> payload;
  std::vector<std::byte> head;
  std::uint64_t moved = 0;
  Status failed;
};

std::vector<std::byte> head_of(std::uint32_t reply_bytes) {
  ByteWriter writer;
  writer.put(reply_bytes);
  return writer.take();
}

Task<void> exchange_echoes(Stream* stream) {
  while (stream->failed.ok() && centroid::now() < stream->until) {
    const TimePoint late = centroid::now() + kSilence;
    const auto reply = co_await stream->session.request(kEcho, stream->head, stream->payload, late);
    if (!reply.ok()) {
      stream->failed = reply.error();
      co_return;
    }
    stream->moved += stream->payload.size() + reply->payload.size();
  }
}

Task<Result<double>> rate_of(Session& session, std::chrono::milliseconds time,
                             std::uint32_t bytes_out, std::uint32_t bytes_in) {
  const TimePoint begin = centroid::now();
  Stream stream{.session = session,
                .until = begin + time,
                .payload = std::vector<std::byte>(bytes_out),
                .head = head_of(bytes_in),
                .moved = 0,
                .failed = {}};
  TaskGroup tasks(session.connection().executor());
  for (std::size_t i = 0; i < kUnderWay; ++i) tasks.spawn(exchange_echoes(&stream));
  co_await tasks.join();
  if (!stream.failed.ok()) co_return stream.failed.error();
  co_return static_cast<double>(stream.moved) / seconds_since(begin);
}

/// Answers nothing: a measuring caller receives no requests.
struct NoFrames final : FrameSink {
  Task<Status> on_frame(Session&, InFrame frame) override {
    co_return Error(ErrorCode::kInvalidArgument, "a frame of kind " +
                                                     std::to_string(frame.header.kind) +
                                                     " arrived on a connection that only measures");
  }
};

Task<void> run_session(Session* session, NoFrames* sink) { (void)co_await session->run(*sink); }

}  // namespace

Result<std::uint32_t> echo_bytes(const InFrame& frame) {
  ByteReader head(frame.head);
  const auto bytes = head.get<std::uint32_t>();
  if ((frame.header.flags & kFlagRequest) == 0 || frame.head.size() != sizeof bytes ||
      bytes > kMaxEchoBytes || frame.header.payload_bytes > kMaxEchoBytes)
    return Error(ErrorCode::kInvalidArgument,
                 "Echo must be a request with a head of 4 bytes, and no payload of it or of its "
                 "answer over 1 MiB");
  return bytes;
}

Task<Status> answer_echo(Session& session, const InFrame& frame) {
  CENTROID_CO_ASSIGN(const std::uint32_t bytes, echo_bytes(frame));
  if (frame.header.payload_bytes > 0) {
    CENTROID_CO_TRY(co_await session.skip_payload());
  }
  static const std::vector<std::byte> zeros(kMaxEchoBytes);  // who does not read takes no memory
  co_return co_await session.respond(frame.header, Bytes(), Bytes(zeros).first(bytes));
}

Task<Result<EchoReport>> measure_echo(Session& session, std::chrono::milliseconds time,
                                      std::uint32_t bytes) {
  const auto largest = static_cast<std::uint32_t>(std::min<std::uint64_t>(
      std::min(bytes, kMaxEchoBytes), session.peer().limits.max_payload_bytes));
  const auto third = time / 3;
  const TimePoint until = centroid::now() + third;
  const std::vector<std::byte> head = head_of(0);
  std::vector<double> times;
  while (centroid::now() < until && times.size() < kMaxRoundTrips) {
    const TimePoint begin = centroid::now();
    const auto reply = co_await session.request(kEcho, head, Bytes(), begin + kSilence);
    if (!reply.ok()) co_return reply.error();
    times.push_back(seconds_since(begin));
  }
  EchoReport report;
  std::sort(times.begin(), times.end());
  report.round_trips = times.size();
  if (!times.empty()) {
    report.median_seconds = times[times.size() / 2];
    report.p99_seconds = times[times.size() * 99 / 100];
  }
  CENTROID_CO_ASSIGN(report.bytes_per_second_out, co_await rate_of(session, third, largest, 0));
  CENTROID_CO_ASSIGN(report.bytes_per_second_in, co_await rate_of(session, third, 0, largest));
  co_return report;
}

Task<Result<EchoReport>> measure_way(Transport& transport, Endpoint there, const Greeting& greeting,
                                     Deadline connected_by, std::chrono::milliseconds time,
                                     std::uint32_t bytes) {
  auto opened = co_await connect_session(transport, there, greeting, connected_by);
  if (!opened.ok()) co_return opened.error();
  const auto session = std::move(opened).value();
  NoFrames sink;
  TaskGroup tasks(session->connection().executor());
  tasks.spawn(run_session(session.get(), &sink));
  auto report = co_await measure_echo(*session, time, bytes);
  session->close(Error(ErrorCode::kCancelled, "measured"));
  co_await tasks.join();
  co_return report;
}

}  // namespace centroid::transport
