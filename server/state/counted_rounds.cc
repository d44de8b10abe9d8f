#include "server/state/counted_rounds.h"

#include <algorithm>
#include <cctype>

namespace centroid::server {

namespace {
/// At most so many bytes as JSON.
std::size_t json_bytes(const std::string& name) {
  std::size_t bytes = 0;
  for (const char x : name) bytes += std::isalnum(static_cast<unsigned char>(x)) != 0 ? 1 : 6;
  return bytes;
}
}  // namespace

void CountedRounds::add(const std::string& worker, Round round) {
  Round& last = rounds_[worker];
  last = std::max(last, round);
  if (rounds_.size() <= kMost) return;
  std::vector<Round> sorted;
  for (const auto& [name, each] : rounds_) sorted.push_back(each);
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::ranges::nth_element(sorted, middle);
  // One round has at most as many names as there are workers: the newest one's stay.
  const Round newest = *std::max_element(middle, sorted.end());
  forget_before(std::min(Round(middle->value + 1), newest));
}

std::optional<Round> CountedRounds::of(const std::string& worker) const {
  const auto found = rounds_.find(worker);
  if (found == rounds_.end()) return std::nullopt;
  return found->second;
}

void CountedRounds::forget_before(Round round) {
  std::erase_if(rounds_, [round](const auto& one) { return one.second < round; });
}

std::vector<std::pair<std::string, Round>> CountedRounds::newest(Round least,
                                                                 std::size_t bytes) const {
  std::vector<std::pair<std::string, Round>> found;
  for (const auto& [name, round] : rounds_)
    if (round >= least) found.emplace_back(name, round);
  std::ranges::stable_sort(found, std::ranges::greater(), &std::pair<std::string, Round>::second);
  std::size_t used = 0, count = 0;
  while (count < found.size() && (used += json_bytes(found[count].first)) <= bytes) ++count;
  found.resize(count);
  return found;
}

}  // namespace centroid::server
