#include "server/service/operator_file.h"

#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/temporary_directory.h"

namespace centroid::server {
namespace {

OperatorState sample() {
  OperatorState state;
  state.evictions.push_back({"w \"1\"", "its disk\nis failing", 1000.5, 0});
  state.evictions.push_back({"w2", "", 1000, 2000.25});
  state.scale = {6, "a holiday", 999};
  state.stop = {.run_id = "r \"2\"", .halted = {}, .version = 77, .since_unix_seconds = 1001.5};
  state.job = {.run_id = "r \"2\"", .version = 78};
  state.pause.emplace().since_unix_seconds = 1002.25;
  state.settings.push_back({"lr", "0.1", "0.05"});
  state.settings.push_back({"exit_when_finished", "true", "false"});
  state.settings.push_back({"policy", R"("backup:1")", R"("backup:2")"});
  return state;
}

TEST(OperatorFile, IsReadAsItWasWritten) {
  const TemporaryDirectory folder;
  const std::string path = folder.path().string();
  const auto nothing = read_operator_state(path);
  ASSERT_TRUE(nothing.ok());
  EXPECT_EQ(*nothing, OperatorState());
  OperatorState halted = sample();
  halted.stop->halted = "tensor \"w\" is not finite";
  for (const OperatorState& state : {sample(), halted, OperatorState()}) {
    ASSERT_TRUE(write_operator_state(path, state).ok());
    const auto read = read_operator_state(path);
    ASSERT_TRUE(read.ok()) << read.error().to_string();
    EXPECT_EQ(*read, state);
  }
}

TEST(OperatorFile, OneOfAnOlderServerHasNoStop) {
  const auto state = parse_operator_state(
      R"({"evictions": [], "scale": {"workers": 2, "why": "", "since_unix_seconds": 5}})");
  ASSERT_TRUE(state.ok());
  EXPECT_EQ(state->scale.workers, 2u);
  EXPECT_FALSE(state->stop);
  EXPECT_FALSE(state->has_job());
}

TEST(OperatorFile, SettingsOfAnOlderServerHaveTheirNamesOfToday) {
  const auto state = parse_operator_state(
      R"({"evictions": [], "scale": {"workers": 0, "why": "", "since_unix_seconds": 0},
          "job": {"run_id": "r", "version": 2}, "settings": [
            {"name": "optimizer.learning_rate", "value": 0.1, "instead_of": 0.05},
            {"name": "optimizer.schedule", "value": "constant", "instead_of": "linear:rounds=9"},
            {"name": "lease", "value": 3000, "instead_of": 2000}]})");
  ASSERT_TRUE(state.ok()) << state.error().to_string();
  ASSERT_EQ(state->settings.size(), 3u);
  EXPECT_EQ(state->settings[0].name, "lr");
  EXPECT_EQ(state->settings[1].name, "lr_schedule");
  EXPECT_EQ(state->settings[2].name, "lease");
}

TEST(OperatorFile, AFolderThatCannotBeWrittenIsNamed) {
  const auto refused = write_operator_state("/nowhere/at/all", sample());
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message(), testing::HasSubstr("/nowhere/at/all"));
}

TEST(OperatorFile, WhoLeadsNoLongerWritesNothing) {
  const TemporaryDirectory folder;
  const std::string path = folder.path().string();
  ASSERT_TRUE(write_operator_state(path, OperatorState()).ok());
  const auto deposed = [] { return Status(Error(ErrorCode::kAborted, "deposed")); };
  EXPECT_EQ(write_operator_state(path, sample(), deposed).error().code(), ErrorCode::kAborted);
  EXPECT_EQ(*read_operator_state(path), OperatorState());
}

/// One that is stopped with its draft written, and goes on when the next has written its own.
TEST(OperatorFile, TwoWritersShareNoDraft) {
  const TemporaryDirectory folder;
  const std::string path = folder.path().string();
  const auto others = [&]() -> Status {
    return write_operator_state(path, OperatorState(), {}, "b");
  };
  const Status written = write_operator_state(path, sample(), others, "a");
  EXPECT_TRUE(written.ok()) << written.error().to_string();
  EXPECT_EQ(*read_operator_state(path), sample());
  const auto deposed = [] { return Status(Error(ErrorCode::kAborted, "deposed")); };
  EXPECT_FALSE(write_operator_state(path, OperatorState(), deposed, "a").ok());
  std::ofstream(path + "/operator.json.tmp-a-17") << "of an earlier life";
  std::ofstream(path + "/operator.json.tmp-b-17") << "another's";
  EXPECT_TRUE(write_operator_state(path, sample(), {}, "a").ok());
  std::set<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    left.insert(entry.path().filename().string());
  EXPECT_THAT(left, testing::ElementsAre("operator.json", "operator.json.tmp-b-17"));
}

TEST(OperatorFile, DamageIsAnErrorNeverSomethingElse) {
  const std::string whole = to_json(sample());
  ASSERT_TRUE(parse_operator_state(whole).ok());
  for (const char* bad : {"", "null", "[]", "{}", R"({"evictions": 1, "scale": {}})",
                          R"({"evictions": [{"name": ""}], "scale": {"workers": 1}})",
                          R"({"evictions": [], "scale": {"workers": 1, "why": "",
                              "since_unix_seconds": 0}, "stop": {"version": -1}})",
                          R"({"evictions": [], "scale": {"workers": 1, "why": "",
                              "since_unix_seconds": 0}, "pause": {"since_unix_seconds": 1}})",
                          R"({"evictions": [], "scale": {"workers": 1, "why": "",
                              "since_unix_seconds": 0}, "job": {"run_id": "r", "version": 1},
                              "settings": [{"name": "lease", "value": [], "instead_of": 1}]})"})
    EXPECT_EQ(parse_operator_state(bad).error().code(), ErrorCode::kDataLoss) << bad;
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 5000; ++i) {
    std::string text = whole;
    text[random() % text.size()] = static_cast<char>(random());
    if (i % 2 == 0) text.resize(random() % text.size());
    const auto state = parse_operator_state(text);
    if (!state.ok()) continue;
    for (const auto& one : state->evictions) EXPECT_FALSE(one.name.empty());
    for (const auto& one : state->settings) EXPECT_FALSE(one.value.empty());
  }
}

}  // namespace
}  // namespace centroid::server
