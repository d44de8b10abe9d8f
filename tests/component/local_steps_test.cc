#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include <gtest/gtest.h>

#include "common/base/permutation.h"
#include "tests/support/in_process.h"
#include "tests/support/quadratic.h"

/// Rounds of local steps, in clusters within one process, against the same written anew in double.
namespace centroid::test {
namespace {

using server::ServerConfig;

struct Setting {
  std::vector<std::uint64_t> batches{4, 4, 4};
  std::uint64_t local_steps = 5, fragments = 1, overlap = 0, rounds = 50, samples = 603;
  double outer_rate = 0.7, outer_momentum = 0.9, inner_rate = 0.05;
  double sign = 1;           ///< of the contribution
  bool has_buffers = false;  ///< quadratic_model
};

std::uint64_t part(std::uint64_t total, std::uint64_t parts, std::uint64_t i) {
  return total / parts + (i < total % parts ? 1 : 0);
}

/// DiLoCo with the quadratic model, one learner after another, in double. Fragments: tensors 0 |
/// 1, 2, 3; buffers: 2, 3. Written from the formulas of docs/how-to/diloco.md, not from the
/// code.
std::vector<double> by_hand(const Setting& s, const worker::DataSplit& data) {
  const std::size_t n = 80, trained = s.has_buffers ? 49 : n, learners = s.batches.size();
  std::vector<float> initial(n);
  quadratic_model()->initialize(1, initial);
  std::vector<double> global(initial.begin(), initial.end()), momentum(n, 0);
  std::vector<std::vector<double>> own(learners, global);
  const std::uint64_t steps_a_round = s.local_steps / s.fragments;
  std::uint64_t epoch = 0, offset = 0;
  std::vector<std::uint64_t> order = permutation(s.samples, 1, 0);
  for (std::uint64_t round = 0; round < s.rounds; ++round) {
    std::uint64_t wanted = 0;
    for (const auto batch : s.batches) wanted += batch * steps_a_round;
    const std::uint64_t left = s.samples - offset;
    const bool is_last = round + 1 == s.rounds;
    const std::size_t begin = s.fragments == 2 && round % 2 == 1 ? 40 : 0;
    const std::size_t end = s.fragments == 2 && round % 2 == 0 ? 40 : n;
    std::vector<double> mean(n, 0);
    std::vector<std::vector<double>> sent = own;
    double total = 0;
    for (std::size_t k = 0; k < learners; ++k) {
      const std::uint64_t share =
          wanted <= left ? s.batches[k] * steps_a_round : part(left, learners, k);
      const std::uint64_t steps = (share + s.batches[k] - 1) / s.batches[k];
      const std::uint64_t after =
          is_last || steps == 0 ? 0 : std::min<std::uint64_t>(s.overlap, steps - 1);
      const auto contribute = [&] {
        sent[k] = share > 0 ? own[k] : global;
        for (std::size_t i = begin; i < end && share > 0; ++i)
          mean[i] += static_cast<double>(share) * s.sign * (global[i] - own[k][i]);
      };
      for (std::uint64_t step = 0; step < steps; ++step) {
        if (step == steps - after) contribute();
        const std::uint64_t size = part(share, steps, step);
        double target = 0;
        for (std::uint64_t j = 0; j < size; ++j) target += data.train.x[order[offset++]];
        target /= static_cast<double>(size);
        for (std::size_t i = 0; i < trained; ++i)
          own[k][i] -= s.inner_rate * QuadraticGroup::curvature(i) * (own[k][i] - target);
        for (std::size_t i = trained; i < n; ++i)
          own[k][i] = 0.9 * own[k][i] + 0.1 * QuadraticGroup::curvature(i) * target;
      }
      if (after == 0) contribute();
      total += static_cast<double>(share);
    }
    for (std::size_t i = begin; i < end; ++i) {
      const double g = mean[i] / total;
      momentum[i] = s.outer_momentum * momentum[i] + g;
      global[i] -= i < trained ? s.outer_rate * (g + s.outer_momentum * momentum[i]) : g;
      for (std::size_t k = 0; k < learners; ++k) own[k][i] = global[i] + (own[k][i] - sent[k][i]);
    }
    if (offset == s.samples) {
      offset = 0;
      order = permutation(s.samples, 1, ++epoch);
    }
  }
  return global;
}

/// What is refused, and with which words.
TEST(LocalStepsSettings, CombinationsThatCannotWorkAreRefused) {
  const auto refused = [](const auto& change) {
    ServerConfig c;
    c.local.count = 12;
    change(c);
    const Status finished = server::finish(c);
    return finished.ok() ? std::string() : finished.error().message();
  };
  using C = ServerConfig;
  EXPECT_EQ(refused([](C&) {}), "");
  EXPECT_NE(refused([](C& c) { c.local.fragments = 5; }).find("no multiple"), std::string::npos);
  EXPECT_NE(refused([](C& c) { c.local.fragments = 4, c.local.overlap = 3; }).find("below"),
            std::string::npos);
  EXPECT_EQ(refused([](C& c) { c.local.fragments = 4, c.local.overlap = 2; }), "");
  EXPECT_NE(refused([](C& c) { c.local.count = 1, c.local.overlap = 1; }).find("set local_steps"),
            std::string::npos);
  EXPECT_NE(refused([](C& c) { c.optimizer.name = "adam"; }).find("outer optimizer"),
            std::string::npos);
  EXPECT_EQ(refused([](C& c) { c.optimizer.name = "adam", c.local.outer = "optimizer"; }), "");
  EXPECT_NE(refused([](C& c) { c.policy = "asp", c.local.overlap = 1; }).find("policy asp"),
            std::string::npos);
  EXPECT_NE(refused([](C& c) {
              c.policy = "quorum:1", c.late = "carry:max=2", c.local.fragments = 2;
            }).find("late carry"),
            std::string::npos);
  EXPECT_NE(refused([](C& c) {
              c.transfer.codec_down = "topk:0.1,scope=global", c.local.fragments = 2;
            }).find("scope=global"),
            std::string::npos);
  ServerConfig c;
  c.local.count = 12;
  ASSERT_TRUE(server::finish(c).ok());
  EXPECT_EQ(c.optimizer.name, "nesterov");
  EXPECT_EQ(c.optimizer.learning_rate, 0.7);
  EXPECT_EQ(c.optimizer.momentum, 0.9);
  EXPECT_TRUE(server::finish(c).ok());  // what it has set itself is no contradiction
}

class LocalStepsTest : public ::testing::TestWithParam<const char*>, protected InProcess {
 protected:
  ServerConfig config(const Setting& s) {
    ServerConfig c = config_of_own();
    c.exchange = GetParam();
    c.transfer.chunk_bytes = 64;
    c.reduce.bucket_bytes = 80;
    c.timeouts.lease = std::chrono::seconds(20);
    c.goal.rounds = s.rounds;
    c.local.count = s.local_steps;
    c.local.fragments = s.fragments;
    c.local.overlap = s.overlap;
    c.workers.min = s.batches.size();
    return c;
  }

