#pragma once

#include <optional>

#include "common/base/clock.h"

namespace centroid::server {

constexpr int kMostRoundTimeouts = 4;

/// How long a member may say nothing in a round before the others go on without it. Pure.
///
/// limit   `round_timeout`, above 0
/// took    how long it said nothing when it was left out last, less what rounds in time have taken
///         from that; none: it never was
/// rule    the limit. Who took at most `kMostRoundTimeouts` limits is a little too slow: it may
///         take that time and a quarter, at most so many limits, and is so left out once. Who took
///         longer has the limit: to wait for it costs the others more than to go on without it
Duration allowed_silence(Duration limit, std::optional<Duration> took);

}  // namespace centroid::server
