#include "common/async/until.h"

namespace centroid {

Task<bool> until(Event& event, std::function<bool()> is_true, Deadline deadline) {
  if (is_true()) co_return true;
  for (;;) {
    const bool goes_on = co_await event.wait(deadline);
    if (is_true()) co_return true;
    if (!goes_on) co_return false;
  }
}

}  // namespace centroid
