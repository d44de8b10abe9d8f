#include "server/coordinate/divergence_series.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "server/coordinate/divergence_guard.h"

namespace centroid::server {

namespace {

std::uint64_t whole(double steps) {
  return static_cast<std::uint64_t>(std::llround(std::min(steps, 1e9)));
}

}  // namespace

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
  Observation compared, first;
  std::vector<double> before;
  for (auto& [member, one] : members_) {
    if (std::exchange(one.times, 0) == 0) {
      one.divergence.reset();
      continue;
    }
    const auto past = std::exchange(one.before, one.divergence);
    if (past) before.push_back(*past);
    Observation& out = past ? compared : first;
    const std::uint64_t steps = whole(std::exchange(one.steps, 0)), since = whole(one.since);
    const bool is_only = out.divergences.empty();
    out.steps = is_only ? steps : std::min(out.steps, steps);
    out.since = is_only ? since : std::min(out.since, since);
    out.divergences.push_back(*one.divergence);
  }
  if (before.empty()) return first;
  compared.before = largest_of(before);
  return compared;
}

}  // namespace centroid::server
