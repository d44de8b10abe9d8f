#include "worker/model/transformer_part.h"

#include <algorithm>
#include <barrier>
#include <cmath>
#include <limits>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/examples.h"
#include "tests/support/whole_training.h"
#include "worker/model/kernels.h"
#include "worker/model/transformer.h"

namespace centroid::worker::transformer_part_test {
namespace {

using namespace test;
using centroid::test::Samples;
using testing::HasSubstr;
using Floats = std::vector<float>;

/// Ranks that are threads of this process.
class Meeting {
 public:
  explicit Meeting(std::uint32_t ranks) : values_(ranks), barrier_(ranks) {}

  template <class Combine>
  void reduce(std::uint32_t rank, std::span<float> values, const Combine& combine) {
    values_[rank] = values;
    barrier_.arrive_and_wait();
    Floats out(values_[0].begin(), values_[0].end());
    for (std::size_t other = 1; other < values_.size(); ++other)
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = combine(out[i], values_[other][i]);
    barrier_.arrive_and_wait();
    std::ranges::copy(out, values.begin());
  }

 private:
  std::vector<std::span<float>> values_;
  std::barrier<> barrier_;
};

class ThreadReducer final : public PartReducer {
 public:
  ThreadReducer(Meeting& meeting, std::uint32_t rank) : meeting_(meeting), rank_(rank) {}
  void sum(std::span<float> values) override {
    meeting_.reduce(rank_, values, [](float a, float b) { return a + b; });
  }
  void largest(std::span<float> values) override {
    meeting_.reduce(rank_, values, [](float a, float b) { return std::max(a, b); });
  }

 private:
  Meeting& meeting_;
  const std::uint32_t rank_;
};

std::unique_ptr<Model> model_of(const std::string& spec) {
  return std::move(make_model(spec)).value();
}

TransformerPart part_of(const std::string& spec, std::uint32_t rank, std::uint32_t ranks) {
  const auto config = std::move(TransformerConfig::parse(spec)).value();
  return std::move(TransformerPart::of(config, rank, ranks)).value();
}

std::string refusal(const std::string& spec, std::uint32_t ranks) {
  const Status set = model_of(spec)->layered()->set_part({0, ranks});
  return set.ok() ? "not refused" : set.error().to_string();
}

double norm(std::span<const float> values) {
  double sum = 0;
  for (const float x : values) sum += double{x} * x;
  return std::sqrt(sum);
}

/// What a rank computes from its part of the same parameters.
struct Outcome {
  Floats initial, gradient;
  StepResult trained, evaluated;
};

std::vector<Outcome> run_parts(const std::string& spec, std::uint32_t ranks, const Batch& batch) {
  Meeting meeting(ranks);
  std::vector<Outcome> out(ranks);
  std::vector<std::jthread> threads;
  for (std::uint32_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      ThreadReducer reducer(meeting, rank);
      const auto model = model_of(spec);
      EXPECT_TRUE(model->layered()->set_part({rank, ranks, &reducer}).ok());  // others wait for us
      const auto own = model->clone();                                        // has the part too
      Outcome& mine = out[rank];
      mine.initial.resize(elements_of(own->manifest()));
      mine.gradient.resize(mine.initial.size());
      own->initialize(5, mine.initial);
      mine.trained = own->step(batch, mine.initial, mine.gradient, [](TensorId) {});
      mine.evaluated = own->evaluate(batch, mine.initial);
    });
  threads.clear();
  return out;
}

void expect_same(const StepResult& is, const StepResult& should) {
  EXPECT_NEAR(is.loss_sum, should.loss_sum, 1e-6 * should.loss_sum);
  EXPECT_EQ(is.correct, should.correct);
  EXPECT_EQ(is.targets, should.targets);
}

constexpr const char* kWhole =
    "transformer:layers=2,width=24,heads=4,hidden=20,context=6,vocabulary=22";

class Parts : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Models, Parts,
                         testing::Values(std::string(), ",mlp=swiglu,norm=layer", ",tied=yes",
                                         ",classes=7", ",dropout=0.2,norm=layer"));

