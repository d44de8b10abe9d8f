#include "server/shard/round_sums.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/async/work_threads.h"
#include "common/base/random.h"

/// Sums of a shard server: in the leader's order whatever the order in which contributions come.
namespace centroid::server {
namespace {

using testing::HasSubstr;

constexpr std::size_t kElements = 40;  // of 16 a chunk

class RoundSumsTest : public testing::Test {
 protected:
  void SetUp() override { set_aggregate("mean"); }
  void set_aggregate(const std::string& aggregate) {
    proto::ServerModel model;
    model.manifest = {{.name = "w", .dtype = DType::kF32, .shape = {kElements}}};
    model.chunk_bytes = 64;
    model.plan_hash = ChunkPlan::make(model.manifest, model.chunk_bytes).value().hash();
    model.fragments = 1;
    model.optimizer.name = "sgd";
    model.optimizer.learning_rate = 1;
    model.aggregate = aggregate;
    model.codec_down = "f32";
    EXPECT_FALSE(chunks_.describe(model).ok()) << "a leader that names nobody";
    model.flags = proto::ServerModel::kNamesSummed;
    auto layout = chunks_.describe(model);
    ASSERT_TRUE(layout.ok()) << layout.error().message();
    ASSERT_TRUE(chunks_.allocate(std::move(layout).value()).ok());
    proto::Route route;
    route.version = 1;
    route.servers = {{.name = "leader", .endpoint = ""}, {.name = "s", .endpoint = "s:1"}};
    route.owners.assign(chunks_.plan().chunks().size(), 1);
    ASSERT_TRUE(chunks_.place(route).ok());
    chunks_.store().restore(Version(1), 0);
  }
  static proto::Opened opened(std::uint32_t attempt, std::vector<MemberId> summed) {
    proto::Opened out;
    out.generation = Generation(1);
    out.round = Round(1);
    out.attempt = attempt;
    out.summed = std::move(summed);
    return out;
  }
  static proto::ContributionKey key(MemberId member, std::uint32_t attempt = 0) {
    return {member, Generation(1), Round(1), attempt};
  }
  static std::vector<float> values(MemberId member) {
    CounterRng rng(member.value);
    std::vector<float> out(kElements);
    for (float& x : out) x = static_cast<float>(rng.normal());
    return out;
  }
  /// Chunk `number` of a member's contribution, of weight 1 + its id.
  Status push(MemberId member, std::uint32_t number, std::uint32_t attempt = 0) {
    return push(member, number, attempt, sums_);
  }
  Status push(MemberId member, std::uint32_t number, std::uint32_t attempt, RoundSums& to) {
    const Chunk& chunk = chunks_.plan().chunk(ChunkId(number));
    const auto all = values(member);
    Buffer buffer(chunk.elements * sizeof(float));
    std::memcpy(buffer.data(), all.data() + chunk.position, buffer.size());
    proto::Push push;
    push.chunk = chunk.id;
    push.weight = weight(member);
    const std::size_t bytes = buffer.size();
    came_[member] += bytes;
    return to.add(key(member, attempt), codec_, push, std::move(buffer), bytes);
  }
  Status push_all(MemberId member, std::uint32_t attempt = 0) {
    for (std::uint32_t i = 0; i < 3; ++i) CENTROID_TRY(push(member, i, attempt));
    return {};
  }
  static double weight(MemberId member) { return 1 + static_cast<double>(member.value); }
  static proto::Merge merge_of(const std::vector<MemberId>& members, std::uint32_t attempt = 0) {
    proto::Merge merge;
    merge.round = Round(1);
    merge.attempt = attempt;
    for (const MemberId one : members)
      merge.parts.push_back({.key = key(one, attempt), .weight = weight(one)});
    return merge;
  }
  /// Left to right, each product rounded.
  static std::vector<float> expected(const std::vector<MemberId>& members) {
    std::vector<float> sum(kElements);
    for (std::size_t r = 0; r < members.size(); ++r) {
      const auto part = values(members[r]);
      for (std::size_t i = 0; i < kElements; ++i) {
        const float scaled = static_cast<float>(weight(members[r])) * part[i];
        sum[i] = r == 0 ? scaled : sum[i] + scaled;
      }
    }
    return sum;
  }
  std::vector<float> sum() const {
    std::vector<float> out;
    for (const Chunk& chunk : chunks_.plan().chunks()) {
      const auto part = std::as_const(chunks_.store()).spare(chunk);
      out.insert(out.end(), part.begin(), part.end());
    }
    return out;
  }
  std::size_t held() const {
    std::size_t bytes = 0;
    for (const auto& [member, came] : came_)
      bytes += came - (released_.contains(member) ? released_.at(member) : 0);
    return bytes;
  }

