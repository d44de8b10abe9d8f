#include "server/service/fetched_versions.h"

#include <gtest/gtest.h>

namespace centroid::server {
namespace {

using std::chrono::seconds;

TEST(FetchedVersions, OneIsHeldUntilNobodyHasAskedForAWhile) {
  const ManualClock start;
  const TimePoint t = start.now();
  FetchedVersions fetched;
  EXPECT_FALSE(fetched.holds(Version(7), t));
  fetched.renew(Version(7), t);
  EXPECT_TRUE(fetched.holds(Version(7), t + FetchedVersions::kPatience - seconds(1)));
  EXPECT_FALSE(fetched.holds(Version(8), t));
  fetched.renew(Version(7), t + seconds(50));
  EXPECT_TRUE(fetched.holds(Version(7), t + FetchedVersions::kPatience));
  EXPECT_FALSE(fetched.holds(Version(7), t + seconds(50) + FetchedVersions::kPatience));
  fetched.renew(Version(7), t);
  fetched.forget(Version(7));
  EXPECT_FALSE(fetched.holds(Version(7), t));
}

TEST(FetchedVersions, OneTooManyTakesThePlaceOfTheOneThatWaitsLongest) {
  const ManualClock start;
  const TimePoint t = start.now();
  FetchedVersions fetched;
  for (std::uint64_t v = 1; v <= FetchedVersions::kMost; ++v)
    fetched.renew(Version(v), t + seconds(v));
  fetched.renew(Version(1), t + seconds(10));
  fetched.renew(Version(100), t + seconds(11));
  EXPECT_FALSE(fetched.holds(Version(2), t + seconds(11)));
  for (const std::uint64_t v : {1, 3, 4, 100})
    EXPECT_TRUE(fetched.holds(Version(v), t + seconds(11)));
}

}  // namespace
}  // namespace centroid::server
