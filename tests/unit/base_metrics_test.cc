#include <algorithm>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/prometheus_registry.h"

namespace centroid::metrics {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Metrics, TheSameNameAndLabelsAreTheSameSeries) {
  PrometheusRegistry registry;
  registry.counter("centroid_test_rounds_total", "Rounds.", {{"policy", "bsp"}}).add(2);
  registry.counter("centroid_test_rounds_total", "Rounds.", {{"policy", "bsp"}}).add();
  const auto other = registry.counter("centroid_test_rounds_total", "Rounds.", {{"policy", "asp"}});
  EXPECT_EQ(other.value(), 0);
  EXPECT_EQ(registry.counter("centroid_test_rounds_total", "Rounds.", {{"policy", "bsp"}}).value(),
            3);
  const std::string text = registry.serialize();
  EXPECT_THAT(text, HasSubstr("# HELP centroid_test_rounds_total Rounds.\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE centroid_test_rounds_total counter\n"));
  EXPECT_THAT(text, HasSubstr("centroid_test_rounds_total{policy=\"bsp\"} 3\n"));
}

TEST(Metrics, GaugeGoesUpAndDown) {
  PrometheusRegistry registry;
  const Gauge gauge = registry.gauge("centroid_test_workers", "Workers.");
  gauge.set(5);
  gauge.add(-7);
  EXPECT_EQ(gauge.value(), -2);
  EXPECT_THAT(registry.serialize(), HasSubstr("centroid_test_workers -2\n"));
}

TEST(Metrics, HistogramCountsIntoBuckets) {
  PrometheusRegistry registry;
  const Histogram histogram = registry.histogram("centroid_test_wait_seconds", "Waits.", {0.1, 1});
  for (const double seconds : {0.05, 0.5, 5.0}) histogram.observe(seconds);
  EXPECT_EQ(histogram.count(), 3U);
  EXPECT_DOUBLE_EQ(histogram.sum(), 5.55);
  const std::string text = registry.serialize();
  EXPECT_THAT(text, HasSubstr("centroid_test_wait_seconds_bucket{le=\"1\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("centroid_test_wait_seconds_bucket{le=\"+Inf\"} 3\n"));
}

TEST(Metrics, TheTextIsInOrderAndWhole) {
  PrometheusRegistry registry;
  const Histogram wait =
      registry.histogram("centroid_test_b_seconds", "B, \\ and\nmore.", {0.5, 2}, {{"to", "x"}});
  wait.observe(1);
  wait.observe(7);
  registry.gauge("centroid_test_a", "A.", {{"z", "2"}, {"b", "1"}}).set(1e300);
  registry.gauge("centroid_test_a", "A.").set(-0.25);
  registry.gauge("centroid_test_c", "C.", {{"gone", "1"}});
  registry.remove("centroid_test_c", {{"gone", "1"}});
  EXPECT_EQ(registry.serialize(),
            "# HELP centroid_test_a A.\n"
            "# TYPE centroid_test_a gauge\n"
            "centroid_test_a -0.25\n"
            "centroid_test_a{b=\"1\",z=\"2\"} 1e+300\n"
            "# HELP centroid_test_b_seconds B, \\\\ and\\nmore.\n"
            "# TYPE centroid_test_b_seconds histogram\n"
            "centroid_test_b_seconds_bucket{to=\"x\",le=\"0.5\"} 0\n"
            "centroid_test_b_seconds_bucket{to=\"x\",le=\"2\"} 1\n"
            "centroid_test_b_seconds_bucket{to=\"x\",le=\"+Inf\"} 2\n"
            "centroid_test_b_seconds_sum{to=\"x\"} 8\n"
            "centroid_test_b_seconds_count{to=\"x\"} 2\n");
}

TEST(Metrics, ARemovedSeriesLeavesTheTextAndComesBackAtZero) {
  PrometheusRegistry registry;
  registry.gauge("centroid_test_lag", "Lag.", {{"worker", "1"}}).set(4);
  registry.gauge("centroid_test_lag", "Lag.", {{"worker", "2"}}).set(5);
  registry.remove("centroid_test_lag", {{"worker", "1"}});
  registry.remove("centroid_test_lag", {{"worker", "9"}});
  registry.remove("centroid_test_unknown", {});
  EXPECT_THAT(registry.serialize(), Not(HasSubstr("worker=\"1\"")));
  EXPECT_THAT(registry.serialize(), HasSubstr("worker=\"2\""));
  EXPECT_EQ(registry.gauge("centroid_test_lag", "Lag.", {{"worker", "1"}}).value(), 0);
}

TEST(Metrics, CollectCallsTheRefreshersThatMayMakeSeries) {
  PrometheusRegistry registry;
  registry.on_collect([&] { registry.gauge("centroid_test_now", "Now.").add(1); });
  EXPECT_THAT(registry.serialize(), HasSubstr("centroid_test_now 1\n"));
  EXPECT_THAT(registry.serialize(), HasSubstr("centroid_test_now 2\n"));
}

TEST(Metrics, LabelValuesAreEscaped) {
  PrometheusRegistry registry;
  registry.counter("centroid_test_total", "T.", {{"name", "a\"b\nc\\d"}}).add();
  EXPECT_THAT(registry.serialize(), HasSubstr(R"(name="a\"b\nc\\d")"));
}

TEST(Metrics, DefaultHandlesDoNothing) {
  Counter().add();
  Gauge().set(1);
  Histogram().observe(1);
  EXPECT_EQ(Counter().value(), 0);
  EXPECT_EQ(Histogram().count(), 0U);
}

TEST(Metrics, CountsFromManyThreads) {
  PrometheusRegistry registry;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        for (int i = 0; i < 500; ++i) {
          registry.counter("centroid_test_total", "T.").add();
          if (i % 100 == 0) (void)registry.serialize();
        }
      });
  }
  EXPECT_EQ(registry.counter("centroid_test_total", "T.").value(), 2000);
}

TEST(Metrics, LatencyBoundsRiseFrom50MicrosecondsTo30Seconds) {
  const auto& bounds = latency_bounds();
  EXPECT_DOUBLE_EQ(bounds.front(), 50e-6);
  EXPECT_DOUBLE_EQ(bounds.back(), 30);
  EXPECT_TRUE(std::is_sorted(bounds.begin(), bounds.end(), std::less_equal<>()));
}

TEST(MetricsDeathTest, ANameOfTwoTypesOrBoundsAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  PrometheusRegistry registry;
  (void)registry.counter("centroid_test_total", "T.");
  (void)registry.histogram("centroid_test_seconds", "S.", {1, 2});
  EXPECT_DEATH((void)registry.gauge("centroid_test_total", "T."), "CENTROID_CHECK failed");
  EXPECT_DEATH((void)registry.histogram("centroid_test_seconds", "S.", {1, 3}),
               "CENTROID_CHECK failed");
  EXPECT_DEATH((void)registry.gauge("bad name", "T."), "CENTROID_CHECK failed");
}

}  // namespace
}  // namespace centroid::metrics
