#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "common/async/task_group.h"
#include "transport/collective/dialer.h"
#include "transport/collective/driver.h"
#include "transport/collective/peer_connection.h"

namespace centroid::collective {

/// The connections of one rank in one generation, and the operations in progress on them. A
/// connection is made when the first operation needs it.
///
/// thread    the driver's executor, except the constructor, `start` and `close`
/// lifetime  shared by its groups; the last one closes it
class Network : public std::enable_shared_from_this<Network> {
 public:
  Network(const std::shared_ptr<Station>& station, const Roster& roster);
  ~Network();

  Driver& driver() { return *driver_; }
  ScratchPool& spares() { return spares_; }
  std::uint64_t generation() const { return generation_; }
  std::uint32_t rank() const { return rank_; }
  std::uint32_t world() const { return world_; }
  std::chrono::milliseconds timeout() const { return timeout_; }

  /// Listen to peers; once, before the first operation.
  void open();
  /// A later generation answers.
  Task<void> stop_answering() { return dialer_.stop_answering(); }
  /// From any thread: begin an operation. `is_waited`: the caller waits for it next.
  void start(std::shared_ptr<Call> call, bool is_waited);
  /// From any thread: end every operation of the group, here and on its members.
  void abort(std::uint64_t group, Error cause);
  /// From any thread but the driver's: send Leave and close; at most `leave_timeout`.
  void close();
  /// By rank, empty without a connection; any thread but the driver's.
  std::vector<std::string> connections();
  /// The rank whose loss or silence ended the first failed operation, if known; any thread.
  std::optional<std::uint32_t> culprit() const;
  transport::TrafficCounters traffic();  ///< of all connections; any thread but the driver's

  // For the dialer.
  void add_peer(std::uint32_t rank, std::unique_ptr<transport::Connection> connection,
                std::uint32_t features);
  /// The rank refuses to talk with us.
  void on_refused(std::uint32_t rank, const Error& why);
  /// The last deadline of the operations that move bytes between us and this rank; in the past
  /// without any.
  TimePoint needed_until(std::uint32_t rank) const;

  // For connections.
  std::shared_ptr<Call> find(const Key& key) const;
  /// The operation has ended here, or its group is over.
  bool is_over(const Key& key) const;
  void keep(PeerConnection& peer, const DataHead& head, CachedBlock segment);
  void refuse_late(PeerConnection& peer, const DataHead& head);
  void on_ready(PeerConnection& peer, const Key& key);
  void on_query(PeerConnection& peer, const Key& key);
  Status on_waiting(PeerConnection& peer, const Waiting& waiting);
  void on_abort(PeerConnection& peer, const Abort& abort);
  void on_lost(PeerConnection& peer);
  void on_left(PeerConnection& peer);
  void on_leave_confirmed();
  /// A frame was received: frames that waited for it may be sent.
  void advance(const std::shared_ptr<Call>& call);
  /// End the call if it is complete, or has failed and nothing uses its memory.
  void settle(const std::shared_ptr<Call>& call);
  /// End the call's whole group.
  void fail(const std::shared_ptr<Call>& call, Error error, std::uint32_t culprit = kNoRank);

 private:
  struct Early {
    DataHead head;
    CachedBlock segment;
    std::uint32_t rank = 0;
  };
  struct Pending {
    std::vector<Early> frames;
    std::vector<std::uint32_t> ready;
  };

  /// Why a group is over.
  struct Over {
    Error cause;
    std::uint32_t culprit = kNoRank;
  };

  void begin(const std::shared_ptr<Call>& call);
  /// `teller`: the rank that knows it already.
  void begin_abort(std::uint64_t group, Error cause, std::uint32_t culprit = kNoRank,
                   const PeerConnection* teller = nullptr);
  void notify_aborted(PeerConnection& peer, std::uint64_t group, const Over& over);
  void notify_waiting(PeerConnection& peer, const Call& call);
  void ask(PeerConnection& peer, const Call& call);
  void ask(Call& call);
  std::string silence(const Call& call, std::uint32_t blamed) const;
  void deliver(const std::shared_ptr<Call>& call, Early& early);
  const PeerConnection* lost_member(const Call& call) const;
  std::optional<std::uint32_t> left_before(const Call& call) const;
  void drop_pending(std::uint64_t group);
  void watch(TimePoint when);
  void on_watch();
  PeerConnection* peer_at(std::uint32_t rank) { return peers_[rank].get(); }
  Task<void> shut_down();

  const std::shared_ptr<Driver> driver_;
  const std::uint64_t generation_;
  const std::uint32_t rank_, world_;
  const std::chrono::milliseconds timeout_, leave_timeout_;
  std::vector<std::unique_ptr<PeerConnection>> peers_;  ///< by rank; none to ourselves
  Dialer dialer_;
  TaskGroup readers_, writers_;
  Event leave_;
  std::unordered_map<Key, std::shared_ptr<Call>, KeyHash> calls_;
  std::unordered_map<Key, Pending, KeyHash> pending_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> started_;  ///< group, tag: next
  std::unordered_map<std::uint64_t, Over> aborted_;                           ///< by group
  Timer watchdog_;
  std::atomic<std::uint32_t> culprit_{kNoRank};
  ScratchPool spares_;  ///< for segments that arrive before their operation
  TimePoint watching_ = TimePoint::max();
  std::vector<std::pair<TimePoint, std::shared_ptr<Call>>>
      ending_;  ///< failed, with I/O in progress
  bool has_bad_links_ = false, is_closing_ = false, is_closed_ = false, is_watched_ = false;
};

}  // namespace centroid::collective
