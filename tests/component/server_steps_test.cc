#include <array>
#include <cmath>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "client/trainer.h"
#include "common/base/random.h"
#include "tests/support/cluster.h"
#include "tests/support/optimizer_oracle.h"
#include "tests/unit/temporary_directory.h"

/// What a server makes of gradients over 1,000 rounds, against the same in double: the mean
/// weighted by samples, its norm clipped, the rate of the schedule, the rule.
namespace centroid::test {
namespace {

using client::Trainer;
using client::TrainerOptions;

constexpr std::size_t kElements = 1024;
constexpr std::uint64_t kRounds = 1000;
constexpr std::array<std::uint64_t, 2> kBatches{4, 2};

using Plane = std::array<float, kElements>;

/// Of one worker in one round, counted from 1.
Plane gradient(std::size_t worker, std::uint64_t round) {
  CounterRng rng(17 + worker, round);
  Plane x;
  for (float& v : x) v = static_cast<float>(rng.normal());
  return x;
}

Plane start() {
  CounterRng rng(16, 0);
  Plane x;
  for (float& v : x) v = static_cast<float>(rng.normal());
  return x;
}

struct Exact {
  std::array<OptimizerOracle, kElements> all;
  /// Yogi goes by the sign of v - g^2: where both are the same but for float32's rounding, either
  /// way is right.
  std::set<std::size_t> ties;
};

Exact in_double(const OptimizerConfig& config) {
  Exact exact;
  auto& all = exact.all;
  const Plane begin = start();
  for (std::size_t i = 0; i < kElements; ++i) {
    all[i] = OptimizerOracle{config};
    all[i].p = static_cast<double>(begin[i]);
  }
  std::uint64_t clipped = 0;
  for (std::uint64_t t = 1; t <= kRounds; ++t) {
    std::array<double, kElements> mean{};
    double weight = 0, squares = 0;
    for (std::size_t worker = 0; worker < kBatches.size(); ++worker) {
      const auto share = static_cast<double>(kBatches[worker]);
      const Plane x = gradient(worker, t);
      for (std::size_t i = 0; i < kElements; ++i) mean[i] += share * static_cast<double>(x[i]);
      weight += share;
    }
    for (double& v : mean) v /= weight;
    for (const double v : mean) squares += v * v;
    const double norm = std::sqrt(squares);
    const bool is_clipped = config.clip_norm > 0 && norm > config.clip_norm;
    clipped += is_clipped;
    for (std::size_t i = 0; i < kElements; ++i) {
      const double g = mean[i] * (is_clipped ? config.clip_norm / norm : 1);
      const double square = std::pow(g + config.weight_decay * all[i].p, 2);
      if (config.name == "yogi" && std::abs(square - all[i].v) < 1e-6 * square)
        exact.ties.insert(i);
      all[i].step(static_cast<int>(t), g);
    }
  }
  if (config.clip_norm > 0) {  // some are, some are not
    EXPECT_GT(clipped, kRounds / 10);
    EXPECT_LT(clipped, kRounds - kRounds / 10);
  }
  return exact;
}

class ServerSteps : public ::testing::TestWithParam<OptimizerConfig> {};

TEST_P(ServerSteps, FollowTheFormulasInDoubleOverAThousandRounds) {
  const TemporaryDirectory directory;
  server::ServerConfig c;
  c.run_dir = directory.path() / "run";
  c.run_id = "steps";
  c.leaving.when_finished = true;
  c.workers.min = kBatches.size();
  c.goal.rounds = kRounds;
  c.optimizer = GetParam();
  TestServer server(c, [](Executor executor) { return transport::make_tcp(executor, {}); });
  const Manifest manifest{{"x", DType::kF32, {kElements}}};
  Plane last{};
  std::vector<std::thread> threads;
  for (std::size_t worker = 0; worker < kBatches.size(); ++worker)
    threads.emplace_back([&, worker] {
      TrainerOptions o;
      o.servers = server.endpoint().to_string();
      o.name = "w" + std::to_string(worker);
      o.samples = 64 * (kBatches[0] + kBatches[1]);
      o.batch = kBatches[worker];
      o.join_timeout = std::chrono::seconds(60);
      auto made = Trainer::open(o, manifest, start());
      ASSERT_TRUE(made.ok()) << made.error().message();
      Trainer& trainer = **made;
      for (;;) {
        const auto what = trainer.next();
        ASSERT_TRUE(what.ok()) << what.error().message();
        const auto* share = std::get_if<worker::Share>(&*what);
        if (share == nullptr) break;
        ASSERT_EQ(share->samples(), kBatches[worker]);
        std::ranges::copy(gradient(worker, share->round.value),
                          trainer.gradient(TensorId(0)).begin());
        ASSERT_TRUE(trainer.ready(TensorId(0)).ok());
        const auto report = trainer.finish({.samples = share->samples(), .compute_seconds = 1e-6});
        ASSERT_TRUE(report.ok()) << report.error().message();
        ASSERT_EQ(report->outcome, worker::RoundReport::Outcome::kCommitted);
      }
      if (worker == 0) std::ranges::copy(trainer.parameters(TensorId(0)), last.begin());
    });
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(server.join().ok());

  const Exact expected = in_double(GetParam());
  EXPECT_LT(expected.ties.size(), kElements / 100);
  double error = 0, length = 0;
  for (std::size_t i = 0; i < kElements; ++i) {
    if (expected.ties.contains(i)) continue;
    error += std::pow(static_cast<double>(last[i]) - expected.all[i].p, 2);
    length += std::pow(expected.all[i].p, 2);
  }
  const double relative = std::sqrt(error / length);
  std::printf("%s, %s: ||p - p64|| / ||p64|| = %.2e\n", GetParam().name.c_str(),
              GetParam().schedule.c_str(), relative);
  EXPECT_LE(relative, 1e-6);
  EXPECT_GT(length, 0.01);
}

OptimizerConfig steps_of(const std::string& name, const std::string& schedule) {
  OptimizerConfig config;
  config.name = name;
  config.schedule = schedule;
  config.weight_decay = 0.01;
  config.clip_norm = 24;  // of 1024 numbers whose deviation is 0.75
  return config;
}

INSTANTIATE_TEST_SUITE_P(
    All, ServerSteps,
    ::testing::Values(
        steps_of("sgd", "step:every=100,factor=0.5"), steps_of("momentum", "linear:rounds=1200"),
        steps_of("nesterov", "cosine:rounds=900,warmup=50,floor=0.1"),
        steps_of("adagrad", "onecycle:rounds=1000,start=0"), steps_of("adam", "constant"),
        steps_of("adamw", "cosine:rounds=900,warmup=50,floor=0.1"),
        steps_of("yogi", "linear:rounds=1200"), steps_of("ftrl", "step:every=300,factor=0.5")),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace centroid::test
