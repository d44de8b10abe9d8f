#include "worker/exchange/peer_reducer.h"

#include <cmath>
#include <future>
#include <limits>

#include <gtest/gtest.h>

namespace centroid::worker {
namespace {

constexpr std::uint32_t kWorld = 3;
constexpr std::chrono::milliseconds kPatience{60'000};

ChunkPlan plan_of_two() {
  Manifest manifest{{"first", DType::kF32, {700}}, {"second", DType::kF32, {300}}};
  return ChunkPlan::make(std::move(manifest), 1 << 20).value();
}

/// Ranks that add over TCP.
class Ranks {
 public:
  Ranks(const std::string& codec, bool refuses_nonfinite) : plan_(plan_of_two()) {
    terms_.run_id = "run";
    terms_.bucket_bytes = 2000;
    terms_.timeout = kPatience;
    terms_.refuses_nonfinite = refuses_nonfinite;
    terms_.codec = codec;
    reducers_.resize(kWorld);
    roster_.endpoints.resize(kWorld);
    for (std::uint32_t rank = 0; rank < kWorld; ++rank) {
      replace(rank);
      roster_.nodes.push_back("node-" + std::to_string(rank));
    }
    roster_.generation = 1;
  }

  /// One rank more. The generation keeps its number.
  void add() {
    reducers_.emplace_back();
    roster_.endpoints.emplace_back();
    roster_.nodes.push_back("node-" + std::to_string(roster_.nodes.size()));
    replace(static_cast<std::uint32_t>(reducers_.size()) - 1);
  }

  /// Another worker takes this rank. The generation keeps its number.
  void replace(std::uint32_t rank) {
    const auto transport = [](Executor executor) { return transport::make_tcp(executor); };
    const auto anywhere = transport::Endpoint::parse("127.0.0.1:0").value();
    reducers_[rank] = PeerReducer::open(transport, anywhere, {}).value();
    EXPECT_TRUE(reducers_[rank]->configure(plan_, terms_).ok());
    roster_.endpoints[rank] = reducers_[rank]->endpoint();
  }

  /// One round; every number of a rank's gradients is the same.
  std::vector<PeerReducer::Outcome> reduce(const std::vector<float>& gradients) {
    const std::size_t world = reducers_.size();
    std::vector<std::vector<float>> given, means(world, std::vector<float>(elements()));
    std::vector<std::promise<PeerReducer::Outcome>> ended(world);
    for (const float one : gradients) given.emplace_back(elements(), one);
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      PeerReducer::Job job;
      job.roster = roster_;
      job.roster.rank = rank;
      job.weight = 2;
      job.gradients = given[rank];
      job.mean = means[rank];
      job.round = 1;
      reducers_[rank]->start(job, [&ended, rank](PeerReducer::Outcome outcome) {
        ended[rank].set_value(std::move(outcome));
      });
      for (std::uint32_t tensor = 0; tensor < 2; ++tensor) reducers_[rank]->ready(TensorId(tensor));
    }
    std::vector<PeerReducer::Outcome> outcomes;
    for (auto& one : ended) {
      auto outcome = one.get_future();
      EXPECT_EQ(outcome.wait_for(kPatience), std::future_status::ready) << "a rank's outcome";
      outcomes.push_back(outcome.get());
    }
    return outcomes;
  }

  std::size_t elements() const { return plan_.total_elements(); }

 private:
  ChunkPlan plan_;
  ReduceTerms terms_;
  collective::Roster roster_;
  std::vector<std::unique_ptr<PeerReducer>> reducers_;
};

TEST(PeerReducer, EveryRankNamesAMeanThatIsNotFiniteAndItsOwnNorm) {
  Ranks ranks("f32", true);
  const auto outcomes = ranks.reduce({3e38f, 1.0f, 2.0f});
  for (std::uint32_t rank = 0; rank < kWorld; ++rank) {
    ASSERT_TRUE(outcomes[rank].status.ok()) << outcomes[rank].status.error().to_string();
    EXPECT_NE(outcomes[rank].nonfinite_tensor, "");
    const double own = rank == 0 ? 3e38 : rank;
    EXPECT_NEAR(outcomes[rank].norm / (own * std::sqrt(1000.0)), 1, 1e-6);
  }
}

TEST(PeerReducer, AMeanThatNoCodecTakesEndsNoExchange) {
  for (const std::string codec : {"int8", "bf16", "topk:0.05"}) {
    SCOPED_TRACE(codec);
    Ranks ranks(codec, true);
    std::size_t named = 0;
    for (const auto& outcome : ranks.reduce({3e38f, 3e38f, 3e38f})) {
      ASSERT_TRUE(outcome.status.ok()) << outcome.status.error().to_string();
      named += outcome.nonfinite_tensor.empty() ? 0 : 1;
    }
    EXPECT_GT(named, 0u);
  }
}

TEST(PeerReducer, GradientsOfOnesOwnAreNamedWithoutANorm) {
  Ranks ranks("f32", true);
  const auto outcomes = ranks.reduce({1.0f, std::numeric_limits<float>::infinity(), 2.0f});
  EXPECT_EQ(outcomes[1].norm, -1);
  EXPECT_NE(outcomes[1].nonfinite_tensor, "");
  EXPECT_NEAR(outcomes[2].norm / (2 * std::sqrt(1000.0)), 1, 1e-6);
}

TEST(PeerReducer, WhereNumbersArePassedNobodyLooks) {
  Ranks ranks("f32", false);
  for (const auto& outcome : ranks.reduce({3e38f, 3e38f, 1.0f})) {
    EXPECT_TRUE(outcome.status.ok());
    EXPECT_EQ(outcome.nonfinite_tensor, "");
  }
}

// As a server may do that was started again without a checkpoint.
TEST(PeerReducer, AGenerationOfOtherWorkersWithTheSameNumberIsEnteredAnew) {
  for (const std::string codec : {"f32", "int8"}) {
    SCOPED_TRACE(codec);
    Ranks ranks(codec, true);
    for (const auto& outcome : ranks.reduce({1, 2, 3})) EXPECT_TRUE(outcome.status.ok());
    ranks.replace(2);
    for (const auto& outcome : ranks.reduce({1, 2, 3}))
      EXPECT_TRUE(outcome.status.ok()) << outcome.status.error().to_string();
    ranks.add();
    for (const auto& outcome : ranks.reduce({1, 2, 3, 4}))
      EXPECT_TRUE(outcome.status.ok()) << outcome.status.error().to_string();
  }
}

}  // namespace
}  // namespace centroid::worker
