#include "common/base/trace_report.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace centroid::trace {
namespace {

constexpr double kStart = 1e15;  // microseconds

/// A device that computes at 0-100, 150-250 and 400-500 ms, a loop that waits 100-150 and 250-350,
/// within one epoch; a GPU that is quiet from 1 s to 3.5 s.
Capture made() {
  Capture of;
  of.process = "worker";
  of.lanes = {"process", "cpu:0", "loop"};
  const auto span = [&](const char* name, std::uint32_t lane, double begin_ms, double end_ms) {
    Capture::Span one;
    one.begin_us = kStart + 1e3 * begin_ms;
    one.duration_us = 1e3 * (end_ms - begin_ms);
    one.round = 7;
    one.lane = lane;
    one.name = name;
    of.spans.push_back(one);
  };
  span("compute", 1, 0, 100);
  span("wait", 2, 100, 150);
  span("compute", 1, 150, 250);
  span("wait", 2, 250, 350);
  span("compute", 1, 400, 500);
  span("epoch", 2, 0, 500);
  of.spans.back().is_period = true;
  of.marks.push_back({kStart + 2e5, 2, "it.happened", "a \"b\", c"});
  of.tracks = {{"gpu 0 utilization", "ratio"}, {"memory", "resident_bytes"}};
  for (int i = 0; i <= 8; ++i)
    of.samples.push_back({kStart + 5e5 * i, i >= 3 && i <= 7 ? 0.0 : 0.5, 0});
  of.samples.push_back({kStart, 1e9, 1});
  return of;
}

TEST(TraceReport, SummarisesLanesAndWhatWentOnMeanwhile) {
  const Capture of = made();
  const auto rows = summarize({&of, 1});
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].lane, "cpu:0");
  EXPECT_TRUE(rows[0].is_device);
  EXPECT_NEAR(rows[0].window_seconds, 0.5, 1e-9);
  EXPECT_NEAR(rows[0].busy_seconds, 0.3, 1e-9);
  EXPECT_NEAR(rows[0].idle_seconds, 0.2, 1e-9);
  EXPECT_EQ(rows[0].gaps, 2u);
  EXPECT_NEAR(rows[0].longest_gap_seconds, 0.15, 1e-9);
  ASSERT_EQ(rows[0].meanwhile_seconds.size(), 1u);  // an epoch is no work
  EXPECT_EQ(rows[0].meanwhile_seconds[0].first, "wait");
  EXPECT_NEAR(rows[0].meanwhile_seconds[0].second, 0.15, 1e-9);
  EXPECT_EQ(rows[1].stages, "wait");
  EXPECT_NEAR(rows[1].busy_seconds, 0.15, 1e-9);
}

TEST(TraceReport, AGpuIsIdleWhereItsSamplesSaySoForLongEnough) {
  const Capture of = made();
  const auto gpu = summarize({&of, 1}).back();
  EXPECT_EQ(gpu.lane, "gpu 0");
  EXPECT_NEAR(gpu.window_seconds, 4, 1e-9);
  EXPECT_NEAR(gpu.busy_seconds, 0.75, 1e-9);
  EXPECT_EQ(gpu.gaps, 1u);
  EXPECT_NEAR(gpu.longest_gap_seconds, 2.5, 1e-9);
  const auto gaps_with = [&](double least, double gpu_least) {
    GapOptions options;
    options.least_seconds = least;
    options.least_gpu_seconds = gpu_least;
    return gaps_of({&of, 1}, options);
  };
  const auto all = gaps_with(0.001, 1);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_NEAR(all[0].seconds(), 0.05, 1e-9);
  EXPECT_EQ(all[2].lane, "gpu 0");
  EXPECT_NEAR(1e-6 * (all[2].begin_us - kStart), 1, 1e-9);
  EXPECT_EQ(gaps_with(0.1, 1).size(), 2u);
  EXPECT_EQ(gaps_with(0.1, 3).size(), 1u);
}

