#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/async/task_group.h"
#include "common/base/clock.h"
#include "transport/transport.h"

namespace centroid::transport {

/// Terms that both ends must agree on before the first message. Sent in Hello and HelloReply frames
/// (docs/reference/wire.md, "Handshake").
struct Greeting {
  std::uint16_t min_version = kWireVersion;
  std::uint16_t max_version = kWireVersion;
  std::string role;  ///< what this side is: docs/reference/wire.md has them
  std::vector<std::string> accepts_roles = {};  ///< of a server: others are refused; empty: none is
  std::string name;                             ///< for logs and /v1/waits
  std::string run_id;  ///< empty in a client's greeting: the server's is used
  std::string token;   ///< compared in constant time; empty if the server requires none
  /// Of a server: whether it accepts another token than `token`; compares in constant time.
  std::function<bool(std::string_view)> also_accepts = {};
  /// Of a server: peers of this role must show this token, and no other opens; empty: as the rest.
  std::string keyed_role = {}, keyed_token = {};
  /// centroid::manifest_hash of this side's model; 0: unknown. A server with one refuses another;
  /// to name the tensors that differ, it sends 0 and compares the manifests itself.
  std::uint64_t manifest_hash = 0;
  FrameLimits limits;  ///< largest frame this side accepts
  std::uint64_t credit_bytes = ~std::uint64_t{
      0};  ///< payload bytes that the other side may have outstanding towards this side
};

/// The other side's identity, with the agreed limits and credits.
struct Peer {
  std::string role, name, run_id, address;
  std::uint16_t version = kWireVersion;
  FrameLimits limits;
  std::uint64_t credit_bytes = 0;   ///< payload bytes that we may have outstanding towards it
  std::uint64_t manifest_hash = 0;  ///< of its Hello; 0: none, or it is the server
};

/// Answer to a request.
struct Reply {
  std::vector<std::byte> head;
  std::vector<std::byte> payload;
};

class Session;

/// Events of a session that are no errors.
struct SessionCounters {
  std::uint64_t late_replies =
      0;  ///< arrived after the request's deadline or cancellation: dropped
  std::uint64_t unknown_replies = 0;  ///< answers without a request: dropped
  std::uint64_t credit_frames_out = 0;
};

/// Requests of one side without an answer; one with a late answer counts until it arrives.
inline constexpr std::size_t kMaxOutstandingRequests = 1024;

/// Receives the frames that are not responses, in order, on the session's executor. While
/// `on_frame` runs nothing more is read: never await a request of the same session in it (its reply
/// could not be read), and answer in bulk from another task.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  /// Must consume a payload with `session.read_payload` or `skip_payload` (an unread payload is
  /// skipped). An error ends the session: it is sent to the peer as a Goodbye frame with its code
  /// and text, then the connection closes.
  virtual Task<Status> on_frame(Session& session, InFrame frame) = 0;
};

/// Requests, one-way messages, deadlines and credits over one Connection; one watchdog timer for
/// all deadlines.
///
/// thread    the connection's executor, for every call and for the destructor
/// ends      every pending call ends exactly once with the cause given to `close`, found by I/O or
///           sent by the peer
/// lifetime  outlives `run`; other pending calls may end after the session is destroyed
/// limits    a frame that the connection has accepted is finished before its call returns, even
///           past the deadline (bounded by the transport's stall timeout): its bytes are the
///           caller's
class Session {
 public:
  /// Client side: send Hello, await HelloReply.
  /// fails  as the server refuses (wrong token: failed_precondition "token ...", other version:
  ///        failed_precondition naming both ranges), or deadline_exceeded.
  static Task<Result<std::unique_ptr<Session>>> open(std::unique_ptr<Connection> connection,
                                                     Greeting greeting, Deadline deadline);
  /// Server side: await Hello (<= 4 KiB before it is authenticated), check versions, run id and
  /// token, answer.
  static Task<Result<std::unique_ptr<Session>>> accept(std::unique_ptr<Connection> connection,
                                                       Greeting greeting, Deadline deadline);
  ~Session();

  const Peer& peer() const;
  Connection& connection();

