#pragma once

#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/component/chain_model.h"
#include "tests/conformance/collective_fixture.h"
#include "tests/unit/temporary_directory.h"
#include "worker/parallel/sharded_checkpoint.h"

namespace centroid::parallel::testing {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using collective::Group;
using collective::testing::Carrier;
using collective::testing::Floats;
using collective::testing::Job;
using collective::testing::succeeds;

inline const Manifest kModel = {{"a.weight", DType::kF32, {5, 7}},
                                {"a.bias", DType::kF32, {7}},
                                {"b.weight", DType::kF32, {3, 11}},
                                {"one", DType::kF32, {1}},
                                {"c.weight", DType::kF32, {4, 2, 5}}};

inline std::vector<ParameterShape> shapes_of(const Manifest& model) {
  std::vector<ParameterShape> out;
  for (const TensorInfo& tensor : model)
    out.push_back({tensor.name, tensor.elements(), static_cast<std::uint32_t>(out.size() / 2)});
  return out;
}

inline ShardedOptions options_of(const char* sharding, std::uint32_t world,
                                 const char* rule = "adam") {
  ShardedOptions options;
  options.sharding = std::move(Sharding::parse(sharding, world)).value();
  options.optimizer.name = rule;
  options.optimizer.learning_rate = 0.05;
  options.least_elements = 1;
  options.timeout = 30s;
  return options;
}

inline std::vector<const char*> shardings_of(std::uint32_t world) {
  if (world == 4) return {"full", "grad", "none", "hybrid:2", "hybrid:4"};
  if (world == 3) return {"full", "grad", "none", "hybrid:1"};
  return {"full", "grad", "none"};
}

/// A gradient of few bits, so that sums of 5 ranks are exact in any order: every number of ranks
/// and every sharding has the bits of one process.
inline float gradient_of(std::uint64_t step, std::uint64_t element, float value) {
  return std::round((0.25f * value + Chain::number(step, element)) * 256) / 256;
}

inline float initial_of(std::uint64_t element) { return Chain::number(7, element); }

inline PartCodec bf16() { return std::move(PartCodec::parse("codec", "bf16")).value(); }
inline float bf16_of(float value) { return f32_from_bf16(bf16_from_f32(value)); }

/// The training in one process.
struct Oracle {
  explicit Oracle(const Manifest& model, const char* rule = "adam")
      : optimizer(std::move(make_optimizer(options_of("full", 1, rule).optimizer)).value()) {
    for (const TensorInfo& tensor : model)
      for (std::uint64_t i = 0; i < tensor.elements(); ++i)
        values.push_back(initial_of(values.size()));
    state.assign(optimizer->slots(), Floats(values.size()));
  }
  void run(std::uint64_t until) {
    Floats gradient(values.size());
    while (steps < until) {
      ++steps;
      for (std::size_t i = 0; i < values.size(); ++i) {
        const float seen = has_bf16_values ? bf16_of(values[i]) : values[i];
        const float exact = gradient_of(steps, i, seen);
        gradient[i] = has_bf16_gradients ? bf16_of(exact) : exact;
      }
      std::vector<std::span<float>> slots(state.begin(), state.end());
      optimizer->step(steps, values, gradient, slots, values);
    }
  }
  std::unique_ptr<Optimizer> optimizer;
  Floats values;
  std::vector<Floats> state;
  std::uint64_t steps = 0;
  /// Of a job with codecs and 2 ranks or more: all ranks have the same gradient, so that the mean
  /// of what they send is exact.
  bool has_bf16_values = false, has_bf16_gradients = false;
};

/// Steps of a rank up to a number. `first`: element of the model at which its stage begins.
inline Status run(ShardedParameters& parameters, std::uint64_t until, std::uint64_t first = 0) {
  const ShardLayout& layout = parameters.layout();
  while (parameters.steps() < until) {
    for (std::size_t unit = 0; unit < layout.units().size(); ++unit) {
      CENTROID_TRY(parameters.gather(unit));
      std::uint64_t element = first + layout.units()[unit].elements.begin;
      const Range of_unit = layout.units()[unit].parameters;
      for (std::uint64_t index = of_unit.begin; index < of_unit.end(); ++index) {
        CENTROID_ASSIGN(const auto values, parameters.parameter(index));
        CENTROID_ASSIGN(const auto gradient, parameters.gradient(index));
        for (std::size_t i = 0; i < values.size(); ++i)
          gradient[i] += gradient_of(parameters.steps() + 1, element++, values[i]);
      }
      CENTROID_TRY(parameters.reduce(unit));
      CENTROID_TRY(parameters.release(unit));
    }
    if (const auto report = parameters.step(); !report.ok()) return report.error();
  }
  return {};
}

inline void expect_same(const ShardedParameters& parameters, const Oracle& oracle,
                        std::uint64_t first = 0) {
  ASSERT_EQ(parameters.steps(), oracle.steps);
  const ShardLayout& layout = parameters.layout();
  for (std::size_t unit = 0; unit < layout.units().size(); ++unit) {
    const Range shard = layout.shard(unit, parameters.shard_rank());
    const std::uint64_t begin = first + layout.units()[unit].elements.begin + shard.begin;
    const auto expect = [&](std::span<const float> is, const Floats& all) {
      ASSERT_EQ(is.size(), shard.count);
      EXPECT_EQ(std::memcmp(is.data(), all.data() + begin, is.size_bytes()), 0);
    };
    expect(parameters.shard(unit), oracle.values);
    for (std::size_t slot = 0; slot < oracle.state.size(); ++slot)
      expect(parameters.state(unit, slot), oracle.state[slot]);
  }
}

inline CheckpointInfo info_of(std::uint64_t version) {
  CheckpointInfo info;
  info.run_id = "sharded";
  info.version = Version(version);
  info.round = Round(version - 1);
  info.offset = 640;
  return info;
}

inline std::unique_ptr<ShardedParameters> made(const Group& group, const ShardedOptions& options,
                                               const Manifest& model = kModel) {
  const auto initial = [&](std::size_t index, std::span<float> out) {
    std::uint64_t element = 0;
    for (std::size_t i = 0; i < index; ++i) element += model[i].elements();
    for (float& value : out) value = initial_of(element++);
    return Status();
  };
  auto parameters = ShardedParameters::make(group, shapes_of(model), options, initial);
  EXPECT_TRUE(parameters.ok()) << parameters.error().to_string();
  return std::move(*parameters);
}

inline std::string refusal(const Status& status) {
  return status.ok() ? "not refused" : status.error().to_string();
}
template <class T>
std::string refusal(const Result<T>& result) {
  return result.ok() ? "not refused" : result.error().to_string();
}

class ShardedCheckpointTest : public ::testing::Test {
 protected:
  std::unique_ptr<ShardedCheckpoints> opened(const Group& group, const Manifest& model = kModel) {
    ShardedCheckpointOptions options;
    options.folder = root();
    options.timeout = 30s;
    auto checkpoints = ShardedCheckpoints::open(group, model, options);
    EXPECT_TRUE(checkpoints.ok()) << refusal(checkpoints);
    return std::move(*checkpoints);
  }
  /// A job that writes a checkpoint of each of these steps, with the version step + 1.
  void write(std::uint32_t world, const char* sharding, std::vector<std::uint64_t> steps,
             const char* rule = "adam", const std::string& run_id = "sharded") {
    Job job(Carrier::kInProcess, world);
    job.run([&](Group& group) {
      const auto checkpoints = opened(group);
      const auto parameters = made(group, options_of(sharding, world, rule));
      for (const std::uint64_t step : steps) {
        ASSERT_TRUE(succeeds(run(*parameters, step)));
        CheckpointInfo info = info_of(step + 1);
        info.run_id = run_id;
        ASSERT_TRUE(succeeds(checkpoints->write(*parameters, info)));
      }
    });
  }
  /// Restore on `world` ranks; the failure, which is that of all.
  std::string restored(std::uint32_t world, std::optional<Version> version,
                       const Manifest& model = kModel, const char* rule = "adam") {
    Job job(Carrier::kInProcess, world);
    std::vector<std::string> refusals(world);
    job.run([&](Group& group) {
      refusals[group.rank()] =
          refusal(opened(group, model)
                      ->restore(shapes_of(model), options_of("full", world, rule), version));
    });
    for (const std::string& one : refusals) EXPECT_EQ(one, refusals[0]);
    return refusals[0];
  }
  fs::path root() const { return directory_.path() / "checkpoints"; }
  fs::path folder(std::uint64_t version) const {
    const std::string digits = std::to_string(version);
    return root() / ("checkpoint-" + std::string(12 - digits.size(), '0') + digits);
  }
  CheckpointDirectory view() const { return CheckpointDirectory::view(root()).value(); }

  TemporaryDirectory directory_;
};

}  // namespace centroid::parallel::testing
