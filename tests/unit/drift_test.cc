#include "server/coordinate/drift.h"

#include <gtest/gtest.h>

namespace centroid::server {
namespace {

/// Members 1, 2, ... with these fingerprints: who is to be replaced.
std::vector<std::uint64_t> replaced(const std::vector<std::uint64_t>& fingerprints, bool is_tie,
                                    bool has_state = false) {
  std::vector<ReplicaPrint> prints;
  for (const std::uint64_t one : fingerprints)
    prints.push_back({.member = MemberId(prints.size() + 1), .fingerprint = one});
  const Drift drift = find_drift(prints, has_state);
  EXPECT_EQ(drift.is_tie, is_tie);
  std::vector<std::uint64_t> members;
  for (const MemberId member : drift.members) members.push_back(member.value);
  return members;
}

using Members = std::vector<std::uint64_t>;

TEST(Drift, EqualReplicasStay) {
  EXPECT_EQ(replaced({}, false), Members());
  EXPECT_EQ(replaced({5}, false), Members());
  EXPECT_EQ(replaced({5, 5, 5}, false, true), Members());
}

TEST(Drift, MostAreRight) {
  EXPECT_EQ(replaced({5, 5, 9}, false), Members({3}));
  EXPECT_EQ(replaced({9, 5, 5}, false), Members({1}));
  EXPECT_EQ(replaced({9, 5, 5, 8}, false, true), Members({1, 4}));
  EXPECT_EQ(replaced({1, 2, 7, 7, 4}, false), Members({1, 2, 5})) << "two errors do not agree";
}

TEST(Drift, OfAsManyTheFirstStaysUnlessTheServerHasTheState) {
  EXPECT_EQ(replaced({9, 5}, true), Members({2}));
  EXPECT_EQ(replaced({9, 5, 9, 5, 3}, true), Members({2, 4, 5}));
  EXPECT_EQ(replaced({9, 5}, true, true), Members({1, 2}));
}

}  // namespace
}  // namespace centroid::server