  /// Read loop: responses go to their requests, credits are booked, everything else goes to the
  /// sink. Returns why the session ended (a peer's Goodbye as its error). Call once, in a task of a
  /// group.
  Task<Error> run(FrameSink& sink);

  /// Send a request, under the next id of this side, and await its reply; the peer's error is
  /// returned as this call's error. Reply payload is bounded by the limits. Uses no credit.
  /// fails  deadline_exceeded, resource_exhausted (kMaxOutstandingRequests), invalid_argument (over
  ///        a limit).
  Task<Result<Reply>> request(std::uint16_t kind, Bytes head, Bytes payload, Deadline deadline);
  /// Answer a request frame, once.
  /// fails  failed_precondition (no such request is open), invalid_argument (over a limit).
  Task<Status> respond(const FrameHeader& request, Bytes head, Bytes payload = {});
  Task<Status> respond_error(const FrameHeader& request, Error error);
  /// An empty response, or the error.
  Task<Status> respond(const FrameHeader& request, Status status);
  /// The answer, or the error.
  Task<Status> respond(const FrameHeader& request, Result<Reply> reply);
  /// One-way. Waits for credit if there is a payload, first come first served.
  /// fails  deadline_exceeded (names peer and bytes) without credit in time, invalid_argument if
  ///        the payload is larger than the peer's window or a limit.
  Task<Status> send(std::uint16_t kind, Bytes head, Bytes payload, Deadline deadline,
                    std::optional<std::uint32_t> payload_crc = {});
  /// As `send`, where more follows or `flush`: a small one may wait and leave with that.
  Task<Status> send_soon(std::uint16_t kind, Bytes head, Bytes payload, Deadline deadline,
                         std::optional<std::uint32_t> payload_crc = {});
  Task<Result<bool>> flush();  ///< false: nothing waited

  /// Accept and send payloads of one-way messages without a checksum: for two processes of one
  /// machine, whose bytes pass no network card. Call before the first of them is sent.
  void accept_without_crc();
  void send_unsummed() { sends_unsummed_ = true; }
  bool sends_unsummed() const { return sends_unsummed_; }

  /// For FrameSink::on_frame, once per frame. A skipped payload returns its credit by itself.
  Task<Status> read_payload(MutableBytes into);
  Task<Status> skip_payload();
  /// Return credit for `bytes` of one-way payload that have left our memory to the peer; batches
  /// frames.
  void release_credit(std::uint64_t bytes);
  /// The peer sends no payload before it has another frame from us: credit leaves with that. Until
  /// its next payload.
  void let_credit_wait();

  /// Notify the peer of the reason (Goodbye, best effort, at most a second) and close. Not from
  /// `on_frame`: return the error there.
  Task<void> goodbye(Error why);
  void close(Error cause) noexcept;
  bool is_closed() const;
  /// The present wait, for /v1/waits: "credit from worker-2 for 1048576 bytes", and since when.
  struct Wait {
    std::string what;
    TimePoint since;
  };
  std::vector<Wait> waits() const;
  /// Payload bytes that the peer may still send before its credit is returned.
  std::uint64_t credit_left() const;
  SessionCounters counters() const;

 private:
  struct Impl;
  Task<Status> send(OutFrame frame, Deadline deadline);
  explicit Session(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;  ///< shared with the pending calls
  bool sends_unsummed_ = false;
};

/// Connect and open.
/// fails  as Transport::connect and Session::open.
Task<Result<std::unique_ptr<Session>>> connect_session(Transport& transport, Endpoint endpoint,
                                                       Greeting greeting, Deadline deadline);

/// Frame kinds below 16 belong to the session layer.
enum SessionKind : std::uint16_t { kHello = 1, kHelloReply = 2, kCredit = 3, kGoodbye = 4 };
inline constexpr std::uint16_t kFirstMessageKind = 16;

/// Error <-> head bytes: u8 code, string message (<= 4096 bytes), the refusal if there is one. The
/// head has at most `room` bytes: the message is cut.
std::vector<std::byte> encode_error(const Error& error, std::size_t room = kMaxHeadBytes);
Error decode_error(Bytes head);

}  // namespace centroid::transport
