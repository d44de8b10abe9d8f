#include "server/service/scale.h"

#include <gtest/gtest.h>

namespace centroid::server {
namespace {

ScaleQuestion question(std::vector<double> compute, double round) {
  ScaleQuestion out;
  for (std::size_t i = 0; i < compute.size(); ++i)
    out.workers.push_back({std::string("w").append(std::to_string(i)), compute[i]});
  out.round_seconds = round;
  out.rounds = 20;
  out.max_workers = 256;
  return out;
}

TEST(Scale, WorkersAreUsefulUntilTheServerTakesHalfOfARound) {
  // 2 workers compute 0.9 s, the server takes 0.1 s for them: 0.05 s each, 0.9 s for 18.
  const ScaleAdvice advice = advise_scale(question({0.9, 0.85}, 1.0));
  EXPECT_EQ(advice.limited_by, "workers");
  EXPECT_EQ(advice.useful_workers, 18U);
  EXPECT_NEAR(advice.efficiency, 0.9, 1e-9);
  EXPECT_NEAR(advice.speedup, (18 * 0.5) / (2 * 0.9), 1e-9);
  EXPECT_NE(advice.advice.find("18"), std::string::npos);
}

TEST(Scale, AHigherEfficiencyAllowsFewer) {
  ScaleQuestion asked = question({0.9, 0.9}, 1.0);
  asked.efficiency = 0.75;
  EXPECT_EQ(advise_scale(asked).useful_workers, 6U);
  asked.max_workers = 4;
  EXPECT_EQ(advise_scale(asked).useful_workers, 4U);
}

TEST(Scale, WhoWaitsForTheExchangeIsToldSo) {
  const ScaleAdvice advice = advise_scale(question({0.1, 0.1, 0.1, 0.1}, 1.0));
  EXPECT_EQ(advice.limited_by, "exchange");
  EXPECT_EQ(advice.useful_workers, 1U);
  ScaleQuestion ring = question({0.1, 0.1}, 1.0);
  ring.adds_at_server = false;
  EXPECT_EQ(advise_scale(ring).limited_by, "exchange");
  ring = question({0.9, 0.9}, 1.0);
  ring.adds_at_server = false;
  EXPECT_EQ(advise_scale(ring).useful_workers, 256U);
}

TEST(Scale, OneSlowWorkerIsNamed) {
  const ScaleAdvice advice = advise_scale(question({0.1, 0.1, 0.3}, 0.35));
  EXPECT_EQ(advice.limited_by, "straggler");
  EXPECT_EQ(advice.straggler, "w2");
  EXPECT_EQ(advise_scale(question({0.1, 0.3}, 0.35)).straggler, "") << "of two neither is";
}

TEST(Scale, NothingIsSaidBeforeAnythingIsKnown) {
  ScaleQuestion asked = question({0.1}, 1.0);
  asked.rounds = 2;
  EXPECT_EQ(advise_scale(asked).limited_by, "nothing_known");
  EXPECT_EQ(advise_scale(question({}, 1.0)).limited_by, "nothing_known");
  EXPECT_EQ(advise_scale(question({0.0}, 1.0)).limited_by, "nothing_known");
  EXPECT_EQ(advise_scale(question({0.5}, 0.0)).limited_by, "nothing_known");
}

}  // namespace
}  // namespace centroid::server
