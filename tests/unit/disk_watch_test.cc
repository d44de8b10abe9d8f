#include "server/store/disk_watch.h"

#include <filesystem>
#include <thread>

#include <gtest/gtest.h>

#include "tests/unit/temporary_directory.h"

namespace centroid::server {
namespace {

using namespace std::chrono_literals;

/// What is seen once it is something (or nothing); at most 20 s later.
file::Space seen(const DiskWatch& watch, bool is_there) {
  const auto limit = std::chrono::steady_clock::now() + 20s;
  while ((watch.space().total_bytes > 0) != is_there && std::chrono::steady_clock::now() < limit)
    std::this_thread::yield();
  return watch.space();
}

TEST(DiskWatch, RoomOfAFolderThatComesAndGoes) {
  const TemporaryDirectory parent;
  const auto folder = parent.path() / "journal";
  const DiskWatch watch(folder, 1ms);
  EXPECT_EQ(watch.space().total_bytes, 0u);
  std::filesystem::create_directory(folder);
  const auto space = seen(watch, true);
  EXPECT_EQ(space.total_bytes, std::filesystem::space(folder).capacity);
  EXPECT_GT(space.free_bytes, 0u);
  EXPECT_LE(space.free_bytes, space.total_bytes);
  std::filesystem::remove(folder);
  EXPECT_EQ(seen(watch, false).free_bytes, 0u);
}

TEST(DiskWatch, EndsAtOnceHoweverSeldomItLooks) { const DiskWatch watch("/", 1h); }

TEST(DiskWatch, WhyThereIsNothingToSayIsNamed) {
  const auto nothing = file::space_around("/no/such/folder");
  ASSERT_FALSE(nothing.ok());
  EXPECT_EQ(nothing.error().message(), "space /no/such/folder: No such file or directory");
}

}  // namespace
}  // namespace centroid::server
