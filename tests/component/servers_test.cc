#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <future>
#include <limits>
#include <map>
#include <mutex>
#include <random>

#include <boost/asio/post.hpp>
#include <boost/asio/use_future.hpp>
#include <gtest/gtest.h>

#include "tests/support/cluster.h"
#include "tests/support/custom_group.h"
#include "tests/support/test_shard.h"
#include "tests/support/trial_groups.h"

/// A model on several servers: a leader, shard servers and workers in one process, over TCP.
namespace centroid::test {
namespace {

using server::ServerConfig;

ServerConfig config(const std::string& name, std::uint64_t servers) {
  ServerConfig c;
  c.run_dir = testing::TempDir() + "/servers-" + name + "-" + std::to_string(servers);
  std::filesystem::remove_all(c.run_dir);
  c.workers.min = 3;
  c.goal.rounds = 12;
  c.leaving.when_finished = true;
  c.transfer.chunk_bytes = 256;  // many chunks even in a small model
  c.servers = servers;
  return c;
}

std::vector<WorkerSpec> three_workers(bool has_buffers = false) {
  std::vector<WorkerSpec> specs(3);
  const std::uint64_t batches[] = {8, 5, 11};
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (has_buffers) specs[i].model = "mlp:8-16-4,relu,norm=batch";
    specs[i].name = std::string(1, static_cast<char>('a' + i));
    specs[i].batch = batches[i];
  }
  return specs;
}

/// Train with so many servers; what every worker ends with.
std::vector<float> train(const ServerConfig& c, std::vector<WorkerSpec> specs = three_workers(),
                         const worker::DataSplit& data = make_blobs(200, 8, 4, 5),
                         std::uint64_t skipped = 0) {
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
    EXPECT_EQ(outcome.summary.skipped, skipped);
  }
  return outcomes.front().params;
}

/// Beside planes, copies and the process, 77 MiB, contributions of three shares of 9 MiB fit: five
/// as bf16, not four as float32.
TEST(Servers, MemoryIsReckonedForTheWorkersAndTheCodecThatThereAre) {
  ServerConfig c = config("room", 2);
  c.workers.min = 4;
  c.goal.rounds = 1;
  c.transfer.chunk_bytes = 1 << 20;
  const auto data = make_blobs(64, 8, 4, 5);
  std::vector<WorkerSpec> specs(4);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    specs[i].name = std::string(1, static_cast<char>('a' + i));
    specs[i].codec = "bf16";
    specs[i].model = "mlp:8-2040-2040-4";
  }
  TestServer leader(c, tcp);
  TestShard shard("s1", leader.endpoint(), "", std::uint64_t{108} << 20);
  const auto outcomes = run_workers(specs, data, leader.endpoint(), tcp);
  EXPECT_TRUE(leader.join().ok());
  EXPECT_TRUE(shard.join().ok());
  for (const auto& outcome : outcomes)
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.error().to_string();
}

/// More buffers than trained numbers, so that shard servers hold some: of chunks of one size the
/// first go to them.
const Manifest kMostlyBuffers{{"w", DType::kF32, {64}}, {"norm.running_mean", DType::kF32, {256}}};
constexpr std::size_t kTrained = 64, kBuffers = 256;

/// Its buffers would move a norm far.
class MostlyBuffers final : public CustomGroup {
 public:
  explicit MostlyBuffers(std::size_t worker) : CustomGroup(kTrained + kBuffers, 3.0F) {
    for (std::size_t i = 0; i < kTrained; ++i)
      gradients()[i] = 0.1F * std::sin(static_cast<float>(i + 100 * worker));
  }
  Result<worker::GroupStep> step(const worker::Dataset&, std::span<const std::uint64_t> samples,
                                 const std::function<void(TensorId)>& on_ready) override {
    for (const std::uint32_t tensor : {1, 0}) on_ready(TensorId(tensor));
    worker::GroupStep done;
    done.samples = samples.size();
    return done;
  }
};

