#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/in_process.h"
#include "tests/support/trained.h"

/// What the coordinator makes of unequal workers, in clusters within one process.
namespace centroid::test {
namespace {

using server::ServerConfig;
using ::testing::HasSubstr;

class CoordinatorTest : public ::testing::Test, protected InProcess {
 protected:
  ServerConfig config(std::uint64_t workers) {
    ServerConfig c = config_of_own();
    c.run_id = "coordinated";
    c.workers.min = workers;
    return c;
  }

  std::vector<WorkerOutcome> train(const std::vector<WorkerSpec>& specs,
                                   const worker::DataSplit& data, TestServer& server,
                                   Trained& trained) {
    std::vector<WorkerOutcome> outcomes(specs.size());
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < specs.size(); ++i)
      threads.emplace_back([&, i] {
        const auto observe = [&, i](const worker::Share& share, const worker::StepStats&,
                                    const worker::RoundReport&, const worker::TrainingSummary&) {
          trained.note(share, data.train.samples, specs[i].name);
        };
        outcomes[i] = run_worker(specs[i], data, server.endpoint(), transports(), observe);
      });
    for (std::thread& thread : threads) thread.join();
    for (const WorkerOutcome& outcome : outcomes) EXPECT_TRUE(outcome.status.ok());
    return outcomes;
  }

  WorkerSpec spec(const std::string& name, double slowdown = 1) {
    WorkerSpec out;
    out.name = name;
    out.model = "mlp:8-64-64-4";
    out.inner.learning_rate = 0.05;
    out.slowdown = slowdown;
    out.peers = transports();
    return out;
  }
};

/// The settings that cannot work together say so.
TEST_F(CoordinatorTest, SettingsThatContradictAreRefused) {
  const auto refused = [](const auto& change) {
    ServerConfig c;
    change(c);
    const Status finished = server::finish(c);
    return finished.ok() ? std::string() : finished.error().to_string();
  };
  using C = ServerConfig;
  EXPECT_EQ(refused([](C& c) { c.cadence.mode = "speed"; }), "");
  EXPECT_EQ(refused([](C& c) { c.cadence.mode = "tuned", c.local.count = 10; }), "");
  EXPECT_THAT(refused([](C& c) { c.cadence.mode = "tuned"; }), HasSubstr("set local_steps"));
  EXPECT_THAT(refused([](C& c) { c.cadence.mode = "tuned", c.local.count = 300; }),
              HasSubstr("cadence.max_steps 200 is below"));
  EXPECT_THAT(refused([](C& c) { c.cadence.ratios = "2,1"; }),
              HasSubstr("need cadence speed or tuned"));
  EXPECT_THAT(refused([](C& c) { c.cadence.mode = "speed", c.cadence.ratios = "2,x"; }),
              HasSubstr("speeds by rank"));
  EXPECT_THAT(refused([](C& c) { c.optimizer_scale_ratio = 1, c.local.count = 4; }),
              HasSubstr("inner.lr_scale_ratio"));
  const auto bounded = [](C& c) { c.timeouts.round = std::chrono::seconds(1); };
  EXPECT_EQ(refused(bounded), "");
  EXPECT_THAT(refused([&](C& c) { bounded(c), c.policy = "asp"; }),
              HasSubstr("round_timeout is for policy bsp with exchange star"));
  EXPECT_THAT(refused([&](C& c) { bounded(c), c.exchange = "ring"; }), HasSubstr("reduce.timeout"));
  EXPECT_THAT(refused([](C& c) { c.optimizer_scale_ratio = 1, c.optimizer.name = "ftrl"; }),
              HasSubstr("adapts the learning rate by itself"));
}

/// `sync`: one average per batch, no more and no less, and the loss of one process.
TEST_F(CoordinatorTest, SyncAveragesOncePerBatch) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const auto data = make_blobs(640, 8, 4, seed);
    ServerConfig c = config(2);
    c.seed = seed;
    c.goal.rounds = 200;
    TestServer server(c, transports());
    Trained trained;
    const auto outcomes = train({spec("a"), spec("b")}, data, server, trained);
    ASSERT_TRUE(server.join().ok());
    const auto view = server.view();
    EXPECT_EQ(view.version, 201u);  // the initial parameters are the first
    for (const WorkerOutcome& outcome : outcomes) {
      EXPECT_EQ(outcome.summary.rounds, 200u);
      EXPECT_EQ(outcome.summary.skipped + outcome.summary.lost + outcome.summary.late, 0u);
    }
    ServerConfig alone = c;
    const WorkerOutcome single = run_local("mlp:8-64-64-4", data, alone, 16);
    EXPECT_NEAR(view.test.loss, single.summary.test_loss, 0.02 * single.summary.test_loss)
        << "seed " << seed;
    std::printf("seed %llu: %llu averages in 200 rounds, loss %.4f, %.5f times that of one\n",
                static_cast<unsigned long long>(seed),
                static_cast<unsigned long long>(view.version - 1), view.test.loss,
                view.test.loss / single.summary.test_loss);
    EXPECT_GT(view.cadence.exchange_seconds, 0);  // also of one gradient a round it is measured
  }
}

