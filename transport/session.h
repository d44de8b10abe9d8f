#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/async/task_group.h"
#include "common/base/clock.h"
#include "transport/transport.h"

namespace centroid::transport {

/// What both ends must agree on before the first message. Travels in Hello and HelloReply frames (docs/wire.md, "Handshake").
struct Greeting {
  std::uint16_t min_version = kWireVersion;
  std::uint16_t max_version = kWireVersion;
  std::string role;            ///< "worker", "client", "peer"
  std::string name;            ///< for logs and /v1/waits
  std::string run_id;          ///< empty in a client's greeting: take the server's
  std::string token;           ///< compared in constant time; empty when the server wants none
  FrameLimits limits;          ///< largest frame this side accepts
  std::uint64_t credit_bytes = ~std::uint64_t{0};  ///< payload bytes the other side may have outstanding towards this side
};

/// Who the other side said it is, with limits and credits as agreed.
struct Peer {
  std::string role, name, run_id, address;
  std::uint16_t version = kWireVersion;
  FrameLimits limits;
  std::uint64_t credit_bytes = 0;  ///< what we may have outstanding towards it
};

/// Answer to a request.
struct Reply {
  std::vector<std::byte> head;
  std::vector<std::byte> payload;
};

class Session;

/// Takes the frames that are not responses, in order, on the session's executor. While `on_frame` runs nothing more is read.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  /// Must consume the payload with `session.read_payload` or `skip_payload` when there is one (a rest is skipped).
  /// An error ends the session: it is sent to the peer as a Goodbye frame with its code and text, then the connection closes.
  virtual Task<Status> on_frame(Session& session, InFrame frame) = 0;
};

/// Requests, one-way messages, deadlines and credits over one Connection. Lives on the connection's executor; one watchdog timer.
class Session {
 public:
  /// Client side: send Hello, await HelloReply. fails as the server says (wrong token: failed_precondition "token ...", other
  /// version: failed_precondition naming both ranges), or deadline_exceeded.
  static Task<Result<std::unique_ptr<Session>>> open(std::unique_ptr<Connection> connection, Greeting greeting, Deadline deadline);
  /// Server side: await Hello (<= 4 KiB before it is authenticated), check versions, run id and token, answer.
  static Task<Result<std::unique_ptr<Session>>> accept(std::unique_ptr<Connection> connection, Greeting greeting, Deadline deadline);
  ~Session();

  const Peer& peer() const;
  Connection& connection();

  /// Read loop: responses go to their requests, credits are booked, everything else to the sink. Returns why the session ended
  /// (a peer's Goodbye as its error). Call once, in a task of a group.
  Task<Error> run(FrameSink& sink);

  /// Send a request and await its reply; the peer's error comes back as this call's error. Reply payload is bounded by the limits.
  Task<Result<Reply>> request(std::uint16_t kind, Bytes head, Bytes payload, Deadline deadline);
  /// Answer a request frame.
  Task<Status> respond(const FrameHeader& request, Bytes head, Bytes payload = {});
  Task<Status> respond_error(const FrameHeader& request, Error error);
  /// One-way. Waits for credit when there is a payload; fails deadline_exceeded naming peer and bytes when none comes.
  Task<Status> send(std::uint16_t kind, Bytes head, Bytes payload, Deadline deadline, std::optional<std::uint32_t> payload_crc = {});

  /// For FrameSink::on_frame.
  Task<Status> read_payload(MutableBytes into);
  Task<Status> skip_payload();
  /// Give the peer credit for `bytes` of payload that have left our memory. Call from the session's executor; batches frames.
  void release_credit(std::uint64_t bytes);

  /// Tell the peer why (Goodbye, best effort) and close.
  Task<void> goodbye(Error why);
  void close(Error cause) noexcept;
  bool is_closed() const;
  /// What is being waited for, for /v1/waits: "credit from worker-2 for 1048576 bytes, 3.2 s".
  std::vector<std::string> waits(TimePoint now) const;

 private:
  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Frame kinds below 16 belong to the session layer.
enum SessionKind : std::uint16_t { kHello = 1, kHelloReply = 2, kCredit = 3, kGoodbye = 4 };
inline constexpr std::uint16_t kFirstMessageKind = 16;

/// Error <-> head bytes: u8 code, string message (<= 4096 bytes).
std::vector<std::byte> encode_error(const Error& error);
Error decode_error(Bytes head);

}  // namespace centroid::transport