std::vector<WorkerSpec> three_with_mostly_buffers() {
  auto specs = three_workers();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    auto custom = std::make_shared<CustomModel>();
    custom->manifest = kMostlyBuffers;
    custom->make_group = [i] { return std::make_unique<MostlyBuffers>(i); };
    custom->initialize = [](std::uint64_t, std::span<float> params) {
      std::ranges::fill(params, 0.5F);
    };
    specs[i].custom = custom;
  }
  return specs;
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
      {"scaled",
       [&](ServerConfig& c) {
         c.optimizer.name = "momentum";
         c.optimizer_scale_ratio = 0.5;
         both(c);
       }},
      {"worker-scaled",
       [](ServerConfig& c) {
         c.apply = "worker";
         c.optimizer_scale_ratio = 0.5;
       }},
  };
  for (const auto& [name, set] : cases) {
    SCOPED_TRACE(name);
    std::vector<float> alone, of_buffers_alone;
    for (const std::uint64_t servers : {1, 2, 3}) {
      SCOPED_TRACE(servers);
      ServerConfig c = config(name, servers);
      set(c);
      const auto params = train(c, three_workers(true));
      c.run_dir += "-buffers";
      std::filesystem::remove_all(c.run_dir);
      const auto of_buffers = train(c, three_with_mostly_buffers());
      if (servers == 1) {
        alone = params;
        of_buffers_alone = of_buffers;
      }
      EXPECT_EQ(params, alone);
      EXPECT_EQ(of_buffers, of_buffers_alone);
    }
  }
}

/// All servers try the workers' step, with the rate of the workers that have samples.
TEST(Servers, AStepIsTriedWithTheRateOfItsRound) {
  int number = 0;
  for (const TrialRates& one : trial_rates()) {
    SCOPED_TRACE(++number);
    for (const std::uint64_t servers : {1, 2, 3}) {
      SCOPED_TRACE(servers);
      ServerConfig c = config("trial-" + std::to_string(number), servers);
      c.workers.min = 2;
      c.apply = "worker";
      c.optimizer = {.name = "sgd", .learning_rate = kTrialRate};
      c.optimizer_scale_ratio = one.ratio;
      c.nonfinite = "skip";
      c.goal = {.epochs = 1};
      const auto specs = trial_workers_by_samples(one.full, one.last);
      for (const float x : train(c, specs, trial_data(), one.skipped))
        ASSERT_FLOAT_EQ(x, one.parameter);
    }
  }
}

TEST(Servers, RoundsBehindAStepThatWasOnlyTriedHaveTheBitsOfOneServer) {
  for (const double clip : {0.0, 1e30}) {
    SCOPED_TRACE(clip);
    std::vector<float> alone;
    for (const std::uint64_t servers : {1, 2, 3}) {
      SCOPED_TRACE(servers);
      ServerConfig c = config(clip > 0 ? "behind-clip" : "behind", servers);
      c.workers.min = 2;
      c.apply = "worker";
      c.optimizer = {.name = "adam", .learning_rate = 0.1, .clip_norm = clip};
      c.nonfinite = "skip";
      const auto params = train(c, trial_workers_once_huge(5), trial_data(), 1);
      if (servers == 1) alone = params;
      EXPECT_EQ(params, alone);
    }
  }
}

