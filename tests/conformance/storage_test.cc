#include "common/storage/storage.h"

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "common/storage/file.h"
#include "tests/simulation/memory_storage.h"
#include "tests/support/faulty_storage.h"
#include "tests/unit/temporary_directory.h"

/// One suite for every storage.
namespace centroid {
namespace {

namespace fs = std::filesystem;
using storage::Kind, storage::Open;

/// A storage and a folder in it.
struct World {
  virtual ~World() = default;
  virtual storage::Storage& storage() = 0;
  virtual fs::path folder() const = 0;
};

struct PosixWorld final : World {
  storage::Storage& storage() override { return storage::operating_system(); }
  fs::path folder() const override { return folder_.path(); }
  TemporaryDirectory folder_;
};

struct MemoryWorld : World {
  MemoryWorld() { EXPECT_FALSE(memory_.create_directory("/folder", 0755)); }
  storage::Storage& storage() override { return memory_; }
  fs::path folder() const override { return "/folder"; }
  test::MemoryStorage memory_{std::make_shared<test::MemoryDisk>()};
};

/// A decorator changes nothing where its hook allows all.
struct FaultyWorld final : MemoryWorld {
  storage::Storage& storage() override { return faulty_; }
  test::FaultyStorage faulty_{memory_, [](auto, const auto&) { return 0; }};
};

struct Kept {
  const char* name;
  std::function<std::unique_ptr<World>()> make;
};

class StorageTest : public ::testing::TestWithParam<Kept> {
 protected:
  StorageTest() : world_(GetParam().make()), bound_(world_->storage()) {}

  storage::Storage& storage() { return world_->storage(); }
  fs::path path(const std::string& name = "file") const { return world_->folder() / name; }

  static Bytes bytes(const std::string& text) { return std::as_bytes(std::span(text)); }
  static int number(const std::error_code& error) { return error.value(); }

  void write(const fs::path& at, const std::string& text) {
    const auto written = file::write_text(at, text);
    ASSERT_TRUE(written.ok()) << written.error().message();
  }
  std::string read(const fs::path& at) {
    const auto text = file::read_text(at);
    return text.ok() ? *text : text.error().to_string();
  }
  std::unique_ptr<storage::File> open(const std::string& name, Open how) {
    auto opened = storage().open(path(name), how, 0644);
    EXPECT_TRUE(opened.ok()) << opened.error.message();
    return std::move(opened.value);
  }
  int open_fails(const std::string& name, Open how) {
    return number(storage().open(path(name), how, 0644).error);
  }
  std::vector<std::string> names(const std::string& folder = ".") {
    std::vector<std::string> names;
    for (const auto& entry : storage().list(path(folder)).value) names.push_back(entry.name);
    return names;
  }

