#include "server/store/statistics.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/random.h"

namespace centroid::server {
namespace {

TensorStatistics of(const std::vector<float>& values, std::size_t piece) {
  StatisticsSum sum;
  for (std::size_t at = 0; at < values.size(); at += piece)
    sum.add(std::span(values).subspan(at, std::min(piece, values.size() - at)));
  return sum.result();
}

TEST(Statistics, AreThoseOfTheFormulas) {
  const std::uint64_t seed = 7;
  SCOPED_TRACE(seed);
  CounterRng rng(seed);
  // A mean far from zero: sums of squares would lose the deviation.
  std::vector<float> values(20'000);
  for (float& x : values) x = 1000.0f + 0.01f * static_cast<float>(rng.normal());
  long double sum = 0, squares = 0, norm = 0;
  for (const float x : values) sum += x;
  const long double mean = sum / values.size();
  for (const float x : values) {
    squares += (x - mean) * (x - mean);
    norm += static_cast<long double>(x) * x;
  }
  for (const std::size_t piece : {1UL, 7UL, 4096UL, 5000UL, 20'000UL}) {
    SCOPED_TRACE(piece);
    const TensorStatistics found = of(values, piece);
    EXPECT_EQ(found.elements, values.size());
    EXPECT_EQ(found.nonfinite, 0U);
    EXPECT_EQ(found.min, *std::min_element(values.begin(), values.end()));
    EXPECT_EQ(found.max, *std::max_element(values.begin(), values.end()));
    EXPECT_NEAR(found.mean, static_cast<double>(mean), 1e-9);
    const auto deviation = static_cast<double>(std::sqrt(squares / values.size()));
    EXPECT_NEAR(found.deviation / deviation, 1, 1e-9);
    EXPECT_NEAR(found.norm / static_cast<double>(std::sqrt(norm)), 1, 1e-12);
  }
}

TEST(Statistics, PartsOfSeveralPlacesAreThoseOfAll) {
  CounterRng rng(11);
  std::vector<float> values(30'000);
  for (float& x : values) x = 100.0f + static_cast<float>(rng.normal());
  values[5] = values[29'999] = std::numeric_limits<float>::infinity();
  const TensorStatistics whole = of(values, values.size());
  StatisticsSum sum;
  const std::span<const float> all(values);
  for (const auto& [begin, count] : {std::pair{0, 6}, std::pair{6, 0}, std::pair{6, 20'000},
                                     std::pair{20'006, 9'993}, std::pair{29'999, 1}}) {
    StatisticsSum part;
    part.add(all.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count)));
    sum.add(part.part());
  }
  const TensorStatistics found = sum.result();
  EXPECT_EQ(found.elements, whole.elements);
  EXPECT_EQ(found.nonfinite, 2U);
  EXPECT_EQ(found.min, whole.min);
  EXPECT_EQ(found.max, whole.max);
  EXPECT_NEAR(found.mean, whole.mean, 1e-12 * whole.mean);
  EXPECT_NEAR(found.deviation, whole.deviation, 1e-10);
  EXPECT_NEAR(found.norm, whole.norm, 1e-12 * whole.norm);
}

TEST(Statistics, CountWhatIsNotFiniteAndLeaveItOut) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const TensorStatistics found = of({nan, 3, -inf, -1, inf}, 2);
  EXPECT_EQ(found.elements, 5U);
  EXPECT_EQ(found.nonfinite, 3U);
  EXPECT_EQ(found.min, -1);
  EXPECT_EQ(found.max, 3);
  EXPECT_EQ(found.mean, 1);
  EXPECT_EQ(found.deviation, 2);
  EXPECT_DOUBLE_EQ(found.norm, std::sqrt(10.0));
  EXPECT_EQ(of({nan}, 1).max, 0);
  EXPECT_EQ(of({}, 1).elements, 0U);
}

}  // namespace
}  // namespace centroid::server