/// Gradients: the round keeps its size, the faster one has more of it.
TEST_F(CoordinatorTest, SpeedDividesTheBatchOfARound) {
  const auto data = make_blobs(960, 8, 4, 1);
  ServerConfig c = config(2);
  c.goal.epochs = 4;
  c.cadence.mode = "speed";
  TestServer server(c, transports());
  Trained trained;
  train({spec("fast"), spec("slow", 20)}, data, server, trained);
  ASSERT_TRUE(server.join().ok());
  expect_each_once(trained, 4);
  const auto& fast = trained.shares["fast"];
  const auto& slow = trained.shares["slow"];
  EXPECT_EQ(fast.front() + slow.front(), 16u);
  EXPECT_EQ(fast.front(), 8u);  // nothing is known yet
  std::uint64_t more = 0;
  for (std::size_t i = 1; i < fast.size(); ++i) {
    EXPECT_LE(fast[i] + slow[i], 17u);
    more += fast[i] > slow[i] ? 1 : 0;
  }
  EXPECT_GT(more, fast.size() / 2);
}

TEST_F(CoordinatorTest, GivenSpeedsAreKept) {
  const auto data = make_blobs(900, 8, 4, 1);
  ServerConfig c = config(3);
  c.goal.rounds = 9;
  c.local.count = 5;
  c.cadence.mode = "speed";
  c.cadence.ratios = "3,2,1";
  c.cadence.overshoot = 7;
  TestServer server(c, transports());
  Trained trained;
  train({spec("a"), spec("b"), spec("c")}, data, server, trained);
  ASSERT_TRUE(server.join().ok());
  // 30 steps of 8 samples a round: 3 rounds of 240, then 180 that are left, which 21 steps of the
  // next epoch (168 samples) fill up to 240.
  for (std::size_t round = 0; round < 9; ++round) {
    EXPECT_EQ(trained.shares["a"][round], 120u) << round;
    EXPECT_EQ(trained.shares["b"][round], 80u) << round;
    EXPECT_EQ(trained.shares["c"][round], 40u) << round;
  }
}

/// Rounds of 960 samples of epochs of 900: without a bound of the overshoot none is cut by an
/// epoch's end but that of the last one. With 0 a round has at most three steps of each of the next
/// epoch.
TEST_F(CoordinatorTest, NoRoundIsShortBecauseAnEpochEnds) {
  const auto data = make_blobs(900, 8, 4, 1);
  for (const bool is_bounded : {false, true}) {
    SCOPED_TRACE(is_bounded);
    ServerConfig c = config(3);
    c.goal.epochs = 6;
    c.local.count = 20;
    c.cadence.mode = "speed";
    c.cadence.ratios = "3,2,1";
    if (is_bounded) c.cadence.overshoot = 0;
    TestServer server(c, transports());
    Trained trained;
    train({spec("a"), spec("b"), spec("c")}, data, server, trained);
    ASSERT_TRUE(server.join().ok());
    expect_each_once(trained, 6);
    const auto& shares = trained.shares["a"];
    std::size_t whole = 0;
    while (whole < shares.size() && shares[whole] == 480) ++whole;
    if (is_bounded) {
      EXPECT_EQ(whole, 0u);
      continue;
    }
    EXPECT_EQ(whole, 5u);  // 4800 samples of 5400, then what is left
    EXPECT_EQ(shares.size(), 6u);
  }
}

