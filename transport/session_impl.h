#pragma once

#include <list>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "common/async/timer.h"
#include "transport/handshake.h"
#include "transport/session.h"
#include "transport/session_credit.h"
#include "transport/waiter.h"

namespace centroid::transport {

/// Private state of a Session. Pending calls share it, so it outlives each of them.
struct Session::Impl : std::enable_shared_from_this<Session::Impl> {
  /// How long a session continues to read after its Goodbye, so that the peer's system does not
  /// drop the text unread.
  static constexpr std::chrono::seconds kLinger{1};

  /// A waiting call, on its coroutine's frame.
  struct Wait {
    TimePoint since;
    Deadline deadline = Deadline::max();
    Waiter waiter;
    void end(Status with) {
      if (result) return;
      result.emplace(std::move(with));
      waiter.wake();
    }
    std::optional<Status> result;
  };
  struct PendingRequest : Wait {
    PendingRequest(Impl& i, std::uint64_t n, std::uint16_t k) : impl(i), id(n), kind(k) {
      impl.requests.emplace(id, this);
    }
    ~PendingRequest() { impl.abandon(id); }
    PendingRequest(const PendingRequest&) = delete;
    PendingRequest& operator=(const PendingRequest&) = delete;
    Impl& impl;
    std::uint64_t id;
    std::uint16_t kind;
    Reply reply;
  };
  struct CreditWait : Wait {
    CreditWait(Impl& i, std::uint64_t n) : impl(i), bytes(n) { impl.credit_waits.push_back(this); }
    ~CreditWait() {
      if (impl.credit_waits.remove(this) != 0) impl.grant_waiting();
    }
    CreditWait(const CreditWait&) = delete;
    CreditWait& operator=(const CreditWait&) = delete;
    Impl& impl;
    std::uint64_t bytes;
  };

  explicit Impl(std::unique_ptr<Connection> c);

  // Handshake.
  using Greeter = Task<Result<Peer>> (*)(Connection&, Greeting);
  static Task<Result<std::unique_ptr<Session>>> begin(std::unique_ptr<Connection> connection,
                                                      Greeting greeting, Deadline deadline,
                                                      Greeter greeter);

  // Ends.
  std::string label() const;
  Error cause_or(Error found) const { return cause ? *cause : std::move(found); }
  bool leave(
      Error why);  ///< ends all waits; the connection stays open. False: it was over already.
  void close(Error why);  ///< leave, and close the connection
  std::vector<std::byte> encode_fitting(const Error& error) const;  ///< cut to the agreed head
  Task<void> write_goodbye();

  // Deadlines (session_wait.cc).
  void watch(TimePoint when);
  void on_watch();
  void abandon(std::uint64_t id);           ///< cancelled; its answer may still arrive
  void forget(std::uint64_t id);            ///< never sent
  void return_credit(std::uint64_t bytes);  ///< taken, but not used
  void grant_waiting();
  Task<Status> take_credit(std::uint64_t bytes, Deadline deadline);
  std::vector<Session::Wait> waits() const;

  // Reading.
  Task<Status> on_frame(Session& session, FrameSink& sink, InFrame frame);
  Task<Status> on_response(InFrame frame);
  Task<Status> deliver(Session& session, FrameSink& sink, InFrame frame);
  Status on_credit(const InFrame& frame);
  Task<Status> drop_payload();
  Task<void> write_grants();

  // Writing.
  Status check_out(std::uint16_t kind, Bytes head, Bytes payload) const;
  Task<Status> answer(const FrameHeader& request, std::uint32_t flags, Bytes head, Bytes payload);

  std::unique_ptr<Connection> connection;
  Peer peer;
  std::optional<Error> cause;  ///< set once: the session is over
  bool is_connection_closed = false;
  bool is_running = false;

  std::uint64_t next_id = 1;  ///< 0 is the handshake's
  std::unordered_map<std::uint64_t, PendingRequest*> requests;
  std::unordered_set<std::uint64_t> abandoned;   ///< sent, cancelled, answer still to come
  std::unordered_set<std::uint64_t> unanswered;  ///< the peer's requests
  std::uint64_t last_request = 0;                ///< highest id of a request of the peer

  SendCredit send_credit{0};
  ReceiveCredit receive_credit{0};
  bool lets_credit_wait = false;
  std::list<CreditWait*> credit_waits;  ///< first come, first served
  Waiter grants;                        ///< wakes write_grants
  std::uint64_t unread_payload = 0;     ///< of the sink's frame
  bool is_unread_credited = false;      ///< that payload counts against the peer's credit
  SessionCounters counters;

  Timer timer;
  TimePoint armed = TimePoint::max();
  Deadline greeting_deadline = Deadline::max();
  Deadline linger_deadline = Deadline::max();
  Waiter drained;  ///< wakes goodbye when nothing more will be read
};

}  // namespace centroid::transport
