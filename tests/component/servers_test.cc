#include <cmath>
#include <future>

#include <boost/asio/post.hpp>
#include <boost/asio/use_future.hpp>
#include <gtest/gtest.h>

#include "server/shard/shard.h"
#include "tests/support/cluster.h"

/// A model on several servers: a leader, shard servers and workers in one process, over TCP.
namespace centroid::test {
namespace {

using server::ServerConfig;

std::unique_ptr<transport::Transport> tcp(Executor executor) {
  return transport::make_tcp(executor);
}

/// A shard server on a thread of its own.
class TestShard {
 public:
  TestShard(std::string name, transport::Endpoint leader) {
    transport_ = tcp(io_.executor());
    listener_ = transport_->listen(transport::Endpoint{}).value();
    server::ShardOptions options;
    options.name = std::move(name);
    options.leader = std::move(leader);
    options.advertise = listener_->endpoint().to_string();
    options.join_timeout = std::chrono::seconds(20);
    shard_ = std::make_unique<server::Shard>(io_.executor(), *transport_, options, clock_);
    running_ = boost::asio::co_spawn(io_.context(), run(shard_.get(), listener_.get()),
                                     boost::asio::use_future);
  }
  ~TestShard() {
    if (running_.valid()) (void)stop();
  }
  Status join() { return *running_.get(); }
  Status stop() {
    boost::asio::post(io_.executor(), [this] { shard_->request_stop("the test stops it"); });
    return join();
  }

 private:
  static Task<std::optional<Status>> run(server::Shard* shard, transport::Listener* listener) {
    co_return co_await shard->run(*listener);
  }
  SystemClock clock_;
  IoThread io_{"test-shard"};
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<transport::Listener> listener_;
  std::unique_ptr<server::Shard> shard_;
  std::future<std::optional<Status>> running_;
};

ServerConfig config(const std::string& name, std::uint64_t servers) {
  ServerConfig c;
  c.run_dir = testing::TempDir() + "/servers-" + name + "-" + std::to_string(servers);
  std::filesystem::remove_all(c.run_dir);
  c.min_workers = 3;
  c.rounds = 12;
  c.exit_when_finished = true;
  c.chunk_bytes = 256;  // many chunks even in a small model
  c.servers = servers;
  return c;
}

std::vector<WorkerSpec> three_workers() {
  std::vector<WorkerSpec> specs(3);
  const std::uint64_t batches[] = {8, 5, 11};
  for (std::size_t i = 0; i < specs.size(); ++i) {
    specs[i].name = std::string(1, static_cast<char>('a' + i));
    specs[i].batch = batches[i];
  }
  return specs;
}

/// Train with so many servers; what every worker ends with.
std::vector<float> train(const ServerConfig& c, std::vector<WorkerSpec> specs = three_workers()) {
  const auto data = make_blobs(200, 8, 4, 5);
  TestServer leader(c, tcp);
  std::vector<std::unique_ptr<TestShard>> shards;
  for (std::uint64_t i = 1; i < c.servers; ++i)
    shards.push_back(
        std::make_unique<TestShard>(std::string("s").append(std::to_string(i)), leader.endpoint()));
  const auto outcomes = run_workers(specs, data, leader.endpoint(), tcp);
  EXPECT_TRUE(leader.join().ok());
  for (const auto& shard : shards) EXPECT_TRUE(shard->join().ok());
  for (const WorkerOutcome& outcome : outcomes) {
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.error().to_string();
    EXPECT_EQ(outcome.params, outcomes.front().params);
    EXPECT_EQ(outcome.summary.lost, 0u);
  }
  return outcomes.front().params;
}

TEST(Servers, AnyNumberOfThemGivesTheSameBits) {
  const auto both = [](ServerConfig& c) { c.optimizer.clip_norm = 0.05; };
  const std::vector<std::pair<std::string, std::function<void(ServerConfig&)>>> cases{
      {"sgd", [](ServerConfig& c) { c.optimizer.name = "sgd"; }},
      {"momentum", [](ServerConfig& c) { c.optimizer.name = "momentum"; }},
      {"adam", [](ServerConfig& c) { c.optimizer.name = "adam"; }},
      {"clip", both},
      {"adam-clip",
       [&](ServerConfig& c) {
         c.optimizer.name = "adam";
         both(c);
       }},
      {"worker",
       [](ServerConfig& c) {
         c.optimizer.name = "momentum";
         c.apply = "worker";
       }},
      {"worker-clip",
       [&](ServerConfig& c) {
         c.optimizer.name = "momentum";
         c.apply = "worker";
         both(c);
       }},
  };
  for (const auto& [name, set] : cases) {
    SCOPED_TRACE(name);
    std::vector<float> alone;
    for (const std::uint64_t servers : {1, 2, 3}) {
      SCOPED_TRACE(servers);
      ServerConfig c = config(name, servers);
      set(c);
      const auto params = train(c);
      if (servers == 1) alone = params;
      EXPECT_EQ(params, alone);
    }
  }
}

/// Policies that close rounds without some workers, where what happens does not depend on time.
TEST(Servers, PoliciesGiveTheBitsOfOneServer) {
  struct Case {
    std::string policy;
    std::size_t workers;
  };
  for (const Case& one : {Case{"quorum:3", 3}, Case{"asp", 1}, Case{"ssp:1", 1}}) {
    SCOPED_TRACE(one.policy);
    std::vector<float> alone;
    for (const std::uint64_t servers : {1, 3}) {
      SCOPED_TRACE(servers);
      ServerConfig c = config(one.policy.substr(0, 3), servers);
      c.policy = one.policy;
      c.optimizer.name = "adam";
      c.min_workers = one.workers;
      auto specs = three_workers();
      specs.resize(one.workers);
      const auto params = train(c, specs);
      if (servers == 1) alone = params;
      EXPECT_EQ(params, alone);
    }
  }
}

/// And where it does: everybody ends with the same parameters, and none of them is left behind.
TEST(Servers, WorkersOfUnequalSpeedEndAlike) {
  for (const std::string policy : {"asp", "ssp:2", "backup:1", "quorum:2"}) {
    for (const std::string late : {"drop", "carry:max=4"}) {
      if (late != "drop" && policy.substr(0, 3) != "bac" && policy.substr(0, 3) != "quo") continue;
      SCOPED_TRACE(policy + " " + late);
      ServerConfig c = config(policy.substr(0, 3) + "-speed", 3);
      c.policy = policy;
      c.late = late;
      c.rounds = 60;
      c.optimizer.name = "momentum";
      auto specs = three_workers();
      specs[2].batch = 64;
      for (const float x : train(c, specs)) ASSERT_TRUE(std::isfinite(x));
    }
  }
}

TEST(Servers, FragmentsAndCodecsGiveTheBitsOfOneServer) {
  std::vector<float> alone;
  for (const std::uint64_t servers : {1, 3}) {
    ServerConfig c = config("fragments", servers);
    c.local_steps = 4;
    c.fragments = 2;
    auto specs = three_workers();
    for (WorkerSpec& spec : specs) spec.codec = "int8";
    const auto params = train(c, specs);
    if (servers == 1) alone = params;
    EXPECT_EQ(params, alone);
  }
}

}  // namespace
}  // namespace centroid::test
