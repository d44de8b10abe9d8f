#include <cmath>

#include <gtest/gtest.h>

#include "common/base/clock_watch.h"

namespace centroid {
namespace {

TEST(ClockWatch, TheHeartbeatThatWasUnderWayLeastIsTheTruest) {
  ClockWatch clock;
  EXPECT_TRUE(std::isnan(clock.ahead()));
  clock.heard(110, 100 + 3);  // 10 s ahead, 3 s under way
  EXPECT_DOUBLE_EQ(clock.ahead(), 7);
  clock.heard(120, 110 + 0.5);
  clock.heard(130, 120 + 2);
  EXPECT_DOUBLE_EQ(clock.ahead(), 9.5);
  for (int i = 0; i < 8; ++i) clock.heard(200, 201);  // it was set right
  EXPECT_DOUBLE_EQ(clock.ahead(), -1);
}

}  // namespace
}  // namespace centroid
