#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>

#include "tests/conformance/collective_fixture.h"
#include "worker/exchange/peer_mean.h"

namespace centroid::worker {
namespace {

using collective::Group;
using collective::testing::Carrier;
using collective::testing::Floats;
using collective::testing::Job;
using collective::testing::succeeds;
using ::testing::HasSubstr;

constexpr std::uint64_t kSeed = 7;

/// Everything is ready from the beginning; nobody aborts.
class AllReady final : public JobSignals {
 public:
  bool wait(const std::function<bool()>& condition) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, condition);
    return true;
  }
  bool is_ready(TensorId) const override { return true; }
  void change(const std::function<void()>& what) override {
    const std::lock_guard lock(mutex_);
    what();
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

/// Tensors of these sizes, of which those of 20 are buffers.
ChunkPlan plan_of(const std::vector<std::uint64_t>& sizes) {
  Manifest manifest;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    manifest.push_back(
        {(sizes[i] == 20 ? "running_" : "tensor") + std::to_string(i), DType::kF32, {sizes[i]}});
  return ChunkPlan::make(std::move(manifest), 1 << 20).value();
}

Floats gradient_of(std::uint64_t rank, std::uint64_t round, std::size_t n) {
  CounterRng random(kSeed + rank, round);
  Floats g(n);
  for (float& x : g) x = static_cast<float>(random.normal());
  return g;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

/// Put what is listed into the plane.
void write_out(const SparseMean* sparse, Floats& mean) {
  if (sparse == nullptr) return;
  std::uint64_t elements = 0;
  for (const SparseMean::Part& part : sparse->parts) {
    elements += part.elements;
    if (!part.is_listed) continue;
    sparse->write_out(part, std::span(mean).subspan(part.position, part.elements));
  }
  EXPECT_EQ(elements, mean.size());
}

/// The ranks of a cluster, each with its CodedMean, over one carrier.
class Cluster {
 public:
  Cluster(Carrier carrier, std::uint32_t world, const ChunkPlan& plan, const std::string& codec,
          std::uint64_t bucket_bytes = 4096)
      : job(carrier, world), elements(plan.total_elements()), means(world) {
    for (std::uint32_t rank = 0; rank < world; ++rank) make(rank, plan, codec, bucket_bytes);
  }

  void make(std::uint32_t rank, const ChunkPlan& plan, const std::string& codec,
            std::uint64_t bucket_bytes = 4096) {
    CodedMean::Terms terms;
    terms.codec = codec;
    terms.seed = kSeed;
    terms.bucket_bytes = bucket_bytes;
    coded.resize(std::max<std::size_t>(coded.size(), rank + 1));
    coded[rank] = CodedMean::make(plan, terms).value();
    generations.resize(coded.size());
    generations[rank] = 0;  // none
  }

  /// One attempt of a round by all ranks of the generation; by rank of the first generation.
  std::vector<CodedMean::Outcome> run(std::uint64_t round, const std::vector<double>& weights,
                                      const std::vector<Floats>& gradients, bool in_nodes = false) {
    std::vector<CodedMean::Outcome> outcomes(job.world());
    job.run([&](Group& group) {
      const std::uint32_t rank = group.rank();
      PeerGroups groups{group};
      if (in_nodes) groups = split_by_node(group).value();
      AllReady signals;
      CodedMean::Job one;
      one.round = round;
      one.weight = weights[rank];
      one.gradients = gradients[rank];
      means[rank].assign(elements, -99.0f);
      one.mean = means[rank];
      one.may_list = round % 2 == 0;
      if (std::exchange(generations[rank], group.generation()) != group.generation())
        coded[rank]->enter(groups);
      outcomes[rank] = coded[rank]->run(groups, one, signals);
      if (outcomes[rank].status.ok()) write_out(coded[rank]->sparse_mean(), means[rank]);
    });
    return outcomes;
  }

  void expect_good_run(std::uint64_t round, const std::vector<double>& weights,
                       const std::vector<Floats>& gradients, bool in_nodes = false) {
    for (const auto& outcome : run(round, weights, gradients, in_nodes)) {
      EXPECT_TRUE(succeeds(outcome.status));
      EXPECT_EQ(outcome.nonfinite_tensor, "");
    }
    for (const Floats& mean : means) EXPECT_TRUE(same_bits(mean, means[0]));
  }

  void round_over(RoundEnd end) {
    for (auto& one : coded) one->round_over(end);
  }
  void round_over(bool committed) {
    round_over(committed ? RoundEnd::kCommitted : RoundEnd::kSkipped);
  }

  Job job;
  std::size_t elements;
  std::vector<std::unique_ptr<CodedMean>> coded;
  std::vector<std::uint64_t> generations;  // that they have entered
  std::vector<Floats> means;
};

/// The same by hand: everything decoded and added in one place.
class ByHand {
 public:
  ByHand(const CodedMean& model, const std::string& codec, std::uint32_t world)
      : plan_(model.plan()), codec_(make_codec(codec).value()) {
    whole_ = SumEncoder::make(codec).value();
    for (std::uint32_t rank = 0; rank < world; ++rank)
      if (whole_->spec().feedback.enabled)
        feedback_.push_back(ErrorFeedback::make(codec, plan_).value());
    for (auto& feedback : feedback_) feedback->begin_generation(world);
  }

  Floats mean_of(std::uint64_t round, const std::vector<double>& weights,
                 const std::vector<Floats>& gradients) {
    Floats mean(plan_.total_elements()), decoded;
    std::vector<std::byte> out(largest_payload(*codec_, plan_));
    double total = 0;
    for (const double weight : weights) total += weight;
    for (const Chunk& chunk : plan_.chunks()) {
      const auto sum = std::span(mean).subspan(chunk.position, chunk.elements);
      const Codec& codec = codec_of(*codec_, plan_, chunk);
      for (std::size_t rank = 0; rank < weights.size(); ++rank) {
        if (weights[rank] == 0) continue;
        Bytes payload;
        if (!feedback_.empty()) {
          payload = feedback_[rank]->encode(chunk.id, gradients[rank], round).value();
        } else {
          const auto x = std::span(gradients[rank]).subspan(chunk.position, chunk.elements);
          const std::uint64_t stream = mix64(mix64(kSeed, round), mix64(rank, chunk.id.value));
          payload = Bytes(out).first(codec.encode(x, out, stream).value());
        }
        decoded.resize(chunk.elements);
        EXPECT_TRUE(succeeds(codec.decode(payload, decoded)));
        for (std::size_t i = 0; i < decoded.size(); ++i)
          sum[i] += static_cast<float>(weights[rank]) * decoded[i];
      }
      for (float& x : sum) x *= static_cast<float>(1.0 / total);
      if (plan_.is_buffer(chunk)) continue;  // the mean is exact
      const std::uint64_t stream = mix64(mix64(kSeed, round), mix64(0x6D65616E, chunk.id.value));
      const std::size_t bytes = whole_->encode(sum, out, stream).value();
      EXPECT_TRUE(succeeds(codec_->decode(Bytes(out).first(bytes), sum)));
    }
    return mean;
  }

  std::vector<std::unique_ptr<ErrorFeedback>>& feedback() { return feedback_; }

 private:
  const ChunkPlan& plan_;
  std::unique_ptr<Codec> codec_;
  std::unique_ptr<SumEncoder> whole_;
  std::vector<std::unique_ptr<ErrorFeedback>> feedback_;
};

struct Coded : ::testing::TestWithParam<Carrier> {};
INSTANTIATE_TEST_SUITE_P(All, Coded,
                         ::testing::Values(Carrier::kInProcess, Carrier::kTcp, Carrier::kShm),
                         ::testing::PrintToStringParamName());

const std::vector<std::string> kCodecs = {"bf16",
                                          "f16",
                                          "int8",
                                          "int8:rounding=stochastic",
                                          "topk:0.05",
                                          "topk:0.3,values=bf16",
                                          "topk:0.01,values=int8,scope=global",
                                          "topk:0.1,feedback=off",
                                          "topk:0.05,momentum=0.9,clip=1,warmup=8"};

TEST_P(Coded, TheMeanHasTheBitsOfDecodingAndAddingInRankOrder) {
  std::uint64_t round = 1;
  for (std::uint32_t world = 1; world <= 8; ++world) {
    for (const std::vector<std::uint64_t>& sizes :
         std::vector<std::vector<std::uint64_t>>{{0}, {1}, {3}, {13}, {700, 0, 20, 9, 3000}}) {
      const ChunkPlan plan = plan_of(sizes);
      for (const std::string& codec : kCodecs) {
        SCOPED_TRACE(codec + " world " + std::to_string(world) + " elements " +
                     std::to_string(plan.total_elements()));
        if (world > 1 && (world + sizes.size() + codec.size()) % 3 != 0) continue;
        Cluster cluster(GetParam(), world, plan, codec);
        ByHand by_hand(*cluster.coded[0], codec, world);
        std::vector<double> weights;
        std::vector<Floats> gradients;
        for (std::uint32_t rank = 0; rank < world; ++rank) {
          weights.push_back(rank == 2 ? 0 : 16 + rank);
          gradients.push_back(gradient_of(rank, round, cluster.elements));
        }
        cluster.expect_good_run(round, weights, gradients);
        EXPECT_TRUE(same_bits(cluster.means[0], by_hand.mean_of(round, weights, gradients)));
        if (HasFailure()) return;
        ++round;
      }
    }
  }
}

TEST_P(Coded, ManyRoundsOfALargeModelHaveTheBitsToo) {
  const ChunkPlan plan = plan_of({60'000, 20'000, 1, 19'999});
  for (const std::string codec : {"topk:0.01", "int8"}) {
    SCOPED_TRACE(codec);
    Cluster cluster(GetParam(), 4, plan, codec, 64 << 10);
    ByHand by_hand(*cluster.coded[0], codec, 4);
    for (std::uint64_t round = 1; round <= 5; ++round) {
      const std::vector<double> weights = {32, 32, round == 3 ? 0.0 : 32, 7};
      std::vector<Floats> gradients;
      for (std::uint32_t rank = 0; rank < 4; ++rank)
        gradients.push_back(gradient_of(rank, round, cluster.elements));
      cluster.expect_good_run(round, weights, gradients);
      EXPECT_TRUE(same_bits(cluster.means[0], by_hand.mean_of(round, weights, gradients)));
      const bool committed = round != 2;
      cluster.round_over(committed);
      for (auto& feedback : by_hand.feedback())
        committed ? feedback->commit() : feedback->take_back();
      for (std::size_t rank = 0; rank < by_hand.feedback().size(); ++rank)
        EXPECT_TRUE(same_bits(cluster.coded[rank]->feedback()->state().residual,
                              by_hand.feedback()[rank]->state().residual));
    }
  }
}

TEST_P(Coded, RoundsThatAreBegunAnewHaveTheBitsOfThoseThatNobodyDisturbed) {
  const ChunkPlan plan = plan_of({900, 33, 400});
  const std::vector<double> weights = {32, 8, 1, 17};
  for (const std::string codec :
       {"topk:0.02", "topk:0.05,values=int8,momentum=0.9", "int8:feedback=on", "sign"}) {
    for (const bool in_nodes : {false, true}) {
      SCOPED_TRACE(codec + (in_nodes ? " in nodes" : ""));
      Cluster right(GetParam(), 4, plan, codec), cluster(GetParam(), 4, plan, codec);
      for (std::uint64_t round = 1; round <= 6; ++round) {
        std::vector<Floats> gradients;
        for (std::uint32_t rank = 0; rank < 4; ++rank)
          gradients.push_back(gradient_of(rank, round, cluster.elements));
        for (std::uint64_t again = 0; again < round % 3; ++again) {
          cluster.expect_good_run(round, weights, gradients, in_nodes);
          cluster.round_over(RoundEnd::kUndone);
        }
        right.expect_good_run(round, weights, gradients, in_nodes);
        cluster.expect_good_run(round, weights, gradients, in_nodes);
        EXPECT_TRUE(same_bits(cluster.means[0], right.means[0]));
        right.round_over(RoundEnd::kCommitted);
        cluster.round_over(RoundEnd::kCommitted);
        for (std::size_t rank = 0; rank < 4; ++rank) {
          const auto left = cluster.coded[rank]->feedback()->state();
          const auto wanted = right.coded[rank]->feedback()->state();
          EXPECT_TRUE(same_bits(left.residual, wanted.residual));
          EXPECT_TRUE(same_bits(left.momentum, wanted.momentum));
        }
      }
    }
  }
}

/// sum of weight * gradient = total weight * sum of means + sum of weight * residual, element by
/// element, within the rounding of float32.
void expect_nothing_is_lost(Cluster& cluster, const std::vector<double>& weights, bool in_nodes,
                            std::uint64_t rounds) {
  std::vector<double> given(cluster.elements), taken(cluster.elements);
  double total = 0;
  for (const double weight : weights) total += weight;
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    std::vector<Floats> gradients;
    for (std::uint32_t rank = 0; rank < weights.size(); ++rank)
      gradients.push_back(gradient_of(rank, round, cluster.elements));
    cluster.expect_good_run(round, weights, gradients, in_nodes);
    const bool committed = round % 10 != 7;
    cluster.round_over(committed);
    for (std::size_t i = 0; i < cluster.elements; ++i) {
      for (std::size_t rank = 0; rank < weights.size(); ++rank)
        given[i] += weights[rank] * static_cast<double>(gradients[rank][i]);
      if (committed) taken[i] += total * static_cast<double>(cluster.means[0][i]);
    }
  }
  std::vector<double> share = weights;
  if (in_nodes) share = {weights[0] + weights[1], 0, weights[2] + weights[3], 0};
  double worst = 0;
  for (std::size_t i = 0; i < cluster.elements; ++i) {
    double left = 0;
    for (std::size_t rank = 0; rank < weights.size(); ++rank)
      left +=
          share[rank] * static_cast<double>(cluster.coded[rank]->feedback()->state().residual[i]);
    worst = std::max(worst, std::abs(given[i] - taken[i] - left));
  }
  // A rounding error is below 2^-24 of a sum of at most some hundreds.
  EXPECT_LT(worst, total * static_cast<double>(rounds) * 1e-5);
}

TEST_P(Coded, WhatWasSentAndWhatIsLeftAreTheGradients) {
  const ChunkPlan plan = plan_of({900, 33, 400});
  for (const std::string codec : {"topk:0.02", "topk:0.02,values=int8", "topk:0.05,values=bf16",
                                  "int8:feedback=on", "bf16:feedback=on"}) {
    SCOPED_TRACE(codec);
    Cluster cluster(GetParam(), 4, plan, codec);
    expect_nothing_is_lost(cluster, {32, 8, 1, 17}, false, 100);
  }
}

TEST_P(Coded, NodesAddTheirsFirstAndNothingIsLost) {
  const ChunkPlan plan = plan_of({900, 33, 400});
  const std::vector<double> weights = {32, 8, 1, 17};
  for (const std::string codec :
       {"topk:0.02,values=int8", "topk:0.05,scope=global", "int8:feedback=on"}) {
    SCOPED_TRACE(codec);
    Cluster cluster(GetParam(), 4, plan, codec);
    cluster.job.join({"a", "a", "b", "b"});
    expect_nothing_is_lost(cluster, weights, true, 30);
  }
  // Everything is sent: the mean of all, whatever the nodes; some have nothing to give.
  const std::vector<std::vector<std::string>> layouts = {
      {"a", "a", "b", "b"}, {"a", "b", "a", "a"}, {"a", "", "b", "a"}};
  for (const auto& nodes : layouts) {
    for (const std::vector<double>& some :
         {weights, {0, 3, 0, 0}, {5, 0, 0, 0}, std::vector<double>{0, 0, 2, 1}}) {
      Cluster cluster(GetParam(), 4, plan, "topk:1");
      cluster.job.join(nodes);
      std::vector<Floats> gradients;
      for (std::uint32_t rank = 0; rank < 4; ++rank)
        gradients.push_back(gradient_of(rank, 1, cluster.elements));
      cluster.expect_good_run(1, some, gradients, true);
      const double total = some[0] + some[1] + some[2] + some[3];
      for (std::size_t i = 0; i < cluster.elements; ++i) {
        double wanted = 0;
        for (std::size_t rank = 0; rank < 4; ++rank)
          wanted += some[rank] * static_cast<double>(gradients[rank][i]) / total;
        ASSERT_NEAR(cluster.means[0][i], wanted, 1e-5) << i;
      }
    }
  }
}

TEST_P(Coded, AnAttemptWithoutALostRankSendsTheSamePayloadsToOtherOwners) {
  const ChunkPlan plan = plan_of({2000, 33});
  const std::string codec = "topk:0.05,values=int8";
  Cluster cluster(GetParam(), 4, plan, codec);
  ByHand by_hand(*cluster.coded[0], codec, 3);
  std::vector<Floats> gradients;
  for (std::uint32_t rank = 0; rank < 4; ++rank)
    gradients.push_back(gradient_of(rank, 1, cluster.elements));
  cluster.job.run([](Group& group) { EXPECT_TRUE(barrier(group).ok()); });
  cluster.job.leave(3);
  const auto failed = cluster.run(1, {1, 2, 3, 4}, gradients);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    ASSERT_FALSE(failed[rank].status.ok());
    EXPECT_THAT(failed[rank].status.error().to_string(), HasSubstr("rank 3"));
  }
  // The next generation, of three.
  Cluster rest(GetParam(), 3, plan, codec);
  for (std::uint32_t rank = 0; rank < 3; ++rank) rest.coded[rank] = std::move(cluster.coded[rank]);
  rest.job.join();
  const std::vector<Floats> other(4, gradient_of(9, 9, cluster.elements));
  rest.expect_good_run(1, {1, 2, 3}, other);  // the payloads of the first attempt are repeated
  EXPECT_TRUE(same_bits(rest.means[0], by_hand.mean_of(1, {1, 2, 3}, gradients)));
}

TEST_P(Coded, APayloadThatIsNotRightEndsItEverywhereAndNamesItsSender) {
  const ChunkPlan plan = plan_of({2000, 33});
  Cluster cluster(GetParam(), 3, plan, "topk:0.05");
  cluster.make(1, plan, "int8");  // the same lengths are allowed, but not the form
  std::vector<Floats> gradients(3, gradient_of(1, 1, cluster.elements));
  const auto outcomes = cluster.run(1, {1, 1, 1}, gradients);
  for (const auto& outcome : outcomes) {
    ASSERT_FALSE(outcome.status.ok());
    // To rank 1 it is the others' that are not right, and it may be the first to see one.
    const std::string text = outcome.status.error().to_string();
    const bool is_of_1 = text.find("from rank 1: ") != text.npos;
    EXPECT_THAT(text, HasSubstr(is_of_1 ? "form 2 is not" : "form 16 is not"));
    EXPECT_THAT(text, HasSubstr("from rank "));
    EXPECT_TRUE(!outcome.culprit || (outcome.culprit == 1u) == is_of_1) << text;
  }
  // Nothing is changed: with a right sender in its place the attempt succeeds, with the same bits.
  ByHand by_hand(*cluster.coded[0], "topk:0.05", 3);
  cluster.make(1, plan, "topk:0.05");
  cluster.job.join();
  cluster.expect_good_run(1, {1, 1, 1}, gradients);
  EXPECT_TRUE(same_bits(cluster.means[0], by_hand.mean_of(1, {1, 1, 1}, gradients)));
}

TEST_P(Coded, GradientsThatAreNotFiniteAreNamedByTheirRankAndHarmNobody) {
  const ChunkPlan plan = plan_of({700, 300});
  for (const std::string codec : {"topk:0.05", "int8", "topk:0.05,values=bf16,scope=global"}) {
    SCOPED_TRACE(codec);
    Cluster cluster(GetParam(), 3, plan, codec);
    std::vector<Floats> gradients(3, gradient_of(1, 1, cluster.elements));
    gradients[1][800] = std::numeric_limits<float>::quiet_NaN();
    const auto outcomes = cluster.run(1, {1, 1, 1}, gradients);
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(succeeds(outcomes[rank].status));
      EXPECT_EQ(outcomes[rank].nonfinite_tensor, rank == 1 ? "tensor1" : "");
    }
    cluster.round_over(false);
    gradients[1][800] = 1;
    cluster.expect_good_run(2, {1, 1, 1}, gradients);
    for (const float x : cluster.means[0]) ASSERT_TRUE(std::isfinite(x));
  }
}

TEST_P(Coded, ARoundWithoutAnySampleIsAnError) {
  const ChunkPlan plan = plan_of({700});
  Cluster cluster(GetParam(), 2, plan, "int8");
  const std::vector<Floats> gradients(2, gradient_of(1, 1, cluster.elements));
  bool is_named = false;
  for (const auto& outcome : cluster.run(1, {0, 0}, gradients)) {
    ASSERT_FALSE(outcome.status.ok());
    is_named = is_named || outcome.status.error().message().find("weight") != std::string::npos;
  }
  EXPECT_TRUE(is_named);
}

TEST(PeerMessageTest, IsReadWholeOrRefused) {
  const std::vector<std::byte> one(5, std::byte{1}), two(3, std::byte{2});
  std::vector<std::byte> bytes(4);  // something before it
  PeerMessageWriter out(bytes, 32, PeerForm::kNumbers, 2);
  out.add(one);
  out.add(two);
  const Bytes message = Bytes(bytes).subspan(4);
  const auto read = read_peer_message(message, 2);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->weight, 32);
  EXPECT_EQ(read->payloads[0].size(), 5u);
  EXPECT_EQ(read->payloads[1][2], std::byte{2});
  for (std::size_t n = 0; n < message.size(); ++n)
    EXPECT_FALSE(read_peer_message(message.first(n), 2).ok()) << n;
  EXPECT_FALSE(read_peer_message(message, 1).ok());
  EXPECT_FALSE(read_peer_message(message, 3).ok());
  std::vector<std::byte> longer(message.begin(), message.end());
  longer.push_back(std::byte{0});
  EXPECT_FALSE(read_peer_message(longer, 2).ok());
  const auto changed = [&](std::size_t at, auto value) {
    std::vector<std::byte> other(message.begin(), message.end());
    std::memcpy(other.data() + at, &value, sizeof(value));
    const auto result = read_peer_message(other, 2);
    return result.ok() ? "taken" : result.error().message();
  };
  EXPECT_EQ(changed(0, 31.5), "taken");
  for (const double weight : {0.0, -1.0, 2e15, std::nan(""), HUGE_VAL})
    EXPECT_THAT(changed(0, weight), HasSubstr("weight")) << weight;
  EXPECT_THAT(changed(8, 3u), HasSubstr("form 3"));
  EXPECT_THAT(changed(8, 0u), HasSubstr("form 0 and weight"));
  EXPECT_THAT(changed(8, 2u), HasSubstr("2 payloads, expected 0"));
  EXPECT_THAT(changed(16, 6u), HasSubstr("exactly"));
  EXPECT_THAT(changed(16, ~0u), HasSubstr("exactly"));
}

}  // namespace
}  // namespace centroid::worker
