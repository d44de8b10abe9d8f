#include "worker/parallel/generations.h"

#include <algorithm>
#include <utility>

namespace centroid::parallel {

void Generations::complete() { present_ = std::exchange(next_, {}); }

std::array<std::uint64_t, 2> Generations::claim() const {
  return {present_.generation, present_.parameters ? std::uint64_t{1} : 0};
}

std::uint32_t Generations::newest(const std::vector<Notice>& claims) {
  const auto first = std::ranges::max_element(
      claims, {}, [](const Notice& one) { return std::pair(one.numbers[0], one.numbers[1]); });
  return static_cast<std::uint32_t>(first - claims.begin());
}

void Generations::go_back(std::uint64_t generation) {
  const bool is_next = generation > 0 && next_.generation == generation;
  const bool is_present = generation > 0 && present_.generation == generation;
  if (!is_present) present_ = is_next ? std::move(next_) : Held();
  next_ = {};
}

Result<Origin> find_origin(const collective::Group& group, const Generations& own,
                           const std::string& run, std::chrono::milliseconds timeout) {
  Notice notice;
  std::ranges::copy(own.claim(), notice.numbers.begin());
  notice.text = run;
  CENTROID_ASSIGN(const auto all, exchange(group, notice, timeout));
  const std::uint32_t rank = Generations::newest(all);
  return Origin{rank, all[rank].numbers[0], all[rank].text};
}

}  // namespace centroid::parallel
