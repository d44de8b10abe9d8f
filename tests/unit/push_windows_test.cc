#include "server/rows/push_windows.h"

#include <set>

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

TEST(PushWindows, TheClientWhoPushedLongestAgoIsForgotten) {
  PushWindows windows;
  for (std::uint64_t client = 1; client <= PushWindows::kMaxClients; ++client)
    windows.mark(client, 1);
  windows.mark(1, 2);
  windows.mark(99'999, 1);
  EXPECT_EQ(windows.clients(), PushWindows::kMaxClients);
  EXPECT_EQ(windows.newest(1), 2u);
  EXPECT_EQ(windows.newest(2), 0u);
}

}  // namespace
}  // namespace centroid::server
