#include "server/service/waits.h"

namespace centroid::server {

Task<bool> Waits::until(std::function<bool()> is_true, BlockedOn on, TimePoint deadline) {
  if (is_true()) co_return true;
  std::optional<Guard> guard;
  if (on.what)
    guard.emplace(waits_, Wait{on.cause, on.waiter, on.waits_for, on.what, clock_.now()});
  co_return co_await centroid::until(changed_, std::move(is_true), deadline);
}

}  // namespace centroid::server
