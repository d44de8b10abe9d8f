// Selection, and selection with error feedback.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <thread>

#include "common/base/result.h"
#include "common/codec/spec.h"
#include "common/codec/topk.h"
#include "tests/bench/codec_bench.h"

namespace centroid::bench {
namespace {

volatile std::uint64_t sink;

std::string milliseconds(double seconds) {
  return std::to_string(seconds * 1e3).substr(0, 6) + " ms";
}

struct Share {
  const char* name;
  std::uint32_t billionths;
  double avx512, avx2, portable;  // bars
};
constexpr Share kShares[] = {{"1 %", 10'000'000, 1.5, 2.6, 5.0},
                             {"0.1 %", 1'000'000, 1.3, 1.5, 3.0}};

double bar_of(const Share& share, std::string_view kernels) {
  if (kernels == "portable") return share.portable;
  return kernels == "avx2" ? share.avx2 : share.avx512;
}

/// Whether two threads have a core each: what stays in their own caches is read twice as fast then,
/// whatever memory allows.
void bench_cores(const Options& options, std::span<const float> x, ThreadPool& pool) {
  constexpr std::size_t kOwn = 131'072;  // 512 KiB
  const std::size_t some = std::min(kOwn, x.size() / 2);
  const auto read = [&](std::size_t part) {
    for (int i = 0; i < 200; ++i) sink = read_pass(x.subspan(part * some, some));
  };
  Turns turns;
  const std::size_t one = turns.add([&] { read(0); });
  const std::size_t two =
      turns.add([&] { pool.run([&](int part) { read(static_cast<std::size_t>(part)); }); });
  turns.run(options.repetitions);
  row("512 KiB each in cache, 2 threads, times as much as 1", 2 * turns.ratio(one, two), "",
      "about 2: a core each; about 1: one core, or one core's time");
}

}  // namespace

void bench_selection(const Options& options) {
  heading("exact top-k against one read pass, 1 thread; 2 threads against 1");
  const Floats x(options.elements);
  fill_normal(x.span(), 7);
  ThreadPool pool(2);
  bench_cores(options, x.span(), pool);
  for (const Share& share : kShares) {
    const std::uint64_t k = KeepRatio{share.billionths}.count_of(options.elements);
    Turns turns;
    const std::size_t read = turns.add([&] { sink = read_pass(x.span()); });
    const std::size_t half = x.span().size() / 2;
    const std::size_t both_read = turns.add([&] {
      pool.run([&](int part) { sink = read_pass(x.span().subspan(part == 0 ? 0 : half, half)); });
    });
    std::vector<std::pair<const topk::Kernels*, std::size_t>> contenders;
    std::vector<std::unique_ptr<TopkSelector>> selectors;
    for (const topk::Kernels* kernels : topk::runnable_kernels()) {
      selectors.push_back(std::make_unique<TopkSelector>());
      TopkSelector& selector = *selectors.back();
      selector.use(kernels);
      contenders.emplace_back(kernels,
                              turns.add([&] { sink = selector.select(x.span(), k).index.size(); }));
    }
    TopkSelector both(&pool);
    const std::size_t two = turns.add([&] { sink = both.select(x.span(), k).index.size(); });
    turns.run(options.repetitions);
    row("read pass", turns.median(read) * 1e3, "ms");
    for (const auto& [kernels, contender] : contenders)
      at_most(std::string("top-k ") + share.name + " " + std::string(kernels->name) + " / read",
              turns.ratio(contender, read), bar_of(share, kernels->name),
              milliseconds(turns.median(contender)));
    row("read pass, 2 threads, times faster than 1", turns.ratio(read, both_read), "",
        "what this machine's memory allows");
    row(std::string("top-k ") + share.name + ", 2 threads / read with 2",
        turns.ratio(two, both_read), "");
    if (std::thread::hardware_concurrency() > 1)
      at_least(std::string("top-k ") + share.name + ", 2 threads, times faster than 1",
               turns.ratio(contenders.back().second, two), 1.6, milliseconds(turns.median(two)));
  }
}

void bench_distributions(const Options& options) {
  heading("exact top-k of 1 % on eleven inputs against one read pass, 1 thread");
  const Floats x(options.elements);
  const std::uint64_t k = KeepRatio{10'000'000}.count_of(options.elements);
  for (int which = 0; which < kInputs; ++which) {
    const std::string name = fill_input(x.span(), which);
    TopkSelector selector;
    Turns turns;
    const std::size_t read = turns.add([&] { sink = read_pass(x.span()); });
    const std::size_t select = turns.add([&] { sink = selector.select(x.span(), k).index.size(); });
    turns.run(std::min<std::uint64_t>(options.repetitions, 9));
    at_most(name, turns.ratio(select, read), 2.5,
            milliseconds(turns.median(select)) + ", " + std::to_string(selector.passes()) +
                " pass" + (selector.passes() > 1 ? "es" : ""));
  }
}

void bench_others(const Options& options) {
  heading("exact top-k of 1 %, 1 thread, against other ways");
  const std::size_t n = options.elements;
  const Floats x(n);
  fill_normal(x.span(), 7);
  const std::uint64_t k = KeepRatio{10'000'000}.count_of(n);
  const auto place = static_cast<std::ptrdiff_t>(k - 1);
  TopkSelector selector;
  std::vector<std::uint32_t> keys(n), index(k);
  std::vector<float> value(k);
  Turns turns;
  const std::size_t ours = turns.add([&] { sink = selector.select(x.span(), k).index.size(); });
  // Of four layouts tried the fastest one: keys alone, then a second pass over the numbers.
  const std::size_t nth = turns.add([&] {
    for (std::size_t i = 0; i < n; ++i) keys[i] = topk::key_of(x.data()[i]);
    std::nth_element(keys.begin(), keys.begin() + place, keys.end(), std::greater<>());
    const std::uint32_t key = keys[k - 1];
    std::size_t ties = k - static_cast<std::size_t>(
                               std::count_if(keys.begin(), keys.begin() + place + 1,
                                             [&](std::uint32_t other) { return other > key; }));
    std::size_t at = 0;
    for (std::size_t i = 0; i < n && at < k; ++i) {
      const std::uint32_t mine = topk::key_of(x.data()[i]);
      const bool tie = mine == key && ties > 0;
      if (mine <= key && !tie) continue;
      ties -= tie ? 1 : 0;
      index[at] = static_cast<std::uint32_t>(i);
      value[at++] = x.data()[i];
    }
    sink = at;
  });
  turns.run(std::min<std::uint64_t>(options.repetitions, 9));
  Turns once;
  const std::size_t sort = once.add([&] {
    std::vector<std::pair<std::size_t, float>> pairs(n);
    for (std::size_t i = 0; i < n; ++i) pairs[i] = {i, x.data()[i]};
    std::stable_sort(pairs.begin(), pairs.end(), [](const auto& a, const auto& b) {
      return std::abs(a.second) > std::abs(b.second);
    });
    sink = pairs[0].first;
  });
  once.run(1);
  const double base = turns.median(ours);
  at_least("std::nth_element of keys, times slower", turns.ratio(nth, ours), 25,
           milliseconds(turns.median(nth)));
  at_least("stable sort of (index, value) pairs, times slower", once.median(sort) / base, 800,
           milliseconds(once.median(sort)));
}

void bench_feedback(const Options& options) {
  heading("residual += gradient with selection and non-finite check, against residual += gradient");
  const Floats gradient(options.elements), residual(options.elements), plain(options.elements);
  fill_normal(gradient.span(), 5);
  fill_normal(residual.span(), 6);
  const auto flip = [&] {  // the sums stay as large as they are
    for (float& g : gradient.span()) g = -g;
  };
  for (const Share& share : kShares) {
    const std::uint64_t k = KeepRatio{share.billionths}.count_of(options.elements);
    TopkSelector selector;
    Turns turns;
    const std::size_t add = turns.add([&] { add_pass(gradient.span(), plain.span()); }, flip);
    const std::size_t fused = turns.add(
        [&] { sink = selector.add_and_select(gradient.span(), residual.span(), k).index.size(); });
    turns.run(options.repetitions);
    at_most(std::string("add and select ") + share.name + " / add", turns.ratio(fused, add), 1.4,
            milliseconds(turns.median(fused)) + " against " + milliseconds(turns.median(add)));
  }
}

}  // namespace centroid::bench
