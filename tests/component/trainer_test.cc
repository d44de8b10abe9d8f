#include "client/trainer.h"

#include <atomic>
#include <cmath>
#include <future>
#include <limits>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/cluster.h"
#include "tests/unit/temporary_directory.h"

/// Programs that bring their own tensors, as workers of a real server over TCP.
namespace centroid::test {
namespace {

using client::Trainer;
using client::TrainerOptions;
using server::ServerConfig;
using ::testing::HasSubstr;
using worker::Finished;
using worker::RoundReport;
using worker::Share;

constexpr TensorId kWeight(0), kScale(1);

class TrainerTest : public ::testing::Test {
 protected:
  ServerConfig config(std::uint64_t workers) {
    ServerConfig c;
    c.run_dir = directory_.path() / std::to_string(++runs_);
    c.run_id = "trained";
    c.leaving.when_finished = true;
    c.workers.min = workers;
    c.goal.rounds = 5;
    c.optimizer.name = "sgd";
    c.optimizer.learning_rate = 0.5;
    return c;
  }
  static TestServer::TransportFactory tcp() {
    return [](Executor executor) { return transport::make_tcp(executor, {}); };
  }
  static Manifest manifest() {
    return {{"weight", DType::kF32, {2, 2}}, {"scale", DType::kF32, {}}};
  }
  static TrainerOptions options(const TestServer& server, const std::string& name) {
    TrainerOptions o;
    o.servers = server.endpoint().to_string();
    o.name = name;
    o.samples = 64;
    o.batch = 4;
    o.join_timeout = std::chrono::seconds(20);
    return o;
  }
  static std::unique_ptr<Trainer> open(const TrainerOptions& o) {
    static constexpr float kStart[] = {1, 2, 3, 4, 5};
    auto made = Trainer::open(o, manifest(), kStart);
    EXPECT_TRUE(made.ok()) << made.error().message();
    return std::move(made).value();
  }
  /// The next share; no value at the end.
  static std::optional<Share> next(Trainer& trainer) {
    const auto what = trainer.next();
    if (!what.ok()) {
      ADD_FAILURE() << what.error().message();
      return std::nullopt;
    }
    const auto* share = std::get_if<Share>(&*what);
    return share != nullptr ? std::optional(*share) : std::nullopt;
  }

  /// Every gradient is this number everywhere.
  static void give(Trainer& trainer, float value) {
    for (const TensorId tensor : {kScale, kWeight}) {
      std::ranges::fill(trainer.gradient(tensor), value);
      EXPECT_TRUE(trainer.ready(tensor).ok());
    }
  }

  static void await_worker(TestServer& server) {
    EXPECT_TRUE(
        server.wait_until([&](const server::ClusterView&) { return server.present() == 1; }));
  }

