#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/custom_group.h"

namespace centroid::test {

/// Gradients of given numbers. A step sleeps `seconds`, as if a device computed, the same time for
/// each tensor, from the last to the first.
class SleepingGroup final : public CustomGroup {
 public:
  enum class Ready : std::uint8_t { kAtOnce, kAtTheEnd, kAsComputed };
  SleepingGroup(std::uint64_t tensors, std::uint64_t parameters, double seconds, Ready ready)
      : CustomGroup(parameters, 1e-3f), tensors_(tensors), seconds_(seconds), ready_(ready) {}
  Result<double> gradient_norm() override { return 1.0; }  // takes no time
  Result<worker::GroupStep> step(const worker::Dataset&, std::span<const std::uint64_t> samples,
                                 const std::function<void(TensorId)>& on_ready) override {
    const auto begin = Clock::now();
    const std::chrono::duration<double> each(seconds_ / static_cast<double>(tensors_));
    for (std::uint64_t done = 0; done < tensors_; ++done) {
      if (ready_ != Ready::kAtOnce)
        std::this_thread::sleep_until(  // lint-ok: sleeping is computing here
            begin +
            std::chrono::duration_cast<Clock::duration>(each * static_cast<double>(done + 1)));
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

 private:
  using Clock = std::chrono::steady_clock;
  std::uint64_t tensors_;
  double seconds_;
  Ready ready_;
};

/// `tensors` of equal size, `parameters` in all.
inline std::shared_ptr<CustomModel> sleeping_model(std::uint64_t tensors, std::uint64_t parameters,
                                                   double seconds, SleepingGroup::Ready ready) {
  auto model = std::make_shared<CustomModel>();
  for (std::uint64_t i = 0; i < tensors; ++i)
    model->manifest.push_back({.name = std::string("t").append(std::to_string(i)),
                               .dtype = DType::kF32,
                               .shape = {parameters / tensors}});
  model->make_group = [=] {
    return std::make_unique<SleepingGroup>(tensors, parameters, seconds, ready);
  };
  model->initialize = [](std::uint64_t, std::span<float> params) {
    std::ranges::fill(params, 1.0f);
  };
  return model;
}

inline worker::DataSplit numbers(std::uint64_t samples) {
  return one_feature("numbers", std::vector<float>(samples));
}

/// Round times in seconds of the first of `workers` workers that train together, sorted, without
/// the first two rounds. Throws std::runtime_error if a worker fails.
inline std::vector<double> round_seconds(const std::shared_ptr<const CustomModel>& model,
                                         std::uint64_t workers, std::uint64_t rounds,
                                         const std::filesystem::path& run_dir) {
  server::ServerConfig config;
  config.run_dir = run_dir;
  config.goal.rounds = rounds + 2;
  config.workers.min = workers;
  config.leaving.when_finished = true;
  const auto transports = [](Executor executor) { return transport::make_tcp(executor, {}); };
  TestServer server(config, transports);
  const worker::DataSplit data = numbers(1'000'000);
  std::vector<double> seconds;
  std::vector<Status> ended(workers);
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < workers; ++i)
    threads.emplace_back([&, i] {
      WorkerSpec spec;
      spec.name = std::string("worker-").append(std::to_string(i));
      spec.custom = model;
      auto last = std::chrono::steady_clock::now();
      const auto observe = [&](const worker::Share&, const worker::StepStats&,
                               const worker::RoundReport&, const worker::TrainingSummary&) {
        const auto now = std::chrono::steady_clock::now();
        if (i == 0) seconds.push_back(std::chrono::duration<double>(now - last).count());
        last = now;
      };
      ended[i] = run_worker(spec, data, server.endpoint(), transports, observe).status;
    });
  for (std::thread& thread : threads) thread.join();
  (void)server.join();
  for (const Status& status : ended)
    if (!status.ok()) throw std::runtime_error(status.error().to_string());
  seconds.erase(seconds.begin(), seconds.begin() + 2);
  std::ranges::sort(seconds);
  return seconds;
}

}  // namespace centroid::test
