#include "server/rows/record_map.h"

#include <set>

#include <gtest/gtest.h>

namespace centroid::server {
namespace {

std::set<std::uint64_t> keys_of(const RecordMap& map) {
  std::set<std::uint64_t> keys;
  for (std::size_t place = 0; place < map.places(); ++place) {
    const auto number = map.at(place);
    if (number == RecordMap::kNone) continue;
    EXPECT_TRUE(keys.insert(map.record(number).key()).second);
  }
  return keys;
}

TEST(RecordMap, HoldsWhatASetHolds) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    CounterRng rng(seed);
    RecordMap map(3);
    std::set<std::uint64_t> expected;
    const std::uint64_t range = 1 + rng.below(3000);
    for (int i = 0; i < 6000; ++i) {
      const std::uint64_t key = rng.below(range) * (seed % 2 == 0 ? 1 : std::uint64_t{1} << 40);
      // Mostly growing, then mostly shrinking.
      const bool inserts = rng.below(10) < (i < 3000 ? 7 : 3);
      if (inserts && expected.insert(key).second) {
        const RecordMap::Record record = map.record(map.insert(key));
        record.floats()[2] = static_cast<float>(key % 1000);
      } else if (!inserts) {
        expected.erase(key);
        map.erase(key);
      }
      ASSERT_EQ(map.find(key) != RecordMap::kNone, expected.contains(key));
    }
    ASSERT_EQ(map.size(), expected.size());
    EXPECT_EQ(keys_of(map), expected);
    for (const std::uint64_t key : expected)
      EXPECT_EQ(map.record(map.find(key)).floats()[2], static_cast<float>(key % 1000));
  }
}

TEST(RecordMap, ErasedRecordsAreUsedAgain) {
  RecordMap map(16);
  for (std::uint64_t key = 0; key < 1000; ++key) map.insert(key);
  const std::uint64_t bytes = map.bytes();
  for (int turn = 0; turn < 10; ++turn) {
    for (std::uint64_t key = 0; key < 1000; ++key) map.erase(key);
    for (std::uint64_t key = 0; key < 1000; ++key) map.insert(key);
  }
  EXPECT_EQ(map.bytes(), bytes);
}

TEST(RecordMap, SaysWhatAnInsertWillTake) {
  RecordMap map(1);
  for (std::uint64_t key = 0; key < 100'000; ++key) {
    const std::uint64_t most = map.bytes_for_insert();
    map.insert(key);
    ASSERT_LE(map.bytes(), most);
  }
}

}  // namespace
}  // namespace centroid::server
