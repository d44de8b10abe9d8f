#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/base/prometheus_registry.h"
#include "common/base/stage.h"
#include "common/base/trace_events.h"

namespace centroid::trace {
namespace {

using Json = nlohmann::json;
using std::chrono::microseconds;
using std::chrono::steady_clock;

/// Spans of a document, by lane's name.
std::vector<Json> spans_of(const Json& events, const std::string& lane) {
  std::vector<Json> found;
  for (const Json& name : events)
    if (name["name"] == "thread_name" && name["args"]["name"] == lane)
      for (const Json& event : events)
        if (event["ph"] == "X" && event["tid"] == name["tid"]) found.push_back(event);
  return found;
}

Json read(const std::string& path) {
  std::ifstream file(path);
  return Json::parse(std::istreambuf_iterator<char>(file), {}, nullptr, false);
}

TEST(Trace, TellsStageLaneTimeAndRound) {
  set_process("a \"process\"");
  const Lane lane("one");
  const TimePoint end = steady_clock::now();
  const double unix_us =
      1e-3 * static_cast<double>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                     std::chrono::system_clock::now().time_since_epoch())
                                     .count());
  lane.span(Stage::kEncode, end - microseconds(1500), end, 7);
  Lane("one").span(Stage::kSend, end, end);
  const Json document = Json::parse(to_json(60));
  const auto spans = spans_of(document["traceEvents"], "one");
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0]["name"], "encode");
  EXPECT_EQ(spans[0]["dur"], 1500);
  EXPECT_EQ(spans[0]["args"]["round"], 7);
  EXPECT_NEAR(spans[0]["ts"].get<double>(), unix_us - 1500, 5e6);
  EXPECT_EQ(document["traceEvents"][0]["args"]["name"], "a \"process\"");
}

TEST(Trace, LeavesOutWhatEndedBefore) {
  const Lane lane("old");
  const TimePoint now = steady_clock::now();
  lane.span(Stage::kApply, now - std::chrono::seconds(100), now - std::chrono::seconds(99));
  EXPECT_EQ(spans_of(Json::parse(to_json(50))["traceEvents"], "old").size(), 0u);
  EXPECT_EQ(spans_of(Json::parse(to_json(200))["traceEvents"], "old").size(), 1u);
}

TEST(Trace, SeveralThreadsRecordAtOnce) {
  const TimePoint now = steady_clock::now();
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([=] {
        for (int i = 0; i < 1000; ++i) Lane("shared").span(Stage::kSend, now, now);
      });
  }
  EXPECT_FALSE(Json::parse(to_json(60)).is_discarded());
}

TEST(Trace, StageProbeFeedsTheHistogramOfItsName) {
  metrics::PrometheusRegistry registry;
  const StageProbe probe(registry, "worker", Stage::kEncode);
  const TimePoint end = steady_clock::now();
  EXPECT_DOUBLE_EQ(probe.ended(Lane("x"), end - std::chrono::seconds(2), end, 1), 2);
  EXPECT_NE(registry.serialize().find("centroid_worker_stage_seconds_sum{stage=\"encode\"} 2"),
            std::string::npos);
}

