#include "worker/node/replica_group.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/permutation.h"
#include "common/base/random.h"
#include "common/tensor/chunk_plan.h"
#include "tests/support/examples.h"
#include "worker/data/batch_loader.h"
#include "worker/model/transformer.h"

namespace centroid::worker {
namespace {

using namespace test;

using testing::AllOf;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::uint64_t kFeatures = 12;

std::unique_ptr<Model> small_model() {
  auto model = make_model("mlp:12-40-5,gelu");
  CENTROID_CHECK(model.ok());
  return std::move(model).value();
}

std::unique_ptr<Model> small_transformer(const std::string& more) {
  return make_model("transformer:layers=1,width=8,heads=2,context=6,vocabulary=20" + more).value();
}

std::string cpus(std::size_t count) {
  std::string all = "cpu:0";
  for (std::size_t i = 1; i < count; ++i) all += ",cpu:" + std::to_string(i);
  return all;
}

std::unique_ptr<ReplicaGroup> group_of(const Model& model, std::size_t count) {
  auto group = make_replica_group(model, {.devices = cpus(count)});
  CENTROID_CHECK(group.ok());
  model.initialize(7, (*group)->params());
  return std::move(group).value();
}

std::vector<float> gradient_of(ReplicaGroup& group) {
  return {group.gradients().begin(), group.gradients().end()};
}

TEST(ReplicaGroup, ManyDevicesEqualOneDeviceWithTheWholeBatch) {
  const auto model = small_model();
  const Dataset data = random_data(100, 1);
  // Even, uneven, and fewer samples than devices.
  for (const std::uint64_t samples : {96, 97, 13, 3, 1}) {
    const auto single = group_of(*model, 1);
    const auto expected = single->step(data, first(samples), {});
    ASSERT_TRUE(expected.ok());
    for (const std::size_t devices : {2, 3, 8}) {
      SCOPED_TRACE(std::to_string(samples) + " samples, " + std::to_string(devices) + " devices");
      const auto group = group_of(*model, devices);
      const auto result = group->step(data, first(samples), {});
      ASSERT_TRUE(result.ok());
      EXPECT_LE(difference(gradient_of(*single), gradient_of(*group)), 1e-5);
      EXPECT_NEAR(result->loss_sum, expected->loss_sum, 1e-5 * expected->loss_sum);
      EXPECT_EQ(result->correct, expected->correct);
      EXPECT_EQ(result->samples, samples);
      EXPECT_GT(result->compute_seconds, 0.0);
    }
  }
}

/// Ten samples on three devices, 4, 3 and 3, are ten on one: 1e-6 of the largest number.
TEST(ReplicaGroup, SharesOfTenSamplesGiveTheGradientOfTen) {
  const auto model = small_model();
  const Dataset data = random_data(10, 6);
  EXPECT_EQ(part_of(10, 3, 0).size(), 4U);
  EXPECT_EQ(part_of(10, 3, 2).size(), 3U);
  const auto one = group_of(*model, 1), three = group_of(*model, 3);
  ASSERT_TRUE(one->step(data, first(10), {}).ok());
  ASSERT_TRUE(three->step(data, first(10), {}).ok());
  EXPECT_LE(difference(gradient_of(*one), gradient_of(*three)), 1e-6);
}

TEST(ReplicaGroup, GradientIsTheMeanWeightedBySamplesInDeviceOrder) {
  const auto model = small_model();
  const Dataset data = random_data(8, 2);
  const auto group = group_of(*model, 3);
  ASSERT_TRUE(group->step(data, first(8), {}).ok());
  // Shares 3, 3, 2.
  std::vector<float> expected(group->gradients().size(), 0.0F);
  const std::vector<std::vector<std::uint64_t>> shares = {{0, 1, 2}, {3, 4, 5}, {6, 7}};
  for (const auto& share : shares) {
    const auto single = group_of(*model, 1);
    ASSERT_TRUE(single->step(data, share, {}).ok());
    const auto weight = static_cast<float>(static_cast<double>(share.size()) / 8.0);
    for (std::size_t i = 0; i < expected.size(); ++i)
      expected[i] += weight * single->gradients()[i];
  }
  EXPECT_EQ(gradient_of(*group), expected);
}

// The mean of the devices' norms is larger: what they disagree about cancels in the mean.
TEST(ReplicaGroup, GradientNormIsThatOfTheMean) {
  const auto model = small_model();
  const Dataset data = random_data(100, 1);
  const auto group = group_of(*model, 3), single = group_of(*model, 1);
  ASSERT_TRUE(group->step(data, first(13), {}).ok());
  double squares = 0, mean_of_norms = 0;
  for (const float g : group->gradients()) squares += double{g} * double{g};
  EXPECT_NEAR(group->gradient_norm().value(), std::sqrt(squares), 1e-9 * std::sqrt(squares));
  const auto all = first(13);
  for (std::size_t d = 0; d < 3; ++d) {
    const auto part = part_of(all.size(), 3, d);
    ASSERT_TRUE(single->step(data, std::span(all).subspan(part.begin, part.size()), {}).ok());
    mean_of_norms += single->gradient_norm().value() / 3;
  }
  EXPECT_GT(mean_of_norms, 1.05 * std::sqrt(squares));
}

TEST(ReplicaGroup, RepeatsBitForBit) {
  const auto model = small_model();
  const Dataset data = random_data(64, 3);
  const auto group = group_of(*model, 4);
  ASSERT_TRUE(group->step(data, first(61), {}).ok());
  const auto expected = gradient_of(*group);
  for (int repeat = 0; repeat < 20; ++repeat) {
    ASSERT_TRUE(group->step(data, first(61), {}).ok());
    ASSERT_EQ(gradient_of(*group), expected);
  }
}

TEST(ReplicaGroup, AnnouncesEveryTensorOnceOneAtATimeWhenItIsFinal) {
  const auto model = small_model();
  const Dataset data = random_data(64, 4);
  for (const std::size_t devices : {1, 2, 5}) {
    const auto group = group_of(*model, devices);
    for (const std::uint64_t samples : {64, 3, 0}) {
      for (int repeat = 0; repeat < 10; ++repeat) {
        std::vector<std::uint32_t> order;  // without a lock: calls are serialised
        std::vector<float> seen(group->gradients().size());
        std::atomic<int> inside = 0;
        std::size_t end = seen.size();
        const auto result = group->step(data, first(samples), [&](TensorId tensor) {
          EXPECT_EQ(inside.fetch_add(1), 0);
          order.push_back(tensor.value);
          const std::size_t begin = end - model->manifest()[tensor.value].elements();
          std::copy_n(group->gradients().begin() + static_cast<std::ptrdiff_t>(begin), end - begin,
                      seen.begin() + static_cast<std::ptrdiff_t>(begin));
          end = begin;
          inside.fetch_sub(1);
        });
        ASSERT_TRUE(result.ok());
        EXPECT_THAT(order, ElementsAre(3, 2, 1, 0));
        EXPECT_EQ(seen, gradient_of(*group));
      }
    }
    EXPECT_THAT(gradient_of(*group), testing::Each(0.0F)) << "a step without samples";
  }
}

TEST(ReplicaGroup, EvaluatesEverySampleOnce) {
  const auto model = small_model();
  const Dataset data = random_data(1000, 5);
  const auto single = group_of(*model, 1);
  const auto whole = single->evaluate(data, 0, 1000);
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(whole->samples, 1000U);
  const auto group = group_of(*model, 3);
  double loss = 0;
  std::uint64_t correct = 0;
  std::uint64_t samples = 0;
  for (const auto& [begin, end] : std::vector<std::pair<std::uint64_t, std::uint64_t>>{
           {0, 1}, {1, 900}, {900, 900}, {900, 1000}}) {
    const auto part = group->evaluate(data, begin, end);
    ASSERT_TRUE(part.ok());
    loss += part->loss_sum;
    correct += part->correct;
    samples += part->samples;
  }
  EXPECT_EQ(samples, 1000U);
  EXPECT_EQ(correct, whole->correct);
  EXPECT_NEAR(loss, whole->loss_sum, 1e-5 * whole->loss_sum);
}

TEST(ReplicaGroup, RefusesWhatDoesNotFit) {
  const auto model = small_model();
  const auto group = group_of(*model, 2);
  const Dataset data = random_data(10, 6);
  const auto code_of = [](const auto& result) {
    return result.ok() ? std::string("ok") : std::string(to_string(result.error().code()));
  };
  EXPECT_EQ(code_of(group->step(data, std::vector<std::uint64_t>{0, 10}, {})), "invalid_argument");
  EXPECT_EQ(code_of(group->evaluate(data, 0, 11)), "invalid_argument");
  EXPECT_EQ(code_of(group->evaluate(data, 6, 5)), "invalid_argument");
  Dataset wide = data;
  wide.features = 13;
  EXPECT_EQ(code_of(group->step(wide, {}, {})), "invalid_argument");
  Dataset many = data;
  many.classes = 6;
  EXPECT_EQ(code_of(group->evaluate(many, 0, 1)), "invalid_argument");
  EXPECT_EQ(code_of(group->step(data, first(10), {})), "ok");
}

TEST(MakeReplicaGroup, NamesWhatIsWrongWithTheDevices) {
  const auto model = small_model();
  const auto error_of = [&](const std::string& devices) {
    const auto group = make_replica_group(*model, {.devices = devices});
    return group.ok() ? std::string("ok") : group.error().to_string();
  };
  EXPECT_EQ(error_of("cpu"), "ok");
  EXPECT_THAT(error_of("cpu:1,cpu,cpu:0"),
              AllOf(HasSubstr("invalid_argument"), HasSubstr("cpu:0 twice")));
  EXPECT_THAT(error_of(""), AllOf(HasSubstr("invalid_argument"), HasSubstr("at least one device")));
  EXPECT_THAT(error_of("cpu:0,"), AllOf(HasSubstr("invalid_argument"), HasSubstr("'cpu:0,'")));
  EXPECT_THAT(error_of("cpu:0,tpu:1"), HasSubstr("'tpu:1'"));
  // Built without CUDA, or models cannot use it; or there is no GPU.
  EXPECT_THAT(error_of("cuda:0"), AnyOf(HasSubstr("unimplemented"), HasSubstr("failed_precon")));
}

/// Throws in the step of one replica.
class FailingModel final : public Model {
 public:
  FailingModel(std::unique_ptr<Model> inner, std::shared_ptr<std::atomic<int>> clones,
               std::shared_ptr<std::atomic<bool>> is_on, int number)
      : inner_(std::move(inner)),
        clones_(std::move(clones)),
        is_on_(std::move(is_on)),
        number_(number) {}
  const Manifest& manifest() const override { return inner_->manifest(); }
  std::uint64_t features() const override { return inner_->features(); }
  std::uint32_t classes() const override { return inner_->classes(); }
  std::string spec() const override { return inner_->spec(); }
  std::uint64_t work_bytes(std::uint64_t samples, bool with_gradient) const override {
    return inner_->work_bytes(samples, with_gradient);
  }
  void initialize(std::uint64_t seed, std::span<float> params) const override {
    inner_->initialize(seed, params);
  }
  void queue_step(const Batch& batch, std::span<const float> params, std::span<float> gradients,
                  const std::function<void(TensorId)>& on_ready) override {
    if (number_ == 1 && *is_on_) throw std::runtime_error("no power");
    inner_->queue_step(batch, params, gradients, on_ready);
  }
  void queue_evaluate(const Batch& batch, std::span<const float> params) override {
    if (number_ == 1 && *is_on_) throw std::bad_alloc();
    inner_->queue_evaluate(batch, params);
  }
  Backend& backend() override { return inner_->backend(); }
  std::unique_ptr<Model> clone_on(std::unique_ptr<Backend> backend) const override {
    return std::make_unique<FailingModel>(inner_->clone_on(std::move(backend)), clones_, is_on_,
                                          (*clones_)++);
  }