/// Results through a codec, with and without a memory of what it left out; norms of what workers
/// decode.
TEST(Servers, CompressedResultsGiveTheBitsOfOneServer) {
  struct Case {
    std::string codec, optimizer = "momentum";
    double clip = 0;
    std::uint64_t local_steps = 1, fragments = 1;
  };
  const std::vector<Case> cases{
      {.codec = "bf16"},
      {.codec = "int8:rounding=stochastic"},
      {.codec = "int8:feedback=on", .clip = 0.05},
      {.codec = "topk:0.1", .optimizer = "sgd"},
      {.codec = "topk:0.1,warmup=5", .clip = 0.05},
      {.codec = "topk:0.2,values=int8,generation=reset"},
      {.codec = "topk:0.2,warmup=6", .local_steps = 4, .fragments = 2},
  };
  int number = 0;
  for (const Case& one : cases) {
    SCOPED_TRACE(one.codec);
    ++number;
    std::vector<float> alone;
    for (const std::uint64_t servers : {1, 2, 3}) {
      SCOPED_TRACE(servers);
      ServerConfig c = config(std::string("down-").append(std::to_string(number)), servers);
      c.transfer.codec_down = one.codec;
      if (one.local_steps == 1) c.optimizer.name = one.optimizer;
      c.optimizer.clip_norm = one.clip;
      c.local.count = one.local_steps;
      c.local.fragments = one.fragments;
      const auto params = train(c, three_workers(true));
      if (servers == 1) alone = params;
      EXPECT_EQ(params, alone);
    }
  }
}

TEST(Servers, ASelectionAmongAllTensorsNeedsOneServer) {
  ServerConfig c = config("global", 2);
  c.transfer.codec_down = "topk:0.1,scope=global";
  const Status refused = server::finish(c);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message().find("scope=global"), std::string::npos);
  c.transfer.codec_down = "topk:0.1";
  EXPECT_TRUE(server::finish(c).ok());
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
      c.workers.min = one.workers;
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
      c.goal.rounds = 60;
      c.optimizer.name = "momentum";
      auto specs = three_workers();
      specs[2].batch = 64;
      for (const float x : train(c, specs)) ASSERT_TRUE(std::isfinite(x));
    }
  }
}

TEST(Servers, FragmentsOverlapAndCodecsGiveTheBitsOfOneServer) {
  for (const std::uint64_t overlap : {0, 1}) {
    SCOPED_TRACE(overlap);
    std::vector<float> alone;
    for (const std::uint64_t servers : {1, 3}) {
      ServerConfig c = config("fragments", servers);
      c.local.count = 4;
      c.local.fragments = 2;
      c.local.overlap = overlap;
      auto specs = three_workers();
      for (WorkerSpec& spec : specs) spec.codec = "int8";
      const auto params = train(c, specs);
      if (servers == 1) alone = params;
      EXPECT_EQ(params, alone);
    }
  }
}

/// Shares by the speeds that are given, which time does not change; then by measured ones.
TEST(Servers, CadencesGiveTheBitsOfOneServer) {
  std::vector<float> alone;
  for (const std::uint64_t servers : {1, 2, 3}) {
    SCOPED_TRACE(servers);
    ServerConfig c = config("cadence", servers);
    c.cadence.mode = "speed";
    c.cadence.ratios = "3,1,2";
    c.local.count = 6;
    const auto params = train(c);
    if (servers == 1) alone = params;
    EXPECT_EQ(params, alone);
  }
  ServerConfig c = config("cadence-tuned", 3);
  c.cadence.mode = "tuned";
  c.local.count = 4;
  c.goal.rounds = 40;
  auto specs = three_workers();
  specs[1].slowdown = 4;
  for (const float x : train(c, specs)) ASSERT_TRUE(std::isfinite(x));
}

