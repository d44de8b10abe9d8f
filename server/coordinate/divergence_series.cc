#include "server/coordinate/divergence_series.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "server/coordinate/divergence_guard.h"

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
  std::vector<double> first, before;
  double steps = std::numeric_limits<double>::max(), since = steps;
  for (auto& [member, one] : members_) {
    if (std::exchange(one.times, 0) == 0) {
      one.divergence.reset();
      continue;
    }
    const auto past = std::exchange(one.before, one.divergence);
    const double made = std::exchange(one.steps, 0);
    if (!past) {
      first.push_back(*one.divergence);
      continue;
    }
    before.push_back(*past);
    out.divergences.push_back(*one.divergence);
    steps = std::min(steps, made);
    since = std::min(since, one.since);
  }
  if (before.empty()) {
    out.divergences = std::move(first);
    return out;
  }
  out.before = largest_of(before);
  out.steps = static_cast<std::uint64_t>(std::llround(std::min(steps, 1e9)));
  out.since = static_cast<std::uint64_t>(std::llround(std::min(since, 1e9)));
  return out;
}

}  // namespace centroid::server
