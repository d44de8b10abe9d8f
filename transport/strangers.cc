#include "transport/strangers.h"

#include <utility>

#include "common/async/task.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "transport/session.h"

namespace centroid::transport {

Strangers::Strangers(std::size_t connections, metrics::Registry& r)
    : most_(connections),
      places_(connections),
      strangers_gauge_(
          r.gauge("centroid_server_strangers", "Connections that have not joined yet.")),
      guests_gauge_(
          r.gauge("centroid_server_guests", "Clients of tables, readers and shard servers.")),
      bytes_gauge_(r.gauge("centroid_server_stranger_bytes", "Memory of strangers' messages.")),
      displaced_(r.counter("centroid_server_strangers_displaced_total",
                           "Strangers closed for newer ones.")),
      guests_refused_(r.counter("centroid_server_guests_refused_total", "Guests refused.")),
      lines_left_out_(r.counter("centroid_server_log_lines_left_out_total",
                                "Lines about peers that were too many.")) {}

void Strangers::set_connections(std::size_t most) {
  most_ = most;
  places_.set_most(most);
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
  displaced_.add();
  const Error why(ErrorCode::kResourceExhausted,
                  "closed for a newer connection: all " + std::to_string(most_) +
                      " places of connections that have not joined are taken; try again");
  const auto head = encode_error(why);
  OutFrame frame;
  frame.kind = place.is_greeted_ ? kGoodbye : kHelloReply;
  if (!place.is_greeted_) frame.flags = kFlagResponse | kFlagError;
  frame.head = head;
  place.connection_.close_with(frame, why);
  place.leave();
}

std::optional<std::string> Strangers::line(const Error& why) {
  return take_line(lines_, why.to_string());
}

std::optional<std::string> Strangers::member_line(std::string_view why) {
  return take_line(member_lines_, why);
}

std::optional<std::string> Strangers::take_line(LineBudget& from, std::string_view why) {
  auto text = from.take(why, centroid::now());
  if (!text) lines_left_out_.add();
  return text;
}

void Strangers::show() const {
  strangers_gauge_.set(static_cast<double>(places_.size()));
  guests_gauge_.set(static_cast<double>(guests_));
  bytes_gauge_.set(static_cast<double>(bytes_->used()));
}

Strangers::Place::~Place() {
  if (is_stranger_) {
    all_.places_.leave(id_);
    all_.by_id_.erase(id_);
  }
  if (is_guest_) --all_.guests_;
}

void Strangers::Place::leave() {
  if (!std::exchange(is_stranger_, false)) return;
  all_.places_.leave(id_);
  all_.by_id_.erase(id_);
  connection_.set_budget(nullptr);
}

void Strangers::Place::greeted() {
  is_greeted_ = true;
  all_.places_.greeted(id_);
}

Status Strangers::Place::admit_guest() {
  if (is_guest_) return {};
  if (all_.guests_ >= all_.most_) {
    all_.guests_refused_.add();
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
