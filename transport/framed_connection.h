#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>

#include "common/async/timer.h"
#include "transport/byte_stream.h"
#include "transport/parking.h"
#include "transport/stranger_budget.h"
#include "transport/transport.h"

namespace centroid::transport {

/// How `FramedConnection::write_damaged` damages a frame after its checksums were made.
struct Damage {
  std::optional<std::uint64_t> flip_byte;    ///< flip a bit of this byte of the frame
  std::optional<std::uint64_t> truncate_to;  ///< send this many bytes, then close
};

/// The rules of Connection over any ByteStream: framing, checksums, limits, the queue of writers
/// and the stall watchdog.
///
/// owns      the stream and one receive buffer; payloads go straight into the caller's memory
/// lifetime  the owner closes and joins its tasks before it destroys the connection
/// cost      a small frame arrives with one read; no timer is touched unless a begun frame has to
///           wait
class FramedConnection final : public Connection {
 public:
  FramedConnection(std::unique_ptr<ByteStream> stream, const TransportOptions& options);
  ~FramedConnection() override;

  Task<Result<InFrame>> read_header() override;
  Task<Status> read_payload(MutableBytes into) override;
  Task<Result<Bytes>> read_piece(MutableBytes scratch) override;
  Task<Status> skip_payload() override;
  Task<Status> write(const OutFrame& frame) override;
  Task<Result<bool>> flush() override;
  /// The effect of a bad wire or a dying peer on a frame; for tests.
  Task<Status> write_damaged(const OutFrame& frame, Damage damage);
  void close(Error cause) noexcept override;
  void close_with(const OutFrame& last, Error cause) noexcept override;
  void set_budget(std::shared_ptr<ByteBudget> budget) override {
    held_ = HeldBytes(std::move(budget));
  }
  void set_limits(const FrameLimits& limits) override { limits_ = limits; }
  FrameLimits limits() const override { return limits_; }
  std::string peer() const override { return peer_; }
  TimePoint last_received() const override { return last_received_; }
  TrafficCounters traffic() const override { return traffic_; }
  std::optional<double> peer_certificate_end() const override {
    return stream_->peer_certificate_end();
  }
  void count_handshake(std::shared_ptr<double> seconds) override {
    stream_->count_handshake(std::move(seconds));
  }
  Executor executor() const override { return stream_->executor(); }

 private:
  // What one connection may move without a wait before others on its executor run: this many
  // operations, each counted once more per kStreakBytes.
  static constexpr std::size_t kStreak = 64;
  static constexpr std::size_t kStreakBytes = 16 << 10;
  static constexpr std::size_t kMostWaiting = 4096;  ///< bytes that wait for the next frame
  using Parts = std::array<Bytes, 4>;

  enum class Reading : std::uint8_t { kNothing, kHeader, kPayload };
  class ReadGuard;

  Error fail(Error cause);
  Error cancelled(std::string_view doing) const;
  Error read_error(const boost::system::error_code& error);
  static ErrorCode code_of(const boost::system::error_code& error);
  Error write_error(const boost::system::error_code& error, std::size_t sent, std::size_t size);
  Result<Reading> begin_read(Reading requested, std::size_t size);
  Task<Result<std::size_t>> read_some(MutableBytes into);
  Task<Status> fill(MutableBytes into);
  void sum(Bytes piece);
  Status end_payload();
  Task<Result<Bytes>> view_piece();
  void consume_view();
  std::size_t take_buffered(MutableBytes into);
  Result<FrameHeader> header_for(const OutFrame& frame) const;
  Task<Status> await_turn();
  void pass_turn();
  Task<Status> send_in_turn(std::array<Bytes, 3> frame);
  Task<Status> send(Parts parts);
  void watch();
  void on_watch();

  std::unique_ptr<ByteStream> stream_;
  FrameLimits limits_;
  HeldBytes held_;  ///< the head of the last frame, while a budget counts it
  const std::chrono::milliseconds stall_timeout_;
  const std::string peer_;
  std::optional<Error> cause_;    ///< set once: closed
  std::optional<Error> refused_;  ///< a frame was over the limits: nothing more is read
  TrafficCounters traffic_;
  TimePoint last_received_;

  std::unique_ptr<std::byte[]> buffer_;
  std::size_t begin_ = 0, end_ = 0;  ///< bytes received and not yet consumed
  FrameHeader header_;               ///< of the frame with the waiting payload
  bool is_reading_ = false;
  bool has_payload_ = false;  ///< a payload waits on the connection
  std::uint64_t payload_left_ = 0;
  std::size_t viewed_ = 0;         ///< of the stream's memory, given out and not yet consumed
  std::uint32_t payload_crc_ = 0;  ///< of the payload read so far
  std::uint64_t frame_read_ = 0, frame_bytes_ = 0;  ///< of the frame being received

  bool is_writing_ = false;
  std::deque<Parking*> writers_;    ///< in order, behind the one that writes
  std::vector<std::byte> waiting_;  ///< frames that leave with the next one
  std::vector<std::byte> leaving_;  ///< with the frame that is being written
  std::size_t streak_ = 0;          ///< operations in a row that needed no wait

  /// Made when first needed: an executor without timers and sockets blocks on a condition, which
  /// wakes faster than epoll.
  std::optional<Timer> watchdog_;
  bool is_watching_ = false;
  TimePoint reading_since_ = TimePoint::max(), writing_since_ = TimePoint::max();
  std::shared_ptr<FramedConnection*>
      self_;  ///< shows a late timer that the connection is destroyed
};

}  // namespace centroid::transport
