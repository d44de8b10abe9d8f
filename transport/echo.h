#pragma once

#include "transport/session.h"

namespace centroid::transport {

/// Kind of the request that measures a connection (docs/reference/wire.md): its payload is dropped,
/// its head (u32) is the payload size of the answer.
inline constexpr std::uint16_t kEcho = 96;
/// Payload of an Echo and of its answer.
inline constexpr std::uint32_t kMaxEchoBytes = 1u << 20;

/// Payload size of the answer to an Echo.
/// fails  invalid_argument: no request, a head of another size, more than kMaxEchoBytes
Result<std::uint32_t> echo_bytes(const InFrame& frame);
/// Answer an Echo; for FrameSink::on_frame. An error ends the session: as echo_bytes.
Task<Status> answer_echo(Session& session, const InFrame& frame);

/// Result of measuring a connection.
struct EchoReport {
  std::uint64_t round_trips = 0;
  double median_seconds = 0, p99_seconds = 0;                ///< of an empty Echo
  double bytes_per_second_out = 0, bytes_per_second_in = 0;  ///< one way at a time
};

/// Measure an open session with a running `run`: for a third of `time` each, empty round trips,
/// payload out, payload in, with `bytes` (at most kMaxEchoBytes) a request and a few in flight.
///
/// fails  as Session::request; deadline_exceeded after 10 s without an answer
Task<Result<EchoReport>> measure_echo(Session& session, std::chrono::milliseconds time,
                                      std::uint32_t bytes);

/// Connect to `there`, measure, and close. All of it on the executor of `transport`, which
/// `greeting` and it outlive.
///
/// fails  as connect_session and measure_echo
Task<Result<EchoReport>> measure_way(Transport& transport, Endpoint there, const Greeting& greeting,
                                     Deadline connected_by, std::chrono::milliseconds time,
                                     std::uint32_t bytes);

}  // namespace centroid::transport
