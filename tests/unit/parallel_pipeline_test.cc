#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/random.h"
#include "worker/parallel/pipeline_schedule.h"
#include "worker/parallel/stages.h"

namespace centroid::parallel::parallel_pipeline_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class T>
std::string refusal(const Result<T>& result) {
  return result.ok() ? "not refused" : result.error().to_string();
}

std::vector<std::uint64_t> sizes(const Result<std::vector<Range>>& stages) {
  EXPECT_TRUE(stages.ok()) << refusal(stages);
  std::vector<std::uint64_t> out;
  if (!stages.ok()) return out;
  std::uint64_t position = 0;
  for (const Range& stage : *stages) {
    EXPECT_EQ(stage.begin, position);
    position = stage.end();
    out.push_back(stage.count);
  }
  return out;
}

TEST(Stages, TheFirstHaveALayerMore) {
  EXPECT_THAT(sizes(split_into_stages(10, 3)), ElementsAre(4, 3, 3));
  EXPECT_THAT(sizes(split_into_stages(12, 4)), ElementsAre(3, 3, 3, 3));
  EXPECT_THAT(sizes(split_into_stages(7, 3)), ElementsAre(3, 2, 2));
  EXPECT_THAT(sizes(split_into_stages(5, 5)), ElementsAre(1, 1, 1, 1, 1));
  EXPECT_THAT(sizes(split_into_stages(100, 7)), ElementsAre(15, 15, 14, 14, 14, 14, 14));
}

TEST(Stages, BadNumbersAreRefused) {
  EXPECT_THAT(refusal(split_into_stages(3, 4)), HasSubstr("4 stages for 3 layers"));
  EXPECT_THAT(refusal(split_into_stages(3, 0)), HasSubstr("0 stages for 3 layers"));
  const std::vector<double> costs = {1, 2};
  EXPECT_THAT(refusal(split_into_stages(costs, 3)), HasSubstr("3 stages for 2 layers"));
  for (const double bad :
       {-1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    const std::vector<double> with_bad = {1, bad};
    EXPECT_THAT(refusal(split_into_stages(with_bad, 2)), HasSubstr("layer 1 costs"));
  }
}

TEST(Stages, ByMeasuredCost) {
  const std::vector<double> one_is_heavy = {1, 1, 1, 6, 1, 1, 1};
  const auto stages = split_into_stages(one_is_heavy, 3);
  EXPECT_THAT(sizes(stages), ElementsAre(3, 1, 3));
  EXPECT_DOUBLE_EQ(imbalance(one_is_heavy, *stages), 0.5);
  const std::vector<double> equal(10, 0.5), huge(10, 1e308), nothing(4, 0);
  EXPECT_THAT(sizes(split_into_stages(equal, 3)), ElementsAre(4, 3, 3));
  EXPECT_THAT(sizes(split_into_stages(huge, 3)), ElementsAre(4, 3, 3));
  EXPECT_EQ(imbalance(nothing, *split_into_stages(nothing, 3)), 0);
}

/// Costs of the costliest stage and squares of the best split, by trying all.
std::pair<double, double> best_of_all(std::span<const double> costs, std::uint32_t stages) {
  if (stages == 1) {
    const double sum = std::accumulate(costs.begin(), costs.end(), 0.0);
    return {sum, sum * sum};
  }
  std::pair<double, double> best = {1e300, 1e300};
  double first = 0;
  for (std::size_t end = 1; end + stages - 1 <= costs.size(); ++end) {
    first += costs[end - 1];
    const auto rest = best_of_all(costs.subspan(end), stages - 1);
    best = std::min(best, {std::max(first, rest.first), first * first + rest.second});
  }
  return best;
}

TEST(Stages, NoOtherSplitHasACheaperCostliestStage) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::vector<double> costs(1 + mix64(seed, 0) % 9);
    for (std::size_t i = 0; i < costs.size(); ++i)
      costs[i] = static_cast<double>(mix64(seed, 10 + i) % 16);
    const auto stages = static_cast<std::uint32_t>(1 + mix64(seed, 1) % costs.size());
    const auto split = split_into_stages(costs, stages);
    ASSERT_EQ(sizes(split).size(), stages);
    ASSERT_EQ(split->back().end(), costs.size());
    double most = 0;
    for (const Range& stage : *split) {
      ASSERT_GT(stage.count, 0u);
      double cost = 0;
      for (std::uint64_t i = stage.begin; i < stage.end(); ++i) cost += costs[i];
      most = std::max(most, cost);
    }
    ASSERT_EQ(most, best_of_all(costs, stages).first);
  }
}

