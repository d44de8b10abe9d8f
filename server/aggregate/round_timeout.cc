#include "server/aggregate/round_timeout.h"

#include <algorithm>

namespace centroid::server {

Duration allowed_silence(Duration limit, std::optional<Duration> took) {
  const Duration most = kMostRoundTimeouts * limit;
  if (!took || *took > most) return limit;
  return std::clamp(*took + *took / 4, limit, most);
}

}  // namespace centroid::server
