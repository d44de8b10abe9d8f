#include "common/checkpoint/restore_mark.h"

#include <cerrno>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/checkpoint/journal_reader.h"
#include "tests/support/faulty_storage.h"
#include "tests/unit/temporary_directory.h"

namespace centroid::restore_mark_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const Manifest kModel = {{"w", DType::kF32, {5}}};

class RestoreMarkTest : public ::testing::Test {
 protected:
  RestoreMarkTest() {
    fs::create_directories(journal());
    for (const std::uint64_t version : {3, 5, 8}) write_checkpoint(version);
    add_segment(4, "ten bytes.");
    add_segment(7, "more");
  }
  fs::path journal() const { return folder_.path() / "journal"; }
  CheckpointDirectory open() const {
    auto opened = CheckpointDirectory::open(folder_.path() / "checkpoints", 0);
    EXPECT_TRUE(opened.ok());
    return std::move(opened).value();
  }
  void write_checkpoint(std::uint64_t version) const {
    CheckpointInfo info;
    info.run_id = "run";
    info.version = Version(version);
    info.round = Round(version - 1);
    const auto zeros = [](std::size_t, std::uint64_t, std::span<float> into) {
      std::ranges::fill(into, 0.0f);
      return Status();
    };
    const auto written = open().write(info, kModel, zeros, {});
    ASSERT_TRUE(written.ok()) << written.error().to_string();
  }
  void add_segment(std::uint64_t round, const std::string& text) const {
    std::ofstream(journal() / journal::segment_name(Round(round)), std::ios::app) << text;
  }
  /// To the checkpoint of version 5, whatever is there now.
  RestoreMark mark() const {
    RestoreMark out;
    out.run_id = "run";
    out.version = Version(5);
    for (const CheckpointEntry& entry : open().list(false))
      if (entry.version > out.version) out.newer.push_back(entry.path.filename().string());
    const auto there = journal::segments_of(journal());
    for (const LogSegment& one : *there)
      out.segments.push_back({one.path.filename().string(), one.bytes});
    return out;
  }
  bool has_mark() const { return fs::exists(journal() / RestoreMark::kFile); }
  std::vector<std::uint64_t> versions() const {
    std::vector<std::uint64_t> out;
    for (const CheckpointEntry& entry : open().list(false)) out.push_back(entry.version.value);
    return out;
  }
  std::vector<std::uint64_t> segments() const {
    std::vector<std::uint64_t> out;
    const auto there = journal::segments_of(journal());
    for (const LogSegment& one : *there) out.push_back(one.number);
    return out;
  }
  TemporaryDirectory folder_;
};

TEST_F(RestoreMarkTest, IsReadAsItWasWritten) {
  const RestoreMark written = mark();
  ASSERT_TRUE(written.write(journal(), {}).ok());
  const auto read = RestoreMark::read(journal());
  ASSERT_TRUE(read.ok() && *read);
  EXPECT_EQ((*read)->run_id, "run");
  EXPECT_EQ((*read)->version, Version(5));
  EXPECT_EQ((*read)->newer, written.newer);
  ASSERT_EQ((*read)->segments.size(), 2u);
  EXPECT_EQ((*read)->segments[0].name, written.segments[0].name);
  EXPECT_EQ((*read)->segments[0].bytes, 10u);
}

TEST_F(RestoreMarkTest, TwoWritersShareNoDraft) {
  RestoreMark first = mark(), second = mark();
  first.run_id = "first", second.run_id = "second";
  const auto others = [&] { return second.write(journal(), {}, "b"); };
  const Status written = first.write(journal(), others, "a");
  EXPECT_TRUE(written.ok()) << written.error().to_string();
  const auto read = RestoreMark::read(journal());
  ASSERT_TRUE(read.ok() && *read);
  EXPECT_EQ((*read)->run_id, "first");
  for (const auto& entry : fs::directory_iterator(journal()))
    EXPECT_EQ(entry.path().filename().string().find(".tmp"), std::string::npos) << entry.path();
}

