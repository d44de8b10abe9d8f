#include <algorithm>
#include <cstdio>

#include <boost/asio/this_coro.hpp>

#include "transport/session_impl.h"

namespace centroid::transport {
namespace {

std::string seconds(Duration duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", std::chrono::duration<double>(duration).count());
  return text;
}

}  // namespace

// One timer for all deadlines. It is moved only towards an earlier one; if it fires early it finds
// nothing and is set again, so that requests with the usual deadline cost no timer operation each.
void Session::Impl::watch(TimePoint when) {
  if (when >= armed || is_connection_closed) return;
  armed = when;
  timer.expires_at(when);
  timer.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    if (error) return;
    if (const auto self = weak.lock()) self->on_watch();
  });
}

void Session::Impl::on_watch() {
  const TimePoint now = centroid::now();
  armed = TimePoint::max();
  if (is_connection_closed) return;
  if (greeting_deadline <= now)
    return close(Error(ErrorCode::kDeadlineExceeded, "no handshake from " + label() + " in time"));
  if (linger_deadline <= now) return close(*cause);
  TimePoint next = std::min(greeting_deadline, linger_deadline);

  for (auto it = requests.begin(); it != requests.end();) {
    PendingRequest& request = *it->second;
    if (request.deadline > now) {
      next = std::min(next, request.deadline);
      ++it;
      continue;
    }
    request.end(Error(ErrorCode::kDeadlineExceeded, "no reply from " + label() + " to request " +
                                                        std::to_string(request.id) + " of kind " +
                                                        std::to_string(request.kind) + " within " +
                                                        seconds(now - request.since)));
    abandoned.insert(request.id);
    it = requests.erase(it);
  }
  const auto expired = [&](CreditWait* wait) {
    if (wait->deadline > now) return false;
    wait->end(Error(ErrorCode::kDeadlineExceeded,
                    "no credit from " + label() + " for " + std::to_string(wait->bytes) +
                        " bytes within " + seconds(now - wait->since) + " (" +
                        std::to_string(send_credit.available()) + " of " +
                        std::to_string(send_credit.window()) + " left)"));
    return true;
  };
  if (credit_waits.remove_if(expired) != 0) grant_waiting();
  for (const CreditWait* wait : credit_waits) next = std::min(next, wait->deadline);
  watch(next);
}

void Session::Impl::abandon(std::uint64_t id) {
  if (requests.erase(id) != 0 && !cause) abandoned.insert(id);
}

void Session::Impl::forget(std::uint64_t id) {
  requests.erase(id);
  abandoned.erase(id);
}

void Session::Impl::return_credit(std::uint64_t bytes) {
  if (cause || bytes == 0 || send_credit.window() == kUnlimitedCredit) return;
  (void)send_credit.add(bytes);
  grant_waiting();
}

void Session::Impl::grant_waiting() {
  while (!credit_waits.empty() && send_credit.try_take(credit_waits.front()->bytes)) {
    credit_waits.front()->end(Status());
    credit_waits.pop_front();
  }
}

Task<Status> Session::Impl::take_credit(std::uint64_t bytes, Deadline deadline) {
  if (bytes > send_credit.window())
    co_return Error(ErrorCode::kInvalidArgument, "payload of " + std::to_string(bytes) +
                                                     " bytes is larger than the total credit of " +
                                                     std::to_string(send_credit.window()) +
                                                     " that " + label() + " grants");
  if (credit_waits.empty() && send_credit.try_take(bytes)) co_return Status();
  CENTROID_CO_TRY(co_await connection->flush());  // what the peer may answer to
  if (cause) co_return Error(*cause);
  if (credit_waits.empty() && send_credit.try_take(bytes)) co_return Status();
  CreditWait wait(*this, bytes);
  wait.since = centroid::now();
  wait.deadline = deadline;
  if (deadline <= wait.since)
    co_return Error(ErrorCode::kDeadlineExceeded, "no credit from " + label() + " for " +
                                                      std::to_string(bytes) +
                                                      " bytes, and no time to wait");
  watch(deadline);
  co_await wait.waiter.park();
  const auto cancellation = co_await boost::asio::this_coro::cancellation_state;
  const bool is_cancelled = cancellation.cancelled() != boost::asio::cancellation_type::none;
  if (!wait.result || (is_cancelled && wait.result->ok())) {
    if (wait.result) return_credit(bytes);  // granted and cancelled in the same turn
    co_return Error(ErrorCode::kCancelled, "cancelled while waiting for credit from " + label());
  }
  co_return *wait.result;
}

std::vector<Session::Wait> Session::Impl::waits() const {
  std::vector<Session::Wait> out;
  for (const auto& [id, request] : requests)
    out.push_back({"reply from " + label() + " to request " + std::to_string(id) + " of kind " +
                       std::to_string(request->kind),
                   request->since});
  std::ranges::sort(out, {}, &Session::Wait::what);
  for (const CreditWait* wait : credit_waits)
    out.push_back(
        {"credit from " + label() + " for " + std::to_string(wait->bytes) + " bytes", wait->since});
  return out;
}

}  // namespace centroid::transport
