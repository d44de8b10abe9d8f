// How much of an exchange disappears behind the backward pass: a server and workers in one process
// over TCP on loopback; computing is sleeping, as a device computes without the processor.

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <mutex>

#include "common/base/config.h"
#include "tests/support/cluster.h"

namespace centroid::bench {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::uint64_t workers = 2, parameters = 25'000'000, tensors = 25, rounds = 6;
  double compute = 1.25;
};

enum class Ready : std::uint8_t { kAtOnce, kAtTheEnd, kAsComputed };

/// Gradients of given numbers; a step takes `compute` seconds, the same for each tensor, from the
/// last to the first.
class SleepingGroup final : public worker::ReplicaGroup {
 public:
  SleepingGroup(const Options& options, double compute, Ready ready)
      : tensors_(options.tensors),
        compute_(compute),
        ready_(ready),
        params_(options.parameters),
        gradients_(options.parameters, 1e-3f),
        current_(params_) {}
  std::size_t devices() const override { return 1; }
  std::span<float> params() override { return current_; }
  void use_params(std::span<float> memory) override { current_ = memory; }
  std::span<float> gradients() override { return gradients_; }
  Result<double> gradient_norm() override { return 1.0; }
  void use_noise(std::uint64_t) override {}
  void expect(const worker::Dataset&, const std::vector<std::span<const std::uint64_t>>&) override {
  }
  Result<worker::GroupStep> step(const worker::Dataset&, std::span<const std::uint64_t> samples,
                                 const std::function<void(TensorId)>& on_ready) override {
    const auto begin = Clock::now();
    const std::chrono::duration<double> each(compute_ / static_cast<double>(tensors_));
    for (std::uint64_t done = 0; done < tensors_; ++done) {
      if (ready_ != Ready::kAtOnce)
        std::this_thread::sleep_until(  // lint-ok: sleeping is computing here
            begin + std::chrono::duration_cast<Clock::duration>(each * (done + 1)));
      if (ready_ != Ready::kAtTheEnd)
        on_ready(TensorId(static_cast<std::uint32_t>(tensors_ - 1 - done)));
    }
    if (ready_ == Ready::kAtTheEnd)
      for (std::uint64_t left = tensors_; left > 0; --left)
        on_ready(TensorId(static_cast<std::uint32_t>(left - 1)));
    worker::GroupStep out;
    out.samples = samples.size();
    out.compute_seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    return out;
  }
  Result<worker::GroupStep> evaluate(const worker::Dataset&, std::uint64_t,
                                     std::uint64_t) override {
    return worker::GroupStep();
  }

 private:
  std::uint64_t tensors_;
  double compute_;
  Ready ready_;
  std::vector<float> params_, gradients_;
  std::span<float> current_;
};

/// Median seconds of a round of the first worker.
double round_seconds(const Options& options, double compute, Ready ready) {
  server::ServerConfig config;
  config.run_dir = std::filesystem::temp_directory_path() / "centroid-bench-overlap";
  config.rounds = options.rounds + 2;
  config.min_workers = options.workers;
  config.exit_when_finished = true;
  const auto transports = [](Executor executor) { return transport::make_tcp(executor, {}); };
  double median = 0;
  {
    test::TestServer server(config, transports);
    auto model = std::make_shared<test::CustomModel>();
    for (std::uint64_t i = 0; i < options.tensors; ++i)
      model->manifest.push_back({.name = std::string("t").append(std::to_string(i)),
                                 .dtype = DType::kF32,
                                 .shape = {options.parameters / options.tensors}});
    model->make_group = [&] { return std::make_unique<SleepingGroup>(options, compute, ready); };
    model->initialize = [](std::uint64_t, std::span<float> params) {
      std::ranges::fill(params, 1.0f);
    };
    worker::DataSplit data;
    data.train.name = "numbers";
    data.train.samples = 1'000'000;
    data.train.features = 1;
    data.train.classes = 1;
    data.train.x.resize(data.train.samples);
    data.train.y.resize(data.train.samples);
    std::vector<double> rounds;
    std::vector<std::thread> threads;
    for (std::uint64_t i = 0; i < options.workers; ++i)
      threads.emplace_back([&, i] {
        test::WorkerSpec spec;
        spec.name = std::string("worker-").append(std::to_string(i));
        spec.custom = model;
        auto last = Clock::now();
        const auto observe = [&](const worker::Share&, const worker::StepStats&,
                                 const worker::RoundReport&, const worker::TrainingSummary&) {
          const auto now = Clock::now();
          if (i == 0) rounds.push_back(std::chrono::duration<double>(now - last).count());
          last = now;
        };
        const auto outcome = test::run_worker(spec, data, server.endpoint(), transports, observe);
        if (!outcome.status.ok()) {
          std::fprintf(stderr, "%s\n", outcome.status.error().to_string().c_str());
          std::exit(1);
        }
      });
    for (std::thread& thread : threads) thread.join();
    (void)server.join();
    rounds.erase(rounds.begin(), rounds.begin() + 2);
    std::ranges::sort(rounds);
    median = rounds[rounds.size() / 2];
  }
  std::filesystem::remove_all(config.run_dir);
  return median;
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
  std::printf("hidden                          %8.1f %%\n",
              100 * (after - overlapped) / (after - compute));
  return 0;
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
  const auto outcome = schema.load(argc, argv);
  if (!outcome.ok()) {
    std::fprintf(stderr, "%s\n", outcome.error().message().c_str());
    return 2;
  }
  if (*outcome == config::Schema::Outcome::kPrinted) return 0;
  return bench::run(options);
}
