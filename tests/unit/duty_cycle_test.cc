#include "server/service/duty_cycle.h"

#include <future>

#include <gtest/gtest.h>

namespace centroid::server {
namespace {

TEST(DutyCycle, RestsForTheTimeThatItsShareAsks) {
  EXPECT_DOUBLE_EQ(DutyCycle::rest_seconds(0.1, 0.001, 0.001), 0.009);
  EXPECT_DOUBLE_EQ(DutyCycle::rest_seconds(0.5, 0.25, 0.25), 0.25);
  EXPECT_DOUBLE_EQ(DutyCycle::rest_seconds(0.1, 0.001, 0.02), 0) << "a slow disk was rest enough";
  EXPECT_DOUBLE_EQ(DutyCycle::rest_seconds(0.1, 0, 0), 0);
  EXPECT_DOUBLE_EQ(DutyCycle::rest_seconds(1, 5, 5), 0);
  EXPECT_DOUBLE_EQ(DutyCycle::rest_seconds(3.2, 5, 1), 0) << "a share of many processors";
}

TEST(DutyCycle, ARestEndsWhenSomebodyWaits) {
  DutyCycle duty(1e-12);
  auto work = std::async(std::launch::async, [&] {
    for (int piece = 0; piece < 3; ++piece) duty.rest();  // the second would last for hours
  });
  duty.hurry();
  work.get();
}

}  // namespace
}  // namespace centroid::server