/// Where a round's steps are more than an epoch has, all get less, so that they still come at once.
TEST_F(CoordinatorTest, AShortEpochIsDividedInProportion) {
  const auto data = make_blobs(900, 8, 4, 1);
  ServerConfig c = config(3);
  c.goal.rounds = 3;
  c.local.count = 100;
  c.cadence.mode = "speed";
  c.cadence.ratios = "3,2,1";  // 2400, 1600 and 800 samples would be wanted
  c.cadence.overshoot = 7;
  TestServer server(c, transports());
  Trained trained;
  train({spec("a"), spec("b"), spec("c")}, data, server, trained);
  ASSERT_TRUE(server.join().ok());
  // 900 samples and 21 steps of the next epoch; then what that has left, and 21 of the one after
  // it.
  for (std::size_t round = 0; round < 3; ++round) {
    const std::uint64_t all = round == 0 ? 1068 : 900;
    EXPECT_EQ(trained.shares["a"][round], all / 2) << round;
    EXPECT_EQ(trained.shares["b"][round], all / 3) << round;
    EXPECT_EQ(trained.shares["c"][round], all / 6) << round;
  }
}

/// However much the members could do, a round passes one end of an epoch, and each is seen.
TEST_F(CoordinatorTest, NoEpochIsSteppedOver) {
  const auto data = make_blobs(900, 8, 4, 1);
  ServerConfig c = config(3);
  c.goal.rounds = 4;
  c.local.count = 100;
  c.cadence.mode = "speed";
  c.cadence.ratios = "3,2,1";
  TestServer server(c, transports());
  Trained trained;
  train({spec("a"), spec("b"), spec("c")}, data, server, trained);
  ASSERT_TRUE(server.join().ok());
  EXPECT_EQ(server.view().epoch, 4u);
}

/// What is trained behind a contribution is told with the next: of 7 and 4 steps 5 and 2 are in the
/// first, 2 and 2 and all of the second round's in the second.
TEST_F(CoordinatorTest, StepsAfterAContributionCountInTheNext) {
  const auto data = make_blobs(900, 8, 4, 1);
  ServerConfig c = config(2);
  c.goal.rounds = 2;
  c.local.count = 4;
  c.local.overlap = 2;
  c.local.outer = "average";
  c.cadence.mode = "speed";
  c.cadence.ratios = "7,4";
  TestServer server(c, transports());
  Trained trained;
  train({spec("a"), spec("b")}, data, server, trained);
  ASSERT_TRUE(server.join().ok());
  EXPECT_THAT(trained.shares["a"], ::testing::ElementsAre(7 * 8, 7 * 8));
  EXPECT_THAT(trained.shares["b"], ::testing::ElementsAre(4 * 8, 4 * 8));
  const auto rounds = server.rounds();
  ASSERT_EQ(rounds.size(), 2u);
  EXPECT_EQ(rounds[1].samples, (5u + 2) * 8);
  EXPECT_EQ(rounds[0].samples, (2u + 2 + 7 + 4) * 8);
}

/// With asp a contribution is of ten steps, not of nine: whoever comes closes a round with that.
TEST_F(CoordinatorTest, AsynchronousContributionsAreOfTenSteps) {
  const auto data = make_blobs(8000, 8, 4, 1);
  ServerConfig c = config(2);
  c.goal.rounds = 20;
  c.local.count = 10;
  c.local.outer = "average";
  c.policy = "asp";
  TestServer server(c, transports());
  Trained trained;
  train({spec("a"), spec("b", 3)}, data, server, trained);
  ASSERT_TRUE(server.join().ok());
  for (const char* const name : {"a", "b"})
    EXPECT_THAT(trained.shares[name], ::testing::Each(10u * 8));
  std::uint64_t rounds = 0;
  for (const auto& round : server.rounds()) {
    if (round.outcome != "committed") continue;
    ++rounds;
    const std::uint64_t contributions = round.contributors.size() + round.late.size();
    EXPECT_GE(contributions, 1u);
    EXPECT_EQ(round.samples, contributions * 10 * 8);
  }
  EXPECT_EQ(rounds, 20u);
}