/// A child that writes a trace is killed; what it leaves must be whole JSON.
TEST(TraceKilled, TheFileIsWhole) {
  const std::string path =
      std::filesystem::temp_directory_path() / ("trace_test." + std::to_string(::getpid()));
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (!write_to(path, 1 << 20).ok()) ::_exit(1);
    const Lane lane("child");
    for (std::uint64_t i = 0;; ++i) {
      lane.span(Stage::kCompute, steady_clock::now(), steady_clock::now(), i);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // lint-ok: pace of spans
    }
  }
  Json events;
  for (int i = 0; i < 2000 && spans_of(events, "child").size() < 3; ++i) {
    const auto step = std::chrono::milliseconds(10);
    std::this_thread::sleep_for(step);  // lint-ok: the step of a poll under a deadline
    events = read(path);
    if (!events.is_array()) events = Json::array();
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  const Json left = read(path);
  ASSERT_TRUE(left.is_array());
  EXPECT_GE(spans_of(left, "child").size(), 3u);
  std::vector<double> memory, busy;  // what the process took, at each write
  for (const Json& event : left)
    if (event["ph"] == "C" && event["name"] == "memory")
      memory.push_back(event["args"]["resident_bytes"]);
    else if (event["ph"] == "C" && event["name"] == "processors")
      busy.push_back(event["args"]["busy"]);
  ASSERT_FALSE(memory.empty());
  EXPECT_EQ(memory.size(), busy.size());
  EXPECT_GT(memory.front(), 100'000);
  EXPECT_GE(busy.back(), 0);
  std::filesystem::remove(path);
}

// Behind the test that forks: a child has no thread that samples.
TEST(TraceSampling, TellsPeriodsMarksAndSamples) {
  const TimePoint end = steady_clock::now();
  const EventLane lane("what else");
  lane.period(Period::kEpoch, end - std::chrono::seconds(2), end, 3);
  lane.span("loading", end - std::chrono::seconds(1), end);
  lane.mark("it.happened", "because \"of\" \xff " + std::string(300, 'x'));
  static std::atomic<bool> is_asked = false;  // the source outlives the test
  add_source([](const RecordSample& record) {
    if (is_asked) return;
    record("gpu 0 utilization", "ratio", 0.75);
    is_asked = true;
  });
  start_sampling();
  start_sampling();
  for (int i = 0; i < 1000 && !is_asked; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // lint-ok: a poll with a deadline
  Json gpu, memory;
  for (int i = 0; i < 1000 && (gpu.is_null() || memory.is_null()); ++i) {
    const Json document = Json::parse(to_json(60));
    for (const Json& event : document["traceEvents"]) {
      if (event["ph"] != "C") continue;
      if (event["name"] == "gpu 0 utilization") gpu = event["args"];
      if (event["name"] == "memory") memory = event["args"];
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // lint-ok: a poll with a deadline
  }
  EXPECT_EQ(gpu, (Json{{"ratio", 0.75}}));
  ASSERT_TRUE(memory.is_object());
  EXPECT_GT(memory.value("resident_bytes", 0.0), 1e6);
  const Json document = Json::parse(to_json(60));
  const auto spans = spans_of(document["traceEvents"], "what else");
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0]["cat"], "period");
  EXPECT_EQ(spans[0]["args"], (Json{{"epoch", 3}}));
  EXPECT_EQ(spans[1]["name"], "loading");
  EXPECT_FALSE(spans[1].contains("cat"));
  EXPECT_EQ(spans[1]["dur"], 1'000'000);
  std::string text;
  for (const Json& event : document["traceEvents"])
    if (event["ph"] == "i") text = event["args"]["text"];
  EXPECT_TRUE(text.starts_with("because \"of\" ? xxx")) << text;
  EXPECT_EQ(text.size(), 200u);
}

TEST(TraceFile, StopsAtItsLimitAndSaysWhatItCannotMake) {
  EXPECT_EQ(write_to("/nowhere/at/all.json", 1000).error().code(), ErrorCode::kInvalidArgument);
  const std::string path =
      std::filesystem::temp_directory_path() / ("trace_limit." + std::to_string(::getpid()));
  ASSERT_TRUE(write_to(path, 20'000).ok());
  EXPECT_EQ(write_to(path, 1000).error().code(), ErrorCode::kAlreadyExists);
  const Lane lane("limited");
  for (std::uint64_t i = 0; i < 10'000; ++i)
    lane.span(Stage::kCompute, steady_clock::now(), steady_clock::now(), i);
  finish();
  EXPECT_LE(std::filesystem::file_size(path), 20'010u);
  EXPECT_TRUE(read(path).is_array());
  std::filesystem::remove(path);
}

// Last: from then on every new lane is the one of the others.
TEST(TraceBounds, KeepsTheNewestSpansAndBoundsLanes) {
  const TimePoint now = steady_clock::now();
  for (int i = 0; i < 300; ++i) Lane("lane " + std::to_string(i)).span(Stage::kWait, now, now);
  const Lane lane("many");
  for (std::uint64_t i = 0; i < 70'000; ++i) lane.span(Stage::kWait, now, now, i);
  const Json events = Json::parse(to_json(600))["traceEvents"];
  std::size_t names = 0, spans = 0;
  std::uint64_t newest = 0;
  for (const Json& event : events) {
    names += event["name"] == "thread_name" ? 1 : 0;
    spans += event["ph"] == "X" ? 1 : 0;
    if (event["ph"] == "X") newest = event["args"]["round"];
  }
  EXPECT_LE(names, 256u);
  EXPECT_EQ(spans, 65'536u);
  EXPECT_EQ(newest, 69'999u);
}

}  // namespace
}  // namespace centroid::trace
