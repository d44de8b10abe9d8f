#include "server/coordinate/drift.h"

#include <algorithm>
#include <map>

namespace centroid::server {

Drift find_drift(const std::vector<ReplicaPrint>& prints, bool has_state) {
  std::map<std::uint64_t, std::size_t> counts;
  for (const ReplicaPrint& one : prints) ++counts[one.fingerprint];
  Drift drift;
  if (counts.size() < 2) return drift;
  std::size_t most = 0;
  for (const auto& [fingerprint, count] : counts) most = std::max(most, count);
  const auto is_frequent = [&](const auto& print) { return counts[print.fingerprint] == most; };
  const std::uint64_t kept = std::ranges::find_if(prints, is_frequent)->fingerprint;
  drift.is_tie =
      std::ranges::count_if(counts, [&](const auto& one) { return one.second == most; }) > 1;
  for (const ReplicaPrint& one : prints)
    if (one.fingerprint != kept || (drift.is_tie && has_state)) drift.members.push_back(one.member);
  return drift;
}

}  // namespace centroid::server
