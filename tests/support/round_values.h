#pragma once

#include <chrono>
#include <string>

#include <gtest/gtest.h>

#include "common/base/clock.h"
#include "server/aggregate/round_machine.h"
#include "server/aggregate/round_policy.h"

/// Short forms for tests of the round machine.
namespace centroid::server {

inline TimePoint at(double seconds) {
  return TimePoint(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds)));
}

inline RoundPolicy policy(const std::string& text, const std::string& late = "drop") {
  RoundPolicy out;
  const Status parsed = parse_policy(text, late, out);
  EXPECT_TRUE(parsed.ok()) << (parsed.ok() ? "" : parsed.error().message());
  return out;
}

inline Contribution of(double weight) {
  Contribution contribution;
  contribution.weight = weight;
  return contribution;
}

}  // namespace centroid::server