  const MemberId a_{7}, b_{3}, c_{5};  // in the leader's order, which is not that of the ids
  const std::shared_ptr<const Codec> codec_ = make_codec("f32").value();
  ShardChunks chunks_{"s"};
  std::map<MemberId, std::size_t> came_, released_;
  RoundSums sums_{chunks_,
                  [this](MemberId member, std::size_t bytes) { released_[member] += bytes; }};
};

TEST_F(RoundSumsTest, AddsInTheLeadersOrderAndGivesCreditBackThen) {
  sums_.open(opened(0, {a_, b_, c_}));
  ASSERT_TRUE(push_all(c_).ok());
  ASSERT_TRUE(push_all(b_).ok());
  EXPECT_EQ(held(), 2 * kElements * sizeof(float)) << "both wait for the first";
  EXPECT_EQ(sums_.bytes(), held());
  ASSERT_TRUE(sums_.whole(key(c_)).has_value()) << "all of it has come";
  EXPECT_EQ(sums_.whole(key(c_))->weight, weight(c_));
  EXPECT_FALSE(sums_.finish(merge_of({a_, b_, c_})).ok());
  ASSERT_TRUE(push_all(a_).ok());
  EXPECT_EQ(held(), 0u);
  EXPECT_EQ(sums_.bytes(), 0u);
  ASSERT_TRUE(sums_.finish(merge_of({a_, b_, c_})).ok());
  EXPECT_EQ(sum(), expected({a_, b_, c_}));
}

TEST_F(RoundSumsTest, NobodyWaitsForAMemberThatTheLeaderDoesNotNameAnyMore) {
  sums_.open(opened(0, {a_, b_, c_}));
  ASSERT_TRUE(push_all(b_).ok());
  ASSERT_TRUE(push_all(c_).ok());
  sums_.open(opened(0, {b_, c_}));
  EXPECT_EQ(held(), 0u);
  EXPECT_FALSE(sums_.expects(key(a_)));
  ASSERT_TRUE(sums_.finish(merge_of({b_, c_})).ok());
  EXPECT_EQ(sum(), expected({b_, c_}));
}

TEST_F(RoundSumsTest, AMergeIsOfAllThatTheSumHasAndOfNothingElse) {
  sums_.open(opened(0, {a_, b_}));
  ASSERT_TRUE(push_all(a_).ok());
  ASSERT_TRUE(push(b_, 0).ok());
  const Status without = sums_.finish(merge_of({a_}));
  ASSERT_FALSE(without.ok());
  EXPECT_THAT(without.error().message(), HasSubstr("has a part of member 3"));
  const Status early = sums_.finish(merge_of({a_, b_}));
  ASSERT_FALSE(early.ok());
  EXPECT_THAT(early.error().message(), HasSubstr("member 3 has not come as a whole"));
  EXPECT_FALSE(sums_.finish(merge_of({a_, b_}, 1)).ok()) << "another attempt";
}

TEST_F(RoundSumsTest, AnotherAttemptBeginsAnewAndReleasesWhatWaited) {
  sums_.open(opened(0, {a_, b_}));
  ASSERT_TRUE(push(a_, 0).ok());
  ASSERT_TRUE(push_all(b_).ok());
  EXPECT_GT(held(), 0u);
  sums_.open(opened(1, {b_, c_}));
  EXPECT_EQ(held(), 0u);
  EXPECT_FALSE(sums_.expects(key(b_, 0)));
  ASSERT_TRUE(push_all(b_, 1).ok());
  ASSERT_TRUE(push_all(c_, 1).ok());
  ASSERT_TRUE(sums_.finish(merge_of({b_, c_}, 1)).ok());
  EXPECT_EQ(sum(), expected({b_, c_}));
}

TEST_F(RoundSumsTest, AnAttemptThatIsOverReleasesWhatWaited) {
  sums_.open(opened(0, {a_, b_}));
  ASSERT_TRUE(push_all(b_).ok());
  sums_.open(opened(0, {}));
  EXPECT_EQ(held(), 0u);
  EXPECT_FALSE(sums_.expects(key(b_)));
}

/// A snapshot that has no room for more copies holds up the commit, not the sums: the spare plane
/// is none of its planes.
TEST_F(RoundSumsTest, GrowBesideASnapshotThatHasNoRoom) {
  const auto snapshot = chunks_.store().begin_snapshot(0);
  ASSERT_TRUE(snapshot);
  ASSERT_TRUE(chunks_.store().snapshot_is_full());
  sums_.open(opened(0, {a_}));
  ASSERT_TRUE(push_all(a_).ok());
  EXPECT_EQ(held(), 0u);
  EXPECT_EQ(sum(), expected({a_}));
  std::vector<float> out(kElements, -1);
  ASSERT_TRUE(snapshot->read(0, 0, out).ok());
  EXPECT_EQ(out, std::vector<float>(kElements)) << "the parameters of before";
}

/// Real threads combine, and a Merge waits for them.
TEST_F(RoundSumsTest, AMergeIsCompleteWhenOtherThreadsHaveCombinedItsChunks) {
  boost::asio::io_context home;
  set_aggregate("nnm_trimmed_mean:1");
  std::vector<float> here;
  for (const int threads : {-1, 0, 1, 2, 3, 5}) {  // -1: here. 0, of unknown processors: one
    SCOPED_TRACE(threads);
    const bool is_apart = threads >= 0;
    WorkThreads pool(home.get_executor(), "combine",
                     static_cast<std::size_t>(std::max(threads, 0)));
    Aggregator::RunApart run_apart;
    if (is_apart)
      run_apart = [&](std::function<void()> work, std::function<void()> then) {
        pool.run(std::move(work), std::move(then));
      };
    std::size_t changes = 0;
    RoundSums sums(chunks_, [](MemberId, std::size_t) {}, run_apart, [&] { ++changes; });
    sums.open(opened(0, {a_, b_, c_}));
    for (const MemberId member : {b_, c_, a_})
      for (std::uint32_t i = 0; i < 3; ++i) ASSERT_TRUE(push(member, i, 0, sums).ok());
    EXPECT_EQ(sums.is_combining(), is_apart);
    EXPECT_EQ(sums.finish(merge_of({a_, b_, c_})).ok(), !is_apart);
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (const std::size_t before = changes; is_apart && changes < before + 3;) {
      ASSERT_LT(std::chrono::steady_clock::now(), limit) << "a chunk is not combined";
      home.restart();
      home.run_one_for(std::chrono::seconds(1));
    }
    EXPECT_FALSE(sums.is_combining());
    const Status finished = sums.finish(merge_of({a_, b_, c_}));
    ASSERT_TRUE(finished.ok()) << finished.error().to_string();
    if (!is_apart) here = sum();
    EXPECT_EQ(sum(), here);
  }
}

}  // namespace
}  // namespace centroid::server
