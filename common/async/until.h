#pragma once

#include <functional>

#include "common/async/task_group.h"

namespace centroid {

/// Wait until `is_true`. It is asked now and after each notification of `event`, so whatever it
/// depends on must notify that. Returns whether it is true: not where the deadline passed first, or
/// the caller is cancelled.
Task<bool> until(Event& event, std::function<bool()> is_true, Deadline deadline = TimePoint::max());

}  // namespace centroid