/// The first worker stops behind a round, so that the job cannot end before a test has come to it.
class Gate {
 public:
  void hold_behind(std::uint64_t round) {
    const std::scoped_lock lock(mutex_);
    last_ = round;
    moved_.notify_all();
  }
  void open() { hold_behind(std::numeric_limits<std::uint64_t>::max()); }
  void pass(std::uint64_t round) {
    std::unique_lock lock(mutex_);
    moved_.wait_for(lock, std::chrono::seconds(120), [&] { return round <= last_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable moved_;
  std::uint64_t last_ = std::numeric_limits<std::uint64_t>::max();
};

/// What happens to the servers while `c` is trained with the journals on; what every worker ends
/// with.
std::vector<float> train_disturbed(
    const ServerConfig& c,
    const std::function<void(TestServer&, std::map<std::string, std::unique_ptr<TestShard>>&,
                             const std::function<std::unique_ptr<TestShard>(std::string)>&)>&
        disturb,
    const std::vector<WorkerSpec>& specs = three_workers(), Gate* gate = nullptr) {
  const auto data = make_blobs(200, 8, 4, 5);
  TestServer leader(c, tcp);
  const std::function<std::unique_ptr<TestShard>(std::string)> start = [&](std::string name) {
    return std::make_unique<TestShard>(name, leader.endpoint(), c.run_dir + "/journal-" + name);
  };
  std::map<std::string, std::unique_ptr<TestShard>> shards;
  for (std::uint64_t i = 1; i < c.servers; ++i) {
    const std::string name = std::string("s").append(std::to_string(i));
    shards[name] = start(name);
  }
  worker::RoundObserver first;
  if (gate)
    first = [gate](const worker::Share& share, const auto&...) { gate->pass(share.round.value); };
  auto training = std::async(
      std::launch::async, [&] { return run_workers(specs, data, leader.endpoint(), tcp, first); });
  disturb(leader, shards, start);
  if (gate) gate->open();
  const auto outcomes = training.get();
  EXPECT_TRUE(leader.join().ok());
  for (const auto& [name, shard] : shards) {
    EXPECT_TRUE(shard && shard->join().ok()) << name;
  }
  for (const WorkerOutcome& outcome : outcomes) {
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.error().to_string();
    EXPECT_EQ(outcome.params, outcomes.front().params);
  }
  const double committed =
      leader.registry()
          .counter("centroid_server_rounds_total", "", {{"outcome", "committed"}})
          .value();
  EXPECT_EQ(committed, static_cast<double>(c.goal.rounds)) << "rounds that were made twice";
  return outcomes.front().params;
}

/// A server that is lost costs no committed round where there is a journal: what it had comes from
/// its journal again, with the same bits.
TEST(Servers, JournalsBringBackWhatALostServerHad) {
  const std::vector<std::pair<std::string, std::function<void(ServerConfig&)>>> cases{
      {"parameters", [](ServerConfig& c) { c.optimizer.name = "sgd"; }},
      {"sums", [](ServerConfig& c) { c.optimizer.name = "adam"; }},
      {"scaled",
       [](ServerConfig& c) {
         c.optimizer.name = "sgd";
         c.optimizer_scale_ratio = 0.5;
       }},
      {"clipped",
       [](ServerConfig& c) {
         c.optimizer.name = "momentum";
         c.optimizer.clip_norm = 0.05;
       }},
      {"means",
       [](ServerConfig& c) {
         c.optimizer.name = "momentum";
         c.apply = "worker";
       }},
      {"compressed",
       [](ServerConfig& c) {
         c.optimizer.name = "momentum";
         c.optimizer.clip_norm = 0.05;
         c.transfer.codec_down = "topk:0.2,warmup=30";
       }},
      {"steps",
       [](ServerConfig& c) {
         c.local.count = 4;
         c.policy = "quorum:3";
       }},
  };
  for (const auto& [name, set] : cases) {
    SCOPED_TRACE(name);
    ServerConfig alone = config(std::string("journal-alone-").append(name), 1);
    alone.goal.rounds = 60;
    set(alone);
    auto specs = three_workers(true);
    for (WorkerSpec& spec : specs) {  // a rate that goes by the local steps of all workers so far
      spec.schedules_by_cluster = alone.local.count > 1;
      if (alone.local.count > 1) spec.inner.schedule = "linear:rounds=700,floor=0.1";
    }
    const auto expected = train(alone, specs);
    ServerConfig c = config(std::string("journal-").append(name), 3);
    c.goal.rounds = 60;
    c.journal.mode = "on";
    c.checkpoint.every_rounds = 25;
    set(c);
    Gate gate;
    gate.hold_behind(11);
    const auto disturb = [&gate](TestServer& leader, auto& shards, const auto& start) {
      const auto& lost = leader.registry().counter("centroid_server_state_lost_total", "");
      double losses = 0;
      for (const std::uint64_t round : {10, 40}) {
        ASSERT_TRUE(leader.wait_until([&](const auto& view) { return view.round > round; }));
        shards["s2"].reset();
        ++losses;
        ASSERT_TRUE(leader.wait_until([&](const auto&) { return lost.value() == losses; }))
            << "the server gave its chunks away";
        shards["s2"] = start("s2");
        gate.hold_behind(41);
      }
    };
    const auto params = train_disturbed(c, disturb, specs, &gate);
    EXPECT_EQ(params, expected);
  }
}

/// The state at the goal is on all servers, and the last checkpoint reads it there.
TEST(Servers, OneThatIsLostAtTheGoalDoesNotCostTheLastCheckpoint) {
  const auto whole = train(config("goal-whole", 3));
  ServerConfig c = config("goal", 3);
  c.journal.mode = "on";
  Gate gate;
  gate.hold_behind(c.goal.rounds - 2);
  const auto params = train_disturbed(
      c,
      [&](TestServer& leader, auto& shards, const auto& start) {
        EXPECT_TRUE(leader.wait_until(
            [&](const server::ClusterView& view) { return view.version == c.goal.rounds; }));
        auto disk = leader.hold_disk();
        gate.open();
        EXPECT_TRUE(leader.wait_for_wait(
            "disk", "version " + std::to_string(c.goal.rounds + 1) + ", which is written"));
        EXPECT_TRUE(shards.at("s1")->stop().ok());
        disk.reset();
        shards["s1"] = start("s1");
      },
      three_workers(), &gate);
  EXPECT_EQ(params, whole);
}

/// Servers come and go at random while rounds go on: no chunk is lost or doubled, all bits are
/// those of one server.
TEST(Servers, ChunksMoveWhileRoundsGoOn) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(std::string("seed ").append(std::to_string(seed)));
  std::mt19937_64 random(seed);
  const std::vector<std::pair<std::string, std::string>> cases{
      // optimizer, codec_down
      {"sgd", "f32"},
      {"momentum", "f32"},
      {"adam", "topk:0.3,values=int8,warmup=100"}};
  for (const auto& [optimizer, codec] : cases) {
    SCOPED_TRACE(optimizer);
    ServerConfig alone = config(std::string("moves-alone-").append(optimizer), 1);
    alone.goal.rounds = 400;
    alone.optimizer.name = optimizer;
    alone.transfer.codec_down = codec;
    const auto expected = train(alone);
    ServerConfig c = config(std::string("moves-").append(optimizer), 2);
    c.goal.rounds = 400;
    c.optimizer.name = optimizer;
    c.transfer.codec_down = codec;
    int last = 1, moves = 0;
    std::vector<std::unique_ptr<TestShard>> drained;
    const auto params =
        train_disturbed(c, [&](TestServer& leader, auto& shards, const auto& start) {
          while (leader.view().round < 350 && moves < 12) {
            if (shards.size() < 4 && (shards.size() < 2 || random() % 2 == 0)) {
              const std::string name = std::string("s").append(std::to_string(++last));
              shards[name] = start(name);
            } else {
              const auto goes =
                  std::next(shards.begin(), static_cast<long>(random() % shards.size()));
              if (!leader.drain_server(goes->first).ok()) continue;  // it has not joined yet
              drained.push_back(std::move(goes->second));
              shards.erase(goes);
            }
            ++moves;
            const std::uint64_t round = leader.view().round + 1 + random() % 12;
            ASSERT_TRUE(leader.wait_until([&](const auto& view) {
              return view.round >= std::min<std::uint64_t>(round, 400);
            }));
            std::uint64_t chunks = 0;
            for (const auto& server : leader.servers()) chunks += server.chunks;
            EXPECT_EQ(chunks, leader.view().model.chunks) << "chunks that lie nowhere, or twice";
          }
        });
    EXPECT_GT(moves, 3);
    for (const auto& shard : drained) EXPECT_TRUE(shard->join().ok());
    EXPECT_EQ(params, expected);
  }
}

}  // namespace
}  // namespace centroid::test
