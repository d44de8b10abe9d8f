#include <cmath>
#include <cstring>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/codec/chunk_codec.h"
#include "common/codec/error_feedback.h"

/// Chunks of buffers beside codecs.
namespace centroid::codec_buffers_test {
namespace {

using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), 4 * a.size()) == 0);
}

std::vector<float> residual_of(const ErrorFeedback& feedback) {
  const auto state = feedback.state();
  return {state.residual.begin(), state.residual.end()};
}

TEST(ChunkCodec, IsF32ForBuffersWhateverTheCodecIs) {
  const auto plan = ChunkPlan::make({{"w", DType::kF32, {30}}, {"running_mean", DType::kF32, {40}}},
                                    20 * sizeof(float))
                        .value();
  const auto trained = ChunkPlan::make({{"w", DType::kF32, {40}}}, 20 * sizeof(float)).value();
  for (const std::string spec : {"f32", "bf16", "int8", "sign", "topk:0.1"}) {
    const auto codec = make_codec(spec).value();
    for (const Chunk& chunk : plan.chunks())
      EXPECT_EQ(codec_of(*codec, plan, chunk).spec(), chunk.id.value < 2 ? codec->spec() : "f32");
    EXPECT_EQ(largest_payload(*codec, plan), spec == "bf16" ? 80 : codec->max_bytes(20));
    EXPECT_EQ(largest_payload(*codec, trained), codec->max_bytes(20));
  }
}

/// A model with buffers among its tensors, and the one without them.
struct WithBuffers {
  explicit WithBuffers(const std::string& spec)
      : plan(ChunkPlan::make({{"a", DType::kF32, {700}},
                              {"n.running_mean", DType::kF32, {300}},
                              {"b", DType::kF32, {20, 20}},
                              {"c", DType::kF32, {9}},
                              {"n.running_var", DType::kF32, {5}}},
                             256 * sizeof(float))
                 .value()),
        plain_plan(
            ChunkPlan::make(
                {{"a", DType::kF32, {700}}, {"b", DType::kF32, {20, 20}}, {"c", DType::kF32, {9}}},
                256 * sizeof(float))
                .value()),
        feedback(ErrorFeedback::make(spec, plan).value()),
        plain(ErrorFeedback::make(spec, plain_plan).value()) {}

  std::vector<float> gradient(std::uint64_t stream) const {
    CounterRng random(41, stream);
    std::vector<float> g(plain_plan.total_elements());
    for (float& x : g)
      x = static_cast<float>(random.normal() * std::pow(10.0, 3 * random.uniform()));
    g.insert(g.begin() + 700, 300, 1e6F + static_cast<float>(stream));  // a selection's largest
    g.insert(g.end(), 5, -static_cast<float>(stream));
    return g;
  }
  /// What is not of buffers.
  std::vector<float> trained(std::vector<float> all) const {
    all.erase(all.begin() + 700, all.begin() + 1000);
    all.resize(plain_plan.total_elements());
    return all;
  }

  /// Sends a round of both.
  void expect_alike(std::uint64_t round) {
    const auto g = gradient(round), of_plain = trained(g);
    auto other = plain_plan.chunks().begin();
    for (const Chunk& chunk : plan.chunks()) {
      const auto payload = feedback->encode(chunk.id, g, round);
      ASSERT_TRUE(payload.ok()) << payload.error().message();
      const Bytes expected =
          plan.is_buffer(chunk)
              ? std::as_bytes(std::span(g).subspan(chunk.position, chunk.elements))
              : plain->encode((other++)->id, of_plain, round).value();
      ASSERT_TRUE(std::ranges::equal(*payload, expected)) << round << ", chunk " << chunk.id.value;
    }
    const auto left = residual_of(*feedback);
    EXPECT_TRUE(same_bits(trained(left), residual_of(*plain)));
    for (std::size_t i = 0; i < left.size(); ++i) {
      const bool of_buffer = (i >= 700 && i < 1000) || i >= plain_plan.total_elements() + 300;
      if (of_buffer) {
        EXPECT_EQ(left[i], 0) << i;
      }
    }
  }

  ChunkPlan plan, plain_plan;
  std::unique_ptr<ErrorFeedback> feedback, plain;
};

TEST(BuffersOfFeedback, AreSentAsTheyAreAndMakeNoDifferenceToOthers) {
  for (const std::string spec :
       {"topk:0.01", "topk:0.1,values=int8", "topk:0.02,scope=global", "topk:0", "topk:1",
        "topk:0.97", "bf16:feedback=on", "f16:feedback=on", "int8:feedback=on", "sign",
        "topk:0.001,warmup=9", "topk:0.05,momentum=0.9,clip=1",
        "topk:0.1,momentum=0.9,masking=off,nesterov=on",
        "topk:0.05,scope=global,momentum=0.5,clip=1"}) {
    SCOPED_TRACE(spec);
    WithBuffers f(spec);
    const auto both = [&](const auto& change) {
      change(*f.feedback);
      change(*f.plain);
    };
    f.expect_alike(1);
    both([](ErrorFeedback& one) { one.commit(); });
    f.expect_alike(2);
    both([](ErrorFeedback& one) { one.undo(); });
    f.expect_alike(2);
    both([](ErrorFeedback& one) { one.take_back(); });
    f.expect_alike(3);
    both([](ErrorFeedback& one) { one.commit_promised(); });
    f.expect_alike(4);
    both([](ErrorFeedback& one) { one.commit(); });
    both([](ErrorFeedback& one) { one.undo_promised(); });
    f.expect_alike(5);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(BuffersOfFeedback, ThatAreNotFiniteAreRefusedUnlessTheyArePassed) {
  for (const std::string spec : {"topk:0.1", "topk:0.1,scope=global", "int8:feedback=on"}) {
    SCOPED_TRACE(spec);
    WithBuffers f(spec);
    auto g = f.gradient(1);
    g[750] = kNan;
    const Chunk& chunk = f.plan.chunks_of(TensorId(1)).front();
    const auto refused = f.feedback->encode(chunk.id, g, 1);
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.error().message(), HasSubstr("n.running_mean"));
    f.feedback->pass_nonfinite(true);
    EXPECT_EQ(f.feedback->encode(chunk.id, g, 1).value().size(), chunk.elements * sizeof(float));
  }
}

/// With scope=global a round's buffers are refused with it.
TEST(BuffersOfFeedback, OfARefusedRoundAreNotSentInTheNext) {
  WithBuffers f("topk:0.1,scope=global");
  auto g = f.gradient(1);
  g[3] = kNan;
  const Chunk& chunk = f.plan.chunks_of(TensorId(1)).front();
  EXPECT_FALSE(f.feedback->encode(chunk.id, g, 1).ok());
  const auto payload = f.feedback->encode(chunk.id, f.gradient(2), 2);
  float first = 0;
  std::memcpy(&first, payload.value().data(), sizeof(first));
  EXPECT_EQ(first, 1e6F + 2);
}

}  // namespace
}  // namespace centroid::codec_buffers_test
