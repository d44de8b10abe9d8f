#include "common/checkpoint/known_problems.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/faulty_storage.h"
#include "tests/unit/temporary_directory.h"

namespace centroid {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Manifest kModel = {{"w", DType::kF32, {500}}};
constexpr const char* kFile = "model.safetensors";

class KnownDamage : public ::testing::Test {
 protected:
  CheckpointDirectory opened(std::size_t keep) const {
    return CheckpointDirectory::open(root(), keep).value();
  }
  static CheckpointEntry written(CheckpointDirectory& directory, std::uint64_t version) {
    CheckpointInfo info;
    info.version = Version(version);
    const auto read = [](std::size_t, std::uint64_t, std::span<float> into) -> Status {
      std::ranges::fill(into, 1.5F);
      return {};
    };
    return directory.write(info, kModel, read).value();
  }
  /// One bit of the model, in the same file; twice: as it was.
  static void flip(const CheckpointEntry& entry) {
    std::fstream file(entry.path / kFile, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-9, std::ios::end);
    const int byte = file.get();
    file.seekp(-9, std::ios::end);
    file.put(static_cast<char>(byte ^ 4));
    ASSERT_TRUE(file.good());
    file.close();
    later(entry);
  }
  /// A file's time goes by ticks: two writes may be in one.
  static void later(const CheckpointEntry& entry) {
    const fs::path file = entry.path / kFile;
    fs::last_write_time(file, fs::last_write_time(file) + std::chrono::milliseconds(20));
  }
  /// As a disk does: the file's time stays.
  static void rot(const CheckpointEntry& entry) {
    const auto time = fs::last_write_time(entry.path / kFile);
    flip(entry);
    fs::last_write_time(entry.path / kFile, time);
  }
  static std::string seen(const CheckpointDirectory& directory, std::uint64_t version) {
    const auto found = directory.find(Version(version), false);
    return found.ok() ? found->problem : found.error().message();
  }
  static std::vector<std::uint64_t> versions(const CheckpointDirectory& directory) {
    std::vector<std::uint64_t> all;
    for (const CheckpointEntry& entry : directory.list(false)) all.push_back(entry.version.value);
    return all;
  }
  fs::path root() const { return temporary_.path() / "checkpoints"; }

