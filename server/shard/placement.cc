#include "server/shard/placement.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <numeric>

#include "common/base/result.h"

namespace centroid::server {
namespace {

using Elements = std::vector<std::uint64_t>;

/// Elements by server.
Elements loads_of(const Elements& sizes, std::size_t servers,
                  std::span<const std::uint16_t> owners) {
  Elements loads(servers);
  for (std::size_t i = 0; i < sizes.size(); ++i)
    if (owners[i] != kNobody) loads[owners[i]] += sizes[i];
  return loads;
}

/// Whether the balance is good enough and no server is empty.
bool is_even(const Elements& loads) {
  const auto [least, most] = std::minmax_element(loads.begin(), loads.end());
  const auto mean = static_cast<double>(std::accumulate(loads.begin(), loads.end(), 0ULL)) /
                    static_cast<double>(loads.size());
  return static_cast<double>(*most) <= mean * kMaxImbalance &&
         static_cast<double>(*least) >= mean / 2;
}

std::uint64_t gap_of(const Elements& loads) {
  const auto [least, most] = std::minmax_element(loads.begin(), loads.end());
  return *most - *least;
}

/// Take units from servers above the mean until they have the mean. Assign these and the new units
/// to the emptiest server, the largest first. Then make single moves that help while the balance is
/// not good enough.
void spread(const Elements& sizes, std::span<const std::uint32_t> by_size, std::uint64_t mean,
            Elements& loads, std::vector<std::uint16_t>& owners) {
  for (const std::uint32_t i : by_size) {
    const std::uint16_t owner = owners[i];
    if (owner == kNobody || loads[owner] < mean + sizes[i]) continue;
    loads[owner] -= sizes[i];
    owners[i] = kNobody;
  }
  for (const std::uint32_t i : by_size) {
    if (owners[i] != kNobody) continue;
    const auto least = std::min_element(loads.begin(), loads.end());
    owners[i] = static_cast<std::uint16_t>(least - loads.begin());
    *least += sizes[i];
  }
  while (!is_even(loads)) {
    const auto [least, most] = std::minmax_element(loads.begin(), loads.end());
    const auto full = static_cast<std::uint16_t>(most - loads.begin());
    const std::uint64_t half = (*most - *least) / 2;
    const auto fits = std::find_if(by_size.begin(), by_size.end(), [&](std::uint32_t i) {
      return owners[i] == full && sizes[i] <= half;
    });
    if (fits == by_size.end()) break;
    owners[*fits] = static_cast<std::uint16_t>(least - loads.begin());
    *most -= sizes[*fits];
    *least += sizes[*fits];
  }
}

}  // namespace

std::vector<std::uint16_t> place(const ChunkPlan& plan, std::size_t servers,
                                 std::span<const std::uint16_t> before,
                                 std::span<const std::uint32_t> units) {
  const auto chunks = plan.chunks();
  CENTROID_CHECK(servers >= 1 && servers <= kMaxServers);
  CENTROID_CHECK(before.empty() || before.size() == chunks.size());
  CENTROID_CHECK(units.empty() || units.size() == chunks.size());
  std::vector<std::uint32_t> unit_of(chunks.size());
  Elements sizes;
  std::vector<std::uint16_t> owners;  // by unit
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (i == 0 || units.empty() || units[i] != units[i - 1]) {
      sizes.push_back(0);
      owners.push_back(before.empty() || before[i] >= servers ? kNobody : before[i]);
    }
    unit_of[i] = static_cast<std::uint32_t>(sizes.size() - 1);
    sizes.back() += chunks[i].elements;
  }
  std::vector<std::uint32_t> by_size(sizes.size());
  std::iota(by_size.begin(), by_size.end(), 0u);
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return sizes[a] > sizes[b]; });
  const std::uint64_t mean = plan.total_elements() / servers;
  for (;;) {  // ends with the first pass that does not improve the balance
    auto loads = loads_of(sizes, servers, owners);
    const bool is_placed = std::ranges::find(owners, kNobody) == owners.end();
    if (is_placed && is_even(loads)) break;
    auto better = owners;
    const std::uint64_t gap = gap_of(loads);
    spread(sizes, by_size, mean, loads, better);
    const bool helps = gap_of(loads) < gap;
    if (is_placed && !helps) break;
    owners = std::move(better);
  }
  std::vector<std::uint16_t> by_chunk(chunks.size());
  for (std::size_t i = 0; i < chunks.size(); ++i) by_chunk[i] = owners[unit_of[i]];
  return by_chunk;
}

