#include "server/rows/push_windows.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/random.h"

namespace centroid::server {
namespace {

TEST(PushWindows, NoPushIsNewTwice) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    CounterRng rng(seed);
    PushWindows windows;
    std::set<std::uint64_t> applied;
    std::uint64_t newest = 0;
    for (int i = 0; i < 3000; ++i) {
      // Near the newest, now and then far ahead or long ago.
      const std::uint64_t span = rng.below(50) == 0 ? 3000 : 20;
      const std::uint64_t middle = newest + 1 + rng.below(span);
      const std::uint64_t back = rng.below(span);
      const std::uint64_t sequence = middle > back ? middle - back : 1;
      const auto is_new = windows.is_new(7, sequence);
      ASSERT_EQ(is_new.ok(), sequence + PushWindows::kWindow > newest);
      if (!is_new.ok()) continue;
      ASSERT_EQ(*is_new, !applied.contains(sequence)) << sequence << " newest " << newest;
      if (!*is_new) continue;
      windows.mark(7, sequence);
      applied.insert(sequence);
      newest = std::max(newest, sequence);
      ASSERT_EQ(windows.newest(7), newest);
    }
  }
}

TEST(PushWindows, NobodyIsForgottenForAnother) {
  PushWindows windows;
  for (std::uint64_t client = 1; client <= PushWindows::kMaxClients; ++client) {
    ASSERT_TRUE(windows.check_room(client).ok());
    windows.mark(client, 1);
  }
  const Status refused = windows.check_room(99'999);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message(),
              ::testing::AllOf(::testing::HasSubstr("client 99999 is refused"),
                               ::testing::HasSubstr("16384 clients"),
                               ::testing::HasSubstr("use one client for many pushes")));
  EXPECT_TRUE(windows.check_room(1).ok()) << "it is known";
  EXPECT_FALSE(*windows.is_new(1, 1));
  windows.forget(2);
  EXPECT_TRUE(windows.check_room(99'999).ok());
  windows.mark(99'999, 1);
  EXPECT_FALSE(windows.check_room(2).ok());
}

/// Those of several servers come together on one.
TEST(PushWindows, MoreThanThereIsRoomForMayBeBroughtBack) {
  PushWindows windows;
  std::vector<PushWindows::Entry> entries(PushWindows::kMaxClients + 10);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    entries[i].client = i + 1;
    entries[i].newest = 3;
  }
  for (auto& entry : entries) entry.applied[3] = true;
  windows.restore(entries);
  EXPECT_EQ(windows.clients(), entries.size());
  EXPECT_FALSE(*windows.is_new(entries.size(), 3));
  EXPECT_FALSE(windows.check_room(entries.size() + 1).ok());
  for (std::uint64_t client = 1; client <= 11; ++client) windows.forget(client);
  EXPECT_TRUE(windows.check_room(entries.size() + 1).ok());
}

}  // namespace
}  // namespace centroid::server