TEST_F(RestoreMarkTest, ARestoreStoppedBetweenTwoChangesIsCompletedLater) {
  ASSERT_TRUE(mark().write(journal(), {}).ok());
  for (int allowed = 0;; ++allowed) {
    int left = allowed;
    const auto may_write = [&left]() -> Status {
      if (left-- > 0) return {};
      return Error(ErrorCode::kAborted, "deposed");
    };
    const Status done = complete_restore(journal(), open(), may_write);
    if (done.ok()) break;
    ASSERT_LT(allowed, 10);
    EXPECT_TRUE(has_mark());
    const auto read = RestoreMark::read(journal());
    ASSERT_TRUE(read.ok() && *read);
    EXPECT_EQ((*read)->why_stale(journal(), open()).value(), "");
  }
  EXPECT_THAT(versions(), ElementsAre(5, 3));
  EXPECT_THAT(segments(), IsEmpty());
  EXPECT_FALSE(has_mark());
}

TEST_F(RestoreMarkTest, WhoMayNotWriteRemovesNothing) {
  ASSERT_TRUE(mark().write(journal(), {}).ok());
  const auto never = [] { return Status(Error(ErrorCode::kAborted, "deposed")); };
  EXPECT_FALSE(complete_restore(journal(), open(), never).ok());
  EXPECT_THAT(versions(), ElementsAre(8, 5, 3));
  EXPECT_THAT(segments(), ElementsAre(4, 7));
  EXPECT_TRUE(has_mark());
}

TEST_F(RestoreMarkTest, DoesNotCountWhenAJournalHasGrownSince) {
  ASSERT_TRUE(mark().write(journal(), {}).ok());
  add_segment(7, "a round of whoever went on");
  ASSERT_TRUE(complete_restore(journal(), open(), {}).ok());
  EXPECT_THAT(versions(), ElementsAre(8, 5, 3));
  EXPECT_THAT(segments(), ElementsAre(4, 7));
  EXPECT_FALSE(has_mark());
}

TEST_F(RestoreMarkTest, DoesNotCountBesideASegmentOrACheckpointOfLater) {
  ASSERT_TRUE(mark().write(journal(), {}).ok());
  add_segment(9, "x");
  EXPECT_THAT(mark().why_stale(journal(), open()).value(), "");
  ASSERT_TRUE(complete_restore(journal(), open(), {}).ok());
  EXPECT_THAT(segments(), ElementsAre(4, 7, 9));
  EXPECT_FALSE(has_mark());

  ASSERT_TRUE(mark().write(journal(), {}).ok());
  write_checkpoint(12);
  ASSERT_TRUE(complete_restore(journal(), open(), {}).ok());
  EXPECT_THAT(versions(), ElementsAre(12, 8, 5, 3));
  EXPECT_THAT(segments(), ElementsAre(4, 7, 9));
}

TEST_F(RestoreMarkTest, OneThatCannotBeWrittenIsNotThere) {
  for (const std::string_view failing :
       {"remove", "create", "write", "sync", "rename", "sync_directory"}) {
    const test::ScopedFaults hook([&](std::string_view operation, const fs::path& path) {
      const bool is_it = operation == failing && path.string().starts_with(journal().string());
      return is_it ? ENOSPC : 0;
    });
    EXPECT_FALSE(mark().write(journal(), {}).ok()) << failing;
    EXPECT_FALSE(has_mark()) << failing;
  }
  EXPECT_TRUE(mark().write(journal(), {}).ok());
}

TEST_F(RestoreMarkTest, NothingIsRemovedForACheckpointThatIsDamagedOrGone) {
  ASSERT_TRUE(mark().write(journal(), {}).ok());
  const CheckpointDirectory checkpoints = open();
  const auto entry = checkpoints.find(Version(5), false);
  ASSERT_TRUE(entry.ok());
  fs::resize_file(entry->path / "model.safetensors", 3);
  const Status damaged = complete_restore(journal(), checkpoints, {});
  ASSERT_FALSE(damaged.ok());
  EXPECT_THAT(damaged.error().message(), HasSubstr("damaged"));
  fs::remove_all(entry->path);
  EXPECT_EQ(complete_restore(journal(), checkpoints, {}).error().code(), ErrorCode::kDataLoss);
  EXPECT_THAT(versions(), ElementsAre(8, 3));
  EXPECT_THAT(segments(), ElementsAre(4, 7));
}

TEST_F(RestoreMarkTest, AnAlteredOneIsRefused) {
  ASSERT_TRUE(mark().write(journal(), {}).ok());
  fs::resize_file(journal() / RestoreMark::kFile, 20);
  EXPECT_EQ(complete_restore(journal(), open(), {}).error().code(), ErrorCode::kDataLoss);
  EXPECT_THAT(segments(), ElementsAre(4, 7));
}

}  // namespace
}  // namespace centroid::restore_mark_test
