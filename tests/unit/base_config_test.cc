#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/base/config.h"

namespace centroid::config {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class Config : public testing::Test {
 protected:
  Config() {
    schema.field("verbose", &verbose, {.text = "Talk."});
    schema.field("checkpoint.every_rounds", &every, {.text = "Rounds.", .min = 1, .max = 100});
    schema.field("checkpoint.bytes", &bytes, {.text = "Size.", .unit = "bytes", .max = 1ULL << 40});
    schema.field("rate", &rate, {.text = "Rate.", .min = 0.0, .max = 1.0});
    schema.field("policy", &policy, {.text = "Policy.", .choices = {"bsp", "asp"}});
    schema.field("lease", &lease, {.text = "Lease.", .min = 10});
    schema.field("auth.token", &token, {.text = "Token.", .secret = true});
    schema.field("offset", &offset, {.text = "Offset."});
  }
  ~Config() override {
    for (const auto& name : variables_) ::unsetenv(name.c_str());
    for (const auto& path : files_) ::unlink(path.c_str());
  }

  Result<Schema::Outcome> load(std::vector<const char*> flags) {
    flags.insert(flags.begin(), "program");
    return schema.load(static_cast<int>(flags.size()), flags.data());
  }
  std::string problem(std::vector<const char*> flags) {
    const auto outcome = load(std::move(flags));
    EXPECT_FALSE(outcome.ok());
    if (outcome.ok()) return "";
    EXPECT_EQ(outcome.error().code(), ErrorCode::kInvalidArgument);
    return outcome.error().message();
  }
  std::string text_problem(const std::string& text) {
    const auto status = schema.load_text(text, "run.json");
    EXPECT_FALSE(status.ok()) << text;
    return status.ok() ? "" : status.error().message();
  }
  void set(const std::string& name, const std::string& value) {
    ::setenv(name.c_str(), value.c_str(), 1);
    variables_.push_back(name);
  }
  std::string file(const std::string& text) {
    std::string name = testing::TempDir() + "centroid_config_XXXXXX";
    ::close(::mkstemp(name.data()));
    std::ofstream(name) << text;
    files_.push_back(name);
    return name;
  }

  Schema schema{"program", "Does things."};
  bool verbose = false;
  std::int64_t every = 5;
  std::uint64_t bytes = 1024;
  double rate = 0.5;
  std::string policy = "bsp";
  std::chrono::milliseconds lease{3000};
  std::string token;
  std::int64_t offset = 0;

 private:
  std::vector<std::string> variables_;
  std::vector<std::string> files_;
};

TEST_F(Config, ReadsNestedAndDottedKeys) {
  ASSERT_TRUE(schema
                  .load_text(R"({"verbose": true, "checkpoint": {"every_rounds": 7},
                               "checkpoint.bytes": "64KiB", "rate": 1, "policy": "asp",
                               "lease": "30s", "offset": -4, "auth": {"token": "abc"}})",
                             "run.json")
                  .ok());
  EXPECT_TRUE(verbose);
  EXPECT_EQ(every, 7);
  EXPECT_EQ(bytes, 65'536U);
  EXPECT_EQ(rate, 1);
  EXPECT_EQ(policy, "asp");
  EXPECT_EQ(lease, 30s);
  EXPECT_EQ(offset, -4);
  EXPECT_EQ(token, "abc");
}

TEST_F(Config, LaterSourcesWin) {
  const auto path = file(R"({"checkpoint": {"every_rounds": 2}, "rate": 0.2, "offset": 2})");
  set("CENTROID_CHECKPOINT_EVERY_ROUNDS", "3");
  set("CENTROID_RATE", "0.3");
  ASSERT_TRUE(load({"--checkpoint.every-rounds", "4", "--config", path.c_str()}).ok());
  EXPECT_EQ(every, 4);
  EXPECT_EQ(rate, 0.3);
  EXPECT_EQ(offset, 2);
  const json effective = json::parse(schema.effective_json());
  EXPECT_EQ(effective["checkpoint.every_rounds"]["origin"], "flag");
  EXPECT_EQ(effective["rate"]["origin"], "environment");
  EXPECT_EQ(effective["rate"]["source"], "CENTROID_RATE");
  EXPECT_EQ(effective["offset"]["origin"], "file");
  EXPECT_EQ(effective["offset"]["source"], path + ":1");
  EXPECT_EQ(effective["policy"]["origin"], "default");
  EXPECT_EQ(effective["checkpoint.every_rounds"]["default"], 5);
  EXPECT_EQ(effective["checkpoint.every_rounds"]["min"], 1);
  EXPECT_EQ(effective["lease"]["unit"], "ms");
  EXPECT_EQ(effective["lease"]["value"], 3000);
}