  std::vector<WorkerSpec> workers(const Setting& s) {
    std::vector<WorkerSpec> specs(s.batches.size());
    for (std::size_t i = 0; i < specs.size(); ++i) {
      specs[i].name = "worker-" + std::to_string(i);
      specs[i].exchange = GetParam();
      specs[i].peers = transports();
      specs[i].batch = s.batches[i];
      specs[i].inner = {.name = "sgd", .learning_rate = s.inner_rate};
      specs[i].custom = quadratic_model(s.has_buffers);
    }
    return specs;
  }

  std::vector<WorkerOutcome> train(const ServerConfig& c, const std::vector<WorkerSpec>& specs,
                                   const worker::DataSplit& data) {
    TestServer server(c, transports());
    auto outcomes = run_workers(specs, data, server.endpoint(), transports());
    const Status ended = server.join();
    EXPECT_TRUE(ended.ok()) << ended.error().to_string();
    samples_ = server.view().samples_total;
    for (const auto& outcome : outcomes) {
      EXPECT_TRUE(outcome.status.ok()) << outcome.status.error().to_string();
      EXPECT_TRUE(same_bits(outcome.params, outcomes[0].params));
    }
    return outcomes;
  }

  static bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }

  /// Euclidean, relative to `b`.
  static double distance(const std::vector<float>& a, const std::vector<double>& b) {
    double difference = 0, scale = 0;
    for (std::size_t i = 0; i < b.size(); ++i) {
      difference += (a[i] - b[i]) * (a[i] - b[i]);
      scale += b[i] * b[i];
    }
    return std::sqrt(difference / scale);
  }

