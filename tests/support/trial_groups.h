#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/custom_group.h"

/// Workers with finite gradients whose steps are not always finite: each is tried before it counts.
namespace centroid::test {

/// Two rounds of an epoch for two workers: each has a batch, then one of them the last sample.
inline constexpr std::uint64_t kTrialBatch = 8;
inline worker::DataSplit trial_data() {
  return one_feature("trial", std::vector<float>(2 * kTrialBatch + 1));
}

inline constexpr std::size_t kTrialElements = 640;  // several chunks of 256 bytes

/// Its gradient is `of(step, samples)`, steps from 1.
class TrialGroup final : public CustomGroup {
 public:
  using Of = std::function<float(std::uint64_t step, std::size_t samples)>;
  explicit TrialGroup(Of of) : CustomGroup(kTrialElements), of_(std::move(of)) {}
  Result<worker::GroupStep> step(const worker::Dataset&, std::span<const std::uint64_t> samples,
                                 const std::function<void(TensorId)>& on_ready) override {
    ++step_;
    std::ranges::fill(gradients(), of_(step_, samples.size()));
    on_ready(TensorId(0));
    worker::GroupStep done;
    done.samples = samples.size();
    return done;
  }

 private:
  const Of of_;
  std::uint64_t step_ = 0;
};

/// Workers a, b, ..., with `of(worker)`; parameters begin at 0.5.
inline std::vector<WorkerSpec> trial_workers(
    std::size_t count, const std::function<TrialGroup::Of(std::size_t worker)>& of) {
  std::vector<WorkerSpec> specs(count);
  for (std::size_t i = 0; i < count; ++i) {
    auto custom = std::make_shared<CustomModel>();
    custom->manifest = {{"w", DType::kF32, {kTrialElements}}};
    custom->make_group = [gradient = of(i)] { return std::make_unique<TrialGroup>(gradient); };
    custom->initialize = [](std::uint64_t, std::span<float> params) {
      std::ranges::fill(params, 0.5F);
    };
    specs[i].name = std::string(1, static_cast<char>('a' + i));
    specs[i].batch = kTrialBatch;
    specs[i].custom = custom;
  }
  return specs;
}

/// Both have the gradient `full` with a batch, and `last` with one sample.
inline std::vector<WorkerSpec> trial_workers_by_samples(float full, float last) {
  return trial_workers(2, [=](std::size_t) {
    return [=](std::uint64_t, std::size_t samples) { return samples == 1 ? last : full; };
  });
}

/// Different gradients; that of the second one has squares that are not finite, in step `huge`.
inline std::vector<WorkerSpec> trial_workers_once_huge(std::uint64_t huge) {
  return trial_workers(2, [=](std::size_t worker) {
    return [=](std::uint64_t step, std::size_t) {
      if (worker == 1 && step == huge) return 1e22F;
      return std::sin(static_cast<float>(step + 10 * worker));
    };
  });
}

/// Rounds of an epoch with sgd, a learning rate of 1.5e38 and `ratio` of it more for a second
/// worker; what is the first parameter behind them, and how many are skipped.
struct TrialRates {
  double ratio;
  float full, last;
  float parameter;
  std::uint64_t skipped;
};
inline constexpr double kTrialRate = 1.5e38;
inline const std::vector<TrialRates>& trial_rates() {
  static const std::vector<TrialRates> kAll{
      {.ratio = 0, .full = 2, .last = 0, .parameter = -3e38F, .skipped = 0},
      {.ratio = 1, .full = 2, .last = 0, .parameter = 0.5F, .skipped = 1},
      {.ratio = 1, .full = 0.5F, .last = 1, .parameter = -3e38F, .skipped = 0},
      {.ratio = 1, .full = 0.5F, .last = 2, .parameter = -1.5e38F, .skipped = 1},
  };
  return kAll;
}

}  // namespace centroid::test