TEST_F(Config, TheFileMayBeNamedByTheEnvironmentAndTheFlagWins) {
  set("CENTROID_CONFIG", file(R"({"offset": 1})"));
  ASSERT_TRUE(load({}).ok());
  EXPECT_EQ(offset, 1);
  const auto other = file(R"({"offset": 2})");
  ASSERT_TRUE(load({("--config=" + other).c_str()}).ok());
  EXPECT_EQ(offset, 2);
}

TEST_F(Config, AFlagIsItsNameWithDashes) {
  ASSERT_TRUE(load({"--checkpoint.every-rounds=9", "--verbose", "--lease", "2m", "--offset", "-12",
                    "--rate=0.25"})
                  .ok());
  EXPECT_EQ(every, 9);
  EXPECT_TRUE(verbose);
  EXPECT_EQ(lease, 2min);
  EXPECT_EQ(offset, -12);
  EXPECT_EQ(rate, 0.25);
  ASSERT_TRUE(load({"--no-verbose"}).ok());
  EXPECT_FALSE(verbose);
  ASSERT_TRUE(load({"--verbose=on"}).ok());
  EXPECT_TRUE(verbose);
}

TEST_F(Config, TimesAndSizesHaveUnits) {
  const std::vector<std::pair<const char*, std::int64_t>> times = {
      {"250", 250},   {"250ms", 250},  {"30s", 30'000},
      {"1.5s", 1500}, {"5m", 300'000}, {"1h", 3'600'000}};
  for (const auto& [text, expected] : times) {
    ASSERT_TRUE(load({"--lease", text}).ok()) << text;
    EXPECT_EQ(lease.count(), expected) << text;
  }
  const std::vector<std::pair<const char*, std::uint64_t>> sizes = {
      {"4096", 4096},         {"64KiB", 65'536},   {"1MiB", 1'048'576},
      {"2GB", 2'000'000'000}, {"0.5MiB", 524'288}, {"1TiB", 1ULL << 40}};
  for (const auto& [text, expected] : sizes) {
    ASSERT_TRUE(load({"--checkpoint.bytes", text}).ok()) << text;
    EXPECT_EQ(bytes, expected) << text;
  }
  for (const char* text : {"", "5x", "s", "1 s", "ms5", "1e3s", "99999999999999999h", "0.1ms"})
    EXPECT_THAT(problem({"--lease", text}), HasSubstr("--lease: got \"")) << text;
  for (const char* text : {"-1", "5kib", "3s", "99999999999TiB", "0.3B"})
    EXPECT_THAT(problem({"--checkpoint.bytes", text}), HasSubstr("expected a size")) << text;
  EXPECT_THAT(problem({"--offset", "5s"}), HasSubstr("expected an integer"));
}

TEST_F(Config, ListsEveryProblemWithItsPlace) {
  const std::string message = text_problem(R"({
    "checkpoint": {
      "every_rounds": 0,
      "evry_rounds": 3
    },
    "policy": "bps",
    "rate": "fast",
    "verbose": 1,
    "offset": 1.5,
    "lease": [1],
    "chekpoint": {}
  })");
  EXPECT_THAT(
      message,
      AllOf(HasSubstr("8 problems"),
            HasSubstr(
                "run.json:3: checkpoint.every_rounds: got 0, expected an integer from 1 to 100"),
            HasSubstr("run.json:4: unknown key \"checkpoint.evry_rounds\"; did you mean "
                      "\"checkpoint.every_rounds\"?"),
            HasSubstr("run.json:6: policy: got \"bps\", expected one of bsp, asp"),
            HasSubstr("run.json:7: rate: got \"fast\", expected a number from 0 to 1"),
            HasSubstr("run.json:8: verbose: got 1, expected true or false"),
            HasSubstr("run.json:9: offset: got 1.5, expected an integer"),
            HasSubstr("run.json:10: lease: got an array, expected a time"),
            HasSubstr("run.json:11: unknown key \"chekpoint\"")));
}

TEST_F(Config, NothingChangesWhenOneValueIsBad) {
  (void)text_problem(R"({"offset": 9, "policy": "x"})");
  EXPECT_EQ(offset, 0);
  ASSERT_TRUE(schema.load_text(R"({"rate": 0.1})", "run.json").ok());
  EXPECT_EQ(offset, 0) << "nor later";
}

TEST_F(Config, BadJsonNamesLineAndColumn) {
  EXPECT_THAT(text_problem("{\n  \"rate\": 0.5,\n  oops\n}"),
              HasSubstr("run.json:3:3: not valid JSON"));
  EXPECT_THAT(text_problem(""), HasSubstr("run.json:1:1: not valid JSON"));
  EXPECT_THAT(text_problem("[1]"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(text_problem("3"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(text_problem(R"({"rate": 1e999})"), HasSubstr("run.json:1:"));
  EXPECT_THAT(text_problem("{} {}"), HasSubstr("run.json:1:4"));
  EXPECT_THAT(text_problem("{\"offset\": 1,\n\"offset\": 2}"),
              HasSubstr("run.json:2: offset is set twice, first in line 1"));
  EXPECT_THAT(text_problem("{\"checkpoint\": {\"bytes\": 1},\n\"checkpoint.bytes\": 2}"),
              HasSubstr("set twice"));
}

TEST_F(Config, GroupsAreObjectsAndMayBeEmpty) {
  EXPECT_TRUE(schema.load_text(R"({"checkpoint": {}, "auth": {}})", "run.json").ok());
  EXPECT_THAT(text_problem(R"({"checkpoint": 5})"), HasSubstr("checkpoint: expected an object"));
  EXPECT_THAT(text_problem(R"({"rate": {}})"), HasSubstr("rate: got an object"));
  EXPECT_THAT(text_problem(R"({"rate": {"x": 1}})"), HasSubstr("unknown key \"rate.x\""));
  EXPECT_THAT(text_problem(R"({"every_rounds": 1})"),
              HasSubstr("did you mean \"checkpoint.every_rounds\"?"));
  EXPECT_THAT(text_problem(R"({"x": [{"y": [1, {"z": 2}]}, 3]})"), HasSubstr("unknown key \"x\""));
}

TEST_F(Config, IntegersStayExact) {
  std::uint64_t big = 0;
  std::int64_t low = 0;
  Schema wide("program", "");
  wide.field("big", &big, {.text = "B."});
  wide.field("low", &low, {.text = "L."});
  ASSERT_TRUE(
      wide.load_text(R"({"big": 18446744073709551615, "low": -9223372036854775808})", "f").ok());
  EXPECT_EQ(big, 18'446'744'073'709'551'615U);
  EXPECT_EQ(low, std::numeric_limits<std::int64_t>::min());
  ASSERT_TRUE(wide.load_text(R"({"big": 1e6})", "f").ok());
  EXPECT_EQ(big, 1'000'000U);
  EXPECT_FALSE(wide.load_text(R"({"big": -1})", "f").ok());
  EXPECT_FALSE(wide.load_text(R"({"big": 18446744073709551616})", "f").ok());
  EXPECT_FALSE(wide.load_text(R"({"low": 9223372036854775808})", "f").ok());
  EXPECT_FALSE(wide.load_text(R"({"big": null})", "f").ok());
}

TEST_F(Config, UnknownFlagsAndPositionalsNameTheNearest) {
  const std::string message = problem({"--polcy", "asp", "serve", "--rat=1", "--offset"});
  EXPECT_THAT(message, AllOf(HasSubstr("4 problems"),
                             HasSubstr("unknown flag --polcy; did you mean \"--policy\"?"),
                             HasSubstr("positional argument \"serve\""),
                             HasSubstr("unknown flag --rat; did you mean \"--rate\"?"),
                             HasSubstr("--offset needs a value")));
  EXPECT_THAT(problem({"--no-rate"}), HasSubstr("unknown flag --no-rate"));
  EXPECT_THAT(problem({"--colour", "red"}), Not(HasSubstr("did you mean")));
  EXPECT_THAT(problem({"--print-config=1"}), HasSubstr("--print-config takes no value"));
}

TEST_F(Config, UnknownVariablesNameTheNearestUnlessIgnored) {
  set("CENTROID_POLCY", "asp");
  EXPECT_THAT(problem({}), HasSubstr("unknown environment variable CENTROID_POLCY; did you mean "
                                     "\"CENTROID_POLICY\"?"));
  schema.ignore_environment("CENTROID_POLCY");
  EXPECT_TRUE(load({}).ok());
}

TEST_F(Config, SecretsComeFromFilesAndAreNeverShown) {
  const auto path = file("s3cret\n");
  ASSERT_TRUE(load({"--auth.token-file", path.c_str()}).ok());
  EXPECT_EQ(token, "s3cret");
  EXPECT_THAT(schema.effective_json(), AllOf(Not(HasSubstr("s3cret")), HasSubstr("***")));
  token.clear();
  ASSERT_TRUE(schema.load_text(R"({"auth": {"token_file": ")" + path + "\"}}", "run.json").ok());
  EXPECT_EQ(token, "s3cret");
  token.clear();
  set("CENTROID_AUTH_TOKEN_FILE", path);
  ASSERT_TRUE(load({}).ok());
  EXPECT_EQ(token, "s3cret");
  EXPECT_THAT(problem({"--auth.token-file", "/nowhere"}), HasSubstr("cannot be read"));
  const auto empty = file("\r\n");
  EXPECT_THAT(problem({"--auth.token-file", empty.c_str()}),
              HasSubstr("--auth.token-file: file \"" + empty + "\" is empty"));
  EXPECT_THAT(problem({"--policy-file", path.c_str()}), HasSubstr("unknown flag --policy-file"));
  std::uint64_t pin = 0;
  Schema secret("program", "");
  secret.field("pin", &pin, {.text = "Pin.", .secret = true});
  const auto bad = secret.load_text(R"({"pin": "hunter2"})", "run.json");
  EXPECT_THAT(bad.error().message(), AllOf(Not(HasSubstr("hunter2")), HasSubstr("got ***")));
}

TEST_F(Config, HelpVersionAndPrintConfigAreAnswered) {
  testing::internal::CaptureStdout();
  EXPECT_EQ(load({"--help", "--nonsense"}).value(), Schema::Outcome::kPrinted);
  EXPECT_THAT(testing::internal::GetCapturedStdout(),
              AllOf(HasSubstr("Does things."), HasSubstr("--checkpoint.every-rounds N"),
                    HasSubstr("from 1 to 100; default 5")));
  testing::internal::CaptureStdout();
  EXPECT_EQ(load({"-h"}).value(), Schema::Outcome::kPrinted);
  EXPECT_THAT(testing::internal::GetCapturedStdout(), testing::StartsWith("Does things."));
  testing::internal::CaptureStdout();
  EXPECT_EQ(load({"--version"}).value(), Schema::Outcome::kPrinted);
  EXPECT_THAT(testing::internal::GetCapturedStdout(), testing::StartsWith("program "));
  testing::internal::CaptureStdout();
  EXPECT_EQ(load({"--print-config", "--offset=3"}).value(), Schema::Outcome::kPrinted);
  EXPECT_EQ(json::parse(testing::internal::GetCapturedStdout())["offset"]["value"], 3);
}

TEST_F(Config, OtherSpellingsAreUnknownAndTheRightOneIsNamed) {
  for (const char* flag : {"--checkpoint.every_rounds", "--checkpoint-every-rounds",
                           "--checkpoint_every_rounds", "--every-rounds"})
    EXPECT_THAT(problem({flag, "4"}), HasSubstr("unknown flag " + std::string(flag) +
                                                "; did you mean \"--checkpoint.every-rounds\"?"));
  EXPECT_THAT(problem({"--print_config"}), HasSubstr("did you mean \"--print-config\"?"));
}

TEST(ConfigHelp, ListsBasicFieldsAndAllOfThemOnDemand) {
  std::int64_t first = 0, second = 0, third = 0;
  Schema schema("program", "Does things.");
  schema.section("Job");
  schema.field("rounds", &first, {.text = "Rounds.", .basic = true});
  schema.field("cadence.guard", &second, {.text = "Guard."});
  schema.section("Rare");
  schema.field("chunk_bytes", &third, {.text = "Chunk."});
  EXPECT_THAT(schema.help(false), AllOf(HasSubstr("\nJob\n  --rounds N\n"), HasSubstr("--help-all"),
                                        Not(HasSubstr("guard")), Not(HasSubstr("Rare"))));
  EXPECT_THAT(schema.help(), AllOf(HasSubstr("--rounds"), HasSubstr("--cadence.guard"),
                                   HasSubstr("\nRare\n  --chunk-bytes N\n")));
}

TEST_F(Config, AMissingConfigFileIsAProblem) {
  EXPECT_THAT(problem({"--config", "/nowhere.json"}), HasSubstr("/nowhere.json"));
  EXPECT_THAT(problem({"--config", "/nowhere", "--config", "/nowhere"}), HasSubstr("set twice"));
}

TEST_F(Config, TwoFieldsOfOneNameAbort) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(schema.field("rate", &offset, {.text = "Again."}), "CENTROID_CHECK failed");
  EXPECT_DEATH(schema.field("checkpoint_bytes", &offset, {.text = "Same variable."}),
               "CENTROID_CHECK failed");
  EXPECT_DEATH(schema.field("config", &offset, {.text = "Reserved."}), "CENTROID_CHECK failed");
}

TEST(ConfigChange, IsOfLiveFieldsAndAllOrNothing) {
  std::uint64_t keep = 3, every = 0, seed = 1;
  Schema schema("test", "Test.");
  schema.field("checkpoint.keep", &keep, {.text = "Keep.", .min = 1, .live = true});
  schema.field("checkpoint.every", &every, {.text = "Every.", .live = true});
  schema.field("seed", &seed, {.text = "Seed."});
  using Changes = std::vector<Schema::Change>;
  const auto fine = [](const Changes&) { return Status(); };
  const auto change = [&](const char* text) { return schema.change(text, "test", fine); };
  const auto done = change(R"({"checkpoint.keep": 5, "checkpoint": {"every": 7}})");
  ASSERT_TRUE(done.ok()) << done.error().message();
  ASSERT_EQ(done->size(), 2U);
  EXPECT_EQ(done->front().name, "checkpoint.keep");
  EXPECT_EQ(done->front().from, "3");
  EXPECT_EQ(done->front().to, "5");
  EXPECT_EQ(keep, 5U);
  EXPECT_EQ(every, 7U);
  const auto shown = json::parse(schema.effective_json());
  EXPECT_EQ(shown["checkpoint.keep"]["origin"], "rest");
  for (const char* wrong : {R"({"checkpoint.keep": 6, "seed": 2})", R"({"checkpoint.keep": 0})",
                            R"({"checkpoint.keep": 6, "checkpoint.kep": 2})", "{", "[]"}) {
    EXPECT_FALSE(change(wrong).ok()) << wrong;
    EXPECT_EQ(keep, 5U) << wrong;
  }
  EXPECT_EQ(change(R"({"seed": 2})").error().code(), ErrorCode::kFailedPrecondition);
  std::uint64_t seen = 0;
  const auto refuse = [&](const Changes& changes) {
    EXPECT_EQ(changes.front().to, "8");
    seen = keep;
    return Status(Error(ErrorCode::kFailedPrecondition, "not now"));
  };
  EXPECT_FALSE(schema.change(R"({"checkpoint.keep": 8})", "test", refuse).ok());
  EXPECT_EQ(seen, 8U) << "the check sees the new value";
  EXPECT_EQ(keep, 5U);
  EXPECT_EQ(json::parse(schema.effective_json())["checkpoint.keep"]["source"], "test:1");
}

TEST(ConfigChange, CanBeListedForTheNextProcessAndTakenBack) {
  std::uint64_t keep = 3, every = 0;
  double rate = 0.5;
  std::chrono::milliseconds lease{100};
  std::string policy = "bsp";
  Schema schema("test", "Test.");
  schema.field("keep", &keep, {.text = "Keep.", .live = true});
  schema.field("every", &every, {.text = "Every.", .live = true});
  schema.field("rate", &rate, {.text = "Rate.", .live = true});
  schema.field("lease", &lease, {.text = "Lease.", .live = true});
  schema.field("policy", &policy, {.text = "Policy."});
  ASSERT_TRUE(schema.load_text(R"({"keep": 4})", "file").ok());
  EXPECT_TRUE(schema.live_changes().empty());
  EXPECT_EQ(schema.configured("keep"), "4");
  EXPECT_EQ(schema.configured("policy"), "") << "is not live";
  EXPECT_EQ(schema.configured("nobody"), "");
  const auto fine = [](const std::vector<Schema::Change>&) { return Status(); };
  for (const char* text : {R"({"keep": 5, "every": 1, "rate": 0.1})", R"({"keep": 6, "every": 0})",
                           R"({"lease": "2s"})"})
    ASSERT_TRUE(schema.change(text, "test", fine).ok()) << text;
  const auto changes = schema.live_changes();
  ASSERT_EQ(changes.size(), 3U) << "every has its configured value again";
  EXPECT_EQ(changes[0].name + changes[0].value + changes[0].configured, "keep64");
  EXPECT_EQ(changes[1].name + changes[1].value + changes[1].configured, "rate0.10.5");
  EXPECT_EQ(changes[2].name + changes[2].value + changes[2].configured, "lease2000100");
  schema.take_back_changes();
  EXPECT_TRUE(schema.live_changes().empty());
  EXPECT_EQ(keep, 4U);
  EXPECT_EQ(rate, 0.5);
  EXPECT_EQ(lease.count(), 100);
  const auto shown = json::parse(schema.effective_json());
  EXPECT_EQ(shown["keep"]["origin"], "file");
  EXPECT_EQ(shown["keep"]["source"], "file:1");
  EXPECT_EQ(shown["rate"]["origin"], "default");
}

}  // namespace
}  // namespace centroid::config
