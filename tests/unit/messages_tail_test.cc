#include <algorithm>

#include <gtest/gtest.h>

#include "common/proto/about.h"
#include "common/proto/messages.h"
#include "common/proto/rows.h"
#include "common/proto/servers.h"

namespace centroid::proto {
namespace {

/// What was added behind the last field of a message is not there unless it says something, so that
/// who does not know of it reads the others.
TEST(Messages, WhatIsAddedIsOnlyThereWhenItSaysSomething) {
  JoinReply reply;
  const auto before = encode(reply);
  EXPECT_EQ(decode<JoinReply>(before).value().scale_ratio, 0);
  reply.scale_ratio = 0.5;
  auto with = encode(reply);
  EXPECT_EQ(with.size(), before.size() + 8);
  EXPECT_EQ(decode<JoinReply>(with).value().scale_ratio, 0.5);
  std::fill(with.end() - 8, with.end(), std::byte{0});  // 0 in so many words
  EXPECT_FALSE(decode<JoinReply>(with).ok());
  with.resize(with.size() - 1);
  EXPECT_FALSE(decode<JoinReply>(with).ok());
  reply.scale_ratio = 1001;
  EXPECT_NE(decode<JoinReply>(encode(reply)).error().message().find("from 0 to 1000"),
            std::string::npos);
  RoundOpen open;
  const auto plain = encode(open);
  EXPECT_EQ(decode<RoundOpen>(plain).value().rates, RoundRates());
  open.rates.inner = 0.5;
  auto rated = encode(open);
  EXPECT_EQ(rated.size(), plain.size() + 16);
  EXPECT_EQ(decode<RoundOpen>(rated).value().rates, open.rates);
  rated.resize(rated.size() - 8);  // one without the other
  EXPECT_FALSE(decode<RoundOpen>(rated).ok());
  open.rates = {-2, 0.5};
  EXPECT_NE(decode<RoundOpen>(encode(open))
                .error()
                .message()
                .find("RoundOpen.learning_rate is -2, it must be a finite number, not below 0"),
            std::string::npos);
  PushEnd end;
  const auto unsaid = encode(end);
  end.fingerprint = 7;
  auto said = encode(end);
  EXPECT_EQ(said.size(), unsaid.size() + 8);
  EXPECT_EQ(decode<PushEnd>(unsaid).value().fingerprint, 0u);
  EXPECT_EQ(decode<PushEnd>(said).value().fingerprint, 7u);
  said.pop_back();
  EXPECT_FALSE(decode<PushEnd>(said).ok());
  BeatReply beat;
  beat.takes = BeatReply::kAcceptsSaved;
  beat.set_compare_rounds(BeatReply::kMaxCompareRounds);
  EXPECT_EQ(decode<BeatReply>(encode(beat)).value().compare_rounds(), BeatReply::kMaxCompareRounds);
  MergeReply merged;
  EXPECT_EQ(encode(merged).size(), 4u);
  merged.overflow = 3;
  EXPECT_EQ(decode<MergeReply>(encode(merged)).value().overflow, 3u);
  Merge merge;
  merge.total_weight = 1;
  EXPECT_EQ(decode<Merge>(encode(merge)).value().rate_factor, 1);
  merge.rate_factor = 3;
  EXPECT_EQ(decode<Merge>(encode(merge)).value().rate_factor, 3);
  merge.rate_factor = 0.5;
  EXPECT_FALSE(decode<Merge>(encode(merge)).ok());
  RowsPush push;
  push.rows = 1;
  push.sequence = 1;
  const auto silent = encode(push);  // as clients of before there were steps
  EXPECT_EQ(decode<RowsPush>(silent).value().step, 0u);
  push.step = 250;
  auto stepped = encode(push);
  EXPECT_EQ(stepped.size(), silent.size() + 8);
  EXPECT_EQ(decode<RowsPush>(stepped).value().step, 250u);
  stepped.pop_back();
  EXPECT_FALSE(decode<RowsPush>(stepped).ok());
  std::fill(stepped.end() - 7, stepped.end(), std::byte{0});
  stepped.push_back(std::byte{0});
  EXPECT_FALSE(decode<RowsPush>(stepped).ok());
}

TEST(Messages, OneNumberOfRoundOpenIsOfLocalStepsOrOfContributors) {
  JoinReply terms;
  RoundOpen open;
  open.world = 4;
  EXPECT_EQ(open.steps_before(terms), 0u);
  EXPECT_EQ(open.contributors(terms), 4u) << "an older server";
  open.count = 3;
  EXPECT_EQ(open.steps_before(terms), 0u);
  EXPECT_EQ(open.contributors(terms), 3u);
  terms.local_steps = 2;
  EXPECT_EQ(open.steps_before(terms), 3u);
  EXPECT_EQ(open.contributors(terms), 4u);
}

TEST(Messages, SamplesOfAContributionAreFewEnoughToBeAdded) {
  PushEnd end;
  end.samples = 1'000'000'000'000'000;
  EXPECT_EQ(decode<PushEnd>(encode(end)).value().samples, end.samples);
  for (const std::uint64_t most : {end.samples + 1, ~std::uint64_t{0}}) {
    end.samples = most;
    EXPECT_NE(decode<PushEnd>(encode(end))
                  .error()
                  .message()
                  .find("PushEnd.samples is " + std::to_string(most) + ", it must be at most 1e15"),
              std::string::npos);
  }
}

TEST(Messages, WhatShardServersGoByIsRefusedByNameWhereItCannotBe) {
  MemoryPlan reckon;
  reckon.servers = 2;
  EXPECT_NE(decode<MemoryPlan>(encode(reckon)).error().message().find("MemoryPlan.workers is 0"),
            std::string::npos);
  reckon.workers = 3;
  EXPECT_TRUE(decode<MemoryPlan>(encode(reckon)).ok());
  reckon.servers = 0;
  EXPECT_NE(decode<MemoryPlan>(encode(reckon)).error().message().find("MemoryPlan.servers is 0"),
            std::string::npos);
  Opened opened;
  opened.members = {{.member = MemberId(3), .name_crc = 1}, {.member = MemberId(7), .name_crc = 1}};
  EXPECT_TRUE(decode<Opened>(encode(opened)).ok());
  for (const std::uint64_t second : {3, 2}) {
    opened.members[1].member = MemberId(second);
    EXPECT_NE(decode<Opened>(encode(opened)).error().message().find("after 3, ascending"),
              std::string::npos);
  }
  opened.members[1].member = MemberId(7);
  opened.summed = {MemberId(7), MemberId(3)};
  EXPECT_EQ(decode<Opened>(encode(opened)).value().summed, opened.summed);
  opened.summed = {MemberId(7), MemberId(7)};
  EXPECT_NE(decode<Opened>(encode(opened)).error().message().find("7, it must be named once"),
            std::string::npos)
      << decode<Opened>(encode(opened)).error().message();
}

}  // namespace
}  // namespace centroid::proto
