#include "common/codec/topk.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "common/base/random.h"
#include "common/base/result.h"
#include "common/codec/topk_rank.h"

namespace centroid {
namespace {

using topk::kBlock;
using topk::kSlack;

constexpr std::size_t kLine = 16;        // floats of a cache line
constexpr std::size_t kFewest = 4096;    // for fewer, a sample costs as much as the pass
constexpr std::size_t kSamples = 65536;  // a deviation of 4 % at a ratio of 1 %
constexpr std::size_t kMostSamples = 4 * kSamples;
constexpr std::size_t kPartFewest = 65536;  // elements worth a thread

bool is_finite(float x) { return topk::key_of(x) < topk::kInfinity; }

}  // namespace

/// An array, or the sums of two arrays that are not computed yet.
struct TopkSelector::Source {
  const float* x;
  const float* gradient = nullptr;
  float* residual = nullptr;
  std::size_t n = 0;
  bool store_nonfinite = false;
  float* before = nullptr;
};

void TopkSelector::Part::reserve(std::size_t requested) {
  const std::size_t row = (requested + kSlack + kLine) / kLine * kLine;
  if (2 * row * sizeof(float) > memory.size()) memory = Buffer(2 * row * sizeof(float));
  index = memory.as<std::uint32_t>().data();
  value = memory.as<float>().data() + row;
  capacity = requested;
}

void TopkSelector::for_parts(void (*work)(TopkSelector&, Part&, const void*),
                             const void* argument) {
  if (parts_.size() == 1) return work(*this, parts_[0], argument);
  pool_->run([&](int i) {
    if (static_cast<std::size_t>(i) < parts_.size())
      work(*this, parts_[static_cast<std::size_t>(i)], argument);
  });
}

TopkSelector::Selection TopkSelector::select(std::span<const float> x, std::uint64_t k) {
  Source source{x.data()};
  source.n = x.size();
  return run(source, k);
}

TopkSelector::Selection TopkSelector::add_and_select(std::span<const float> gradient,
                                                     std::span<float> residual, std::uint64_t k,
                                                     bool store_nonfinite,
                                                     std::span<float> before) {
  CENTROID_CHECK(gradient.size() == residual.size());
  CENTROID_CHECK(before.empty() || before.size() == residual.size());
  return run({residual.data(), gradient.data(), residual.data(), residual.size(), store_nonfinite,
              before.data()},
             k);
}

TopkSelector::Selection TopkSelector::run(const Source& source, std::uint64_t k) {
  const std::size_t n = source.n;
  CENTROID_CHECK(n < (std::uint64_t{1} << 32));
  k = std::min<std::uint64_t>(k, n);
  passes_ = 0;
  if (n == 0 || k == 0) return {};
  const auto threads = static_cast<std::size_t>(pool_ != nullptr ? pool_->threads() : 1);
  parts_.resize(std::clamp<std::size_t>(n / kPartFewest, 1, threads));
  const std::size_t room = room_ != 0 ? room_ : std::max<std::size_t>(k, k / 2 + 65536) + kBlock;
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    Part& part = parts_[p];
    part.begin = p == 0 ? 0 : parts_[p - 1].end;
    part.end = p + 1 == parts_.size() ? n : (p + 1) * (n / parts_.size()) / 64 * 64;
    part.nonfinite = 0;
    part.reserve(std::min(k + std::max<std::size_t>(room, 64), part.end - part.begin));
  }
  struct Job {
    Source source;
    std::uint32_t threshold;
    std::uint64_t k;
  } job{source, sample(source, k), k};
  std::uint64_t found = 0;
  for (;;) {
    ++passes_;
    for_parts(
        [](TopkSelector& self, Part& part, const void* argument) {
          const Job& of = *static_cast<const Job*>(argument);
          self.scan(of.source, part, of.threshold, of.k);
        },
        &job);
    Selection bad;
    found = 0;
    for (const Part& part : parts_) {
      if (part.nonfinite > 0 && bad.nonfinite == 0) bad.first_nonfinite = part.first_nonfinite;
      bad.nonfinite += part.nonfinite;
      found += part.count;
    }
    if (bad.nonfinite > 0) return bad;
    if (found >= k || job.threshold == 1) break;
    job.threshold = 1;              // the sample was too high
    job.source.gradient = nullptr;  // the sums are computed now
    job.source.before = nullptr;
  }
  return keep(std::min(found, k));
}