TEST(TraceReport, EventsSayTheSameWhenTheyAreReadBack) {
  const Capture of = made();
  std::string text = "[";
  append_events(text, of, 5);
  const auto events = nlohmann::json::parse(text + "]");
  EXPECT_EQ(events.size(), 1 + 3 + 6 + 1 + 10u);
  EXPECT_EQ(events[0]["args"]["name"], "worker");
  EXPECT_EQ(events[4]["dur"], 100'000);
  EXPECT_EQ(events[9]["cat"], "period");
  EXPECT_EQ(events[9]["args"]["epoch"], 7);
  EXPECT_EQ(events[10]["args"]["text"], "a \"b\", c");
  std::string more;
  append_events(more, of, 5, 2);  // lanes 0 and 1 were told before
  EXPECT_EQ(more.find("cpu:0"), std::string::npos);
}

TEST(TraceReport, CsvHasARowForEverythingAndRunsNothing) {
  Capture of = made();
  of.marks[0].name = "=1+1\x1b[31m\xff\n";
  const std::string csv = to_csv({&of, 1});
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < csv.size();) {
    const std::size_t end = csv.find("\r\n", at);
    ASSERT_NE(end, std::string::npos);
    lines.push_back(csv.substr(at, end - at));
    at = end + 2;
  }
  ASSERT_EQ(lines.size(), 1 + 6 + 1 + 10 + 3u);
  EXPECT_EQ(lines[0],
            "kind,process,lane,name,begin_unix_seconds,duration_seconds,round,value,text");
  EXPECT_EQ(lines[1], "stage,worker,cpu:0,compute,1000000000.000000,0.100000,7,,");
  EXPECT_EQ(lines[6], "period,worker,loop,epoch,1000000000.000000,0.500000,7,,");
  EXPECT_EQ(lines[7], "mark,worker,loop,'=1+1 [31m? ,1000000000.200000,,,,\"a \"\"b\"\", c\"");
  EXPECT_EQ(lines[8], "sample,worker,gpu 0 utilization,ratio,1000000000.000000,,,0.5,");
  EXPECT_EQ(lines.back(), "idle,worker,gpu 0,idle,1000000001.000000,2.500000,,,");
}

TEST(TraceReport, ThePageNeedsNothingElse) {
  Capture of = made();
  of.process = "<script>alert(1)</script>";
  of.marks[0].text = "\"><img alt=x>";
  const std::string page = to_html({&of, 1});
  for (const char* const not_there : {"<script", "<img", "src=", "http:", "https:", "url("})
    EXPECT_EQ(page.find(not_there), std::string::npos) << not_there;
  for (const char* const there : {"&lt;script&gt;alert(1)", "cpu:0", "s-compute", "it.happened",
                                  "gpu 0 utilization", "2.5 s", "polyline"})
    EXPECT_NE(page.find(there), std::string::npos) << there;
  EXPECT_NE(to_html({}).find("Nothing was recorded"), std::string::npos);
}

TEST(TraceReport, APageOfManySpansStaysSmall) {
  Capture of;
  of.process = "many";
  for (int i = 0; i < 200; ++i) of.lanes.push_back("lane " + std::to_string(i));
  for (int i = 0; i < 65'536; ++i) {
    Capture::Span span;
    span.begin_us = kStart + 100.0 * i;
    span.duration_us = 20;
    span.lane = static_cast<std::uint32_t>(i % 200);
    span.name = "send";
    of.spans.push_back(span);
  }
  const std::string page = to_html({&of, 1});
  EXPECT_LT(page.size(), 8u << 20);
  EXPECT_NE(page.find("136 more lanes"), std::string::npos);
}

TEST(TraceReport, TextIsUtf8OrAQuestionMark) {
  EXPECT_EQ(escaped("a<b>&\"'\n"), "a&lt;b&gt;&amp;&quot;&#39; ");
  EXPECT_EQ(escaped("\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82"),
            "\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82");
  // Cut short, overlong, a half of a pair, beyond the last character.
  EXPECT_EQ(escaped("\xc3"), "?");
  EXPECT_EQ(escaped("\xc0\xaf"), "??");
  EXPECT_EQ(escaped("\xed\xa0\x80"), "???");
  EXPECT_EQ(escaped("\xf4\x90\x80\x80"), "????");
}

TEST(TraceReport, TheFormatOfAQuery) {
  EXPECT_EQ(query_format(""), "json");
  EXPECT_EQ(query_format("seconds=3"), "json");
  EXPECT_EQ(query_format("seconds=3&format=csv"), "csv");
  EXPECT_EQ(query_format("format="), "");
  EXPECT_EQ(export_as("csv", 1)->content_type, "text/csv; charset=utf-8");
  EXPECT_FALSE(export_as("xml", 1).has_value());
}

}  // namespace
}  // namespace centroid::trace
