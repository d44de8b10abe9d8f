// GB/s of the store: what one round costs the service thread beside the network, and what a running
// snapshot adds. Bytes are those that must move once: scale reads and writes the spare plane; apply
// reads parameters and gradient, writes the result, and reads and writes each slot. --check: exit
// status 1 when a bar is missed.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/optim/optimizer.h"
#include "common/tensor/fingerprint.h"
#include "server/store/parameter_store.h"
#include "tests/bench/verdict.h"

namespace centroid::server {
namespace {

constexpr std::uint64_t kParameters = 25'000'000;
constexpr std::uint64_t kChunkBytes = 1 << 20;
constexpr int kRounds = 7;
constexpr double kStepBar = 0.6;  // of the bandwidth of a plain loop

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Median and spread of the rounds, with the figure that they give.
void report(const std::string& what, double bytes, std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  std::printf("%-28s %7.2f GB/s   %7.2f ms (%.2f..%.2f)\n", what.c_str(), bytes / median * 1e-9,
              median * 1e3, seconds.front() * 1e3, seconds.back() * 1e3);
}

std::unique_ptr<ParameterStore> make_store(const std::string& name) {
  auto plan = ChunkPlan::make({{"weights", DType::kF32, {kParameters}}}, kChunkBytes);
  OptimizerConfig config;
  config.name = name;
  auto optimizer = make_optimizer(config);
  CENTROID_CHECK(plan.ok() && optimizer.ok());
  auto store = std::make_unique<ParameterStore>(std::move(plan).value(), std::move(*optimizer));
  for (const Chunk& chunk : store->plan().chunks()) {
    std::ranges::fill(store->initial(chunk), 0.5f);
    std::ranges::fill(store->spare(chunk), 0.25f);
  }
  store->initialize();
  return store;
}

void round(ParameterStore& store, bool is_in_place) {
  for (const Chunk& chunk : store.plan().chunks()) {
    store.scale(chunk, 2.0);
    if (is_in_place)
      store.shadow_apply(chunk);
    else
      store.apply(chunk);
  }
  if (is_in_place)
    store.commit_in_place();
  else
    store.commit_swap();
}

void bench_rounds(const std::string& name) {
  const auto store = make_store(name);
  const double plane = static_cast<double>(kParameters) * sizeof(float);
  const double bytes = plane * (2.0 + 3.0 + 2.0 * static_cast<double>(store->optimizer().slots()));
  for (const bool is_in_place : {false, true}) {
    std::vector<double> seconds;
    round(*store, is_in_place);  // first touch of the slots
    for (int i = 0; i < kRounds; ++i)
      seconds.push_back(seconds_of([&] { round(*store, is_in_place); }));
    report(name + (is_in_place ? " scale+shadow_apply" : " scale+apply"), bytes,
           std::move(seconds));
  }
}

/// One step over the whole plane against a plain loop, turn by turn: the share of the memory
/// bandwidth of `a[i] += b[i]` that the rule reaches. Bytes as above; for the loop 3 (read a and b,
/// write a). How many bars were missed.
int bench_steps() {
  int missed = 0;
  const std::size_t n = kParameters;
  std::vector<float> params(n, 0.5f), gradient(n, 0.25f), out(n), slot0(n), slot1(n);
  for (const std::string& name : optimizer_names()) {
    OptimizerConfig config;
    config.name = name;
    const auto optimizer = make_optimizer(config);
    CENTROID_CHECK(optimizer.ok());
    std::vector<std::span<float>> slots{slot0, slot1};
    slots.resize((*optimizer)->slots());
    const double plane = static_cast<double>(n) * sizeof(float);
    const double bytes = plane * (3.0 + 2.0 * static_cast<double>(slots.size()));
    std::vector<double> shares, seconds, plain;
    for (std::uint64_t turn = 1; turn <= 2 * kRounds; ++turn) {
      const double loop = seconds_of([&] {
        float* const a = out.data();
        const float* const b = gradient.data();
        for (std::size_t i = 0; i < n; ++i) a[i] += b[i];
      });
      const double step =
          seconds_of([&] { (*optimizer)->step(turn, params, gradient, slots, params); });
      plain.push_back(loop);
      seconds.push_back(step);
      shares.push_back((bytes / step) / (3 * plane / loop));
    }
    std::sort(shares.begin(), shares.end());
    const double median = shares[shares.size() / 2];
    std::printf("%-28s %6.0f %% of a[i] += b[i] (%.0f..%.0f)\n", (name + " step").c_str(),
                100 * median, 100 * shares.front(), 100 * shares.back());
    if (name == "nesterov" || name == "adamw")
      missed += bench::verdict((name + " step").c_str(), 100 * median, bench::Bar::kAtLeast,
                               100 * kStepBar, "% of a[i] += b[i]");
    report("", bytes, std::move(seconds));
    report("  a[i] += b[i]", 3 * plane, std::move(plain));
  }
  return missed;
}

void bench_fingerprint() {
  const auto store = make_store("sgd");
  std::vector<double> seconds;
  std::uint64_t hash = 0;
  for (int i = 0; i < kRounds; ++i)
    seconds.push_back(seconds_of([&] { hash ^= store->fingerprint(); }));
  report("fingerprint", static_cast<double>(kParameters) * sizeof(float), std::move(seconds));
  std::printf("%-28s %016llx\n", "", static_cast<unsigned long long>(hash));
}

/// A whole snapshot of adam (3 planes), read while rounds go on; the slowest round shows what the
/// copies cost.
void bench_snapshot() {
  const auto store = make_store("adam");
  round(*store, false);
  std::vector<double> read_seconds, round_seconds;
  for (int i = 0; i < kRounds; ++i) {
    auto snapshot = store->begin_snapshot(std::numeric_limits<std::size_t>::max());
    double reading = 0;
    std::thread reader([&reading, snapshot] {
      std::vector<float> into(kChunkBytes / sizeof(float));
      reading = seconds_of([&] {
        for (std::size_t plane = 0; plane < 3; ++plane) {
          for (std::uint64_t at = 0; at < kParameters; at += into.size()) {
            const auto count = std::min<std::uint64_t>(into.size(), kParameters - at);
            CENTROID_CHECK(snapshot->read(plane, at, std::span(into).first(count)).ok());
          }
        }
      });
    });
    while (!snapshot->is_done()) round_seconds.push_back(seconds_of([&] { round(*store, false); }));
    reader.join();
    read_seconds.push_back(reading);
  }
  const double plane = static_cast<double>(kParameters) * sizeof(float);
  report("snapshot read (adam)", 3 * plane, std::move(read_seconds));
  report("adam round meanwhile", 9 * plane, std::move(round_seconds));
}

}  // namespace
}  // namespace centroid::server

int main(int argc, char** argv) {
  const bool checks = argc == 2 && std::string(argv[1]) == "--check";
  if (argc > 1 && !checks) {
    std::fprintf(stderr, "centroid-bench-store takes --check or nothing, not %s\n", argv[1]);
    return 2;
  }
  std::printf("%llu parameters, chunks of %llu bytes, one thread, median (min..max) of %d\n",
              static_cast<unsigned long long>(centroid::server::kParameters),
              static_cast<unsigned long long>(centroid::server::kChunkBytes),
              centroid::server::kRounds);
  const int missed = centroid::server::bench_steps();
  for (const std::string& name : centroid::optimizer_names()) centroid::server::bench_rounds(name);
  centroid::server::bench_fingerprint();
  centroid::server::bench_snapshot();
  return checks && missed > 0 ? 1 : 0;
}