  std::uint64_t samples_ = 0;  // of the last training, as the server counts them
};

INSTANTIATE_TEST_SUITE_P(Exchanges, LocalStepsTest, ::testing::Values("star", "ring"),
                         [](const auto& exchange) { return std::string(exchange.param); });

TEST_P(LocalStepsTest, FiftyRoundsAreThoseOfTheFormulasInDouble) {
  for (const auto& batches :
       std::vector<std::vector<std::uint64_t>>{{4, 4, 4}, {3, 8}, {5, 1, 2, 7}}) {
    Setting s;
    s.batches = batches;
    const auto data = quadratic_data(s.samples);
    const auto outcomes = train(config(s), workers(s), data);
    EXPECT_LT(distance(outcomes[0].params, by_hand(s, data)), 1e-6);
    Setting flipped = s;
    flipped.sign = -1;
    EXPECT_GT(distance(outcomes[0].params, by_hand(flipped, data)), 0.1);
  }
}

/// Whatever the inner and the outer optimizer is: each step of a worker moves its buffers, and
/// those of the cluster are the mean.
TEST_P(LocalStepsTest, BuffersAreAveragedAndNotTrained) {
  for (const std::uint64_t overlap : {0, 2})
    for (const std::uint64_t fragments : {1, 2})
      for (const char* const apply : {"auto", "worker"}) {
        SCOPED_TRACE(std::string(apply) + ", overlap " + std::to_string(overlap) + ", fragments " +
                     std::to_string(fragments));
        Setting s;
        s.batches = {4, 7};
        s.local_steps = 6;
        s.overlap = overlap;
        s.fragments = fragments;
        s.has_buffers = true;
        const auto data = quadratic_data(s.samples);
        ServerConfig c = config(s);
        c.apply = apply;
        const auto outcomes = train(c, workers(s), data);
        EXPECT_LT(distance(outcomes[0].params, by_hand(s, data)), 1e-6);
      }
}

TEST_P(LocalStepsTest, TheMeanOfTheParametersIsOneOfTheOuterSteps) {
  Setting s;
  s.batches = {2, 6};
  s.outer_rate = 1;
  s.outer_momentum = 0;
  const auto data = quadratic_data(s.samples);
  ServerConfig c = config(s);
  c.local.outer = "average";
  const auto averaged = train(c, workers(s), data);
  EXPECT_LT(distance(averaged[0].params, by_hand(s, data)), 1e-6);
  c = config(s);
  c.local.outer = "optimizer";
  c.optimizer = {.name = "sgd", .learning_rate = 1};
  const auto stepped = train(c, workers(s), data);
  EXPECT_TRUE(same_bits(averaged[0].params, stepped[0].params));
}

/// One round of one step, by hand: w0 = sin(1), batches of 1, 1 and 2 samples. Then six steps of
/// one sample beside two steps of two: each weight gives another mean.
TEST_P(LocalStepsTest, AWorkerWeighsWhatTheServerSays) {
  const double begin = std::sin(1.0), r = 0.05 * 0.5;
  const auto expect = [&](const Setting& s, const std::string& ratios, auto means) {
    const auto data = quadratic_data(s.samples);
    const auto order = permutation(s.samples, 1, 0);
    const auto x = [&](std::size_t i) { return static_cast<double>(data.train.x[order[i]]); };
    for (const auto& [weight_by, value] : means(x)) {
      SCOPED_TRACE(weight_by + ", ratios " + ratios);
      ServerConfig c = config(s);
      c.local.outer = "average";
      c.local.weight_by = weight_by;
      if (!ratios.empty()) c.cadence.mode = "speed", c.cadence.ratios = ratios;
      EXPECT_NEAR(train(c, workers(s), data)[0].params[0], value, 1e-6);
    }
  };
  using Means = std::map<std::string, double>;
  Setting s;
  s.rounds = 1;
  s.batches = {1, 1, 2};
  s.local_steps = 2;
  s.samples = 8;
  expect(s, "", [&](const auto& x) {
    const auto after = [&](double first, double second) {
      const double w = begin - r * (begin - first);
      return w - r * (w - second);
    };
    const double a = after(x(0), x(1)), b = after(x(2), x(3));
    const double d = after((x(4) + x(5)) / 2, (x(6) + x(7)) / 2);
    EXPECT_GT(std::abs((2 * a + 2 * b + 4 * d) / 8 - (a + b + d) / 3), 1e-4);
    return Means{{"samples", (2 * a + 2 * b + 4 * d) / 8},
                 {"steps", (a + b + d) / 3},
                 {"equal", (a + b + d) / 3}};
  });
  s.batches = {1, 2};
  s.samples = 10;
  expect(s, "3,1", [&](const auto& x) {
    double a = begin, b = begin;
    for (std::size_t i = 0; i < 6; ++i) a -= r * (a - x(i));
    for (const std::size_t i : {6u, 8u}) b -= r * (b - (x(i) + x(i + 1)) / 2);
    EXPECT_GT(std::abs(a - b), 1e-3);  // tenths of it lie between the three
    return Means{
        {"samples", (3 * a + 2 * b) / 5}, {"steps", (3 * a + b) / 4}, {"equal", (a + b) / 2}};
  });
}

TEST_P(LocalStepsTest, EverySampleIsTrainedOnOnceAnEpoch) {
  Setting s;
  s.batches = {5, 3, 2};
  s.rounds = 0;
  const auto data = quadratic_data(s.samples);
  ServerConfig c = config(s);
  c.goal.epochs = 3;
  const auto outcomes = train(c, workers(s), data);
  std::uint64_t samples = 0;
  for (const auto& outcome : outcomes) samples += outcome.summary.samples;
  EXPECT_EQ(samples, 3 * s.samples);
  EXPECT_EQ(samples_, 3 * s.samples);
  s.rounds = outcomes[0].summary.rounds;
  EXPECT_EQ(s.rounds, 3 * ((603 + 49) / 50));
  EXPECT_LT(distance(outcomes[0].params, by_hand(s, data)), 1e-6);
}

TEST_P(LocalStepsTest, WhatIsLearnedWhileAContributionTravelsIsKept) {
  for (const std::uint64_t overlap : {1, 2, 4}) {
    SCOPED_TRACE(overlap);
    Setting s;
    s.batches = {4, 7};
    s.overlap = overlap;
    const auto data = quadratic_data(s.samples);
    const auto outcomes = train(config(s), workers(s), data);
    EXPECT_LT(distance(outcomes[0].params, by_hand(s, data)), 1e-6);
    Setting without = s;
    without.overlap = 0;
    EXPECT_GT(distance(outcomes[0].params, by_hand(without, data)), 1e-4);
    std::uint64_t samples = 0;
    for (const auto& outcome : outcomes) samples += outcome.summary.samples;
    EXPECT_EQ(samples_, samples);  // every step is in some contribution
  }
}

TEST_P(LocalStepsTest, FragmentsTakeTurns) {
  for (const std::uint64_t overlap : {0, 2}) {
    for (const char* apply : {"auto", "worker"}) {
      SCOPED_TRACE(std::string(apply) + ", overlap " + std::to_string(overlap));
      Setting s;
      s.local_steps = 8;
      s.fragments = 2;
      s.overlap = overlap;
      s.batches = {4, 7};
      const auto data = quadratic_data(s.samples);
      ServerConfig c = config(s);
      c.apply = apply;
      const auto outcomes = train(c, workers(s), data);
      EXPECT_LT(distance(outcomes[0].params, by_hand(s, data)), 1e-6);
      Setting whole = s;
      whole.fragments = 1;
      EXPECT_GT(distance(outcomes[0].params, by_hand(whole, data)), 1e-3);
    }
  }
}

/// Schedule and bias correction of the outer optimizer go by the steps of the fragment: what a
/// fragment gets in 2 n rounds is what the whole model gets in n.
TEST_P(LocalStepsTest, AFragmentsOuterStepsAreItsOwn) {
  Setting s;
  s.batches = {4, 4};
  s.samples = 16;  // an epoch is a round, and every sample the same
  s.local_steps = 2;
  s.rounds = 10;
  auto data = quadratic_data(s.samples);
  std::ranges::fill(data.train.x, 2.0f);
  ServerConfig c = config(s);
  c.local.outer = "optimizer";
  c.optimizer = {.name = "adam", .learning_rate = 0.1, .schedule = "linear:rounds=10,floor=0.1"};
  c.optimizer.clip_norm = 1e9;
  const auto whole = train(c, workers(s), data);
  s.local_steps = 4;  // twice the steps a contribution, so half the rate
  s.fragments = 2;
  s.rounds = 20;
  const ServerConfig two = config(s);
  c.local.fragments = two.local.fragments;
  c.local.count = two.local.count;
  c.goal.rounds = two.goal.rounds;
  c.run_dir = two.run_dir;
  const auto parts = train(c, workers(s), data);
  // Adam's steps go by the sign of the contributions, which is the same everywhere.
  for (std::size_t i = 0; i < parts[0].params.size(); ++i)
    EXPECT_NEAR(parts[0].params[i], whole[0].params[i], 0.02) << i;
}

TEST_P(LocalStepsTest, CodecsCarryContributionsAndResults) {
  for (const char* codec : {"bf16", "int8", "topk:0.25"}) {
    for (const std::uint64_t fragments : {1, 2}) {
      for (const char* down : {"f32", "topk:0.5", "int8"}) {
        const bool is_star = std::string(GetParam()) == "star";
        if (!is_star && std::string(down) != "f32") continue;
        SCOPED_TRACE(std::string(codec) + " down " + down + " in " + std::to_string(fragments));
        Setting s;
        s.batches = {4, 4};
        s.local_steps = 4;
        s.rounds = 60 * fragments;
        s.fragments = fragments;
        s.overlap = 1;
        const auto data = quadratic_data(s.samples);
        ServerConfig c = config(s);
        c.transfer.codec_down = down;
        c.local.outer = "optimizer";
        c.optimizer = {.name = "sgd", .learning_rate = 0.7};
        auto specs = workers(s);
        for (WorkerSpec& spec : specs) spec.codec = codec;
        const auto outcomes = train(c, specs, data);
        // The minimum is the mean target, 2.
        double error = 0;
        for (const float w : outcomes[0].params) error = std::max(error, std::abs(w - 2.0));
        EXPECT_LT(error, 0.25);
        EXPECT_TRUE(same_bits(train(
                                  [&] {
                                    auto again = c;
                                    again.run_dir = config(s).run_dir;
                                    return again;
                                  }(),
                                  specs, data)[0]
                                  .params,
                              outcomes[0].params));
      }
    }
  }
}

/// A job that is stopped after any round and goes on from its checkpoint ends with the same bits.
TEST_P(LocalStepsTest, AResumedJobEndsWithTheSameBits) {
  for (const std::uint64_t fragments : {1, 2}) {
    for (const std::uint64_t overlap : {0, 1}) {
      for (const std::uint64_t stop : {1, 2, 5}) {
        SCOPED_TRACE(std::to_string(fragments) + " fragments, overlap " + std::to_string(overlap) +
                     ", stopped after " + std::to_string(stop));
        Setting s;
        s.local_steps = 4;
        s.fragments = fragments;
        s.overlap = overlap;
        s.rounds = 9;
        s.samples = 90;
        const auto data = quadratic_data(s.samples);
        auto specs = workers(s);
        for (WorkerSpec& spec : specs) {
          spec.inner = {.name = "adamw", .learning_rate = 0.02};
          spec.codec = "topk:0.3";
        }
        const auto whole = train(config(s), specs, data);
        for (WorkerSpec& spec : specs)
          spec.state_dir = directory_.path() / ("state-" + std::to_string(runs_));
        ServerConfig c = config(s);
        c.checkpoint.every_rounds = stop;
        c.run_id = "run";
        {
          // Killed when a later round is over: workers and server are gone at once.
          TestServer server(c, transports());
          std::vector<std::thread> threads;
          for (const WorkerSpec& spec : specs)
            threads.emplace_back([&, spec] {
              (void)run_worker(spec, data, server.endpoint(), transports(),
                               [&](const auto& share, const auto&, const auto&, const auto&) {
                                 if (share.round.value == stop) server.stop();
                               });
            });
          for (auto& thread : threads) thread.join();
          (void)server.join();
        }
        c.resume = true;
        const auto resumed = train(c, specs, data);
        EXPECT_LT(resumed[0].summary.rounds, 9u);
        EXPECT_TRUE(same_bits(resumed[0].params, whole[0].params));
      }
    }
  }
}

/// Training that stays where it is, and only notes the learning rates of its steps.
class NotingGroup final : public QuadraticGroup, public worker::ResidentTraining {
 public:
  NotingGroup(std::vector<float>& rates, std::chrono::milliseconds pause)
      : QuadraticGroup(80), rates_(rates), pause_(pause), held_(80) {}
  worker::ResidentTraining* resident() override { return this; }
  /// A gradient a round: all its numbers are 1, so the parameters tell what rates there were.
  Result<worker::GroupStep> step(const worker::Dataset&, std::span<const std::uint64_t> samples,
                                 const std::function<void(TensorId)>& on_ready) override {
    rates_.push_back(params()[0]);
    std::ranges::fill(gradients(), 1.0f);
    for (std::uint32_t tensor = 0; tensor < 4; ++tensor) on_ready(TensorId(tensor));
    worker::GroupStep done;
    done.samples = samples.size();
    return done;
  }
  Status reserve(std::size_t) override { return {}; }
  Status load(std::span<const float> params) override {
    std::ranges::copy(params, held_.begin());
    return {};
  }
  Status store(std::span<float> params, std::size_t) override {
    std::ranges::copy(held_, params.begin());
    return {};
  }
  Status load_slot(std::size_t, std::span<const float>) override { return {}; }
  Status store_slot(std::size_t, std::span<float>, std::size_t) override { return {}; }
  Result<worker::GroupStep> advance(const worker::Dataset&,
                                    std::span<const std::span<const std::uint64_t>> batches,
                                    std::span<const worker::OptimizerStep> steps) override {
    std::this_thread::sleep_for(pause_);  // lint-ok: a slow worker
    worker::GroupStep done;
    done.compute_seconds =
        std::chrono::duration<double>(pause_).count() * static_cast<double>(steps.size());
    for (const auto& batch : batches) done.samples += batch.size();
    for (const auto& step : steps) rates_.push_back(std::get<rules::Sgd>(step.rule).rate);
    return done;
  }