/// A threshold that, most probably, slightly more than k elements reach; 1 if a sample does not pay
/// off.
std::uint32_t TopkSelector::sample(const Source& source, std::uint64_t k) {
  const std::size_t n = source.n;
  if (n < kFewest || k >= n / 4) return 1;
  std::size_t requested = std::min(n / 128, kSamples);
  requested = std::max(requested, std::min<std::size_t>({24 * (n / k), n / 16, kMostSamples}));
  const std::size_t lines = requested / kLine;
  const std::size_t stride = n / kLine / lines;
  sample_.resize(lines * kLine);
  CounterRng random(seed_);
  for (std::size_t line = 0; line < lines; ++line) {
    // Multiply and shift: a small bias is harmless here, and a division per line is expensive.
    const std::uint64_t offset = (random.next() >> 32) * stride >> 32;
    const std::size_t at = (line * stride + offset) * kLine;
    float* out = sample_.data() + line * kLine;
    for (std::size_t j = 0; j < kLine; ++j)
      out[j] = source.gradient != nullptr ? source.residual[at + j] + source.gradient[at + j]
                                          : source.x[at + j];
  }
  const double expected =
      static_cast<double>(sample_.size()) * static_cast<double>(k) / static_cast<double>(n);
  const auto rank = static_cast<std::size_t>(expected + 6 * std::sqrt(expected) + 4);
  if (rank >= sample_.size()) return 1;
  return std::max(1u, topk::key_of_rank(loops(), std::span<const float>(sample_), rank));
}

void TopkSelector::scan(const Source& source, Part& part, std::uint32_t threshold,
                        std::uint64_t k) {
  const topk::Kernels& kernels = loops();
  alignas(64) std::array<std::uint64_t, topk::kWords> masks;
  part.count = 0;
  std::size_t i = part.begin;
  while (i < part.end) {
    std::size_t block = std::min({kBlock, part.end - i, part.capacity - part.count});
    if (block < part.end - i) block &= ~std::size_t{63};
    if (block == 0) {  // full: retain the k largest; later ones must be larger than those
      const std::span<const float> values(part.value, part.count);
      const std::uint32_t key = topk::key_of_rank(kernels, values, k);
      const std::size_t ties = k - topk::count(kernels, values, key).greater;
      part.count = topk::filter(kernels, values, part.index, key, ties, part.index, part.value);
      threshold = key + 1;
      continue;
    }
    std::size_t done = block;
    if (source.before != nullptr)  // while it is on its way into the cache
      std::copy_n(source.residual + i, block, source.before + i);
    if (source.gradient != nullptr)
      done = kernels.add_and_mark(source.gradient + i, source.residual + i, block, threshold,
                                  masks.data());
    else
      kernels.mark(source.x + i, block, threshold, masks.data());
    std::uint32_t* index = part.index + part.count;
    float* value = part.value + part.count;
    const std::size_t found =
        kernels.expand(masks.data(), (done + 63) / 64, static_cast<std::uint32_t>(i), index);
    for (std::size_t j = 0; j < found; ++j) value[j] = source.x[index[j]];
    part.count += found;
    i += done;
    if (done == block) continue;
    if (source.before != nullptr)
      std::copy(source.residual + i, source.residual + part.end, source.before + i);
    break;
  }
  for (; i < part.end; ++i) {  // only after a sum that is not finite: then nothing is selected
    const float sum = source.residual[i] + source.gradient[i];
    const bool finite = is_finite(sum);
    if (!finite && part.nonfinite++ == 0) part.first_nonfinite = i;
    if (finite || source.store_nonfinite) source.residual[i] = sum;
  }
}

/// The k largest of all parts' candidates.
TopkSelector::Selection TopkSelector::keep(std::uint64_t k) {
  std::size_t total = 0;
  std::vector<std::span<const float>> values;
  for (const Part& part : parts_) {
    values.emplace_back(part.value, part.count);
    total += part.count;
  }
  std::uint32_t key = 0;
  if (total > k)
    key = topk::key_of_rank(loops(), std::span<const std::span<const float>>(values), k);
  else if (parts_.size() == 1)
    return {{parts_[0].index, total}, {parts_[0].value, total}};
  struct Job {
    std::uint32_t key;
    std::size_t ties;
    std::uint32_t* index;
    float* value;
  } job{key, 0, nullptr, nullptr};
  const std::size_t row = (k + kSlack + kLine) / kLine * kLine;
  if (output_.size() < 2 * row * sizeof(float)) output_ = Buffer(2 * row * sizeof(float));
  job.index = output_.as<std::uint32_t>().data();
  job.value = output_.as<float>().data() + row;
  for_parts(
      [](TopkSelector& self, Part& part, const void* argument) {
        const std::uint32_t least = static_cast<const Job*>(argument)->key;
        topk::Count counted{part.count, 0};
        if (least > 0) counted = topk::count(self.loops(), {part.value, part.count}, least);
        part.greater = counted.greater;
        part.equal = counted.equal;
      },
      &job);
  std::size_t greater = 0;
  for (const Part& part : parts_) greater += part.greater;
  job.ties = k - greater;  // 0 if everything is selected
  for_parts(
      [](TopkSelector& self, Part& part, const void* argument) {
        const Job& of = *static_cast<const Job*>(argument);
        std::size_t at = 0, ties = of.ties;  // the ties of the parts before
        for (const Part& before : self.parts_) {
          if (&before == &part) break;
          const std::size_t taken = std::min(before.equal, ties);
          at += before.greater + taken;
          ties -= taken;
        }
        topk::filter(self.loops(), {part.value, part.count}, part.index, of.key,
                     std::min(ties, part.equal), of.index + at, of.value + at);
      },
      &job);
  return {{job.index, k}, {job.value, k}};
}

}  // namespace centroid