  TemporaryDirectory directory_;
  int runs_ = 0;
};

/// Every worker's gradient is its rank + 1 everywhere; the mean weighs by samples.
TEST_F(TrainerTest, GradientsAreAveragedBySamplesAndMakeAStep) {
  const ServerConfig c = config(2);
  TestServer server(c, tcp());
  std::vector<std::vector<float>> last(2);
  std::vector<std::set<std::uint64_t>> seen(2);
  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < 2; ++i)
    threads.emplace_back([&, i] {
      TrainerOptions o = options(server, "t" + std::to_string(i));
      o.batch = i == 0 ? 4 : 2;
      const auto trainer = open(o);
      while (const auto share = next(*trainer)) {
        if (share->round.value == 1) {
          EXPECT_THAT(trainer->parameters(kWeight), ::testing::ElementsAre(1, 2, 3, 4));
        }
        const auto indices = trainer->indices();
        ASSERT_TRUE(indices.ok());
        for (const std::uint64_t sample : *indices)
          EXPECT_TRUE(seen[i].insert(sample).second || share->epoch > 0);
        std::ranges::fill(trainer->gradient(kWeight), static_cast<float>(i + 1));
        std::ranges::fill(trainer->gradient(kScale), -1.0f);
        EXPECT_TRUE(trainer->ready(kScale).ok());
        EXPECT_THAT(trainer->ready(kScale).error().message(), HasSubstr("scale was given already"));
        EXPECT_TRUE(trainer->ready(kWeight).ok());
        const auto report = trainer->finish({.samples = share->samples(), .compute_seconds = 1e-6});
        ASSERT_TRUE(report.ok()) << report.error().message();
        EXPECT_EQ(report->outcome, RoundReport::Outcome::kCommitted);
      }
      for (const TensorId tensor : {kWeight, kScale})
        last[i].insert(last[i].end(), trainer->parameters(tensor).begin(),
                       trainer->parameters(tensor).end());
    });
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(server.join().ok());
  EXPECT_EQ(last[0], last[1]);
  EXPECT_GT(server.view().cadence.exchange_seconds, 0);
  // The mean of 4 samples of 1 and 2 of 2 is 4/3; five steps of 0.5.
  const float start[] = {1, 2, 3, 4, 5};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(last[0][i], start[i] - 2.5 * 4 / 3, 1e-5);
  EXPECT_FLOAT_EQ(last[0][4], 5 + 2.5f);
  EXPECT_EQ(seen[0].size() + seen[1].size(), 30u);
}

/// One worker: the mean is its own. What it adds between contribute and finish is kept.
TEST_F(TrainerTest, LocalStepsAreAveragedAndLaterOnesKept) {
  ServerConfig c = config(1);
  c.local.count = 4;
  c.local.overlap = 1;
  c.local.outer = "average";
  c.optimizer = ServerConfig().optimizer;
  TestServer server(c, tcp());
  const auto trainer = open(options(server, "alone"));
  float expected = 1;
  int rounds = 0;
  while (const auto share = next(*trainer)) {
    ASSERT_TRUE(share->is_local);
    EXPECT_EQ(share->overlap, share->round.value < 5 ? 1u : 0u);  // the last has nothing to hide
    EXPECT_EQ(share->samples(), 16u);
    EXPECT_EQ(trainer->gradient(kWeight).data(), nullptr);
    EXPECT_THAT(trainer->ready(kWeight).error().message(), HasSubstr("local steps"));
    trainer->parameters(kWeight)[0] += 0.25f;
    ASSERT_TRUE(trainer->contribute({.samples = 12}).ok());
    EXPECT_FALSE(trainer->contribute({}).ok());
    trainer->parameters(kWeight)[0] += 0.125f;
    ASSERT_TRUE(trainer->finish({.samples = 4}).ok());
    const float sent = expected + 0.25f;
    expected += 0.375f;
    EXPECT_FLOAT_EQ(trainer->committed(kWeight)[0], sent);
    EXPECT_FLOAT_EQ(trainer->parameters(kWeight)[0], expected);
    ++rounds;
  }
  EXPECT_EQ(rounds, 5);
  trainer->leave("done");
  EXPECT_FLOAT_EQ(trainer->parameters(kWeight)[0], trainer->committed(kWeight)[0]);
  ASSERT_TRUE(server.join().ok());
}

/// Who lives and contributes nothing within round_timeout is left out: the attempt is given up with
/// what there was of it (999 of one tensor), the version stays, the next attempt has the others'
/// 2.0. When it is done with that round it takes part again.
TEST_F(TrainerTest, WhoIsSilentForTooLongIsLeftOutAndTakenAlongAgain) {
  for (const std::string silent : {"a", "b"}) {
    SCOPED_TRACE(silent);
    ServerConfig c = config(2);
    c.goal.rounds = 0;
    c.optimizer.learning_rate = 0.125;
    c.timeouts.round = std::chrono::seconds(2);
    TestServer server(c, tcp());
    std::promise<void> is_left_out;
    std::atomic<bool> is_over = false;
    std::vector<RoundReport> reports;  // of the silent one
    std::thread other([&] {
      const auto trainer = open(options(server, silent));
      while (const auto share = next(*trainer)) {
        const bool is_first = reports.empty();
        std::ranges::fill(trainer->gradient(kWeight), is_first ? 999.0f : 2.0f);
        std::ranges::fill(trainer->gradient(kScale), is_first ? 999.0f : 2.0f);
        EXPECT_TRUE(trainer->ready(kScale).ok());
        if (is_first) is_left_out.get_future().wait();
        EXPECT_TRUE(trainer->ready(kWeight).ok());
        const auto report = trainer->finish({.samples = share->samples()});
        EXPECT_TRUE(report.ok()) << report.error().message();
        if (!report.ok()) break;
        reports.push_back(*report);
        if (reports.size() == 2) break;
      }
      is_over = true;
      trainer->leave("done");
    });
    const auto trainer = open(options(server, silent == "a" ? "b" : "a"));
    std::uint64_t rounds = 0;
    bool was_taken_along = false;
    while (const auto share = next(*trainer)) {
      give(*trainer, 2.0f);
      const auto report = trainer->finish({.samples = share->samples()});
      ASSERT_TRUE(report.ok()) << report.error().message();
      ASSERT_EQ(report->outcome, RoundReport::Outcome::kCommitted);
      ++rounds;
      ASSERT_FLOAT_EQ(trainer->parameters(kScale)[0], 5.0f - 0.25f * static_cast<float>(rounds));
      was_taken_along = was_taken_along || (rounds > 1 && share->world == 2);
      if (is_over) break;
      if (rounds > 1) continue;
      EXPECT_EQ(share->world, 2u);
      const auto view = server.view();
      EXPECT_EQ(view.losses.aborted_attempts, 1u);
      EXPECT_EQ(view.version, 2u);
      EXPECT_EQ(server.present(), 2u);  // it lives
      auto closed = server.rounds();    // newest first
      while (!closed.empty() && closed.front().state != "closed") closed.erase(closed.begin());
      ASSERT_EQ(closed.size(), 2u);
      EXPECT_EQ(closed[0].outcome, "committed");
      EXPECT_EQ(closed[1].outcome, "aborted");
      EXPECT_EQ(closed[1].version, 1u);
      EXPECT_THAT(closed[1].missing, ::testing::ElementsAre(silent));
      is_left_out.set_value();
    }
    trainer->leave("done");
    other.join();
    server.stop();
    ASSERT_TRUE(server.join().ok());
    EXPECT_TRUE(was_taken_along);
    ASSERT_EQ(reports.size(), 2u);
    EXPECT_EQ(reports[0].outcome, RoundReport::Outcome::kLate);
    EXPECT_THAT(reports[0].reason, HasSubstr("round_timeout"));
    EXPECT_EQ(reports[1].outcome, RoundReport::Outcome::kCommitted);
    EXPECT_EQ(server.view().losses.aborted_attempts, 1u);
  }
}

/// Who takes twice as long as round_timeout for each of its parts is left out, and waited for when
/// it comes again. When it has been in time for some rounds it has no more time than others: it is
/// left out once more.
TEST_F(TrainerTest, WhoIsALittleTooSlowIsWaitedForWhileItIs) {
  ServerConfig c = config(2);
  c.goal.rounds = 0;
  c.timeouts.round = std::chrono::milliseconds(400);
  TestServer server(c, tcp());
  using Outcome = RoundReport::Outcome;
  std::vector<Outcome> before, after;
  std::atomic<bool> is_over = false;
  std::thread slow([&] {
    const auto trainer = open(options(server, "slow"));
    const auto part = [&](bool is_slow) {
      const auto share = next(*trainer);
      if (!share) return Outcome::kLost;
      if (is_slow)
        std::this_thread::sleep_for(2 * c.timeouts.round);  // lint-ok: sleeping is computing here
      give(*trainer, 0.0f);
      const auto report = trainer->finish({.samples = share->samples()});
      EXPECT_TRUE(report.ok()) << report.error().message();
      return report.ok() ? report->outcome : Outcome::kLost;
    };
    while (before.size() < 8 && (before.empty() || before.back() != Outcome::kCommitted))
      before.push_back(part(true));
    for (int i = 0; i < 10; ++i) part(false);
    while (after.size() < 8 && (after.empty() || after.back() != Outcome::kCommitted))
      after.push_back(part(true));
    is_over = true;
    trainer->leave("done");
  });
  const auto trainer = open(options(server, "fast"));
  while (const auto share = next(*trainer)) {
    give(*trainer, 0.0f);
    ASSERT_TRUE(trainer->finish({.samples = share->samples()}).ok());
    if (is_over) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // lint-ok: computing
  }
  trainer->leave("done");
  slow.join();
  server.stop();
  EXPECT_TRUE(server.join().ok());
  for (const auto& outcomes : {before, after}) {
    ASSERT_GE(outcomes.size(), 2u);
    EXPECT_EQ(outcomes.front(), Outcome::kLate);
    EXPECT_EQ(outcomes.back(), Outcome::kCommitted);
  }
}

/// Numbers of a program's own: means over all that it recorded for a contribution, and over all.
TEST_F(TrainerTest, RecordedNumbersAreSeenByWorkerAndRound) {
  ServerConfig c = config(2);
  c.goal.rounds = 2;
  TestServer server(c, tcp());
  const auto train = [&](const std::string& name, int batches, double value) {
    const auto trainer = open(options(server, name));
    EXPECT_FALSE(trainer->record("a b", 1).ok());
    while (const auto share = next(*trainer)) {
      for (int i = 0; i < batches; ++i) EXPECT_TRUE(trainer->record("score", value).ok());
      const int own = share->round.value == 1 ? 15 : 0;  // so that there is not room for all
      for (int i = 0; i < own; ++i) EXPECT_TRUE(trainer->record(name + std::to_string(i), 1).ok());
      give(*trainer, 0.0f);
      ASSERT_TRUE(trainer->finish({.samples = share->samples()}).ok());
    }
  };
  std::thread other([&] { train("b", 40, 2.0); });
  train("a", 60, 1.0);
  other.join();
  ASSERT_TRUE(server.join().ok());
  const auto rounds = server.rounds();  // newest first
  ASSERT_EQ(rounds.size(), 2u);
  EXPECT_EQ(rounds[0].scalars.all(), (Scalars::Map{{"score", {140, 100}}}));
  EXPECT_NEAR(rounds[0].scalars.all().at("score").mean(), 1.4, 1e-12);
  EXPECT_EQ(rounds[1].scalars.all().size(), Scalars::kMaxNames);
  EXPECT_EQ(rounds[1].scalars.all().at("score"), (Scalars::Sum{140, 100}));
  for (const auto& worker : server.workers())
    EXPECT_EQ(worker.scalars.all().at("score").mean(), worker.name == "a" ? 1 : 2) << worker.name;
  const std::string metrics = server.registry().serialize();
  EXPECT_THAT(metrics, HasSubstr("centroid_server_scalar{name=\"score\"} 1.4"));
}

/// 7 and 4 steps since the start, of which the first contributions have 5 and 3: 2 and 1 are told
/// with the next ones, and none twice.
TEST_F(TrainerTest, StepsAfterAContributionAreReportedWithTheNext) {
  ServerConfig c = config(2);
  c.goal.rounds = 3;
  c.local.count = 8;
  c.local.overlap = 2;
  c.local.outer = "average";
  c.optimizer = ServerConfig().optimizer;
  TestServer server(c, tcp());
  const auto train = [&](const std::string& name, std::uint64_t in, std::uint64_t behind) {
    const auto trainer = open(options(server, name));
    while (const auto share = next(*trainer)) {
      const bool is_first = share->round.value == 1;
      ASSERT_TRUE(trainer->contribute({.samples = is_first ? in : 0}).ok());
      ASSERT_TRUE(trainer->finish({.samples = is_first ? behind : 0}).ok());
    }
  };
  std::thread other([&] { train("b", 3, 1); });
  train("a", 5, 2);
  other.join();
  ASSERT_TRUE(server.join().ok());
  const auto rounds = server.rounds();  // newest first
  ASSERT_EQ(rounds.size(), 3u);
  EXPECT_EQ(rounds[2].samples, 5u + 3);
  EXPECT_EQ(rounds[1].samples, 2u + 1);
  EXPECT_EQ(rounds[0].samples, 0u);
  for (const auto& worker : server.workers())
    EXPECT_EQ(worker.samples, worker.name == "a" ? 7u : 4u) << worker.name;
}

/// The server goes back while the program is between two rounds: what it learned since its last
/// contribution belongs to parameters that are gone.
TEST_F(TrainerTest, ARestoredCheckpointReplacesOwnParameters) {
  ServerConfig c = config(1);
  c.goal.rounds = 0;
  c.local.count = 4;
  c.local.overlap = 1;
  c.local.outer = "average";
  c.optimizer = ServerConfig().optimizer;
  TestServer server(c, tcp());
  const auto trainer = open(options(server, "alone"));
  std::vector<float> committed{1};  // by rounds before
  const auto train = [&] {
    trainer->parameters(kWeight)[0] += 1;
    EXPECT_TRUE(trainer->contribute({.samples = 12}).ok());
    trainer->parameters(kWeight)[0] += 0.5f;
    EXPECT_TRUE(trainer->finish({.samples = 4}).ok());
    committed.push_back(trainer->committed(kWeight)[0]);
  };
  auto written = std::async(std::launch::async, [&] {
    EXPECT_TRUE(server.wait_until([](const auto& view) { return view.round >= 2; }));
    return server.checkpoint();
  });
  while (written.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    ASSERT_TRUE(next(*trainer).has_value());
    train();
  }
  const auto checkpoint = written.get();
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message();
  ASSERT_TRUE(next(*trainer).has_value());
  ASSERT_TRUE(server.pause().ok());
  train();
  ASSERT_TRUE(server.wait_for_wait("operator", "paused by an operator"));
  const auto restored = server.restore(checkpoint->version);
  ASSERT_TRUE(restored.ok()) << restored.error().message();
  ASSERT_TRUE(server.resume().ok());
  const auto share = next(*trainer);
  ASSERT_TRUE(share.has_value());
  EXPECT_EQ(share->round.value, checkpoint->round + 1);
  ASSERT_LT(checkpoint->round, committed.size() - 1);
  EXPECT_FLOAT_EQ(trainer->committed(kWeight)[0], committed[checkpoint->round]);
  EXPECT_FLOAT_EQ(trainer->parameters(kWeight)[0], committed[checkpoint->round]);
  trainer->leave("done");
  EXPECT_THAT(trainer->finish({}).error().message(), HasSubstr("next comes before finish"));
  EXPECT_THAT(trainer->next().error().message(), HasSubstr("has left the cluster"));
  server.stop();
  ASSERT_TRUE(server.join().ok());
}

TEST_F(TrainerTest, CallsAtTheWrongMomentSaySo) {
  ServerConfig c = config(1);
  c.goal.rounds = 1;
  TestServer server(c, tcp());
  const auto trainer = open(options(server, "alone"));
  EXPECT_THAT(trainer->finish({}).error().message(), HasSubstr("next comes before finish"));
  ASSERT_TRUE(next(*trainer).has_value());
  const auto again = trainer->next();
  ASSERT_FALSE(again.ok());
  EXPECT_THAT(again.error().message(), HasSubstr("round 1 is not finished"));
  ASSERT_TRUE(trainer->ready(kWeight).ok());
  EXPECT_THAT(trainer->finish({.samples = 4}).error().message(),
              HasSubstr("scale has no gradient"));
  ASSERT_TRUE(trainer->ready(kScale).ok());
  ASSERT_TRUE(trainer->finish({.samples = 4}).ok());
  EXPECT_FALSE(next(*trainer).has_value());
  EXPECT_FALSE(next(*trainer).has_value());  // the end comes again
  EXPECT_FALSE(trainer->indices().ok());
  trainer->leave("done");
  EXPECT_THAT(trainer->finish({}).error().message(), HasSubstr("next comes before finish"));
  ASSERT_TRUE(server.join().ok());
}

TEST_F(TrainerTest, OtherTensorsAreRefusedWithTheirNames) {
  ServerConfig c = config(2);
  TestServer server(c, tcp());
  const auto first = open(options(server, "a"));
  std::thread waiting([&] { EXPECT_FALSE(next(*first).has_value()); });
  await_worker(server);
  const float start[] = {1, 2, 3, 4, 5, 6};
  auto second = Trainer::open(options(server, "b"),
                              {{"weight", DType::kF32, {5}}, {"scale", DType::kF32, {}}}, start);
  ASSERT_TRUE(second.ok());
  const auto what = (*second)->next();
  ASSERT_FALSE(what.ok());
  EXPECT_THAT(what.error().message(), HasSubstr("weight"));
  first->request_stop("seen");
  waiting.join();
  server.stop();
}

TEST_F(TrainerTest, BadOptionsAreRefusedBeforeAnythingIsOpened) {
  const float start[] = {1, 2, 3, 4, 5};
  TrainerOptions o;
  o.samples = 10;
  const auto why = [&](const Manifest& tensors, std::span<const float> initial) {
    const auto made = Trainer::open(o, tensors, initial);
    return made.ok() ? std::string("open") : made.error().message();
  };
  EXPECT_THAT(why(manifest(), std::span(start).first(4)), HasSubstr("4 numbers"));
  EXPECT_THAT(why({}, {}), HasSubstr("tensor"));
  o.batch = 11;
  EXPECT_THAT(why(manifest(), start), HasSubstr("batch 11"));
  o.batch = 1;
  o.servers = "nowhere";
  EXPECT_THAT(why(manifest(), start), HasSubstr("nowhere"));
  o.servers = "127.0.0.1:1";
  o.samples = 0;
  EXPECT_THAT(why(manifest(), start), HasSubstr("samples is 0"));
}

TEST_F(TrainerTest, AStopAndALostServerEndTheWait) {
  ServerConfig c = config(2);
  auto server = std::make_unique<TestServer>(c, tcp());
  const auto trainer = open(options(*server, "alone"));
  std::thread stopper([&] {
    await_worker(*server);
    trainer->request_stop("enough");
  });
  const auto what = trainer->next();
  stopper.join();
  ASSERT_TRUE(what.ok());
  ASSERT_TRUE(std::holds_alternative<Finished>(*what));
  EXPECT_EQ(std::get<Finished>(*what).reason, Finished::Reason::kStopped);
  EXPECT_EQ(std::get<Finished>(*what).text, "enough");
  trainer->leave("enough");
  TrainerOptions o = options(*server, "late");
  server->stop();
  server.reset();
  o.join_timeout = std::chrono::milliseconds(200);
  const auto gone = open(o)->next();
  ASSERT_FALSE(gone.ok());
  EXPECT_THAT(gone.error().message(), HasSubstr(o.servers));
}

/// NaN is found before it is sent, and ends the job for all.
TEST_F(TrainerTest, AGradientThatIsNotFiniteHaltsTheJob) {
  ServerConfig c = config(1);
  TestServer server(c, tcp());
  const auto trainer = open(options(server, "alone"));
  ASSERT_TRUE(next(*trainer).has_value());
  trainer->gradient(kWeight)[2] = std::numeric_limits<float>::quiet_NaN();
  ASSERT_TRUE(trainer->ready(kWeight).ok());
  ASSERT_TRUE(trainer->ready(kScale).ok());
  (void)trainer->finish({.samples = 4});
  const auto what = trainer->next();
  ASSERT_TRUE(what.ok());
  ASSERT_TRUE(std::holds_alternative<Finished>(*what));
  EXPECT_EQ(std::get<Finished>(*what).reason, Finished::Reason::kHalted);
  EXPECT_THAT(std::get<Finished>(*what).text, HasSubstr("weight"));
}

}  // namespace
}  // namespace centroid::test
