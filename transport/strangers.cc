#include "transport/strangers.h"

#include <algorithm>
#include <utility>

#include <boost/asio/this_coro.hpp>

#include "common/async/task.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "transport/session.h"

namespace centroid::transport {

namespace {
/// A worker comes, gets the state, and goes, and its share is for others.
std::uint64_t arrivals_of(std::size_t places) { return 4 * std::uint64_t{places}; }

/// Without a byte. What FramedConnection says of more bytes or a failure ends otherwise.
bool is_knock(const Error& error) {
  if (error.code() == ErrorCode::kCancelled) return true;  // this side ends
  return error.code() == ErrorCode::kUnavailable &&
         error.message().ends_with(" closed the connection");
}

metrics::Budget shown(metrics::Registry* registry, const std::string& resource) {
  return registry != nullptr ? metrics::budget(*registry, resource) : metrics::Budget();
}
}  // namespace

Strangers::Strangers(std::size_t connections, metrics::Registry* r)
    : most_(connections),
      places_(connections),
      lines_{LineBudget(), shown(r, "stranger_lines")},
      member_lines_{LineBudget(), shown(r, "member_lines")},
      arrival_lines_{LineBudget(arrivals_of(connections)), shown(r, "arrival_lines")},
      shown_strangers_(shown(r, "strangers")),
      shown_guests_(shown(r, "guests")),
      shown_bytes_(shown(r, "stranger_bytes")),
      shown_turns_(shown(r, "handshake_seconds")) {
  show();
}

void Strangers::set_connections(std::size_t most) {
  most_ = most;
  places_.set_most(most);
  arrival_lines_.budget.set_burst(arrivals_of(most));
}

std::unique_ptr<Strangers::Place> Strangers::admit(Connection& connection) {
  const auto arrival = places_.arrive(connection.peer());
  if (arrival.displaced) displace(*by_id_.at(*arrival.displaced));
  connection.set_budget(bytes_);
  auto place = std::make_unique<Place>(*this, connection, arrival.id);
  by_id_.emplace(arrival.id, place.get());
  return place;
}

void Strangers::displace(Place& place) {
  shown_strangers_.refused.add();
  const Error why(ErrorCode::kResourceExhausted,
                  "closed for a newer connection: all " + std::to_string(most_) +
                      " places of connections that have not joined are taken; try again");
  place.refuse(why);
  place.leave();
}

std::optional<std::string> Strangers::line(const Error& why) {
  return lines_.take(why.to_string());
}

bool Strangers::log_refused(const std::string& peer, const Error& why) {
  if (is_knock(why)) {
    log::debug("connection.refused", {{"peer", peer}, {"why", why}});
    return false;
  }
  last_refusal_ = why.message();
  if (const auto text = line(why))
    log::warn("connection.refused", {{"peer", peer}, {"why", *text}});
  return true;
}

std::optional<std::string> Strangers::member_line(std::string_view why) {
  return member_lines_.take(why);
}

std::optional<std::string> Strangers::arrival_line(std::string_view text) {
  return arrival_lines_.take(text);
}

std::optional<std::string> Strangers::Lines::take(std::string_view why) {
  auto text = budget.take(why, centroid::now());
  if (!text) shown.refused.add();
  return text;
}

void Strangers::show() const {
  const TimePoint now = centroid::now();
  shown_strangers_.show(places_.size(), most_);
  shown_guests_.show(guests_, most_);
  shown_bytes_.show(bytes_->used(), bytes_->limit());
  shown_bytes_.follow_refused(bytes_->refused());
  shown_turns_.used.set(turns_.used(now));
  shown_turns_.limit.set(HandshakeTurns::kBurst);
  for (const Lines* const one : {&lines_, &member_lines_, &arrival_lines_})
    one->shown.show(one->budget.used(now), one->budget.burst());
}

/// Those whose turn it is go on.
void Strangers::give_turns() {
  while (const auto id = turns_.next(centroid::now(), is_idle_())) {
    Place& place = *by_id_.at(*id);
    place.has_turn_ = true;
    place.turn_.notify_all();
  }
}

Strangers::Place::Place(Strangers& all, Connection& connection, StrangerPlaces::Id id)
    : all_(all), connection_(connection), id_(id), turn_(connection.executor()) {
  connection.count_handshake(handshake_seconds_);
}

Task<Status> Strangers::Place::turn() {
  const TimePoint limit = centroid::now() + kLongestTurn;
  all_.turns_.ask(id_, connection_.peer());
  all_.give_turns();
  const auto state = co_await boost::asio::this_coro::cancellation_state;
  const auto goes_on = [&] { return state.cancelled() == boost::asio::cancellation_type::none; };
  while (goes_on() && !has_turn_ && is_stranger_ && centroid::now() < limit) {
    const bool gives = !std::exchange(all_.is_giving_, true);
    const TimePoint next = gives ? all_.turns_.next_at(centroid::now()) : limit;
    (void)co_await turn_.wait(std::min(next, limit));
    if (gives) all_.is_giving_ = false;
    all_.give_turns();
  }
  if (!has_turn_) end_handshake();
  const auto first = all_.turns_.first();  // another one, which gives the turns now
  if (first && !all_.is_giving_) all_.by_id_.at(*first)->turn_.notify_all();
  if (has_turn_) co_return Status();
  if (!goes_on()) co_return Error(ErrorCode::kCancelled, "the server is stopping");
  all_.shown_turns_.refused.add();
  const Error why(ErrorCode::kResourceExhausted,
                  "handshakes take as much processor time as they may: try again");
  refuse(why);
  co_return why;
}

/// Close, and tell the peer why.
void Strangers::Place::refuse(const Error& why) {
  const auto head = encode_error(why);
  OutFrame frame;
  frame.kind = is_greeted_ ? kGoodbye : kHelloReply;
  if (!is_greeted_) frame.flags = kFlagResponse | kFlagError;
  frame.head = head;
  connection_.close_with(frame, why);
}

/// A turn that was lent may be the next one's.
void Strangers::end_handshake(StrangerPlaces::Id id, double seconds) {
  turns_.end(id, seconds);
  give_turns();
}

/// Also of one that never began.
void Strangers::Place::end_handshake() { all_.end_handshake(id_, *handshake_seconds_); }

Strangers::Place::~Place() {
  end_handshake();
  if (is_stranger_) {
    all_.places_.leave(id_);
    all_.by_id_.erase(id_);
  }
  if (is_guest_) --all_.guests_;
}

void Strangers::Place::leave() {
  if (!std::exchange(is_stranger_, false)) return;
  end_handshake();
  all_.places_.leave(id_);
  all_.by_id_.erase(id_);
  connection_.set_budget(nullptr);
  turn_.notify_all();
}

void Strangers::Place::greeted() {
  is_greeted_ = true;
  end_handshake();
  all_.places_.greeted(id_);
}

Status Strangers::Place::admit_guest() {
  if (is_guest_) return {};
  if (all_.guests_ >= all_.most_) {
    all_.shown_guests_.refused.add();
    return Error(ErrorCode::kResourceExhausted,
                 "there are " + std::to_string(all_.guests_) +
                     " clients of tables, readers and shard servers, as many as there may be "
                     "(max_workers + 64): try again");
  }
  ++all_.guests_;
  is_guest_ = true;
  leave();
  return {};
}

Task<void> accept_all(
    Listener& listener, Strangers& strangers, const bool& is_over,
    std::function<void(std::unique_ptr<Connection>, std::unique_ptr<Strangers::Place>)> serve) {
  while (!is_over) {
    auto connection = co_await listener.accept();
    if (!connection.ok()) {
      if (connection.error().code() == ErrorCode::kCancelled) co_return;
      if (const auto why = strangers.line(connection.error()))
        log::warn("connection.accept_failed", {{"error", *why}});
      const TimePoint again = now() + std::chrono::milliseconds(100);
      const bool goes_on = co_await sleep_until(again);  // lint-ok: a retry
      if (!goes_on) co_return;
      continue;
    }
    auto place = strangers.admit(*connection.value());
    serve(std::move(connection).value(), std::move(place));
  }
}

}  // namespace centroid::transport