 private:
  std::vector<float>& rates_;
  std::chrono::milliseconds pause_;
  std::vector<float> held_;
};

/// The learning rate goes by a worker's own steps and by nothing else, whatever is acknowledged,
/// comes late, is left out or travels meanwhile, and however many steps each makes; of one gradient
/// a round by the rounds.
TEST_P(LocalStepsTest, RatesAreOneSequenceInEveryMode) {
  struct Mode {
    const char* policy;
    std::uint64_t overlap;
    std::string cadence = "off";
    std::uint64_t local_steps = 4;
  };
  std::vector<Mode> modes{
      {"bsp", 0}, {"bsp", 2}, {"bsp", 0, "speed"}, {"bsp", 0, "tuned"}, {"bsp", 0, "off", 1}};
  if (GetParam() == std::string("star"))
    modes.insert(modes.end(), {Mode{"backup:1", 0}, Mode{"asp", 0}, Mode{"asp", 0, "tuned"}});
  for (const Mode& mode : modes) {
    SCOPED_TRACE(std::string(mode.policy)
                     .append(" ")
                     .append(std::to_string(mode.overlap))
                     .append(" ")
                     .append(mode.cadence)
                     .append(" ")
                     .append(std::to_string(mode.local_steps)));
    Setting s;
    s.batches = {4, 4};
    s.local_steps = mode.local_steps;
    s.rounds = 8;
    s.overlap = mode.overlap;
    const auto data = quadratic_data(s.samples);
    ServerConfig c = config(s);
    const bool is_sync = mode.local_steps == 1, is_off = mode.cadence == "off";
    if (is_sync)
      c.optimizer = {.name = "sgd", .learning_rate = 1, .schedule = "constant:warmup=100"};
    else
      c.local.outer = "average";
    c.policy = mode.policy;
    c.cadence.mode = mode.cadence;
    const bool is_joint = mode.policy == std::string("bsp");
    std::vector<std::vector<float>> rates(2);
    auto specs = workers(s);
    for (std::size_t i = 0; i < specs.size(); ++i) {
      specs[i].inner = {.name = "sgd", .learning_rate = 1, .schedule = "constant:warmup=100"};
      auto model = std::make_shared<CustomModel>(*quadratic_model());
      const std::chrono::milliseconds pause(i == 1 && !(is_joint && is_off) ? 25 : 2);
      model->make_group = [&rates, i, pause] {
        return std::make_unique<NotingGroup>(rates[i], pause);
      };
      specs[i].custom = model;
    }
    TestServer server(c, transports());
    const auto outcomes = run_workers(specs, data, server.endpoint(), transports());
    ASSERT_TRUE(server.join().ok());
    if (!is_joint && is_off) {
      EXPECT_GT(outcomes[1].summary.late, 0u);
    }
    for (std::size_t i = 0; is_sync && i < rates.size(); ++i) {
      rates[i].push_back(outcomes[i].params[0]);
      for (std::size_t k = 0; k + 1 < rates[i].size(); ++k) rates[i][k] -= rates[i][k + 1];
      rates[i].pop_back();
      ASSERT_EQ(rates[i].size(), 8u);
      for (std::size_t k = 0; k < 8; ++k)
        ASSERT_NEAR(rates[i][k], 0.01 * static_cast<double>(k + 1), 1e-6) << k;
    }
    if (is_sync) continue;
    for (const auto& of : rates) {
      EXPECT_GE(of.size(), 4u);
      for (std::size_t k = 0; k < of.size(); ++k)
        ASSERT_FLOAT_EQ(of[k], std::min(0.01f * static_cast<float>(k + 1), 1.0f)) << k;
    }
    if (is_joint && is_off) {
      EXPECT_EQ(rates[0].size(), 32u);
    }
    if (!is_off) {
      EXPECT_GT(rates[0].size(), rates[1].size());
    }
  }
}

TEST_P(LocalStepsTest, AnotherRunGivesTheSameBits) {
  Setting s;
  s.rounds = 12;
  const auto data = quadratic_data(s.samples);
  for (const char* inner : {"adamw", "momentum"}) {
    auto specs = workers(s);
    for (WorkerSpec& spec : specs) spec.inner = {.name = inner, .learning_rate = 0.01};
    const auto first = train(config(s), specs, data);
    EXPECT_TRUE(same_bits(train(config(s), specs, data)[0].params, first[0].params));
  }
}

}  // namespace
}  // namespace centroid::test