TEST_P(Parts, HaveTheGradientsAndLossesOfOneProcess) {
  const std::string spec = kWhole + GetParam();
  const auto whole = model_of(spec);
  const Samples samples(*whole, 5, 1);
  const Batch batch = samples.part(0, 5);
  Floats params(elements_of(whole->manifest())), gradient(params.size());
  whole->initialize(5, params);
  const StepResult trained = whole->step(batch, params, gradient, [](TensorId) {});
  const StepResult evaluated = whole->evaluate(batch, params);
  for (const std::uint32_t ranks : {2U, 4U}) {
    const auto is = run_parts(spec, ranks, batch);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      const TransformerPart part = part_of(spec, rank, ranks);
      const Manifest manifest = part.cut(whole->manifest());
      ASSERT_EQ(elements_of(manifest), is[rank].initial.size());
      expect_same(is[rank].trained, trained);
      expect_same(is[rank].evaluated, evaluated);
      std::size_t at = 0, own_at = 0;
      for (std::size_t t = 0; t < manifest.size(); ++t) {
        SCOPED_TRACE(manifest[t].name + " of rank " + std::to_string(rank) + " of " +
                     std::to_string(ranks));
        const TensorInfo& info = whole->manifest()[t];
        Floats should(manifest[t].elements());
        const auto of_rank = [&](const Floats& values) {
          return std::span(values).subspan(own_at, should.size());
        };
        part.cut(info, std::span(params).subspan(at, info.elements()), should);
        EXPECT_TRUE(std::ranges::equal(of_rank(is[rank].initial), should));
        const auto of_whole = std::span<const float>(gradient).subspan(at, info.elements());
        part.cut(info, of_whole, should);
        for (std::size_t i = 0; i < should.size(); ++i) should[i] -= of_rank(is[rank].gradient)[i];
        EXPECT_LE(norm(should), 2e-6 * norm(of_whole));
        at += info.elements();
        own_at += should.size();
      }
    }
  }
}

TEST(TransformerPart, EveryElementIsOnOneRankOrOnAll) {
  for (const std::string more : {"", ",mlp=swiglu,norm=layer", ",classes=7"}) {
    const std::string spec = kWhole + more;
    const auto whole = model_of(spec);
    for (const TensorInfo& tensor : whole->manifest()) {
      Floats numbers(tensor.elements());
      std::vector<std::uint32_t> seen(numbers.size());
      for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i);
      bool is_divided = false;
      for (std::uint32_t rank = 0; rank < 4; ++rank) {
        const TransformerPart part = part_of(spec, rank, 4);
        Floats own(part.cut(Manifest{tensor})[0].elements());
        part.cut(tensor, numbers, own);
        is_divided = own.size() < numbers.size();
        for (const float number : own) ++seen[static_cast<std::size_t>(number)];
      }
      EXPECT_EQ(is_divided, tensor.shape.size() > 1 && tensor.name != "embed.positions.weight");
      EXPECT_THAT(seen, testing::Each(is_divided ? 1U : 4U)) << tensor.name;
    }
  }
}

TEST(TransformerPart, APartNeedsLessMemory) {
  const std::string spec = "transformer:layers=2,width=64,heads=4,context=32,vocabulary=256";
  const auto whole = model_of(spec), part = model_of(spec);
  ASSERT_TRUE(part->layered()->set_part({1, 4}).ok());
  EXPECT_LT(part->work_bytes(8, true), whole->work_bytes(8, true));
  std::uint64_t matrices = 0;
  for (const TensorInfo& tensor : part->manifest())
    if (tensor.name.starts_with("blocks.") && tensor.shape.size() > 1)
      matrices += tensor.elements();
  EXPECT_EQ(matrices, 2 * 12 * 64 * 64 / 4U);
  EXPECT_EQ(part->spec(), whole->spec());
  EXPECT_EQ(part->classes(), whole->classes());
}

TEST(TransformerPart, ModelsThatCannotBeDividedAreRefusedWithNumbers) {
  EXPECT_THAT(refusal("transformer:width=12,heads=3,hidden=16", 2),
              HasSubstr("tp=2: heads 3 is no multiple of 2"));
  EXPECT_THAT(refusal("transformer:width=16,heads=4,hidden=30", 4),
              HasSubstr("hidden 30 is no multiple of 4"));
  EXPECT_THAT(refusal("transformer:width=16,heads=4,vocabulary=3", 4),
              HasSubstr("vocabulary 3 is below 4"));
  EXPECT_THAT(refusal("transformer:width=16,heads=4,classes=2", 4),
              HasSubstr("classes 2 is below 4"));
  EXPECT_THAT(refusal("mlp:12-9-4", 2), HasSubstr("only transformers"));
  const auto config = std::move(TransformerConfig::parse("transformer:width=16,lora=2")).value();
  const auto base = std::make_shared<const BaseWeights>(Floats(elements_of(config.whole())));
  Transformer adapted(config, base);
  const Status set = static_cast<Model&>(adapted).layered()->set_part({0, 2});
  ASSERT_FALSE(set.ok());
  EXPECT_THAT(set.error().to_string(), HasSubstr("base weights"));
}