 private:
  std::unique_ptr<Model> inner_;
  std::shared_ptr<std::atomic<int>> clones_;
  std::shared_ptr<std::atomic<bool>> is_on_;
  int number_;
};

TEST(ReplicaGroup, AnExceptionOnADeviceIsAnErrorThatNamesItAndTheNextStepWorks) {
  const auto is_on = std::make_shared<std::atomic<bool>>(true);
  const FailingModel model(small_model(), std::make_shared<std::atomic<int>>(0), is_on, -1);
  const auto group = group_of(model, 3);
  const Dataset data = random_data(10, 7);
  const auto step = group->step(data, first(10), {});
  ASSERT_FALSE(step.ok());
  EXPECT_EQ(step.error().code(), ErrorCode::kInternal);
  EXPECT_THAT(step.error().message(), AllOf(HasSubstr("cpu:1"), HasSubstr("no power")));
  const auto evaluated = group->evaluate(data, 0, 10);
  ASSERT_FALSE(evaluated.ok());
  EXPECT_THAT(evaluated.error().message(), AllOf(HasSubstr("cpu:1"), HasSubstr("out of memory")));
  *is_on = false;
  int calls = 0;
  ASSERT_TRUE(group->step(data, first(10), [&](TensorId) { ++calls; }).ok());
  EXPECT_EQ(calls, 4);
  const auto plain = group_of(*small_model(), 3);
  ASSERT_TRUE(plain->step(data, first(10), {}).ok());
  EXPECT_EQ(gradient_of(*group), gradient_of(*plain));
}

TEST(ReplicaGroup, AnExceptionOfTheCallbackIsAnError) {
  const auto model = small_model();
  const auto group = group_of(*model, 2);
  const Dataset data = random_data(10, 8);
  const auto step =
      group->step(data, first(10), [](TensorId) { throw std::runtime_error("callback broke"); });
  ASSERT_FALSE(step.ok());
  EXPECT_THAT(step.error().message(), HasSubstr("callback broke"));
}

Dataset random_tokens(std::uint64_t samples, std::uint64_t seed) {
  CounterRng rng(seed);
  Dataset data;
  data.name = "text";
  data.samples = samples;
  data.features = 6;
  data.classes = data.vocabulary = 20;
  data.token_begin = {0};
  for (std::uint64_t i = 0; i < samples; ++i) {
    for (std::uint64_t j = 0; j < (i + 1 == samples ? 3U : 7U); ++j)
      data.tokens.push_back(static_cast<std::uint32_t>(rng.below(20)));
    data.token_begin.push_back(data.tokens.size());
  }
  return data;
}

// What a second device computes must count: another sample in its share only, another gradient.
TEST(ReplicaGroup, EveryDevicesShareChangesTheResult) {
  const auto model = small_model();
  const Dataset data = random_data(9, 3);
  const auto group = group_of(*model, 2);
  ASSERT_TRUE(group->step(data, std::vector<std::uint64_t>{0, 1, 2, 3}, {}).ok());
  const auto before = gradient_of(*group);
  ASSERT_TRUE(group->step(data, std::vector<std::uint64_t>{0, 1, 2, 8}, {}).ok());
  EXPECT_GT(difference(before, gradient_of(*group)), 1e-3);
  ASSERT_TRUE(group->step(data, std::vector<std::uint64_t>{0, 1, 2, 3}, {}).ok());
  EXPECT_EQ(gradient_of(*group), before);
}

TEST(ReplicaGroup, TheGradientIsAsLongAsWhatIsTrained) {
  std::vector<std::unique_ptr<Model>> models;
  models.push_back(small_model());
  models.push_back(small_transformer(""));
  models.push_back(small_transformer(",tied=yes"));
  for (const auto& model : models)
    for (const std::size_t devices : {1, 2, 3, 4}) {
      const auto group = group_of(*model, devices);
      EXPECT_EQ(group->devices(), devices);
      std::size_t trained = 0;
      for (const auto& tensor : model->manifest()) trained += tensor.elements();
      EXPECT_EQ(group->gradients().size(), trained);
      EXPECT_EQ(group->params().size(), trained);
      const Dataset data = model->vocabulary() > 0 ? random_tokens(8, 1) : random_data(8, 1);
      const auto step = group->step(data, first(8), {});
      ASSERT_TRUE(step.ok()) << step.error().to_string();
      EXPECT_TRUE(std::isfinite(step->loss_sum));
      // Every token that follows another: the last sequence has three.
      EXPECT_EQ(step->samples, model->vocabulary() > 0 ? 7u * 6 + 2 : 8u);
      std::size_t moved = 0;
      for (const float g : group->gradients()) {
        ASSERT_TRUE(std::isfinite(g));
        moved += g != 0 ? 1 : 0;
      }
      EXPECT_GT(moved, trained / 2);
    }
}

TEST(ReplicaGroup, DevicesTrainATransformerAsOneDoesDropoutIncluded) {
  const auto model = small_transformer(",dropout=0.3");
  const Dataset data = random_tokens(40, 1);
  const auto single = group_of(*model, 1);
  single->use_noise(99);
  const auto expected = single->step(data, first(40), {});
  ASSERT_TRUE(expected.ok());
  EXPECT_EQ(expected->samples, 39U * 6 + 2);  // tokens
  const auto whole = gradient_of(*single);
  for (const std::size_t devices : {2, 3}) {
    const auto group = group_of(*model, devices);
    group->use_noise(99);
    const auto result = group->step(data, first(40), {});
    ASSERT_TRUE(result.ok());
    EXPECT_LE(difference(whole, gradient_of(*group)), 1e-5);
    EXPECT_NEAR(result->loss_sum, expected->loss_sum, 1e-5 * expected->loss_sum);
    EXPECT_EQ(result->samples, expected->samples);
  }
  single->use_noise(100);
  ASSERT_TRUE(single->step(data, first(40), {}).ok());
  EXPECT_GT(difference(whole, gradient_of(*single)), 1e-2);
  const auto evaluated = single->evaluate(data, 0, 40);
  ASSERT_TRUE(evaluated.ok());
  EXPECT_EQ(evaluated->samples, expected->samples);
}

TEST(ReplicaGroup, LoadingAheadChangesNoBit) {
  const auto model = small_transformer("");
  const Dataset data = random_tokens(50, 1);
  const auto order = permutation(50, 1, 1);
  std::vector<std::span<const std::uint64_t>> steps;
  for (std::size_t at = 0; at < 50; at += 7)  // the last one has a single sample
    steps.push_back(std::span(order).subspan(at, std::min<std::size_t>(7, 50 - at)));
  std::vector<std::vector<float>> gradients;
  for (const std::uint64_t ahead : {0, 3}) {
    const auto group =
        make_replica_group(*model, {.devices = cpus(2), .load_ahead = ahead}).value();
    model->initialize(7, group->params());
    group->expect(data, steps);
    std::size_t number = 0;
    for (const auto step : steps) {
      ASSERT_TRUE(group->step(data, step, {}).ok());
      if (ahead == 0)
        gradients.push_back(gradient_of(*group));
      else
        EXPECT_EQ(gradient_of(*group), gradients[number++]);
    }
  }
}

TEST(ReplicaGroup, LongerBatchesAreFewerAhead) {
  const auto ahead = [](std::uint64_t depth, std::uint64_t batch, std::uint64_t samples) {
    return make_replica_group(*small_model(),
                              {.devices = "cpu:0", .load_ahead = depth, .batch = batch})
        .value()
        ->load_ahead(samples);
  };
  EXPECT_EQ(ahead(8, 10, 10), 8u);
  EXPECT_EQ(ahead(8, 10, 3), 8u);
  EXPECT_EQ(ahead(8, 10, 20), 4u);
  EXPECT_EQ(ahead(8, 10, 1000), 1u);
  EXPECT_EQ(ahead(8, 0, 1000), 8u) << "the batch is not known";
  EXPECT_EQ(ahead(0, 10, 10), 0u);
}

TEST(CheckFits, NamesWhatModelAndDataTakeAndHave) {
  const auto text = random_tokens(3, 1), rows = random_data(3, 1);
  const auto said = [](const Model& model, const Dataset& data) {
    const Status fits = check_fits(model, data);
    return fits.ok() ? std::string("ok") : fits.error().message();
  };
  EXPECT_EQ(said(*small_model(), rows), "ok");
  EXPECT_EQ(said(*small_transformer(""), text), "ok");
  EXPECT_THAT(said(*small_transformer(""), rows),
              AllOf(HasSubstr("sequences of 6 tokens out of 20 without classes"),
                    HasSubstr("12 features and 5 classes")));
  EXPECT_THAT(said(*small_transformer(",classes=20"), text), HasSubstr("and 20 classes"));
  EXPECT_NE(said(*small_model(), text), "ok");
}

/// A model with frozen weights that nobody has read: what it would take.
class PlannedModel final : public Model {
 public:
  explicit PlannedModel(const std::string& spec)
      : config_(TransformerConfig::parse(spec).value()), manifest_(config_.trained()), like_([&] {
          TransformerConfig whole = config_;
          whole.lora = {};
          return whole;
        }()) {}
  const Manifest& manifest() const override { return manifest_; }
  std::uint64_t features() const override { return like_.features(); }
  std::uint32_t classes() const override { return like_.classes(); }
  std::uint32_t vocabulary() const override { return like_.vocabulary(); }
  std::uint64_t targets() const override { return like_.targets(); }
  std::string spec() const override { return config_.spec(); }
  std::uint64_t work_bytes(std::uint64_t samples, bool with_gradient) const override {
    return like_.work_bytes(samples, with_gradient);
  }
  std::uint64_t frozen_bytes() const override { return numbers() * sizeof(float); }
  std::uint64_t numbers() const {
    std::uint64_t sum = 0;
    for (const auto& tensor : config_.whole()) sum += tensor.elements();
    return sum;
  }
  void initialize(std::uint64_t, std::span<float>) const override {}
  void queue_step(const Batch&, std::span<const float>, std::span<float>,
                  const std::function<void(TensorId)>&) override {}
  void queue_evaluate(const Batch&, std::span<const float>) override {}
  Backend& backend() override { return like_.backend(); }
  std::unique_ptr<Model> clone_on(std::unique_ptr<Backend>) const override { return nullptr; }