  TemporaryDirectory temporary_;
};

TEST_F(KnownDamage, DamageFoundByOneReaderIsKnownToAll) {
  auto directory = opened(0);
  const CheckpointDirectory reader = directory.reader();
  const auto damaged = [&](const CheckpointDirectory& by, const std::string& how) {
    EXPECT_THAT(seen(by, 2), HasSubstr("model.safetensors: CRC-32C differs")) << how;
    EXPECT_THAT(by.list(false).front().problem, HasSubstr("CRC-32C differs")) << how;
    EXPECT_EQ(seen(by, 1), "") << how;
  };
  written(directory, 1);
  const CheckpointEntry entry = written(directory, 2);
  EXPECT_EQ(seen(directory, 2), "");

  rot(entry);
  EXPECT_EQ(seen(directory, 2), "") << "nobody has read it";
  EXPECT_EQ(directory.newest_valid({}).value().version, Version(1));
  damaged(directory, "newest_valid");
  damaged(reader, "newest_valid of the other");
  EXPECT_EQ(directory.newest_valid({}).value().version, Version(1)) << "a second time";

  rot(entry);  // mended
  damaged(directory, "nobody has read it since");
  EXPECT_EQ(reader.find(Version(2), true).value().problem, "");
  EXPECT_EQ(seen(directory, 2), "");
  EXPECT_EQ(directory.newest_valid({}).value().version, Version(2));

  rot(entry);
  EXPECT_NE(reader.find(Version(2), true).value().problem, "");
  damaged(directory, "find of the other");
  rot(entry);
  EXPECT_EQ(directory.newest_valid({}).value().version, Version(2))
      << "it reads what is known, too";
  EXPECT_EQ(seen(directory, 2), "");
  rot(entry);
  EXPECT_FALSE(directory.list(true).front().problem.empty());
  damaged(reader, "list of the other");
  EXPECT_EQ(seen(opened(0), 2), "") << "another one has its own";
}

TEST_F(KnownDamage, OfOtherFilesNothingIsKnown) {
  auto directory = opened(0);
  const CheckpointEntry entry = written(directory, 2);
  const fs::path file = entry.path / kFile;
  const auto find_out = [&] {
    EXPECT_NE(directory.find(Version(2), true).value().problem, "");
    EXPECT_NE(seen(directory, 2), "");
  };
  flip(entry);
  find_out();
  later(entry);
  EXPECT_EQ(seen(directory, 2), "") << "written since";

  find_out();
  const auto time = fs::last_write_time(file);
  fs::copy_file(file, temporary_.path() / "copy");
  fs::last_write_time(temporary_.path() / "copy", time);
  fs::rename(temporary_.path() / "copy", file);
  EXPECT_EQ(seen(directory, 2), "") << "another file";

  find_out();
  std::ofstream(entry.path / "notes.txt") << "looked at";
  EXPECT_NE(seen(directory, 2), "") << "a file that is none of its own";
  fs::copy_file(entry.path / "manifest.json", temporary_.path() / "copy");
  fs::rename(temporary_.path() / "copy", entry.path / "manifest.json");
  EXPECT_EQ(seen(directory, 2), "") << "another manifest";

  find_out();
  fs::resize_file(file, 9);
  EXPECT_THAT(seen(directory, 2), HasSubstr("9 bytes, manifest.json expects"))
      << "what is seen now";
}

TEST_F(KnownDamage, DoesNotCountAsKept) {
  auto directory = opened(2);
  written(directory, 1);
  const CheckpointEntry second = written(directory, 2);
  rot(second);
  EXPECT_NE(directory.reader().find(Version(2), true).value().problem, "");
  written(directory, 3);
  EXPECT_THAT(versions(directory), ElementsAre(3, 2, 1));  // 3 and 1 are sound
  written(directory, 4);
  EXPECT_THAT(versions(directory), ElementsAre(4, 3));
}

TEST_F(KnownDamage, TheLastSoundOneStaysWhateverIsFoundDamaged) {
  auto directory = opened(1);
  const CheckpointEntry first = written(directory, 1);
  rot(first);
  ASSERT_FALSE(directory.newest_valid({}).ok());
  rot(first);
  EXPECT_EQ(directory.newest_valid({}).value().version, Version(1));
  auto all = opened(0);  // what a job wrote that kept more
  const CheckpointEntry second = written(all, 2);
  const CheckpointEntry third = written(all, 3);
  rot(second);
  rot(third);
  EXPECT_EQ(directory.newest_valid({}).value().version, Version(1));
  CheckpointInfo info;
  info.version = Version(4);
  const auto fails = [](std::size_t, std::uint64_t, std::span<float>) -> Status {
    return Error(ErrorCode::kCancelled, "no");
  };
  ASSERT_FALSE(directory.write(info, kModel, fails).ok());
  EXPECT_THAT(versions(directory), ElementsAre(3, 2, 1));
  written(directory, 3);  // in place of the damaged one
  EXPECT_THAT(versions(directory), ElementsAre(3));
  EXPECT_EQ(seen(directory, 3), "");
}

TEST_F(KnownDamage, LoadingFindsItToo) {
  auto directory = opened(0);
  const CheckpointEntry entry = written(directory, 2);
  const auto drop = [](std::size_t, std::uint64_t, std::span<const float>) -> Status { return {}; };
  ASSERT_TRUE(directory.read(entry, kModel, drop).ok());
  rot(entry);
  EXPECT_EQ(directory.read(entry, kModel, drop).error().code(), ErrorCode::kDataLoss);
  EXPECT_THAT(seen(directory, 2), HasSubstr("CRC-32C differs"));
}

TEST_F(KnownDamage, WhatIsNoFaultOfTheBytesIsNotHeldAgainstThem) {
  auto directory = opened(0);
  const CheckpointEntry entry = written(directory, 2);
  const auto read_with = [&](int number) {
    const test::ScopedFaults hook([number](std::string_view operation, const fs::path& path) {
      return operation == "read" && path.filename() == kFile ? number : 0;
    });
    EXPECT_NE(directory.find(Version(2), true).value().problem, "");
  };
  for (const int number : {ENOMEM, EIO}) {
    read_with(number);
    EXPECT_EQ(seen(directory, 2), "") << number;
  }
  rot(entry);
  EXPECT_FALSE(directory.newest_valid({}).ok());
  read_with(EIO);
  EXPECT_THAT(seen(directory, 2), HasSubstr("CRC-32C differs")) << "it was not read to its end";
}

/// An older one would give up rounds, and a disk may work again.
TEST_F(KnownDamage, WhatIsUnreadableIsNotPassedOver) {
  auto directory = opened(0);
  written(directory, 2);
  written(directory, 3);
  for (const std::string_view failing : {"read", "list", "open"}) {
    const test::ScopedFaults hook([&](std::string_view operation, const fs::path&) {
      return operation == failing ? EIO : 0;
    });
    const auto newest = directory.newest_valid({});
    ASSERT_FALSE(newest.ok()) << failing;
    EXPECT_EQ(newest.error().code(), ErrorCode::kUnavailable) << newest.error().to_string();
  }
  EXPECT_EQ(directory.newest_valid({}).value().version, Version(3));
}

TEST_F(KnownDamage, OfWhatIsGoneNothingIsKept) {
  KnownProblems known;
  CheckpointEntry entry;
  entry.problem = "altered";
  entry.stamp = 7;
  for (int number = 0; number < 3; ++number) {
    entry.path = temporary_.path() / std::to_string(number);
    fs::create_directory(entry.path);
    known.note(entry);
  }
  EXPECT_EQ(known.size(), 3u);
  fs::remove(temporary_.path() / "0");
  fs::remove(temporary_.path() / "1");
  known.note(entry);
  EXPECT_EQ(known.size(), 1u);
  entry.problem.clear();
  entry.stamp = 8;
  known.note(entry);
  EXPECT_EQ(known.size(), 1u) << "others were read";
  entry.stamp = 7;
  known.apply(entry);
  EXPECT_EQ(entry.problem, "altered");
  entry.problem.clear();
  known.note(entry);
  EXPECT_EQ(known.size(), 0u);
}

}  // namespace
}  // namespace centroid