/// Losses of logits whose columns three parts have.
StepResult loss_of_parts(const std::vector<std::uint32_t>& labels, std::size_t classes, float share,
                         Floats& logits) {
  const std::size_t rows = labels.size();
  const PartRange ranges[] = {{0, 2}, {2, 3}, {5, classes - 5}};
  std::vector<Floats> own;
  Floats largest(rows, -std::numeric_limits<float>::infinity()), terms(3 * rows);
  std::vector<kernels::LossPart> parts;
  std::vector<Floats> tops, sums;
  for (const PartRange& range : ranges) {
    Floats& mine = own.emplace_back();
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t j = 0; j < range.count; ++j)
        mine.push_back(logits[r * classes + range.begin + j]);
    tops.emplace_back(rows);
    sums.emplace_back(3 * rows);
  }
  for (std::size_t p = 0; p < 3; ++p) {
    parts.push_back({labels, ranges[p], share, own[p].data(), tops[p].data(), sums[p].data()});
    kernels::largest(parts[p]);
    for (std::size_t r = 0; r < rows; ++r) largest[r] = std::max(largest[r], tops[p][r]);
  }
  for (std::size_t p = 0; p < 3; ++p) {
    tops[p] = largest;
    kernels::exponentials(parts[p]);
    for (std::size_t i = 0; i < terms.size(); ++i) terms[i] += sums[p][i];
  }
  StepResult out;
  for (std::size_t p = 0; p < 3; ++p) {
    sums[p] = terms;
    out = kernels::cross_entropy(parts[p], true);
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t j = 0; j < ranges[p].count; ++j)
        logits[r * classes + ranges[p].begin + j] = own[p][r * ranges[p].count + j];
  }
  return out;
}

TEST(TransformerPart, LossesOfDividedLogitsCountTiesAndIgnoreRowsAsWholeOnesDo) {
  constexpr std::size_t kClasses = 9;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  struct Case {
    std::uint32_t label;
    Floats logits;
    bool is_correct;
  };
  const Case cases[] = {
      {6, {1, 2, 3, 4, 5, 6, 7, 6, 5}, true},   // of the last part
      {1, {1, 7, 3, 7, 5, 6, 7, 6, 5}, true},   // the first of three that are equal
      {3, {1, 7, 3, 7, 5, 6, 7, 6, 5}, false},  // one in another part is before it
      {4, {1, 2, 3, 7, 7, 6, 7, 6, 5}, false},  // one in its part is before it
      {0, {1, 2, 3, 4, 5, 6, 7, 6, 90}, false},  {kNoTarget, {1, 2, 3, 4, 5, 6, 7, 6, 5}, false},
      {6, {1, 2, 3, 4, nan, 6, 7, 6, 5}, false},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(testing::PrintToString(one.logits) + ", " + std::to_string(one.label));
    Floats is = one.logits, should = one.logits;
    const std::vector<std::uint32_t> labels = {one.label};
    const StepResult of_whole = kernels::cross_entropy(labels, kClasses, 0.5F, true, should.data());
    const StepResult of_parts = loss_of_parts(labels, kClasses, 0.5F, is);
    EXPECT_EQ(of_whole.correct, one.is_correct ? 1U : 0U);
    EXPECT_EQ(of_parts.correct, of_whole.correct);
    EXPECT_EQ(of_parts.targets, of_whole.targets);
    if (std::isnan(of_whole.loss_sum)) {
      EXPECT_TRUE(std::isnan(of_parts.loss_sum));
      continue;
    }
    EXPECT_NEAR(of_parts.loss_sum, of_whole.loss_sum, 1e-6 * std::abs(of_whole.loss_sum));
    for (std::size_t j = 0; j < kClasses; ++j) EXPECT_NEAR(is[j], should[j], 1e-6);
  }
}

}  // namespace
}  // namespace centroid::worker::transformer_part_test
