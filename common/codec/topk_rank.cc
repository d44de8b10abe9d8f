#include "common/codec/topk_rank.h"

#include <algorithm>
#include <array>
#include <functional>
#include <vector>

#include "common/base/result.h"
#include "common/tensor/multiversion.h"

namespace centroid::topk {
namespace {

constexpr std::size_t kBins = 1024;  // four histograms fit in the first-level cache
constexpr std::size_t kFew = 4096;   // for fewer, a plain selection is as fast

struct Range {
  std::uint32_t low = ~0u, high = 0;
};

struct FindRange {
  CENTROID_KERNEL void run(const float* x, std::size_t n, Range* range) {
    std::uint32_t low = range->low, high = range->high;
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint32_t key = key_of(x[i]);
      low = key < low ? key : low;
      high = key > high ? key : high;
    }
    *range = {low, high};
  }
};

using Histogram = std::array<std::uint32_t, kBins>;

// Adjacent equal numbers would wait for each other's counter, so four histograms alternate.
void add_to_histogram(std::span<const float> x, std::uint32_t low, int shift, Histogram& out) {
  thread_local std::array<Histogram, 4> turns;
  for (Histogram& turn : turns) turn.fill(0);
  std::size_t i = 0;
  for (; i + 4 <= x.size(); i += 4)
    for (std::size_t j = 0; j < 4; ++j) ++turns[j][(key_of(x[i + j]) - low) >> shift];
  for (; i < x.size(); ++i) ++turns[0][(key_of(x[i]) - low) >> shift];
  for (std::size_t bin = 0; bin < kBins; ++bin)
    out[bin] += turns[0][bin] + turns[1][bin] + turns[2][bin] + turns[3][bin];
}

// Append the elements with a key in [low, high].
void gather(const Kernels& loops, std::span<const float> x, std::uint32_t low, std::uint32_t high,
            std::vector<float>& out) {
  std::array<std::uint64_t, kWords> masks, above;
  std::array<std::uint32_t, kBlock + kSlack> positions;
  for (std::size_t begin = 0; begin < x.size(); begin += kBlock) {
    const std::size_t n = std::min(kBlock, x.size() - begin);
    const std::size_t words = (n + 63) / 64;
    loops.mark(x.data() + begin, n, std::max(low, 1u), masks.data());
    loops.mark(x.data() + begin, n, high + 1, above.data());
    for (std::size_t w = 0; w < words; ++w) masks[w] &= ~above[w];
    const std::size_t found =
        loops.expand(masks.data(), words, static_cast<std::uint32_t>(begin), positions.data());
    for (std::size_t j = 0; j < found; ++j) out.push_back(x[positions[j]]);
  }
}

std::uint32_t select_few(std::vector<float>& x, std::size_t k) {
  const auto at = x.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::nth_element(x.begin(), at, x.end(), [](float a, float b) { return key_of(a) > key_of(b); });
  return key_of(*at);
}

}  // namespace

std::uint32_t key_of_rank(const Kernels& loops, std::span<const std::span<const float>> arrays,
                          std::size_t k) {
  std::size_t total = 0;
  Range range;
  for (const auto array : arrays) {
    total += array.size();
    run_multiversioned<FindRange>(array.data(), array.size(), &range);
  }
  CENTROID_CHECK(k >= 1 && k <= total);
  if (range.low == range.high) return range.low;
  std::vector<float> few;
  if (total <= kFew) {
    for (const auto array : arrays) few.insert(few.end(), array.begin(), array.end());
    return select_few(few, k);
  }
  int shift = 0;
  while (((range.high - range.low) >> shift) >= kBins) ++shift;
  Histogram bins{};
  for (const auto array : arrays) add_to_histogram(array, range.low, shift, bins);
  std::size_t above = 0, bin = kBins - 1;
  for (; above + bins[bin] < k; --bin) above += bins[bin];
  const std::uint32_t low = range.low + (static_cast<std::uint32_t>(bin) << shift);
  if (shift == 0 || bins[bin] == 0) return low;
  const std::uint32_t high = std::min(range.high, low + ((1u << shift) - 1));
  if (low == 0) {  // `mark` skips zeros, which have the last rank
    for (const auto array : arrays) gather(loops, array, 1, high, few);
    if (few.size() < k - above) return 0;
  } else {
    few.reserve(bins[bin]);
    for (const auto array : arrays) gather(loops, array, low, high, few);
  }
  if (few.size() <= kFew) return select_few(few, k - above);
  return key_of_rank(loops, few, k - above);  // the range is now 1024 times smaller
}

std::uint32_t key_of_rank(const Kernels& loops, std::span<const float> x, std::size_t k) {
  const std::array<std::span<const float>, 1> one{x};
  return key_of_rank(loops, one, k);
}

Count count(const Kernels& loops, std::span<const float> x, std::uint32_t key) {
  std::array<std::uint64_t, kWords> least, greater;
  std::size_t reach = 0, above = 0;
  for (std::size_t begin = 0; begin < x.size(); begin += kBlock) {
    const std::size_t n = std::min(kBlock, x.size() - begin);
    loops.mark(x.data() + begin, n, key, least.data());
    loops.mark(x.data() + begin, n, key + 1, greater.data());
    for (std::size_t w = 0; w < (n + 63) / 64; ++w) {
      reach += static_cast<std::size_t>(std::popcount(least[w]));
      above += static_cast<std::size_t>(std::popcount(greater[w]));
    }
  }
  return {above, reach - above};
}

std::size_t filter(const Kernels& loops, std::span<const float> x, const std::uint32_t* index,
                   std::uint32_t key, std::size_t ties, std::uint32_t* to_index, float* to_value) {
  std::array<std::uint64_t, kWords> least, masks;
  std::array<std::uint32_t, kBlock + kSlack> positions;
  std::size_t done = 0;
  for (std::size_t begin = 0; begin < x.size(); begin += kBlock) {
    const std::size_t n = std::min(kBlock, x.size() - begin);
    const std::size_t words = (n + 63) / 64;
    loops.mark(x.data() + begin, n, key + 1, masks.data());
    if (ties > 0) {
      loops.mark(x.data() + begin, n, key, least.data());
      for (std::size_t w = 0; w < words && ties > 0; ++w) {
        std::uint64_t equal = least[w] & ~masks[w];
        auto some = static_cast<std::size_t>(std::popcount(equal));
        for (; some > ties; --some) equal &= ~(std::uint64_t{1} << (63 - std::countl_zero(equal)));
        masks[w] |= equal;
        ties -= some;
      }
    }
    const std::size_t found =
        loops.expand(masks.data(), words, static_cast<std::uint32_t>(begin), positions.data());
    for (std::size_t j = 0; j < found; ++j) {
      const std::uint32_t from = positions[j];
      to_index[done + j] = index[from];
      to_value[done + j] = x[from];
    }
    done += found;
  }
  return done;
}

}  // namespace centroid::topk
