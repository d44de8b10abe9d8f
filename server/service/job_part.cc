#include "server/service/job_part.h"

namespace centroid::server {

Task<bool> JobPart::until(std::function<bool()> is_true, BlockedOn on, TimePoint deadline) const {
  if (is_true()) co_return true;
  const auto guard = waits_.begin(on);
  for (;;) {
    const bool goes_on = co_await changed_.wait(deadline);
    if (is_true()) co_return true;
    if (!goes_on) co_return false;
  }
}

Task<bool> JobPart::until_written(BlockedOn on) const {
  auto is_written = [this] {
    if (use_.is_writing) (void)disk_.hurried();
    return !use_.is_writing;
  };
  co_return co_await until(std::move(is_written), std::move(on));
}

}  // namespace centroid::server
