#include "server/service/open_round.h"

namespace centroid::server {

void Attempt::seat(std::vector<MemberId> in_order) {
  members.clear();
  ranks.clear();
  members.reserve(in_order.size());
  for (const MemberId member : in_order) seat(member);
}

void Attempt::seat(MemberId last) {
  ranks.emplace(last, static_cast<std::uint32_t>(members.size()));
  members.push_back(last);
}

std::optional<std::uint32_t> Attempt::rank_of(MemberId member) const {
  const auto found = ranks.find(member);
  if (found == ranks.end()) return std::nullopt;
  return found->second;
}

std::string present_round(const JobState& job, const Attempt* of) {
  std::string text = "round " + to_string(of != nullptr ? of->round : job.round);
  if (!job.shard || job.shard->fragments().count() <= 1) return text;
  const std::uint64_t step = of != nullptr ? of->optimizer_step : job.store().optimizer_step();
  return text + ", fragment " + std::to_string(job.shard->fragments().turn(step) + 1) + " of " +
         std::to_string(job.shard->fragments().count());
}

}  // namespace centroid::server
