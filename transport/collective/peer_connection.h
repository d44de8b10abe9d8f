#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/collective/call.h"
#include "transport/transport.h"
#include "transport/waiter.h"

namespace centroid::collective {

class Network;

/// Bytes that a peer may send before we have begun their operation, and so the most we store for
/// it. Segments of operations that have begun on both sides are not counted.
inline constexpr std::uint64_t kCreditBytes = 4 << 20;
/// From this size on, a rank notifies its senders that it has begun.
inline constexpr std::uint64_t kReadyFrom = 2 << 20;

/// The connection with one peer: one coroutine that reads and one that writes, for all operations.
/// It never stops reading, so no cycle of waiting ranks can block.
///
/// thread  the driver's executor
class PeerConnection {
 public:
  /// `features`: agreed by both sides.
  PeerConnection(Network& network, std::uint32_t rank,
                 std::unique_ptr<transport::Connection> connection, std::uint32_t features);

  std::uint32_t rank() const { return rank_; }
  const std::optional<Error>& lost() const { return lost_; }  ///< why nothing moves any more
  bool has_left() const { return has_left_; }
  transport::Connection& connection() { return *connection_; }

  Task<void> read();
  /// Ends after `stop` when all queued frames are sent, or when the connection is lost.
  Task<void> write();

  void send_control(PeerKind kind, std::vector<std::byte> head);
  /// A channel of `call` may have a frame to send.
  void enqueue(const std::shared_ptr<Call>& call, Call::Channel& channel);
  /// Segments that arrived before their operation have left our memory.
  void give_back(std::uint64_t bytes);
  void lose(Error cause);
  void stop();
  bool touches(const Call& call) const { return reading_ == &call || writing_ == &call; }
  bool has_confirmed_leave() const { return has_confirmed_leave_; }

 private:
  struct Control {
    PeerKind kind;
    std::vector<std::byte> head;
  };
  struct Queued {
    std::shared_ptr<Call> call;
    Call::Channel* channel;
  };

  Task<Status> take(transport::InFrame frame);
  Task<Status> take_data(transport::InFrame frame);
  Task<Status> take_early(DataHead head, std::uint64_t bytes);
  Task<Status> take_segment(std::shared_ptr<Call> call, DataHead head,
                            std::optional<std::uint32_t> checksum, std::uint64_t bytes);
  Task<Status> take_pieces(std::shared_ptr<Call> call, Call::Channel& channel,
                           std::uint32_t receive, std::uint64_t bytes);
  Status take_control(const transport::InFrame& frame);
  std::optional<Queued> next_queued();
  Task<Status> send_segment(Queued queued);
  MutableBytes scratch(std::size_t bytes);

  Network& network_;
  const std::uint32_t rank_;
  std::unique_ptr<transport::Connection> connection_;
  const bool is_unsummed_;
  std::optional<Error> lost_;
  bool has_left_ = false, has_confirmed_leave_ = false, is_stopping_ = false;
  std::deque<Control> controls_;
  std::deque<Queued> queue_;
  transport::Waiter waiter_;
  std::uint64_t credit_ = kCreditBytes;  ///< bytes we may send ahead
  std::uint64_t unreturned_ = 0;         ///< credit to return to the peer
  std::uint64_t early_bytes_ = 0;        ///< bytes that wait for their operation
  const Call* reading_ = nullptr;
  const Call* writing_ = nullptr;
  std::unique_ptr<std::byte[]> scratch_;
  std::size_t scratch_bytes_ = 0;

  friend class Network;
};

}  // namespace centroid::collective