/// Who comes alone to a round, or is taken into one that is open, has a share by the speeds of all,
/// and none is short because an epoch ends.
TEST_F(CoordinatorTest, AsynchronousSharesGoByTheSpeedsOfAll) {
  const auto data = make_blobs(500, 8, 4, 1);
  ServerConfig c = config(2);
  c.goal.rounds = 40;
  c.local.count = 10;
  c.local.outer = "average";
  c.policy = "asp";
  c.cadence.mode = "speed";
  c.cadence.ratios = "3,1";
  TestServer server(c, transports());
  Trained trained;
  train({spec("a"), spec("b", 3)}, data, server, trained);
  ASSERT_TRUE(server.join().ok());
  // Who did not come to begin leaves its share to others, who have what is left of that. Where an
  // epoch has no more than that, who comes second has nothing.
  const auto &a = trained.shares["a"], &b = trained.shares["b"];
  EXPECT_THAT(a, ::testing::Each(::testing::AnyOf(0, 80, 160, 240)));
  EXPECT_GT(2 * std::ranges::count(a, 240u), static_cast<std::ptrdiff_t>(a.size()));
  EXPECT_THAT(b, ::testing::Each(::testing::AnyOf(0, 80)));
  EXPECT_GT(2 * std::ranges::count(b, 80u), static_cast<std::ptrdiff_t>(b.size()));
}

/// How many workers there are is told of all of them, also to who begins while the others compute.
TEST_F(CoordinatorTest, AsynchronousWorkersAreToldOfAll) {
  const auto data = make_blobs(4000, 8, 4, 1);
  for (const std::string policy : {"asp", "ssp:2", "backup:1"}) {
    SCOPED_TRACE(policy);
    ServerConfig c = config(3);
    c.goal.rounds = 30;
    c.policy = policy;
    TestServer server(c, transports());
    std::mutex mutex;
    std::vector<std::uint32_t> worlds;
    std::vector<std::thread> threads;
    for (const std::string name : {"a", "b", "c"})
      threads.emplace_back([&, name] {
        const auto observe = [&](const worker::Share& share, const worker::StepStats&,
                                 const worker::RoundReport&, const worker::TrainingSummary&) {
          const std::lock_guard lock(mutex);
          EXPECT_LT(share.rank.value, share.world);
          worlds.push_back(share.world);
        };
        const WorkerSpec one = spec(name, name == "c" ? 3 : 1);
        EXPECT_TRUE(run_worker(one, data, server.endpoint(), transports(), observe).status.ok());
      });
    for (std::thread& thread : threads) thread.join();
    ASSERT_TRUE(server.join().ok());
    EXPECT_FALSE(worlds.empty());
    EXPECT_THAT(worlds, ::testing::Each(3u));
  }
}

/// So too where there is one gradient a round: its batches are divided.
TEST_F(CoordinatorTest, AsynchronousBatchesGoByTheSpeedsOfAll) {
  const auto data = make_blobs(500, 8, 4, 1);
  ServerConfig c = config(2);
  c.goal.rounds = 60;
  c.policy = "asp";
  c.cadence.mode = "speed";
  c.cadence.ratios = "3,1";
  TestServer server(c, transports());
  Trained trained;
  train({spec("a"), spec("b", 3)}, data, server, trained);
  ASSERT_TRUE(server.join().ok());
  const auto& a = trained.shares["a"];
  EXPECT_GT(2 * std::ranges::count(a, 12u), static_cast<std::ptrdiff_t>(a.size()));
  EXPECT_THAT(trained.shares["b"], ::testing::Each(::testing::Le(4u)));
}

struct CadenceWay {
  const char *name, *exchange, *policy;
  std::uint64_t overlap;
};

class CadenceWays : public CoordinatorTest, public ::testing::WithParamInterface<CadenceWay> {};