  const std::unique_ptr<World> world_;
  const storage::ScopedStorage bound_;
};

using Names = std::vector<std::string>;

TEST_P(StorageTest, AFileIsCreatedOnce) {
  auto file = open("file", Open::kCreate);
  EXPECT_EQ(open_fails("file", Open::kCreate), EEXIST);
  EXPECT_EQ(file->write(bytes("abc")).value, 3u);
  EXPECT_EQ(file->write(bytes("de")).value, 2u);
  EXPECT_EQ(read(path()), "abcde");
  EXPECT_EQ(file->attributes().value.bytes, 5u);
  EXPECT_FALSE(file->close());
}

TEST_P(StorageTest, AppendedBytesFollowTheExistingOnes) {
  write(path(), "abc");
  auto one = open("file", Open::kAppend), other = open("file", Open::kAppend);
  EXPECT_TRUE(one->write(bytes("d")).ok());
  EXPECT_TRUE(other->write(bytes("e")).ok());
  EXPECT_TRUE(one->write(bytes("f")).ok());
  EXPECT_EQ(read(path()), "abcdef");
  std::string last(2, ' ');
  EXPECT_EQ(one->read_at(4, std::as_writable_bytes(std::span(last))).value, 2u);
  EXPECT_EQ(last, "ef");
  EXPECT_EQ(one->write_at(0, bytes("g")).value, 1u) << "the place does not count";
  EXPECT_EQ(read(path()), "abcdefg");
  EXPECT_TRUE(open("new", Open::kAppend)->write(bytes("x")).ok());
  EXPECT_EQ(read(path("new")), "x");
}

TEST_P(StorageTest, WritesAtAPlaceLeaveZerosBetween) {
  auto file = open("file", Open::kCreate);
  EXPECT_EQ(file->write_at(3, bytes("de")).value, 2u);
  EXPECT_EQ(read(path()), std::string("\0\0\0de", 5));
  EXPECT_EQ(file->write_at(1, bytes("b")).value, 1u);
  EXPECT_EQ(read(path()), std::string("\0b\0de", 5));
  EXPECT_FALSE(file->truncate(2));
  EXPECT_EQ(read(path()), std::string("\0b", 2));
  EXPECT_FALSE(file->truncate(4));
  EXPECT_EQ(read(path()), std::string("\0b\0\0", 4));
}

TEST_P(StorageTest, OfAFileThatIsThereBytesAreChanged) {
  write(path(), "abc");
  EXPECT_EQ(open_fails("none", Open::kChange), ENOENT);
  EXPECT_TRUE(open("file", Open::kChange)->write_at(1, bytes("X")).ok());
  EXPECT_EQ(read(path()), "aXc");
}

TEST_P(StorageTest, ReadsEndWithTheFile) {
  write(path(), "abc");
  auto file = open("file", Open::kRead);
  std::string into(8, '-');
  const MutableBytes all = std::as_writable_bytes(std::span(into));
  EXPECT_EQ(file->read_at(1, all).value, 2u);
  EXPECT_EQ(into, "bc------");
  EXPECT_EQ(file->read_at(3, all).value, 0u);
  EXPECT_EQ(file->read_at(99, all).value, 0u);
}

TEST_P(StorageTest, AFileAllowsWhatItWasOpenedFor) {
  write(path(), "abc");
  std::string into(1, ' ');
  const MutableBytes byte = std::as_writable_bytes(std::span(into));
  auto reader = open("file", Open::kRead);
  EXPECT_EQ(number(reader->write(bytes("x")).error), EBADF);
  EXPECT_EQ(number(reader->write_at(0, bytes("x")).error), EBADF);
  EXPECT_EQ(number(reader->truncate(0)), EINVAL);
  EXPECT_EQ(number(open("file", Open::kChange)->read_at(0, byte).error), EBADF);
  EXPECT_EQ(number(open("new", Open::kCreate)->read_at(0, byte).error), EBADF);
  EXPECT_EQ(read(path()), "abc");
}

TEST_P(StorageTest, WhatIsMissingOrOfAnotherKindIsRefused) {
  write(path(), "abc");
  ASSERT_FALSE(storage().create_directory(path("folder"), 0755));
  EXPECT_EQ(open_fails("none", Open::kRead), ENOENT);
  EXPECT_EQ(open_fails("none", Open::kFolder), ENOENT);
  EXPECT_EQ(open_fails("none/file", Open::kCreate), ENOENT);
  EXPECT_EQ(open_fails("file/file", Open::kCreate), ENOTDIR);
  EXPECT_EQ(open_fails("file", Open::kFolder), ENOTDIR);
  for (const Open how : {Open::kAppend, Open::kChange, Open::kLock})
    EXPECT_EQ(open_fails("folder", how), EISDIR);
  EXPECT_EQ(open_fails("folder", Open::kCreate), EEXIST);
  EXPECT_EQ(file::open_regular(path("folder")).error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(number(storage().attributes(path("none")).error), ENOENT);
  EXPECT_EQ(number(storage().attributes(path("file/x")).error), ENOTDIR);
  EXPECT_EQ(number(storage().list(path("none")).error), ENOENT);
  EXPECT_EQ(number(storage().list(path("file")).error), ENOTDIR);
  EXPECT_EQ(number(storage().sync_directory(path("none"))), ENOENT);
  EXPECT_EQ(number(storage().sync_directory(path("file"))), ENOTDIR);
  EXPECT_EQ(number(storage().space(path("none")).error), ENOENT);
  EXPECT_EQ(number(storage().attributes("").error), ENOENT);
}

TEST_P(StorageTest, AttributesSayWhatAFileIs) {
  ASSERT_FALSE(storage().create_directory(path("folder"), 0700));
  write(path(), "abc");
  auto file = open("file", Open::kChange);
  const auto before = storage().attributes(path()).value;
  EXPECT_EQ(before.kind, Kind::kFile);
  EXPECT_EQ(before.bytes, 3u);
  EXPECT_EQ(before.mode, 0644u);
  EXPECT_EQ(file->attributes().value.inode, before.inode);
  const auto folder = storage().attributes(path("folder/")).value;
  EXPECT_EQ(folder.kind, Kind::kFolder);
  EXPECT_EQ(folder.mode, 0700u);
  EXPECT_NE(folder.inode, before.inode);
  EXPECT_EQ(folder.device, before.device);
  EXPECT_EQ(storage().attributes(path("folder/../file")).value.inode, before.inode);
  auto later = before;  // clocks of file systems tick some hundred times a second
  while (later.modified_ns == before.modified_ns) {
    ASSERT_TRUE(file->write_at(0, bytes("x")).ok());
    later = storage().attributes(path()).value;
  }
  EXPECT_GT(later.modified_ns, before.modified_ns);
}

TEST_P(StorageTest, PermissionsAreThoseAskedForLessTheUmask) {
  ASSERT_TRUE(storage().open(path("private"), Open::kCreate, 0600).ok());
  ASSERT_TRUE(storage().open(path("open"), Open::kAppend, 0666).ok());
  EXPECT_EQ(storage().attributes(path("private")).value.mode, 0600u);
  EXPECT_EQ(storage().attributes(path("open")).value.mode, 0644u);
}

TEST_P(StorageTest, AListIsSortedAndSaysWhatIsThere) {
  EXPECT_EQ(names(), Names());
  write(path("b"), "bb");
  write(path("a"), "a");
  ASSERT_FALSE(storage().create_directory(path("ab"), 0755));
  write(path("ab/inner"), "x");
  EXPECT_EQ(names(), (Names{"a", "ab", "b"}));
  const auto entries = storage().list(path("")).value;
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[1].about.kind, Kind::kFolder);
  EXPECT_EQ(entries[2].about.kind, Kind::kFile);
  EXPECT_EQ(entries[2].about.bytes, 2u);
}

TEST_P(StorageTest, ARenamedFileReplacesAnother) {
  write(path("old"), "old");
  write(path("new"), "new");
  const auto inode = storage().attributes(path("new")).value.inode;
  auto still = open("old", Open::kRead);
  EXPECT_FALSE(storage().rename(path("new"), path("old")));
  EXPECT_EQ(names(), Names{"old"});
  EXPECT_EQ(read(path("old")), "new");
  EXPECT_EQ(storage().attributes(path("old")).value.inode, inode);
  std::string into(3, ' ');
  EXPECT_EQ(still->read_at(0, std::as_writable_bytes(std::span(into))).value, 3u);
  EXPECT_EQ(into, "old");
  EXPECT_FALSE(storage().rename(path("old"), path("old")));
  EXPECT_EQ(names(), Names{"old"});
}

TEST_P(StorageTest, FoldersAreRenamedWithWhatIsInThem) {
  ASSERT_FALSE(storage().create_directory(path("a"), 0755));
  ASSERT_FALSE(storage().create_directory(path("a/b"), 0755));
  write(path("a/b/file"), "x");
  ASSERT_FALSE(storage().create_directory(path("empty"), 0755));
  ASSERT_FALSE(storage().create_directory(path("full"), 0755));
  write(path("full/file"), "y");
  write(path("file"), "z");
  EXPECT_EQ(number(storage().rename(path("a"), path("full"))), ENOTEMPTY);
  EXPECT_EQ(number(storage().rename(path("a"), path("file"))), ENOTDIR);
  EXPECT_EQ(number(storage().rename(path("file"), path("a"))), EISDIR);
  EXPECT_EQ(number(storage().rename(path("a"), path("a/b/c"))), EINVAL);
  EXPECT_EQ(number(storage().rename(path("none"), path("c"))), ENOENT);
  EXPECT_EQ(number(storage().rename(path("a"), path("none/c"))), ENOENT);
  EXPECT_FALSE(storage().rename(path("a"), path("empty")));
  EXPECT_EQ(names(), (Names{"empty", "file", "full"}));
  EXPECT_EQ(read(path("empty/b/file")), "x");
  EXPECT_FALSE(storage().rename(path("empty/b/file"), path("full/other")));
  EXPECT_EQ(names("full"), (Names{"file", "other"}));
}

TEST_P(StorageTest, ARemovedFileLivesAsLongAsItIsOpen) {
  write(path(), "abc");
  auto file = open("file", Open::kAppend);
  EXPECT_FALSE(storage().remove(path()));
  EXPECT_EQ(number(storage().remove(path())), ENOENT);
  EXPECT_EQ(names(), Names());
  EXPECT_TRUE(file->write(bytes("d")).ok());
  EXPECT_EQ(file->attributes().value.bytes, 4u);
  EXPECT_FALSE(file->sync());
  write(path(), "new");
  EXPECT_EQ(file->attributes().value.bytes, 4u);
}

TEST_P(StorageTest, FoldersAreRemovedWhenTheyAreEmpty) {
  ASSERT_FALSE(storage().create_directory(path("a"), 0755));
  EXPECT_EQ(number(storage().create_directory(path("a"), 0755)), EEXIST);
  EXPECT_EQ(number(storage().create_directory(path("b/c"), 0755)), ENOENT);
  write(path("a/file"), "x");
  EXPECT_EQ(number(storage().remove(path("a"))), EISDIR);
  EXPECT_EQ(number(storage().remove_directory(path("a"))), ENOTEMPTY);
  EXPECT_EQ(number(storage().remove_directory(path("a/file"))), ENOTDIR);
  EXPECT_FALSE(storage().remove(path("a/file")));
  EXPECT_FALSE(storage().remove_directory(path("a")));
  EXPECT_EQ(number(storage().remove_directory(path("a"))), ENOENT);
}

TEST_P(StorageTest, OneOpenFileHasTheLock) {
  for (const Open how : {Open::kLock, Open::kFolder}) {
    const std::string name = how == Open::kLock ? "lock" : ".";
    auto one = open(name, how), other = open(name, how);
    EXPECT_FALSE(one->lock());
    EXPECT_FALSE(one->lock()) << "it has it";
    EXPECT_EQ(number(other->lock()), EWOULDBLOCK);
    EXPECT_FALSE(one->close());
    EXPECT_FALSE(other->lock());
    auto third = open(name, how);
    EXPECT_EQ(number(third->lock()), EWOULDBLOCK);
    other.reset();
    EXPECT_FALSE(third->lock());
  }
}

TEST_P(StorageTest, SyncsSucceed) {
  auto file = open("file", Open::kCreate);
  EXPECT_TRUE(file->write(bytes("abc")).ok());
  EXPECT_FALSE(file->sync_data());
  EXPECT_FALSE(file->sync());
  EXPECT_FALSE(storage().sync_directory(path(".")));
}

TEST_P(StorageTest, SpaceIsThatOfTheDisk) {
  const auto space = storage().space(path(".")).value;
  EXPECT_GT(space.free_bytes, 0u);
  EXPECT_GE(space.total_bytes, space.free_bytes);
}

// The functions of file.h that are more than one operation.

TEST_P(StorageTest, FoldersAreCreatedWithThoseAboveThem) {
  std::error_code failed;
  EXPECT_TRUE(file::create_directories(path("a/b/c/"), failed)) << failed.message();
  EXPECT_FALSE(file::create_directories(path("a/b/c"), failed));
  EXPECT_FALSE(failed) << failed.message();
  EXPECT_TRUE(file::is_directory(path("a/b/c")));
  write(path("file"), "x");
  for (const char* name : {"file", "file/x"}) {
    EXPECT_FALSE(file::create_directories(path(name), failed));
    EXPECT_EQ(number(failed), ENOTDIR) << name;
  }
}

TEST_P(StorageTest, AFolderIsRemovedWithWhatIsInIt) {
  std::error_code failed;
  ASSERT_TRUE(file::create_directories(path("a/b"), failed));
  write(path("a/x"), "x");
  write(path("a/b/y"), "y");
  write(path("z"), "z");
  EXPECT_TRUE(file::remove_all(path("a")).ok());
  EXPECT_TRUE(file::remove_all(path("a")).ok()) << "none is as good";
  EXPECT_EQ(names(), Names{"z"});
  EXPECT_TRUE(file::remove_all(path("z")).ok());
  EXPECT_EQ(names(), Names());
}

TEST_P(StorageTest, WhatIsNotThereIsNoError) {
  const auto none = file::attributes_of(path("none")), below = file::attributes_of(path("a/none"));
  EXPECT_TRUE(none.ok() && !*none);
  EXPECT_TRUE(below.ok() && !*below);
  EXPECT_TRUE(file::remove(path("none")).ok());
  EXPECT_FALSE(file::exists(path("none")));
  EXPECT_EQ(file::read_text(path("none")).error().code(), ErrorCode::kNotFound);
}

TEST_P(StorageTest, AStampChangesWithTheContent) {
  write(path(), "abc");
  auto file = file::open_to_append(path());
  ASSERT_TRUE(file.ok());
  const auto before = file::stamp_of(*file, path()).value();
  EXPECT_EQ(file::stamp_of(*file, path()).value(), before);
  ASSERT_TRUE(file::write_all(*file, path(), bytes("d")).ok());
  EXPECT_NE(file::stamp_of(*file, path()).value(), before);
}

TEST_P(StorageTest, TextsAreBoundedAndReplaced) {
  write(path(), "a longer text");
  EXPECT_EQ(file::read_text(path(), 5).error().code(), ErrorCode::kResourceExhausted);
  write(path(), "short");
  EXPECT_EQ(file::read_text(path(), 5).value(), "short");
}

TEST_P(StorageTest, ALinkIsRefusedWhereItIsSaidSo) {
  if (&storage() != &storage::operating_system()) GTEST_SKIP() << "it has no links";
  write(path(), "abc");
  fs::create_symlink(path(), path("link"));
  EXPECT_TRUE(file::open_regular(path("link")).ok());
  EXPECT_FALSE(file::open_regular(path("link"), file::Links::kRefused).ok());
  EXPECT_TRUE(file::open_regular(path(), file::Links::kRefused).ok());
  fs::create_directory(path("folder"));
  write(path("folder/file"), "x");
  fs::create_symlink(path("folder"), path("to_folder"));
  EXPECT_TRUE(file::remove_all(path("to_folder")).ok());
  EXPECT_TRUE(file::exists(path("folder/file"))) << "the link went, not what it points to";
  fs::create_symlink(path("nowhere"), path("dangling"));
  EXPECT_EQ(names(), (Names{"dangling", "file", "folder", "link"}));
}

INSTANTIATE_TEST_SUITE_P(
    All, StorageTest,
    ::testing::Values(Kept{"posix", [] { return std::make_unique<PosixWorld>(); }},
                      Kept{"memory", [] { return std::make_unique<MemoryWorld>(); }},
                      Kept{"faulty", [] { return std::make_unique<FaultyWorld>(); }}),
    [](const auto& one) { return one.param.name; });

// Which storage a thread has.

TEST(BoundStorage, TheInnermostCountsForThisThreadOnly) {
  test::MemoryStorage outer(std::make_shared<test::MemoryDisk>());
  test::MemoryStorage inner(std::make_shared<test::MemoryDisk>());
  EXPECT_EQ(&storage::current(), &storage::operating_system());
  {
    const storage::ScopedStorage first(outer);
    EXPECT_EQ(&storage::current(), &outer);
    {
      const storage::ScopedStorage second(inner);
      EXPECT_EQ(&storage::current(), &inner);
    }
    EXPECT_EQ(&storage::current(), &outer);
    std::thread([] { EXPECT_EQ(&storage::current(), &storage::operating_system()); }).join();
  }
  EXPECT_EQ(&storage::current(), &storage::operating_system());
}

TEST(BoundStorage, AnOpenFileStaysWithTheStorageThatOpenedIt) {
  test::MemoryStorage memory(std::make_shared<test::MemoryDisk>());
  file::Descriptor file;
  {
    const storage::ScopedStorage bound(memory);
    file = file::create("/file").value();
  }
  const std::string text = "abc";
  ASSERT_TRUE(file::write_all(file, "/file", std::as_bytes(std::span(text))).ok());
  EXPECT_FALSE(file::exists("/file"));
  const storage::ScopedStorage bound(memory);
  EXPECT_EQ(file::read_text("/file").value(), text);
}

TEST(BoundStorage, FibersOfOneThreadHaveTheirOwn) {
  test::MemoryStorage memory(std::make_shared<test::MemoryDisk>());
  const auto outer = storage::exchange({.storage = &memory, .forbidden_for = nullptr});
  EXPECT_EQ(&storage::current(), &memory);
  const auto fiber = storage::exchange(outer);
  EXPECT_EQ(&storage::current(), &storage::operating_system());
  EXPECT_EQ(fiber.storage, &memory);
}

// Where storage is forbidden.

class ForbiddenStorage : public ::testing::Test {
 protected:
  ForbiddenStorage() : bound_(memory_) {}
  test::MemoryStorage memory_{std::make_shared<test::MemoryDisk>()};
  const storage::ScopedStorage bound_;
};
using ForbiddenStorageDeathTest = ForbiddenStorage;

TEST_F(ForbiddenStorageDeathTest, EveryOperationStopsTheProcessAndNamesItself) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const std::string text = "abc";
  const Bytes bytes = std::as_bytes(std::span(text));
  const file::Descriptor open = file::create("/file").value();
  const std::vector<std::pair<std::string, std::function<void()>>> operations = {
      {"create /x", [] { (void)file::create("/x"); }},
      {"open /file", [] { (void)file::open_regular("/file"); }},
      {"lock /", [] { (void)file::lock_directory("/"); }},
      {"write /file", [&] { (void)file::write_all(open, "/file", bytes); }},
      {"write /file", [&] { (void)file::write_at(open, "/file", 0, bytes); }},
      {"sync /file", [&] { (void)file::sync_data(open, "/file"); }},
      {"stat /file", [] { (void)file::exists("/file"); }},
      {"list /", [] { (void)file::list("/"); }},
      {"rename /file", [] { (void)file::rename("/file", "/other"); }},
      {"remove /file", [] { (void)file::remove_all("/file"); }},
      {"sync_directory /", [] { (void)file::sync_directory("/"); }},
  };
  for (const auto& [name, operation] : operations) {
    const auto forbidden = [&operation] {
      const storage::ForbiddenHere here("the service thread");
      operation();
    };
    EXPECT_DEATH(forbidden(), "storage: " + name + " on the service thread");
    operation();  // allowed
  }
}

TEST_F(ForbiddenStorage, OtherThreadsAndLaterOperationsAreNotMeant) {
  file::Descriptor open = file::create("/file").value();
  {
    const storage::ForbiddenHere here("the service thread");
    std::thread([this] {
      const storage::ScopedStorage own(memory_);
      EXPECT_TRUE(file::exists("/file"));
    }).join();
    open = file::Descriptor();  // closed by destroying it
  }
  EXPECT_TRUE(file::exists("/file"));
}

}  // namespace
}  // namespace centroid
