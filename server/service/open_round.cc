#include "server/service/open_round.h"

#include <algorithm>

namespace centroid::server {

std::optional<std::uint32_t> Attempt::rank_of(MemberId member) const {
  const auto it = std::find(members.begin(), members.end(), member);
  if (it == members.end()) return std::nullopt;
  return static_cast<std::uint32_t>(it - members.begin());
}

std::string present_round(const JobState& job, const Attempt* of) {
  std::string text = "round " + to_string(of != nullptr ? of->round : job.round);
  if (!job.store || job.fragments.count() <= 1) return text;
  const std::uint64_t step = of != nullptr ? of->optimizer_step : job.store->optimizer_step();
  return text + ", fragment " + std::to_string(job.fragments.turn(step) + 1) + " of " +
         std::to_string(job.fragments.count());
}

}  // namespace centroid::server
