#include "server/coordinate/divergence_series.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace centroid::server {

void DivergenceSeries::told(MemberId member, double divergence) {
  Told& one = members_[member];
  one.divergence = divergence;
  ++one.times;
  one.steps += std::exchange(one.since, 0);
}

void DivergenceSeries::worked(MemberId member, double steps) {
  if (std::isfinite(steps) && steps > 0) members_[member].since += steps;
}

std::optional<DivergenceSeries::Observation> DivergenceSeries::take() {
  unsigned most = 0, least = std::numeric_limits<unsigned>::max();
  for (const auto& [member, one] : members_) {
    if (!one.divergence) continue;
    most = std::max(most, one.times);
    least = std::min(least, one.times);
  }
  if (most == 0 || (least == 0 && most < kPatience)) return std::nullopt;
  Observation out;
  std::set<MemberId> now;
  double steps = std::numeric_limits<double>::max(), since = steps;
  for (auto& [member, one] : members_) {
    if (std::exchange(one.times, 0) == 0) {
      one.divergence.reset();
      continue;
    }
    now.insert(member);
    out.divergences.push_back(*one.divergence);
    steps = std::min(steps, std::exchange(one.steps, 0));
    since = std::min(since, one.since);
  }
  out.steps = static_cast<std::uint64_t>(std::llround(std::min(steps, 1e9)));
  out.since = static_cast<std::uint64_t>(std::llround(std::min(since, 1e9)));
  out.is_of_others = now != before_;
  before_ = std::move(now);
  return out;
}

}  // namespace centroid::server
