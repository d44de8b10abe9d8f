// How much of an exchange disappears behind the backward pass: a server and workers in one process
// over TCP on loopback; computing is sleeping, as a device computes without the processor.

#include <cstdio>
#include <exception>
#include <filesystem>

#include "common/base/config.h"
#include "tests/bench/verdict.h"
#include "tests/support/sleeping.h"

namespace centroid::bench {
namespace {

struct Options {
  std::uint64_t workers = 2, parameters = 25'000'000, tensors = 25, rounds = 6;
  double compute = 1.25, bar = 0;
};

using Ready = test::SleepingGroup::Ready;

/// Median seconds of a round of the first worker.
double round_seconds(const Options& options, double compute, Ready ready) {
  const auto folder = std::filesystem::temp_directory_path() / "centroid-bench-overlap";
  const auto model = test::sleeping_model(options.tensors, options.parameters, compute, ready);
  const auto rounds = test::round_seconds(model, options.workers, options.rounds, folder);
  std::filesystem::remove_all(folder);
  return rounds[rounds.size() / 2];
}

int run(Options options) {
  options.parameters -= options.parameters % options.tensors;
  const double exchange = round_seconds(options, 0, Ready::kAtOnce);
  const double compute = options.compute * exchange;
  const double after = round_seconds(options, compute, Ready::kAtTheEnd);
  const double overlapped = round_seconds(options, compute, Ready::kAsComputed);
  std::printf("%llu workers, %.1f MB of gradient in %llu tensors; median of %llu rounds, ms\n",
              static_cast<unsigned long long>(options.workers),
              static_cast<double>(options.parameters) * sizeof(float) / 1e6,
              static_cast<unsigned long long>(options.tensors),
              static_cast<unsigned long long>(options.rounds));
  std::printf("exchange alone                  %8.1f\n", 1e3 * exchange);
  std::printf("computing alone                 %8.1f\n", 1e3 * compute);
  std::printf("computing, then the exchange    %8.1f\n", 1e3 * after);
  std::printf("tensors leave as they are done  %8.1f\n", 1e3 * overlapped);
  const double hidden = 100 * (after - overlapped) / (after - compute);
  std::printf("hidden                          %8.1f %%\n", hidden);
  return verdict("hidden", hidden, Bar::kAtLeast, options.bar, "%");
}

}  // namespace
}  // namespace centroid::bench

int main(int argc, char** argv) {
  using namespace centroid;
  bench::Options options;
  config::Schema schema("centroid-bench-overlap",
                        "How much of an exchange disappears behind the backward pass.");
  schema.field("workers", &options.workers, {.text = "workers", .min = 1, .max = 64});
  schema.field("parameters", &options.parameters, {.text = "of the model", .min = 1000});
  schema.field("tensors", &options.tensors, {.text = "of the model", .min = 1, .max = 1000});
  schema.field("rounds", &options.rounds,
               {.text = "measured, after two that warm up", .min = 1, .max = 100'000});
  schema.field("compute", &options.compute,
               {.text = "time of computing, as a multiple of the exchange's", .min = 0.0});
  schema.field("bar", &options.bar,
               {.text = "exit status 1 when less is hidden; 0: none",
                .unit = "percent",
                .min = 0.0,
                .max = 100.0});
  const auto outcome = schema.load(argc, argv);
  if (!outcome.ok()) {
    std::fprintf(stderr, "%s\n", outcome.error().message().c_str());
    return 2;
  }
  if (*outcome == config::Schema::Outcome::kPrinted) return 0;
  try {
    return bench::run(options);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