 private:
  TransformerConfig config_;
  Manifest manifest_;
  Transformer like_;
};

/// Adapters of rank 16 beside two billion frozen numbers, nearly as many as a model may have: a
/// hundredth of them is trained, and the frozen weights, which are f32 here, take most of the
/// memory, once for all devices: 4 bytes each, so that four billion would take 16 GB and not 8.
TEST(Memory, OfAdaptersBesideBillionsIsThatOfTheirNumbers) {
  const PlannedModel model(
      "transformer:layers=24,width=2560,heads=20,hidden=6912,mlp=swiglu,context=512,vocabulary="
      "32000,tied=yes,lora=16");
  const std::uint64_t numbers = model.numbers();
  EXPECT_GT(numbers, 1'900'000'000u);
  EXPECT_LT(numbers, 2'100'000'000u);
  std::uint64_t trained = 0;
  for (const auto& tensor : model.manifest()) trained += tensor.elements();
  EXPECT_LT(trained, numbers / 50);
  const GroupMemory need = memory_of(model, 2, 2, {});
  EXPECT_EQ(need.shared, 4 * numbers + 8 * trained);
  const std::uint64_t work =
      std::max(model.work_bytes(1, true), model.work_bytes(evaluate_samples(model), false));
  const std::uint64_t batch = batch_bytes(Dataset(), evaluate_samples(model));
  EXPECT_EQ(need.per_device, 4 * trained + work + batch);
  EXPECT_EQ(need.total(), need.shared + need.batch + 2 * need.per_device);
  EXPECT_GT(2 * need.shared, 15'000'000'000u);  // of twice as many numbers
  EXPECT_GT(4 * numbers, need.total() / 2);
  EXPECT_FALSE(check_memory(need, {4 * numbers, "memory_limit"}).ok());
  const auto larger = TransformerConfig::parse(
      "transformer:layers=36,width=2560,heads=20,hidden=9728,mlp=swiglu,vocabulary=151936");
  ASSERT_FALSE(larger.ok());
  EXPECT_THAT(larger.error().message(), HasSubstr("more than 2147483648 parameters"));
}

/// Of a language model of 33 million numbers, with adapters of rank 16 on all its matrices.
TEST(Memory, AdaptersAreASmallPart) {
  const auto config =
      TransformerConfig::parse(
          "transformer:layers=8,width=512,heads=8,context=256,vocabulary=16000,tied=yes,lora=16")
          .value();
  std::size_t numbers = 0, trained = 0;
  for (const auto& tensor : config.whole()) numbers += tensor.elements();
  const Transformer model(config, std::make_shared<const BaseWeights>(std::vector<float>(numbers)));
  for (const auto& tensor : model.manifest()) trained += tensor.elements();
  EXPECT_GT(numbers, 30'000'000u);
  EXPECT_LT(trained, numbers / 10);
  EXPECT_EQ(model.frozen_bytes(), numbers * sizeof(float));
  const GroupMemory need = memory_of(model, 2, 16, {});
  EXPECT_EQ(need.shared, (numbers + 2 * trained) * sizeof(float));
  EXPECT_GE(need.per_device, model.work_bytes(8, true));
}

TEST(Memory, IsCountedBeforeItIsTakenAndRefusedWithTheNumbers) {
  const auto model = small_transformer("");
  DataSplit data{random_tokens(100, 1), random_tokens(10, 2)};
  const GroupMemory one = memory_of(*model, 1, 2000, data), four = memory_of(*model, 4, 2000, data);
  EXPECT_GE(one.per_device, model->work_bytes(2000, true));
  EXPECT_GE(four.per_device, model->work_bytes(500, true));
  EXPECT_LT(four.per_device, one.per_device);
  EXPECT_EQ(four.shared, one.shared);
  EXPECT_EQ(four.total(), four.shared + four.data + four.batch + 4 * four.per_device);
  EXPECT_TRUE(check_memory(one, {one.total(), "memory_limit"}).ok());
  const Status refused = check_memory(one, {one.total() - 1, "memory_limit"});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(
      refused.error().message(),
      AllOf(HasSubstr(std::to_string(one.total())), HasSubstr(std::to_string(one.total() - 1)),
            HasSubstr(std::to_string(one.per_device)), HasSubstr("Lower --batch")));
}

}  // namespace
}  // namespace centroid::worker
