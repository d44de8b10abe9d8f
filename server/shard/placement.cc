#include "server/shard/placement.h"

#include <algorithm>
#include <numeric>

#include "common/base/result.h"

namespace centroid::server {
namespace {

/// Elements by server.
std::vector<std::uint64_t> loads_of(const ChunkPlan& plan, std::size_t servers,
                                    std::span<const std::uint16_t> owners) {
  std::vector<std::uint64_t> loads(servers);
  for (const Chunk& chunk : plan.chunks())
    if (const std::uint16_t owner = owners[chunk.id.value]; owner != kNobody)
      loads[owner] += chunk.elements;
  return loads;
}

/// Even enough to leave it, with nobody empty-handed.
bool is_even(const std::vector<std::uint64_t>& loads) {
  const auto [least, most] = std::minmax_element(loads.begin(), loads.end());
  const auto mean = static_cast<double>(std::accumulate(loads.begin(), loads.end(), 0ULL)) /
                    static_cast<double>(loads.size());
  return static_cast<double>(*most) <= mean * kMaxImbalance &&
         static_cast<double>(*least) >= mean / 2;
}

std::uint64_t gap_of(const std::vector<std::uint64_t>& loads) {
  const auto [least, most] = std::minmax_element(loads.begin(), loads.end());
  return *most - *least;
}

/// Fuller servers give chunks up until they have the mean; these, and those that lie nowhere, go to
/// the emptiest, the largest first. Then single moves that help, while it is uneven.
void spread(std::span<const Chunk> chunks, std::span<const std::uint32_t> by_size,
            std::uint64_t mean, std::vector<std::uint64_t>& loads,
            std::vector<std::uint16_t>& owners) {
  for (const std::uint32_t i : by_size) {
    const std::uint16_t owner = owners[i];
    if (owner == kNobody || loads[owner] < mean + chunks[i].elements) continue;
    loads[owner] -= chunks[i].elements;
    owners[i] = kNobody;
  }
  for (const std::uint32_t i : by_size) {
    if (owners[i] != kNobody) continue;
    const auto least = std::min_element(loads.begin(), loads.end());
    owners[i] = static_cast<std::uint16_t>(least - loads.begin());
    *least += chunks[i].elements;
  }
  while (!is_even(loads)) {
    const auto [least, most] = std::minmax_element(loads.begin(), loads.end());
    const auto full = static_cast<std::uint16_t>(most - loads.begin());
    const std::uint64_t half = (*most - *least) / 2;
    const auto fits = std::find_if(by_size.begin(), by_size.end(), [&](std::uint32_t i) {
      return owners[i] == full && chunks[i].elements <= half;
    });
    if (fits == by_size.end()) break;
    owners[*fits] = static_cast<std::uint16_t>(least - loads.begin());
    *most -= chunks[*fits].elements;
    *least += chunks[*fits].elements;
  }
}

}  // namespace

std::vector<std::uint16_t> place(const ChunkPlan& plan, std::size_t servers,
                                 std::span<const std::uint16_t> before) {
  const auto chunks = plan.chunks();
  CENTROID_CHECK(servers >= 1 && servers <= kMaxServers);
  CENTROID_CHECK(before.empty() || before.size() == chunks.size());
  std::vector<std::uint16_t> owners(before.begin(), before.end());
  owners.resize(chunks.size(), kNobody);
  for (std::uint16_t& owner : owners)
    if (owner >= servers) owner = kNobody;
  std::vector<std::uint32_t> by_size(chunks.size());
  std::iota(by_size.begin(), by_size.end(), 0u);
  std::stable_sort(by_size.begin(), by_size.end(), [&](std::uint32_t a, std::uint32_t b) {
    return chunks[a].elements > chunks[b].elements;
  });
  const std::uint64_t mean = plan.total_elements() / servers;
  for (;;) {  // each turn is evener than the one before, or the last
    auto loads = loads_of(plan, servers, owners);
    const bool is_placed = std::ranges::find(owners, kNobody) == owners.end();
    if (is_placed && is_even(loads)) return owners;
    auto better = owners;
    const std::uint64_t gap = gap_of(loads);
    spread(chunks, by_size, mean, loads, better);
    const bool helps = gap_of(loads) < gap;
    if (is_placed && !helps) return owners;
    owners = std::move(better);
  }
}

double imbalance(const ChunkPlan& plan, std::size_t servers,
                 std::span<const std::uint16_t> owners) {
  if (plan.total_elements() == 0) return 1;
  const auto loads = loads_of(plan, servers, owners);
  return static_cast<double>(*std::max_element(loads.begin(), loads.end())) *
         static_cast<double>(servers) / static_cast<double>(plan.total_elements());
}

}  // namespace centroid::server
