#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/custom_group.h"
#include "tests/support/in_process.h"
#include "tests/support/test_shard.h"

/// Buffers beside codecs: their mean has the bits that it has without a codec, and what is trained
/// has the bits that it has in a model without buffers. Workers give numbers that depend on their
/// samples alone, so that what one tensor becomes says nothing of another.
namespace centroid::test {
namespace {

using server::ServerConfig;

constexpr std::size_t kSizes[] = {320, 64}, kMean = 160, kVariance = 1;  // the trained ones first

Manifest manifest_of(bool has_buffers) {
  if (!has_buffers) return {{"w", DType::kF32, {kSizes[0]}}, {"v", DType::kF32, {kSizes[1]}}};
  return {{"w", DType::kF32, {kSizes[0]}},  // buffers stand among the others, as in PyTorch
          {"n.running_mean", DType::kF32, {kMean}},
          {"v", DType::kF32, {kSizes[1]}},
          {"n.running_var", DType::kF32, {kVariance}}};
}

std::size_t elements_of(const Manifest& manifest) {
  std::size_t n = 0;
  for (const TensorInfo& tensor : manifest) n += tensor.elements();
  return n;
}

/// Parameters of one kind, end to end.
std::vector<float> part_of_model(const std::vector<float>& params, bool buffers) {
  std::vector<float> out;
  std::size_t at = 0;
  const bool has_buffers = params.size() == elements_of(manifest_of(true));
  for (const TensorInfo& tensor : manifest_of(has_buffers)) {
    const auto begin = params.begin() + static_cast<std::ptrdiff_t>(at);
    at += tensor.elements();
    if (is_buffer(tensor) == buffers)
      out.insert(out.end(), begin, params.begin() + static_cast<std::ptrdiff_t>(at));
  }
  return out;
}

/// Gives each tensor numbers that follow from the worker's first sample; buffers, if `change` is
/// set, that.
class GivenGroup final : public CustomGroup {
 public:
  GivenGroup(bool has_buffers, std::optional<float> change)
      : CustomGroup(elements_of(manifest_of(has_buffers))),
        manifest_(manifest_of(has_buffers)),
        change_(change) {}

  Result<worker::GroupStep> step(const worker::Dataset&, std::span<const std::uint64_t> samples,
                                 const std::function<void(TensorId)>& on_ready) override {
    const double seed = samples.empty() ? 0 : static_cast<double>(samples.front());
    std::size_t at = 0;
    for (std::uint32_t t = 0; t < manifest_.size(); ++t) {
      const bool buffer = is_buffer(manifest_[t]);
      const double scale = buffer ? 3 : 0.2;
      for (std::size_t i = 0; i < manifest_[t].elements(); ++i, ++at) {
        const double x = scale * std::sin(seed * 7 + static_cast<double>(i * i) +
                                          static_cast<double>(manifest_[t].elements()));
        gradients()[at] = buffer && change_ ? *change_ : static_cast<float>(x);
      }
      on_ready(TensorId(t));
    }
    worker::GroupStep done;
    done.samples = samples.size();
    return done;
  }

 private:
  const Manifest manifest_;
  const std::optional<float> change_;
};

struct Case {
  std::string up = "f32", down = "f32", optimizer = "sgd", exchange = "star";
  std::function<void(ServerConfig&)> set = [](ServerConfig&) {};
  bool is_exact = true;  ///< the sums are made in the order of exchange star
  bool has_same_stream = true;
};

class BuffersBesideCodecs : public ::testing::Test, protected InProcess {
 protected:
  ServerConfig config() {
    ServerConfig c = config_of_own();
    c.timeouts.lease = std::chrono::seconds(60);
    c.transfer.chunk_bytes = 256;
    c.reduce.bucket_bytes = 400;
    c.workers.min = 3;
    c.goal.rounds = 8;
    return c;
  }

  std::vector<float> train(ServerConfig c, const Case& one, bool has_buffers,
                           std::optional<float> change = {}) {
    c.exchange = one.exchange;
    c.transfer.codec_down = one.down;
    c.optimizer.name = one.optimizer;
    c.optimizer.learning_rate = 0.1;
    one.set(c);
    std::vector<WorkerSpec> specs(3);
    const std::uint64_t batches[] = {5, 11, 8};
    for (std::size_t i = 0; i < specs.size(); ++i) {
      auto custom = std::make_shared<CustomModel>();
      custom->manifest = manifest_of(has_buffers);
      custom->make_group = [=] { return std::make_unique<GivenGroup>(has_buffers, change); };
      custom->initialize = [](std::uint64_t, std::span<float> params) {
        std::ranges::fill(params, 0.5F);
      };
      specs[i].custom = custom;
      specs[i].name = std::string(1, static_cast<char>('a' + i));
      specs[i].batch = batches[i];
      specs[i].codec = one.up;
      specs[i].exchange = one.exchange;
      specs[i].peers = transports();
    }
    const auto make = c.servers > 1 ? TestServer::TransportFactory(tcp) : transports();
    TestServer server(c, make);
    std::vector<std::unique_ptr<TestShard>> shards;
    for (std::uint64_t i = 1; i < c.servers; ++i)
      shards.push_back(std::make_unique<TestShard>("s" + std::to_string(i), server.endpoint()));
    const auto outcomes = run_workers(specs, data_, server.endpoint(), make);
    const Status ended = server.join();
    EXPECT_TRUE(ended.ok()) << ended.error().to_string();
    for (const auto& shard : shards) EXPECT_TRUE(shard->join().ok());
    for (const auto& outcome : outcomes) {
      EXPECT_TRUE(outcome.status.ok()) << outcome.status.error().to_string();
      EXPECT_EQ(outcome.params, outcomes[0].params);
    }
    return outcomes[0].params;
  }