std::string text_of(const Actions& actions) {
  std::string out;
  for (const Action& action : actions)
    out +=
        (action.kind == Action::Kind::kForward ? " F" : " B") + std::to_string(action.micro_batch);
  return out.empty() ? out : out.substr(1);
}

constexpr Schedule kBoth[] = {Schedule::kGPipe, Schedule::kOneForwardOneBack};

TEST(PipelineSchedule, ActionsOfEachStage) {
  const auto gpipe = *make_schedule(Schedule::kGPipe, 2, 3);
  EXPECT_EQ(text_of(gpipe[0]), "F0 F1 F2 B0 B1 B2");
  EXPECT_EQ(text_of(gpipe[1]), "F0 F1 F2 B0 B1 B2");
  const auto early = *make_schedule(Schedule::kOneForwardOneBack, 3, 4);
  EXPECT_EQ(text_of(early[0]), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(text_of(early[1]), "F0 F1 B0 F2 B1 F3 B2 B3");
  EXPECT_EQ(text_of(early[2]), "F0 B0 F1 B1 F2 B2 F3 B3");
}

TEST(PipelineSchedule, NamesAndBadNumbers) {
  for (const Schedule schedule : kBoth) EXPECT_EQ(*parse_schedule(to_string(schedule)), schedule);
  EXPECT_THAT(refusal(parse_schedule("1F1B")), HasSubstr("neither gpipe nor 1f1b"));
  for (const Schedule schedule : kBoth) {
    EXPECT_THAT(refusal(make_schedule(schedule, 4, 3)), HasSubstr("3 micro-batches for 4 stages"));
    EXPECT_THAT(refusal(make_schedule(schedule, 0, 3)), HasSubstr("no stages"));
  }
}

TEST(PipelineSchedule, OneForwardOneBackHasFewActivations) {
  const auto gpipe = *make_schedule(Schedule::kGPipe, 4, 16);
  const auto early = *make_schedule(Schedule::kOneForwardOneBack, 4, 16);
  for (std::uint32_t stage = 0; stage < 4; ++stage) {
    EXPECT_EQ(most_activations(gpipe[stage]), 16u);
    EXPECT_EQ(most_activations(early[stage]), 4 - stage);
  }
}

TEST(PipelineSchedule, LeastBubbles) {
  EXPECT_DOUBLE_EQ(least_bubble(2, 4).of_useful, 0.25);
  EXPECT_DOUBLE_EQ(least_bubble(4, 8).of_useful, 0.375);
  EXPECT_DOUBLE_EQ(least_bubble(2, 16).of_useful, 0.0625);
  EXPECT_DOUBLE_EQ(least_bubble(2, 4).of_total, 0.2);
  EXPECT_DOUBLE_EQ(least_bubble(4, 8).of_total, 3.0 / 11);
  EXPECT_DOUBLE_EQ(least_bubble(2, 16).of_total, 1.0 / 17);
  EXPECT_EQ(least_bubble(1, 16).of_total, 0);
}

// In whole numbers: idle / useful is (P-1)/M, idle / (idle + useful) is (P-1)/(M+P-1).
TEST(PipelineSchedule, StagesOfEqualCostReachTheBoundExactly) {
  for (const Schedule schedule : kBoth) {
    for (std::uint64_t stages = 1; stages <= 8; ++stages) {
      for (std::uint64_t batches = stages; batches <= 20; ++batches) {
        for (const StageCost cost : {StageCost{1, 2}, StageCost{3, 3}, StageCost{5, 1}}) {
          SCOPED_TRACE(std::string(to_string(schedule)) + " " + std::to_string(stages) + "/" +
                       std::to_string(batches));
          const auto actions = make_schedule(schedule, static_cast<std::uint32_t>(stages),
                                             static_cast<std::uint32_t>(batches));
          const auto timeline = evaluate(*actions, std::vector<StageCost>(stages, cost));
          ASSERT_TRUE(timeline.ok()) << refusal(timeline);
          ASSERT_EQ(timeline->length, (batches + stages - 1) * (cost.forward + cost.backward));
          ASSERT_EQ(timeline->useful, stages * batches * (cost.forward + cost.backward));
          ASSERT_EQ(timeline->idle * batches, timeline->useful * (stages - 1));
          ASSERT_EQ(timeline->idle * (batches + stages - 1),
                    (timeline->idle + timeline->useful) * (stages - 1));
        }
      }
    }
  }
  const auto timeline = *evaluate(*make_schedule(Schedule::kOneForwardOneBack, 4, 8),
                                  std::vector<StageCost>(4, {1, 2}));
  EXPECT_DOUBLE_EQ(timeline.bubble().of_useful, 0.375);
  EXPECT_DOUBLE_EQ(timeline.bubble().of_total, 3.0 / 11);
}

TEST(PipelineSchedule, TheSlowestStageAndMessagesMakeItLonger) {
  const auto actions = *make_schedule(Schedule::kOneForwardOneBack, 2, 4);
  // Stage 1 computes from 1 on without a pause, and stage 0 ends with the last backward.
  const auto slow = *evaluate(actions, std::vector<StageCost>{{1, 1}, {2, 2}});
  EXPECT_EQ(slow.length, 1 + 4 * 4 + 1u);
  const auto near = *evaluate(actions, std::vector<StageCost>(2, {1, 2}));
  const auto far = *evaluate(actions, std::vector<StageCost>(2, {1, 2}), 1);
  EXPECT_GT(far.length, near.length);
  EXPECT_EQ(far.useful, near.useful);
}

// No action before its input, none at the same time on one stage.
TEST(PipelineSchedule, EveryActionHasItsInput) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto stages = static_cast<std::uint32_t>(1 + mix64(seed, 0) % 6);
    const auto batches = static_cast<std::uint32_t>(stages + mix64(seed, 1) % 8);
    const std::uint64_t transfer = mix64(seed, 2) % 5;
    std::vector<StageCost> costs;
    for (std::uint32_t stage = 0; stage < stages; ++stage)
      costs.push_back({mix64(seed, 10 + stage) % 7, mix64(seed, 50 + stage) % 7});
    const auto actions = *make_schedule(kBoth[seed % 2], stages, batches);
    const auto timeline = evaluate(actions, costs, transfer);
    ASSERT_TRUE(timeline.ok()) << refusal(timeline);
    const auto find = [&](std::uint32_t stage, const Action& action) {
      const auto& of = actions[stage];
      const auto at = std::find(of.begin(), of.end(), action) - of.begin();
      return timeline->spans[stage][static_cast<std::size_t>(at)];
    };
    for (std::uint32_t stage = 0; stage < stages; ++stage) {
      std::uint64_t free = 0;
      for (const auto& span : timeline->spans[stage]) {
        ASSERT_GE(span.begin, free);
        free = span.end;
      }
      for (std::uint32_t batch = 0; batch < batches; ++batch) {
        const Action forward = {Action::Kind::kForward, batch};
        const Action backward = {Action::Kind::kBackward, batch};
        ASSERT_GE(find(stage, backward).begin, find(stage, forward).end);
        if (stage == 0) continue;
        ASSERT_GE(find(stage, forward).begin, find(stage - 1, forward).end + transfer);
        ASSERT_GE(find(stage - 1, backward).begin, find(stage, backward).end + transfer);
      }
    }
    ASSERT_EQ(timeline->idle + timeline->useful, timeline->length * stages);
  }
}

