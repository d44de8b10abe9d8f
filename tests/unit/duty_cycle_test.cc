#include "server/store/duty_cycle.h"

#include <future>

#include <gtest/gtest.h>

namespace centroid::server {
namespace {

TEST(DutyCycle, RestsForTheTimeThatItsShareAsks) {
  const auto rest = [](double share, double busy, double passed, double credit) {
    return DutyCycle::rest_seconds(share, busy, passed, credit);
  };
  EXPECT_DOUBLE_EQ(rest(0.1, 0.001, 0.001, 0), 0.009);
  EXPECT_DOUBLE_EQ(rest(0.5, 0.25, 0.25, 0), 0.25);
  EXPECT_DOUBLE_EQ(rest(0.1, 0.001, 0.02, 0), 0) << "a slow disk was rest enough";
  EXPECT_DOUBLE_EQ(rest(0.1, 0.001, 0.001, 0.001), 0) << "it had credit";
  EXPECT_DOUBLE_EQ(rest(1, 5, 5, 0), 0);
  EXPECT_DOUBLE_EQ(rest(3.2, 5, 1, 0), 0) << "a share of many processors";
}

TEST(DutyCycle, CreditIsThatOfAQuarterOfASecond) {
  double credit = DutyCycle::kBurst * 0.1, rested = 0;
  for (int piece = 0; piece < 25; ++piece)
    rested += DutyCycle::rest_seconds(0.1, 0.001, 0.001, credit);
  EXPECT_DOUBLE_EQ(rested, 0);
  for (int piece = 0; piece < 75; ++piece)
    rested += DutyCycle::rest_seconds(0.1, 0.001, 0.001, credit);
  EXPECT_NEAR(rested, 0.65, 1e-9);  // 0.1 s of work less the credit, nine times
  (void)DutyCycle::rest_seconds(0.1, 0.001, 100, credit);  // a disk that hung
  EXPECT_DOUBLE_EQ(credit, DutyCycle::kBurst * 0.1);
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