std::vector<std::uint16_t> place_buckets(std::size_t buckets, std::size_t servers) {
  CENTROID_CHECK(servers >= 1 && servers <= kMaxServers);
  std::vector<std::uint16_t> owners(buckets);
  for (std::size_t i = 0; i < buckets; ++i)
    owners[i] = static_cast<std::uint16_t>(i * servers / buckets);
  return owners;
}

std::vector<std::uint16_t> replace_buckets(std::span<const std::uint16_t> before,
                                           const std::vector<bool>& keeps) {
  std::vector<std::uint16_t> owners(before.begin(), before.end());
  std::vector<std::size_t> loads(keeps.size());
  for (const std::uint16_t owner : owners) ++loads[owner];
  const auto staying = static_cast<std::size_t>(std::ranges::count(keeps, true));
  CENTROID_CHECK(staying > 0);
  // Servers with more buckets get the larger shares.
  const std::size_t least = owners.size() / staying;
  std::size_t larger = owners.size() % staying;
  std::vector<std::size_t> by_load;
  for (std::size_t i = 0; i < keeps.size(); ++i)
    if (keeps[i]) by_load.push_back(i);
  std::ranges::stable_sort(by_load, std::greater(), [&](std::size_t i) { return loads[i]; });
  std::vector<std::size_t> share(keeps.size());
  for (const std::size_t i : by_load) share[i] = least + (larger > 0 ? (--larger, 1) : 0);
  std::size_t to = 0;
  for (std::uint16_t& owner : owners) {
    if (loads[owner] <= share[owner]) continue;
    while (loads[to] >= share[to]) ++to;  // ends: missing and surplus buckets are equally many
    --loads[owner];
    ++loads[to];
    owner = static_cast<std::uint16_t>(to);
  }
  return owners;
}

std::string to_ranges(std::span<const std::uint16_t> owners, std::uint16_t server) {
  std::string text;
  for (std::size_t first = 0; first < owners.size(); ++first) {
    if (owners[first] != server) continue;
    std::size_t last = first;
    while (last + 1 < owners.size() && owners[last + 1] == server) ++last;
    const std::string from = std::to_string(first), to = std::to_string(last);
    text.append(text.empty() ? "" : " ").append(from);
    if (last > first) text.append("-").append(to);
    first = last;
  }
  return text;
}

Result<std::vector<std::uint16_t>> buckets_of(std::string_view ranges, std::size_t buckets) {
  std::vector<std::uint16_t> found;
  std::string what("no list of buckets below ");
  what.append(std::to_string(buckets)).append(": '").append(ranges.substr(0, 100)).append("'");
  const Error wrong(ErrorCode::kDataLoss, what);
  const char* at = ranges.data();
  const char* const end = at + ranges.size();
  while (at != end) {
    std::size_t first = 0;
    auto read = std::from_chars(at, end, first);
    std::size_t last = first;
    if (read.ec == std::errc() && read.ptr != end && *read.ptr == '-')
      read = std::from_chars(read.ptr + 1, end, last);
    if (read.ec != std::errc() || last < first || last >= buckets) return wrong;
    for (std::size_t bucket = first; bucket <= last; ++bucket)
      found.push_back(static_cast<std::uint16_t>(bucket));
    at = read.ptr;
    if (at != end && (*at++ != ' ' || at == end)) return wrong;
    if (found.size() > buckets) return wrong;
  }
  return found;
}

double imbalance(const ChunkPlan& plan, std::size_t servers,
                 std::span<const std::uint16_t> owners) {
  if (plan.total_elements() == 0) return 1;
  Elements sizes;
  for (const Chunk& chunk : plan.chunks()) sizes.push_back(chunk.elements);
  const auto loads = loads_of(sizes, servers, owners);
  return static_cast<double>(*std::max_element(loads.begin(), loads.end())) *
         static_cast<double>(servers) / static_cast<double>(plan.total_elements());
}

}  // namespace centroid::server