TEST(PipelineSchedule, BadSchedulesAreRefused) {
  using Kind = Action::Kind;
  const std::vector<StageCost> costs(2);
  const Actions good = {{Kind::kForward, 0}, {Kind::kBackward, 0}};
  const auto refused = [&](const Actions& first) {
    return refusal(evaluate(std::vector<Actions>{first, good}, costs));
  };
  EXPECT_EQ(refused(good), "not refused");
  EXPECT_THAT(refused({{Kind::kBackward, 0}, {Kind::kForward, 0}}),
              AllOf(HasSubstr("stage 0 waits for ever"), HasSubstr("backward of micro-batch 0")));
  EXPECT_THAT(refused({{Kind::kForward, 0}, {Kind::kForward, 0}}),
              HasSubstr("stage 0 has the forward of micro-batch 0 twice"));
  EXPECT_THAT(refused({{Kind::kForward, 0}, {Kind::kBackward, 1}}), HasSubstr("micro-batch 1"));
  EXPECT_THAT(refused({{Kind::kForward, 0}}), HasSubstr("has 1 actions"));
  EXPECT_THAT(refusal(evaluate(std::vector<Actions>{good}, costs)),
              HasSubstr("2 costs for 1 stages"));
  EXPECT_THAT(refusal(evaluate({}, {})), HasSubstr("no stages"));
}

}  // namespace
}  // namespace centroid::parallel::parallel_pipeline_test