/// Rounds of any length, over the ends of epochs, with a member that is slower: every sample of
/// every epoch is trained once, and the fast one makes more steps.
TEST_P(CadenceWays, EverySampleIsTrainedOnce) {
  const auto data = make_blobs(1000, 8, 4, 2);
  ServerConfig c = config(2);
  c.goal.epochs = 20;
  c.local.count = 4;
  c.local.outer = "average";
  c.cadence.mode = "tuned";
  c.exchange = GetParam().exchange;
  c.policy = GetParam().policy;
  c.local.overlap = GetParam().overlap;
  TestServer server(c, transports());
  WorkerSpec fast = spec("fast"), slow = spec("slow", 20);
  fast.exchange = slow.exchange = GetParam().exchange;
  Trained trained;
  const auto outcomes = train({fast, slow}, data, server, trained);
  ASSERT_TRUE(server.join().ok());
  expect_each_once(trained, 20, GetParam().policy == std::string("asp"));
  const auto view = server.view();
  // With asp what is under way at the end counts no more, nor what came over 32 rounds late; and
  // who contributes while the others stand still is where the mean is.
  const bool is_joint = GetParam().policy == std::string("bsp");
  EXPECT_GE(view.samples_total, is_joint ? 20'000u : 15'000u);
  EXPECT_LE(view.samples_total, 20'000u);
  EXPECT_GT(view.cadence.exchange_seconds, 0);  // measured, not a message's sending time
  if (is_joint) {
    EXPECT_GT(view.cadence.divergence, 0);
  }
  double norm = 0;  // of parameters, as workers tell of it
  for (const auto& worker : server.workers()) norm = std::max(norm, worker.parameter_norm);
  double squares = 0;
  for (const float p : outcomes[0].params) squares += static_cast<double>(p) * p;
  EXPECT_GT(norm, 0.5 * std::sqrt(squares));
  EXPECT_LT(norm, 2 * std::sqrt(squares));
  EXPECT_LT(view.cadence.divergence, 1);
  EXPECT_GT(outcomes[0].summary.samples, outcomes[1].summary.samples);
  EXPECT_GT(view.test.accuracy, 0.9);
}

INSTANTIATE_TEST_SUITE_P(All, CadenceWays,
                         ::testing::Values(CadenceWay{"star", "star", "bsp", 0},
                                           CadenceWay{"ring", "ring", "bsp", 0},
                                           CadenceWay{"overlap", "star", "bsp", 2},
                                           CadenceWay{"asp", "star", "asp", 0}),
                         [](const auto& way) { return std::string(way.param.name); });

/// The learning rate of a step follows the steps of all, whatever the rounds are.
TEST_F(CoordinatorTest, OneWorkersScheduleIsTheClusters) {
  const auto data = make_blobs(400, 8, 4, 3);
  std::vector<std::vector<float>> params;
  for (const bool by_cluster : {false, true}) {
    ServerConfig c = config(1);
    c.goal.rounds = 30;
    c.local.count = 5;
    c.local.outer = "average";
    TestServer server(c, transports());
    WorkerSpec one = spec("a");
    one.inner.schedule = "linear:rounds=120,floor=0.1,warmup=10";
    one.schedules_by_cluster = by_cluster;
    Trained trained;
    params.push_back(train({one}, data, server, trained).front().params);
    ASSERT_TRUE(server.join().ok());
  }
  EXPECT_EQ(params[0], params[1]);
}

/// With two workers it goes twice as fast as their own steps, and is the same for both.
TEST_F(CoordinatorTest, TwoWorkersScheduleCountsTheStepsOfBoth) {
  const auto data = make_blobs(400, 8, 4, 3);
  std::vector<std::vector<float>> params;
  for (const char* const schedule : {"step:every=10,factor=0.000001", "constant"}) {
    ServerConfig c = config(2);
    c.goal.rounds = 2;
    c.local.count = 5;
    c.local.outer = "average";
    TestServer server(c, transports());
    WorkerSpec a = spec("a"), b = spec("b");
    a.inner.schedule = b.inner.schedule = schedule;
    a.schedules_by_cluster = b.schedules_by_cluster = true;
    Trained trained;
    params.push_back(train({a, b}, data, server, trained).front().params);
    ASSERT_TRUE(server.join().ok());
    if (params.size() == 1) {  // ten steps were made in the first round: the second learns nothing
      ServerConfig first = config(2);
      first.goal.rounds = 1;
      first.local.count = 5;
      first.local.outer = "average";
      TestServer again(first, transports());
      Trained more;
      const auto after_one = train({a, b}, data, again, more).front().params;
      ASSERT_TRUE(again.join().ok());
      for (std::size_t i = 0; i < after_one.size(); ++i)
        ASSERT_NEAR(params[0][i], after_one[i], 1e-5);
    }
  }
  EXPECT_NE(params[0], params[1]);
}

/// 1 + (workers of the round - 1) ratio: of two workers a round learns as with twice the rate,
/// wherever the optimizer's step is made; where a contribution is a round, as with the rate itself.
TEST_F(CoordinatorTest, TheRateGrowsWithTheWorkersOfARound) {
  const auto data = make_blobs(400, 8, 4, 3);
  struct Setup {
    const char *exchange, *apply, *optimizer, *codec_down;
  };
  const std::vector<Setup> setups{{"star", "server", "sgd", "f32"},
                                  {"star", "server", "adam", "f32"},
                                  {"star", "worker", "momentum", "f32"},
                                  {"star", "worker", "sgd", "int8"},
                                  {"ring", "auto", "sgd", "f32"}};
  for (const Setup& way : setups) {
    SCOPED_TRACE(std::string(way.exchange) + " " + way.apply + " " + way.codec_down);
    std::vector<std::vector<float>> params;
    for (const double ratio : {1.0, 0.0}) {
      ServerConfig c = config(2);
      c.goal.rounds = 10;
      c.exchange = way.exchange;
      c.apply = way.apply;
      c.transfer.codec_down = way.codec_down;
      c.optimizer.name = way.optimizer;
      c.optimizer_scale_ratio = ratio;
      c.optimizer.learning_rate = ratio > 0 ? 0.05 : 0.10;
      TestServer server(c, transports());
      WorkerSpec a = spec("a"), b = spec("b");
      a.exchange = b.exchange = way.exchange;
      Trained trained;
      const auto outcomes = train({a, b}, data, server, trained);
      params.push_back(outcomes.front().params);
      EXPECT_EQ(outcomes.back().params, params.back());
      ASSERT_TRUE(server.join().ok());
      EXPECT_DOUBLE_EQ(server.view().learning.rate, 0.10);
    }
    EXPECT_EQ(params[0], params[1]);
  }
  ServerConfig c = config(2);
  c.goal.rounds = 10;
  c.policy = "asp";
  c.optimizer_scale_ratio = 1;
  c.optimizer.learning_rate = 0.05;
  TestServer server(c, transports());
  Trained trained;
  train({spec("a"), spec("b")}, data, server, trained);
  ASSERT_TRUE(server.join().ok());
  EXPECT_DOUBLE_EQ(server.view().learning.rate, 0.05);
}

/// 1 + (world - 1) ratio: two workers with ratio 1 learn as with twice the rate.
TEST_F(CoordinatorTest, TheInnerRateGrowsWithTheWorkers) {
  const auto data = make_blobs(400, 8, 4, 3);
  std::vector<std::vector<float>> params;
  for (const double ratio : {1.0, 0.0}) {
    ServerConfig c = config(2);
    c.goal.rounds = 10;
    c.local.count = 5;
    c.local.outer = "average";
    TestServer server(c, transports());
    WorkerSpec a = spec("a"), b = spec("b");
    for (WorkerSpec* const one : {&a, &b}) {
      one->scale_ratio = ratio;
      one->inner.learning_rate = ratio > 0 ? 0.05 : 0.10;
    }
    Trained trained;
    params.push_back(train({a, b}, data, server, trained).front().params);
    ASSERT_TRUE(server.join().ok());
  }
  EXPECT_EQ(params[0], params[1]);
}

}  // namespace
}  // namespace centroid::test
