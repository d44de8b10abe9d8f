#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/async/task.h"
#include "common/base/bytes.h"
#include "common/base/clock.h"
#include "common/base/result.h"
#include "transport/frame.h"

namespace centroid::transport {

/// "host:port" for TCP (IPv6 hosts in brackets), any name for shared memory. Port 0 selects a free
/// one.
struct Endpoint {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  std::string to_string() const;
  static Result<Endpoint> parse(
      std::string_view text);  ///< invalid_argument says what was expected
  bool operator==(const Endpoint&) const = default;
  bool is_loopback() const;  ///< only this machine reaches it
};

/// A frame to send. The payload CRC is computed unless passed or, by kFlagNoPayloadCrc, omitted (so
/// one buffer for many peers is summed once).
struct OutFrame {
  std::uint16_t kind = 0;
  std::uint32_t flags = 0;
  std::uint64_t id = 0;
  Bytes head;
  Bytes payload;
  std::optional<std::uint32_t> payload_crc;
  bool may_wait = false;  ///< a small one may leave with the next frame, or with `flush`
};

/// A received header with its head; a payload still waits on the connection.
struct InFrame {
  FrameHeader header;
  std::vector<std::byte> head;
};

struct TrafficCounters {
  std::uint64_t bytes_in = 0, bytes_out = 0, frames_in = 0, frames_out = 0;
};

class ByteBudget;  // transport/stranger_budget.h

/// The connection with one peer. Moves frames without interpreting them. All calls on the
/// connection's executor (one thread or strand).
///
/// order     frames arrive in the order of the `write` calls; concurrent writers never interleave
/// ends      pending and later calls end exactly once with the cause given to `close` or found by
///           I/O; a second close is silent
/// inline    no completion runs inside the initiating call
/// fails     unavailable (peer gone, stalled), data_loss (bad magic or CRC), failed_precondition
///           (other wire version), resource_exhausted (over the limit), cancelled; after any
///           failure but a bad argument the connection is closed
class Connection {
 public:
  virtual ~Connection() = default;
  /// Wait for the next frame's header and head (CRC checked). Waits without limit: idleness is
  /// legal, leases decide.
  virtual Task<Result<InFrame>> read_header() = 0;
  /// Read exactly the current frame's payload into `into` (same size) and check its CRC. Call once
  /// per frame with payload. A peer that sends nothing for `stall_timeout` within a frame ends the
  /// connection.
  virtual Task<Status> read_payload(MutableBytes into) = 0;
  /// The next bytes of the current frame's payload, for processing in pieces: in place, or read
  /// into `scratch`, whose size is a multiple of 64. Valid until the next call that reads or
  /// closes. A multiple of 64 bytes except the last piece; empty after it. The CRC is checked
  /// before the last piece is returned, so results of earlier pieces are valid only after that.
  virtual Task<Result<Bytes>> read_piece(MutableBytes scratch) = 0;
  /// Read and drop the rest of the current frame's payload (CRC still checked), with bounded
  /// memory.
  virtual Task<Status> skip_payload() = 0;
  /// Queue and send one frame; returns when the peer's system has the bytes. Head and payload must
  /// stay valid. A peer that accepts nothing for `stall_timeout` ends the connection.
  virtual Task<Status> write(const OutFrame& frame) = 0;
  /// Send the frames that wait for the next one. False: there were none.
  virtual Task<Result<bool>> flush() = 0;
  virtual void close(Error cause) noexcept = 0;
  /// Close, after `last` where it can be sent without a wait: the peer may learn why.
  virtual void close_with(const OutFrame& last, Error cause) noexcept = 0;
  /// Count the heads of frames until another budget is set; nullptr: none. A frame for whose head
  /// there is no room is refused as one over a limit.
  virtual void set_budget(std::shared_ptr<ByteBudget> budget) = 0;
  virtual void set_limits(const FrameLimits& limits) = 0;
  virtual FrameLimits limits() const = 0;
  virtual std::string peer() const = 0;  ///< "127.0.0.1:40312"
  virtual TimePoint last_received()
      const = 0;  ///< arrival of the last bytes: renews leases within a frame too
  virtual TrafficCounters traffic() const = 0;
  /// Earliest expiry of the peer's certificates, as Unix time; none: it showed none.
  virtual std::optional<double> peer_certificate_end() const { return std::nullopt; }
  /// Add the processor time of the handshake of TLS, if there is one, to `seconds`.
  virtual void count_handshake(std::shared_ptr<double> /*seconds*/) {}
  virtual Executor executor() const = 0;
};

class Listener {
 public:
  virtual ~Listener() = default;
  virtual Task<Result<std::unique_ptr<Connection>>> accept() = 0;  ///< cancelled after `close`
  virtual Endpoint endpoint() const = 0;                           ///< with the actual port
  virtual void close() noexcept = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  /// fails unavailable (refused, unreachable, name unknown), deadline_exceeded; the message names
  /// the endpoint.
  virtual Task<Result<std::unique_ptr<Connection>>> connect(Endpoint endpoint,
                                                            Deadline deadline) = 0;
  /// The addresses of a host, with its port; an address is its own. One thread asks the system for
  /// all names of an executor, one after the other, so no deadline ends it.
  /// fails unavailable (name unknown), cancelled
  virtual Task<Result<std::vector<Endpoint>>> resolve(Endpoint endpoint);
  /// fails already_exists (port in use: names it), invalid_argument.
  virtual Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint) = 0;
};

class StreamLayer;

struct TransportOptions {
  FrameLimits limits;
  std::chrono::milliseconds stall_timeout{
      30'000};                     ///< no byte of a begun frame for this long: the connection ends
  std::string congestion_control;  ///< per-socket TCP_CONGESTION; empty: the system's; "auto":
                                   ///< cubic on loopback, else the system's
  std::size_t socket_buffer_bytes = 0;  ///< SO_SNDBUF/SO_RCVBUF; 0: the system's autotuning.
                                        ///< Shared memory: of each ring; 0: 1 MiB
  std::shared_ptr<StreamLayer>
      layer;  ///< TCP: between socket and frames (tls/tls.h); none: nothing
};

/// TCP on Asio sockets. Connections made or accepted live on `executor`.
std::unique_ptr<Transport> make_tcp(Executor executor, TransportOptions options = {});
/// Makes the transport of a program that may use another network than TCP.
using Factory = std::function<std::unique_ptr<Transport>(Executor, TransportOptions)>;
/// The local address of a connection to `there`. Sends nothing; a name is looked up.
///
/// fails  unavailable: unknown name, no route
Result<std::string> local_address_towards(const Endpoint& there);

/// Names the running system, the same text in all its processes and containers; empty if unknown.
/// Whether two of them can share memory shows only when they try.
std::string this_node();

class PollSet;
/// Shared memory between processes of one machine and one network namespace; the host of an
/// endpoint is any name. `polls`: of the thread that runs the executor, if it polls.
std::unique_ptr<Transport> make_shm(Executor executor, TransportOptions options = {},
                                    PollSet* polls = nullptr);

}  // namespace centroid::transport
