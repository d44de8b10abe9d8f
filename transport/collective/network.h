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
#include "transport/collective/link.h"

namespace centroid::collective {

/// The links of one rank in one generation, and the operations under way on them. A link is made
/// when the first operation needs it.
///
/// thread    the driver's executor, but for the constructor, `start` and `close`
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
  /// A later generation does.
  Task<void> stop_answering() { return dialer_.stop_answering(); }
  /// From any thread: begin an operation. `is_waited`: the caller waits for it next.
  void start(std::shared_ptr<Call> call, bool is_waited);
  /// From any thread: end every operation of the group, here and on its members.
  void abort(std::uint64_t group, Error cause);
  /// From any thread but the driver's: say goodbye and close; at most `leave_timeout`.
  void close();
  /// By rank, empty where there is none; any thread but the driver's.
  std::vector<std::string> connections();
  /// The rank whose loss or silence ended the first operation that failed, as far as it is known;
  /// any thread.
  std::optional<std::uint32_t> culprit() const;
  transport::TrafficCounters traffic();  ///< of all links; any thread but the driver's

  // For the dialer.
  void add_link(std::uint32_t rank, std::unique_ptr<transport::Connection> connection,
                std::uint32_t features);
  /// The rank will not talk with us.
  void on_refused(std::uint32_t rank, const Error& why);
  /// The last deadline of the operations that move something between us and this rank; long ago
  /// when there is none.
  TimePoint needed_until(std::uint32_t rank) const;

  // For links.
  std::shared_ptr<Call> find(const Key& key) const;
  /// The operation has ended here, or its group is over.
  bool is_over(const Key& key) const;
  void keep(Link& link, const DataHead& head, Kept segment);
  void refuse_late(Link& link, const DataHead& head);
  void on_ready(Link& link, const Key& key);
  void on_query(Link& link, const Key& key);
  Status on_waiting(Link& link, const Waiting& waiting);
  void on_abort(Link& link, const Abort& abort);
  void on_lost(Link& link);
  void on_left(Link& link);
  void on_leave_confirmed();
  /// Something was received: frames that waited for it may go.
  void advance(const std::shared_ptr<Call>& call);
  /// End the call if it is complete, or has failed and nothing touches its memory.
  void settle(const std::shared_ptr<Call>& call);
  /// End the call's whole group.
  void fail(const std::shared_ptr<Call>& call, Error error, std::uint32_t culprit = kNoRank);

 private:
  struct Early {
    DataHead head;
    Kept segment;
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
  /// `teller`: knows it already.
  void begin_abort(std::uint64_t group, Error cause, std::uint32_t culprit = kNoRank,
                   const Link* teller = nullptr);
  void tell_over(Link& link, std::uint64_t group, const Over& over);
  void tell_waits(Link& link, const Call& call);
  void ask(Link& link, const Call& call);
  void ask(Call& call);
  std::string silence(const Call& call, std::uint32_t blamed) const;
  void deliver(const std::shared_ptr<Call>& call, Early& early);
  std::optional<Error> unreachable(const Call& call) const;
  void drop_pending(std::uint64_t group);
  void watch(TimePoint when);
  void on_watch();
  Link* link_to(std::uint32_t rank) { return links_[rank].get(); }
  Task<void> shut_down();

  const std::shared_ptr<Driver> driver_;
  const std::uint64_t generation_;
  const std::uint32_t rank_, world_;
  const std::chrono::milliseconds timeout_, leave_timeout_;
  std::vector<std::unique_ptr<Link>> links_;  ///< by rank; none to ourselves
  Dialer dialer_;
  TaskGroup readers_, writers_;
  Event leave_;
  std::unordered_map<Key, std::shared_ptr<Call>, KeyHash> calls_;
  std::unordered_map<Key, Pending, KeyHash> pending_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> begun_;  ///< group, tag: next
  std::unordered_map<std::uint64_t, Over> aborted_;                         ///< by group
  Timer watchdog_;
  std::atomic<std::uint32_t> culprit_{kNoRank};
  ScratchPool spares_;  ///< for segments that come before their operation
  TimePoint watching_ = TimePoint::max();
  std::vector<std::pair<TimePoint, std::shared_ptr<Call>>> ending_;  ///< failed, with I/O to end
  bool has_bad_links_ = false, is_closing_ = false, is_closed_ = false, is_watched_ = false;
};

}  // namespace centroid::collective
