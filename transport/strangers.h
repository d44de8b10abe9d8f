#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/async/task_group.h"
#include "common/base/budget.h"
#include "transport/handshake_turns.h"
#include "transport/stranger_budget.h"
#include "transport/transport.h"

namespace centroid::transport {

/// Connections of each kind beside the workers': strangers, and guests.
inline std::size_t places_beside(std::uint64_t max_workers) {
  return static_cast<std::size_t>(max_workers) + 64;
}

/// What the peers of one listener may use of a server before it knows who they are: connections,
/// memory, processor time of handshakes, lines of the log.
///
/// thread  one executor
class Strangers {
 public:
  static constexpr std::uint64_t kMessageBytes = 64u << 20;
  /// As long as a peer waits for an answer to its greeting.
  static constexpr std::chrono::seconds kLongestTurn{5};

  /// So many connections of strangers, and so many of guests. `registry`: shows it; nullptr: none
  explicit Strangers(std::size_t connections, metrics::Registry* registry = nullptr);
  void set_connections(std::size_t most);
  /// Handshakes may take more than their share while `is_idle` says that nothing else is to do.
  void lend_while(std::function<bool()> is_idle) { is_idle_ = std::move(is_idle); }

  /// The place of one connection among all. Destroyed with its connection, nothing else in between.
  class Place {
   public:
    Place(Strangers& all, Connection& connection, StrangerPlaces::Id id);
    ~Place();
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

    /// Wait until the handshake may begin.
    /// fails  resource_exhausted: it waited for too long or lost its place. The peer gets the
    ///        error, and its connection is closed. Or cancelled
    Task<Status> turn();
    /// The handshake is done.
    void greeted();
    /// It is a worker, of which others count how many there may be.
    void admit_member() { leave(); }
    /// It is known, and no worker.
    /// fails  resource_exhausted: there are as many guests as there may be
    Status admit_guest();

   private:
    friend class Strangers;
    void refuse(const Error& why);
    void leave();
    void end_handshake();
    Strangers& all_;
    Connection& connection_;
    const StrangerPlaces::Id id_;
    bool is_greeted_ = false, is_stranger_ = true, is_guest_ = false, has_turn_ = false;
    const std::shared_ptr<double> handshake_seconds_ = std::make_shared<double>(0);
    Event turn_;
  };
  /// A place for a new connection. If there is none, another connection is closed for it, whose
  /// peer is told.
  std::unique_ptr<Place> admit(Connection& connection);

  const std::shared_ptr<ByteBudget>& bytes() const { return bytes_; }
  /// Text of a line of the log about a stranger; nothing: the line is left out.
  std::optional<std::string> line(const Error& why);
  /// Log why a connection was refused. False: it sent nothing, as `centroidctl doctor` and probes
  /// of platforms do, or this side ends, which is no news.
  bool log_refused(const std::string& peer, const Error& why);
  /// The last reason that was news; empty: none.
  const std::string& last_refusal() const { return last_refusal_; }
  /// The same about what members send, who have a budget of their own.
  std::optional<std::string> member_line(std::string_view why);
  /// The same about members that come and go, also for the event.
  std::optional<std::string> arrival_line(std::string_view text);
  /// For a scrape.
  void show() const;

 private:
  void displace(Place& place);
  void give_turns();
  void end_handshake(StrangerPlaces::Id id, double seconds);

  std::size_t most_;
  StrangerPlaces places_;
  std::map<StrangerPlaces::Id, Place*> by_id_;
  const std::shared_ptr<ByteBudget> bytes_ = std::make_shared<ByteBudget>(kMessageBytes);
  HandshakeTurns turns_;
  std::function<bool()> is_idle_ = [] { return false; };
  bool is_giving_ = false;  ///< one of those that wait gives the turns
  /// Lines of the log, and their series.
  struct Lines {
    std::optional<std::string> take(std::string_view why);
    LineBudget budget;
    const metrics::Budget shown;
  };
  Lines lines_, member_lines_, arrival_lines_;
  std::string last_refusal_;
  std::size_t guests_ = 0;
  const metrics::Budget shown_strangers_, shown_guests_, shown_bytes_, shown_turns_;
};

/// Give each connection of a listener to `serve`, with its place, until the listener is cancelled
/// or `is_over`.
Task<void> accept_all(
    Listener& listener, Strangers& strangers, const bool& is_over,
    std::function<void(std::unique_ptr<Connection>, std::unique_ptr<Strangers::Place>)> serve);

}  // namespace centroid::transport
