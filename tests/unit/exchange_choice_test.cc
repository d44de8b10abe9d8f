#include "server/coordinate/exchange_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace centroid::server {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kLarge = 1u << 20;

std::vector<ExchangeFacts::Worker> workers(std::size_t n) {
  return std::vector<ExchangeFacts::Worker>(n, {.name = "w", .codec = "f32", .is_reachable = true});
}

TEST(ExchangeChoice, WorkersThatReachEachOtherAddAmongThemselves) {
  EXPECT_TRUE(choose_exchange({.workers = workers(2), .model_bytes = kLarge}).among_peers);
  EXPECT_TRUE(choose_exchange({.workers = workers(kMostPeers), .model_bytes = kLarge}).among_peers);
}

TEST(ExchangeChoice, TheServerAddsWhereTheyCannotOrItIsNotWorthIt) {
  const auto why = [](const ExchangeFacts& facts) {
    const ExchangeChoice choice = choose_exchange(facts);
    EXPECT_FALSE(choice.among_peers);
    return choice.why;
  };
  EXPECT_THAT(why({.workers = {}, .model_bytes = kLarge}), HasSubstr("one worker"));
  EXPECT_THAT(why({.workers = workers(1), .model_bytes = kLarge}), HasSubstr("one worker"));
  EXPECT_THAT(why({.workers = workers(kMostPeers + 1), .model_bytes = kLarge}), HasSubstr("4096"));
  EXPECT_THAT(why({.workers = workers(2), .model_bytes = kLeastBytesAmongPeers - 1}),
              HasSubstr("bytes"));
  EXPECT_EQ(why({.workers = workers(2), .model_bytes = kLarge, .failure = "they are apart"}),
            "they are apart");
  auto mixed = workers(3);
  mixed[2] = {.name = "far", .codec = "f32", .is_reachable = false};
  EXPECT_THAT(why({.workers = mixed, .model_bytes = kLarge}), HasSubstr("'far' accepts no"));
  mixed[2] = {.name = "other", .codec = "int8", .is_reachable = true};
  EXPECT_THAT(why({.workers = mixed, .model_bytes = kLarge}),
              HasSubstr("'other' has codec int8, worker 'w' has f32"));
}

}  // namespace
}  // namespace centroid::server
