#pragma once

#include <optional>

#include "common/base/clock.h"

namespace centroid::server {

constexpr int kMostRoundTimeouts = 4;

/// How long a member may be silent in a round before the others continue without it. Pure.
///
/// limit   `round_timeout`, above 0
/// took    its silence when it was last excluded, reduced by each on-time round since; none: never
/// rule    the limit. A member whose silence was at most `kMostRoundTimeouts` limits is only a
///         little too slow: it may take that time and a quarter, at most that many limits, so it is
///         excluded once. A slower one has the limit: waiting for it costs more than going on
Duration allowed_silence(Duration limit, std::optional<Duration> took);

}  // namespace centroid::server