  const worker::DataSplit data_ = make_blobs(200, 8, 4, 5);
};

TEST_F(BuffersBesideCodecs, HaveTheBitsThatTheyHaveWithoutOne) {
  const auto servers = [](std::uint64_t count) {
    return [count](ServerConfig& c) { c.servers = count; };
  };
  const auto clipped = [](ServerConfig& c) { c.optimizer.clip_norm = 0.05; };
  const auto by_workers = [](ServerConfig& c) { c.apply = "worker"; };
  const auto quorum = [](ServerConfig& c) { c.policy = "quorum:3"; };
  const auto median = [](ServerConfig& c) { c.aggregate = "median"; };
  const std::vector<Case> cases{
      {.up = "bf16"},
      {.up = "f16", .optimizer = "adam"},
      {.up = "int8", .set = clipped},
      {.up = "sign", .set = by_workers},
      {.up = "int8:rounding=stochastic", .has_same_stream = false},
      {.up = "topk:0.05", .optimizer = "momentum"},
      {.up = "topk:0.05,scope=global,momentum=0.9,clip=0.5"},
      {.up = "int8", .down = "bf16"},
      {.up = "bf16", .down = "int8", .optimizer = "momentum", .set = clipped},
      {.up = "topk:0.05", .down = "topk:0.1"},
      {.up = "topk:0.05", .down = "topk:0.1,warmup=3", .optimizer = "adam", .set = clipped},
      {.up = "topk:0.05", .down = "topk:0.1,scope=global", .set = clipped},
      {.up = "bf16", .down = "int8:rounding=stochastic", .has_same_stream = false},
      {.up = "int8", .set = servers(3)},
      {.up = "topk:0.05", .down = "topk:0.1", .set = servers(2)},
      {.up = "bf16", .down = "int8", .optimizer = "adam", .set = servers(3)},
      {.up = "topk:0.05", .set = quorum},
      {.up = "int8", .down = "bf16", .set = quorum},
      {.up = "bf16", .exchange = "ring"},
      {.up = "int8", .optimizer = "momentum", .exchange = "ring", .set = clipped},
      {.up = "topk:0.05", .exchange = "ring"},
      {.up = "topk:0.05,scope=global", .exchange = "ring"},
      {.up = "topk:0.2", .exchange = "hierarchical", .is_exact = false},
      {.up = "int8", .set = median},
  };
  const auto exact = part_of_model(train(config(), {}, true), true);
  const auto exact_median = part_of_model(train(config(), {.set = median}, true), true);
  for (const Case& one : cases) {
    SCOPED_TRACE(one.exchange + ", " + one.up + " up, " + one.down + " down, " + one.optimizer);
    const auto params = train(config(), one, true);
    const auto buffers = part_of_model(params, true);
    ServerConfig settings;
    one.set(settings);
    const auto& right = settings.aggregate == "median" ? exact_median : exact;
    if (one.is_exact) {
      EXPECT_EQ(buffers, right);
    } else {
      EXPECT_THAT(buffers, ::testing::Pointwise(::testing::FloatNear(1e-4F), right));
    }
    if (one.has_same_stream) {
      EXPECT_EQ(part_of_model(params, false), part_of_model(train(config(), one, false), false));
    }
  }
}

/// A round that closes without a worker has the mean of the others.
TEST_F(BuffersBesideCodecs, AreTheMeanOfThoseThatCameInTime) {
  for (const std::string policy : {"backup:1", "quorum:2"})
    for (const std::string down : {"f32", "int8"}) {
      SCOPED_TRACE(policy + ", " + down + " down");
      Case one{.up = "topk:0.05", .down = down};
      one.set = [&](ServerConfig& c) {
        c.policy = policy;
        c.goal.rounds = 20;
      };
      const auto params = train(config(), one, true, 0.25F);
      for (const float x : part_of_model(params, true)) EXPECT_NEAR(x, 0.5 - 20 * 0.25, 1e-4);
    }
}

}  // namespace
}  // namespace centroid::test
