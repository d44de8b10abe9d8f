#include "worker/exchange/mailbox.h"

#include <mutex>
#include <utility>

namespace centroid::worker {

void Mailbox::push(LinkEvent event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
  changed_.notify_all();
}

void Mailbox::put_back(LinkEvent event) {
  const std::lock_guard lock(mutex_);
  events_.push_front(std::move(event));
}

std::optional<LinkEvent> Mailbox::pop(bool honour_stop) {
  std::unique_lock lock(mutex_);
  const auto is_stopped = [&] { return honour_stop ? stop_ : at_once_; };
  changed_.wait(lock, [&] { return !events_.empty() || is_stopped(); });
  if (is_stopped()) return std::nullopt;
  LinkEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

void Mailbox::request_stop(const std::string& why, bool at_once) {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(stop_, true)) why_ = why;
  at_once_ = at_once_ || at_once;
  changed_.notify_all();
}

std::string Mailbox::stop_reason() const {
  const std::lock_guard lock(mutex_);
  return why_;
}

}  // namespace centroid::worker
