#include <atomic>
#include <cstring>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/cluster.h"
#include "tests/unit/temporary_directory.h"

/// Exchange auto: each round among the workers where they reach each other, else through the
/// server.
namespace centroid::test {
namespace {

using server::ServerConfig;
using ::testing::HasSubstr;

class AutoTest : public ::testing::Test {
 protected:
  static constexpr const char* kModel = "mlp:8-6000-4";  // 312 kB: worth it

  ServerConfig config(const std::string& exchange = "auto") {
    ServerConfig c;
    c.run_dir = directory_.path() / std::to_string(++runs_);
    c.leaving.when_finished = true;
    c.exchange = exchange;
    c.apply = exchange == "star" ? "worker" : "auto";
    c.reduce.algorithm = "chain";  // adds in the order of ranks, as the server does
    c.timeouts.lease = std::chrono::seconds(20);
    c.optimizer = {.name = "sgd", .learning_rate = 0.05};
    c.goal.rounds = 12;
    return c;
  }

  std::vector<WorkerSpec> workers(std::size_t n, const std::string& exchange = "auto") {
    std::vector<WorkerSpec> specs(n);
    for (std::size_t i = 0; i < n; ++i) {
      specs[i].name = "worker-" + std::to_string(i);
      specs[i].model = kModel;
      specs[i].exchange = exchange;
      specs[i].codec = codec_;
      specs[i].peers = transports_;
    }
    return specs;
  }

  struct Trained {
    std::vector<WorkerOutcome> outcomes;
    std::vector<std::string> exchanges;  // of the rounds
    std::string why;                     // at the end of the last
    std::uint64_t aborted = 0;
  };

  Trained train(ServerConfig c, std::vector<WorkerSpec> specs) {
    c.workers.min = specs.size();
    TestServer server(c, transports_);
    Trained trained;
    specs[0].after_round = [&](const auto&, auto) {
      const auto view = server.view();
      trained.exchanges.push_back(view.terms.exchange);
      trained.why = view.terms.exchange_why;
      trained.aborted = view.losses.aborted_attempts;
    };
    trained.outcomes = run_workers(specs, data_, server.endpoint(), transports_);
    const Status ended = server.join();
    EXPECT_TRUE(ended.ok()) << ended.error().to_string();
    for (const auto& outcome : trained.outcomes) {
      EXPECT_TRUE(outcome.status.ok()) << outcome.status.error().to_string();
      EXPECT_TRUE(same_bits(outcome.params, trained.outcomes[0].params));
    }
    EXPECT_EQ(trained.exchanges.size(), c.goal.rounds);
    return trained;
  }

  static bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }

  using Exchanges = std::vector<std::string>;
  const TestServer::TransportFactory transports_ = [](Executor executor) {
    transport::TransportOptions options;
    options.stall_timeout = std::chrono::hours(1);
    return transport::make_tcp(executor, options);
  };
  const worker::DataSplit data_ = make_blobs(100, 8, 4, 1);
  TemporaryDirectory directory_;
  std::string codec_ = "f32";
  int runs_ = 0;
};

TEST_F(AutoTest, WorkersThatReachEachOtherAddAmongThemselvesWithTheBitsOfStar) {
  for (const char* codec : {"f32", "topk:0.1"}) {
    SCOPED_TRACE(codec);
    codec_ = codec;
    ServerConfig c = config();
    if (codec_ != "f32") c.reduce.algorithm = "auto";
    const Trained ring = train(c, workers(3));
    EXPECT_EQ(ring.exchanges, Exchanges(12, "ring"));
    EXPECT_EQ(ring.aborted, 0U);
    EXPECT_TRUE(same_bits(ring.outcomes[0].params,
                          train(config("star"), workers(3, "star")).outcomes[0].params));
  }
}

TEST_F(AutoTest, AWorkerThatAcceptsNoConnectionsHasTheServerAdd) {
  auto specs = workers(3);
  specs[1].exchange = "star";
  const Trained star = train(config(), specs);
  EXPECT_EQ(star.exchanges, Exchanges(12, "star"));
  EXPECT_THAT(star.why, HasSubstr("'worker-1' accepts no connections"));
  EXPECT_TRUE(same_bits(star.outcomes[0].params,
                        train(config("star"), workers(3, "star")).outcomes[0].params));
}

TEST_F(AutoTest, AnAddressThatNobodyReachesHasTheServerAddFromTheFirstRoundOn) {
  auto specs = workers(3);
  specs[2].peer_endpoint = "127.0.0.1:1";
  const Trained star = train(config(), specs);
  EXPECT_EQ(star.exchanges, Exchanges(12, "star"));
  EXPECT_THAT(star.why, HasSubstr("worker 'worker-2' at 127.0.0.1:1"));
  EXPECT_EQ(star.aborted, 1U);
}

/// The server fetches the state when it is to add, and the workers add again when they can.
TEST_F(AutoTest, TheExchangeFollowsWhoIsThere) {
  for (const char* codec : {"f32", "topk:0.1"}) {
    SCOPED_TRACE(codec);
    codec_ = codec;
    ServerConfig c = config();
    c.goal.rounds = 0;
    c.goal.epochs = 1'000'000;
    c.workers.min = 2;
    TestServer server(c, transports_);
    auto specs = workers(3);
    specs[2].exchange = "star";
    std::vector<WorkerOutcome> outcomes(3);
    std::vector<std::thread> threads;
    const auto begin = [&](std::size_t i) {
      threads.emplace_back(
          [&, i] { outcomes[i] = run_worker(specs[i], data_, server.endpoint(), transports_); });
    };
    const auto goes_by = [&](const std::string& exchange) {
      std::uint64_t since = 0;
      return server.wait_until([&](const server::ClusterView& view) {
        if (view.terms.exchange != exchange) return false;
        if (since == 0) since = view.version;
        return view.version >= since + 5;
      });
    };
    begin(0), begin(1);
    EXPECT_TRUE(goes_by("ring"));
    begin(2);
    EXPECT_TRUE(goes_by("star"));
    std::uint64_t member = 0;
    for (const auto& worker : server.workers())
      if (worker.name == "worker-2") member = worker.member;
    EXPECT_TRUE(server.drain(member).ok());
    EXPECT_TRUE(goes_by("ring"));
    EXPECT_EQ(server.view().losses.skipped_rounds, 0U);
    server.stop();
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(server.join().ok());
    for (const auto& outcome : outcomes) EXPECT_TRUE(outcome.status.ok());
    EXPECT_TRUE(same_bits(outcomes[0].params, outcomes[1].params));
  }
}

TEST_F(AutoTest, SettingsThatNeedTheServerMakeItStarAndSayWhich) {
  const auto resolved = [this](const std::function<void(ServerConfig&)>& set) {
    ServerConfig c = config();
    c.reduce.algorithm = "auto";
    set(c);
    const Status done = server::finish(c);
    EXPECT_TRUE(done.ok()) << done.error().message();
    EXPECT_EQ(c.exchange, "star");
    return c.automatic.star_for;
  };
  using C = ServerConfig;
  EXPECT_EQ(resolved([](C& c) { c.policy = "asp"; }), "policy asp");
  EXPECT_EQ(resolved([](C& c) { c.journal.mode = "on"; }), "journal.mode on");
  EXPECT_EQ(resolved([](C& c) { c.aggregate = "median", c.workers.min = 3; }), "aggregate median");
  EXPECT_EQ(resolved([](C& c) { c.servers = 2; }), "servers 2");
  EXPECT_EQ(resolved([](C& c) { c.transfer.codec_down = "int8"; }), "codec_down int8");
  EXPECT_EQ(resolved([](C& c) { c.apply = "server"; }), "apply server");
  EXPECT_EQ(resolved([](C& c) {
              c.local.count = 10;
              c.optimizer = {};
            }),
            "local_steps 10");
  ServerConfig c = config();
  ASSERT_TRUE(server::finish(c).ok());
  c.policy = "asp";  // while it runs
  const Status later = server::finish(c);
  ASSERT_FALSE(later.ok());
  EXPECT_THAT(later.error().message(), HasSubstr("policy asp is for exchange star"));
}

}  // namespace
}  // namespace centroid::test
