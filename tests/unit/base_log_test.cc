#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <limits>
#include <regex>
#include <set>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/base/log.h"
#include "common/base/random.h"

namespace centroid::log {
namespace {

using namespace std::string_literals;
using nlohmann::json;

class Log : public testing::Test {
 protected:
  Log() {
    std::string name = testing::TempDir() + "centroid_log_XXXXXX";
    ::close(::mkstemp(name.data()));
    path_ = name;
  }
  ~Log() override {
    EXPECT_TRUE(configure(Level::kInfo, Format::kText).ok());
    ::unlink(path_.c_str());
  }
  void use(Level level, Format format) { ASSERT_TRUE(configure(level, format, path_).ok()); }
  std::vector<std::string> lines() const {
    std::ifstream file(path_);
    std::vector<std::string> out;
    for (std::string line; std::getline(file, line);) out.push_back(line);
    return out;
  }
  std::string only_line() const {
    const auto all = lines();
    EXPECT_EQ(all.size(), 1U);
    return all.empty() ? "" : all.front();
  }
  std::string path_;
};

TEST_F(Log, TextLineHasTimeLevelEventAndFields) {
  use(Level::kInfo, Format::kText);
  info("worker.was_admitted", {{"rank", 3}, {"ok", true}, {"rate", 0.5}, {"name", "a b"}});
  EXPECT_TRUE(std::regex_match(
      only_line(),
      std::regex(
          R"(\d\d:\d\d:\d\d\.\d{3} info  worker.was_admitted rank=3 ok=true rate=0.5 name="a b")")))
      << only_line();
}

TEST_F(Log, JsonLineHasTypedFields) {
  use(Level::kInfo, Format::kJson);
  warn("round.was_late", {{"round", std::uint64_t{18'446'744'073'709'551'615U}},
                          {"delta", -5},
                          {"ratio", 0.25},
                          {"bad", std::numeric_limits<double>::quiet_NaN()},
                          {"cause", Error(ErrorCode::kUnavailable, "peer gone")}});
  const json line = json::parse(only_line());
  EXPECT_EQ(line["level"], "warn");
  EXPECT_EQ(line["event"], "round.was_late");
  EXPECT_EQ(line["round"], 18'446'744'073'709'551'615U);
  EXPECT_EQ(line["delta"], -5);
  EXPECT_EQ(line["ratio"], 0.25);
  EXPECT_EQ(line["bad"], "nan");
  EXPECT_EQ(line["cause"], "unavailable: peer gone");
  EXPECT_TRUE(std::regex_match(line["time"].get<std::string>(),
                               std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z)")));
}

TEST_F(Log, AnyBytesGiveValidJsonAndOneLine) {
  use(Level::kInfo, Format::kJson);
  constexpr std::uint64_t kSeed = 11;
  SCOPED_TRACE("seed 11");
  CounterRng rng(kSeed);
  constexpr std::size_t kLines = 500;
  for (std::size_t i = 0; i < kLines; ++i) {
    std::string text(rng.below(40), ' ');
    for (char& c : text)  // mostly lead and continuation bytes: broken UTF-8 of every kind
      c = static_cast<char>(rng.below(3) == 0 ? rng.below(256) : 0x80 + rng.below(128));
    info(text, {{text, text}});
  }
  const auto all = lines();
  ASSERT_EQ(all.size(), kLines);
  for (const auto& line : all) ASSERT_TRUE(json::accept(line)) << line;
}

TEST_F(Log, GoodTextSurvivesJson) {
  use(Level::kInfo, Format::kJson);
  const std::string text = "tab\t newline\n quote\" back\\ nul\0 é € 😀 \x7f"s;
  info("a.was_b", {{"text", text}});
  EXPECT_EQ(json::parse(only_line())["text"], text);
}

TEST_F(Log, BrokenUtf8BecomesReplacementCharacters) {
  use(Level::kInfo, Format::kJson);
  // Stray continuation, overlong slash, surrogate, above U+10FFFF, cut short.
  info("a.was_b", {{"a", "x\x80y"},
                   {"b", "\xC0\xAF"},
                   {"c", "\xED\xA0\x80"},
                   {"d", "\xF4\x90\x80\x80"},
                   {"e", "\xE2\x82"}});
  const json line = json::parse(only_line());
  EXPECT_EQ(line["a"], "x\uFFFDy");
  EXPECT_EQ(line["b"], "\uFFFD\uFFFD");
  EXPECT_EQ(line["c"], "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(line["d"], "\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(line["e"], "\uFFFD\uFFFD");
}

TEST_F(Log, TextCannotForgeALineOrDriveTheTerminal) {
  use(Level::kInfo, Format::kText);
  info("a.was_b", {{"name", "x\n12:00:00.000 error forged.was_it \x1b[2J\u009b2J"}});
  EXPECT_THAT(only_line(), testing::HasSubstr(
                               R"(name="x\n12:00:00.000 error forged.was_it \u001b[2J\u009b2J")"));
}

TEST_F(Log, QuotesTextThatIsEmptyOrLooksLikeAField) {
  use(Level::kInfo, Format::kText);
  info("a.was_b", {{"one", ""}, {"two", "k=v"}, {"three", "plain"}});
  EXPECT_THAT(only_line(), testing::HasSubstr(R"(one="" two="k=v" three=plain)"));
}

TEST_F(Log, WritesOnlyFromTheLevelUp) {
  use(Level::kWarn, Format::kText);
  info("a.was_hidden");
  warn("a.was_shown");
  EXPECT_THAT(only_line(), testing::HasSubstr("a.was_shown"));
  EXPECT_FALSE(is_enabled(Level::kInfo));
  EXPECT_TRUE(is_enabled(Level::kError));
  ASSERT_TRUE(configure(Level::kOff, Format::kText, path_).ok());
  EXPECT_FALSE(is_enabled(Level::kError));
  EXPECT_FALSE(is_enabled(Level::kOff));
}

TEST_F(Log, ThreadsDoNotMixLines) {
  use(Level::kInfo, Format::kJson);
  constexpr int kThreads = 4;
  constexpr int kEach = 300;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t)
      threads.emplace_back([t] {
        for (int i = 0; i < kEach; ++i)
          info("a.was_b", {{"thread", t}, {"i", i}, {"pad", std::string(200, 'x')}});
      });
  }
  std::set<std::pair<int, int>> seen;
  for (const auto& line : lines()) {
    const json parsed = json::parse(line);
    seen.emplace(parsed["thread"], parsed["i"]);
  }
  EXPECT_EQ(seen.size(), std::size_t{kThreads * kEach});
}

TEST_F(Log, NamesParseAndBadNamesAreRefused) {
  EXPECT_EQ(parse_level("debug").value(), Level::kDebug);
  EXPECT_EQ(parse_format("json").value(), Format::kJson);
  EXPECT_EQ(parse_level("loud").error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(parse_format("xml").error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(configure(Level::kInfo, Format::kText, "/nowhere/at/all").error().code(),
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace centroid::log
