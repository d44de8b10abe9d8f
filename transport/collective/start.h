#pragma once

#include <memory>

#include "transport/collective/group_core.h"

namespace centroid::collective {

/// A call with its deadlines, from now on.
std::shared_ptr<Call> make_call(Call::Plan plan);

/// Begin it on the group's connections; one without any frame ends at once. `is_waited`: the caller
/// waits for it next.
Handle begin(const Group& group, std::shared_ptr<Call> call, bool is_waited);

}  // namespace centroid::collective
