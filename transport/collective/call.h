#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "transport/collective/reduce.h"
#include "transport/collective/schedule.h"
#include "transport/collective/scratch.h"
#include "transport/collective/wire.h"
#include "transport/parking.h"

namespace centroid::collective {

/// One operation of this rank, from start to end: its remaining sends and receives. Independent of
/// sockets: connections request its frames and pass received ones.
///
/// thread    made on the caller's; then the driver's executor, except `is_done`, `status` after it,
///           and
///           `park`
/// lifetime  the caller's memory is used until `is_done`
class Call {
 public:
  struct Plan {
    Key key;
    Signature signature;
    std::uint64_t generation = 0;        ///< for errors
    std::vector<std::uint32_t> members;  ///< local rank -> global rank
    std::uint32_t rank = 0;              ///< local
    Schedule schedule;
    Arithmetic arithmetic;
    double weight = 1;       ///< of this rank's numbers
    double divisor = 1;      ///< of the complete result
    bool is_factor = false;  ///< multiply by 1/divisor, as the server does; otherwise divide
    std::shared_ptr<ScratchPool> pool;
    Bytes input;
    MutableBytes output;
    bool saves_input = false;  ///< of the input, restored in the output on failure
    /// By local rank: received counts of bounded parts. Read once done.
    std::span<std::uint64_t> lengths;
    std::chrono::milliseconds timeout{0};
    bool waits_next = false;  ///< of CallOptions
    /// Runs on the driver before the waiters wake, with the result.
    std::function<void(const Status&)> on_end;
  };

  /// Frames to and from one peer, in order.
  struct Channel {
    std::uint32_t peer = 0;  ///< global rank
    std::vector<std::uint32_t> sends, receives;
    std::size_t next_send = 0, next_receive = 0;
    std::size_t received = 0;  ///< complete
    std::uint64_t bytes_in = 0;
    bool is_ready = false;   ///< the peer has begun: no credit is needed
    bool is_queued = false;  ///< in the connection's queue
    bool is_writing = false;
  };

  explicit Call(Plan plan);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  const Plan& plan() const { return plan_; }
  const Key& key() const { return plan_.key; }
  std::vector<Channel>& channels() { return channels_; }
  const std::vector<Channel>& channels() const { return channels_; }
  Channel* channel_of(std::uint32_t global_rank);
  bool has_member(std::uint32_t global_rank) const;
  bool has_nothing_to_do() const { return left_ == 0; }

  /// The next frame to the peer may leave now.
  bool can_send(const Channel& channel) const;
  const SendStep& next_send(const Channel& channel) const;
  DataHead head_of(const SendStep& send) const;
  Bytes payload_of(const SendStep& send) const;
  /// Checksum of the payload if a peer has computed it.
  std::optional<std::uint32_t> checksum_of(const SendStep& send) const;
  void sent(Channel& channel);

  /// The receive of a frame.
  /// fails  failed_precondition: the peer runs another operation.
  Result<std::uint32_t> expect(Channel& channel, const DataHead& head, std::uint64_t bytes);
  /// Memory for the payload, if it can be stored at once; otherwise `received` gets it in other
  /// memory.
  std::optional<MutableBytes> place_for(std::uint32_t receive);
  void stored(Channel& channel, std::uint32_t receive, std::optional<std::uint32_t> checksum);
  /// The payload may be combined piece by piece; then call `stored` after the last one.
  bool takes_pieces(std::uint32_t receive) const;
  void take_piece(std::uint32_t receive, std::uint64_t offset, Bytes piece);
  /// Combine or copy a payload; an early one is stored until its turn.
  void received(Channel& channel, std::uint32_t receive, Bytes payload);

  // Frames of this call with I/O in progress: its end waits for them.
  void begin_io() { ++io_; }
  bool end_io() { return --io_ == 0; }
  bool has_io() const { return io_ != 0; }

  /// "all_reduce (sum, ring) of 12 f32, number 3 on rank 1 of 4 in generation 2"
  std::string name() const;
  void set_divisor(double divisor) { plan_.divisor = divisor; }  ///< before it begins
  void fail(Error error);                                        ///< the first cause stays
  bool is_failing() const { return error_.has_value(); }
  bool is_complete() const { return left_ == 0; }
  /// All bytes have moved, or it has failed and no I/O uses our memory.
  bool can_end() const { return io_ == 0 && (left_ == 0 || error_); }
  /// Set the status. Then the driver is notified, and `wake` called.
  void end();
  void wake();

  /// The rank that this call waits for (global); if peers have answered, the silent one behind it.
  std::uint32_t blamed() const;
  std::uint32_t waits_for() const;

  std::atomic<bool>& is_done() { return is_done_; }
  const Status& status() const { return status_; }  ///< once done
  /// Resume when done. False: it is done already, and the handler was not used.
  bool park(transport::Parking::Handler& handler);

  /// A late operation: this rank has begun it, and waits for that one. False: known already.
  bool answered(std::uint32_t rank, std::uint32_t waits_for) {
    return answers_.emplace(rank, waits_for).second;
  }
  const std::map<std::uint32_t, std::uint32_t>& answers() const { return answers_; }

  TimePoint query_at, deadline;
  bool is_queried = false;

 private:
  MutableBytes region(const Region& region) const;
  void take_length(Channel& channel, ReceiveStep& step, std::uint64_t bytes);
  void combine(const ReceiveStep& step, Bytes payload);
  void complete(Channel& channel, std::uint32_t receive);
  void copy(const CopyStep& step);
  bool is_received(std::int32_t receive) const {
    return receive == kAtOnce || received_[static_cast<std::size_t>(receive)] != 0;
  }

  Plan plan_;
  ScratchPool::Block scratch_;
  std::unique_ptr<std::byte[]> copy_;
  std::vector<Channel> channels_;
  std::vector<std::uint8_t> received_;
  std::vector<std::optional<std::uint32_t>>
      checksums_;  ///< of payloads that were stored on arrival
  std::map<std::uint32_t, CachedBlock> early_;
  std::map<std::uint32_t, std::uint32_t> answers_;  ///< global rank -> the one it waits for
  std::size_t left_ = 0;                            ///< sends and receives
  std::size_t io_ = 0;
  std::optional<Error> error_;
  Status status_;
  std::atomic<bool> is_done_{false};
  std::mutex mutex_;  ///< of parked_ and has_woken_
  transport::Parking parked_;
  bool has_woken_ = false;
};

}  // namespace centroid::collective
