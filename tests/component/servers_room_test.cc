#include <algorithm>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/cluster.h"
#include "tests/support/test_shard.h"
#include "tests/unit/temporary_directory.h"

/// The memory of shard servers: who is refused when more workers come than it was reckoned with.
namespace centroid::test {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kChunk = 64u << 10;
/// What a model of 269,572 parameters takes of one of so many servers: its share and a chunk.
constexpr std::uint64_t share(std::uint64_t servers) {
  return 269'572 * sizeof(float) / servers + kChunk;
}
/// Two planes, two copied, results; a contribution of each of three workers; the process.
constexpr std::uint64_t room_for_three(std::uint64_t servers) {
  return (32u << 20) + (2 + 2 + 1 + 3) * share(servers) + (1u << 17);
}
constexpr std::uint64_t kForThree = room_for_three(2);
/// Of three servers: a half has no room, not with two workers either.
constexpr std::uint64_t kThird = room_for_three(3);
static_assert(kThird < (32u << 20) + (2 + 2 + 1 + 2) * share(2));

class ServersRoom : public testing::Test {
 protected:
  server::ServerConfig config() {
    server::ServerConfig c;
    c.run_dir = directory_.path();
    c.servers = 2;
    c.workers.min = 2;
    c.transfer.chunk_bytes = kChunk;
    c.goal.rounds = 0;
    return c;
  }
  WorkerSpec spec(int number) {
    WorkerSpec out;
    out.name = "w" + std::to_string(number);
    out.model = "mlp:8-256-1024-4";
    return out;
  }
  std::future<WorkerOutcome> join(const TestServer& leader, const WorkerSpec& worker) {
    return std::async(std::launch::async, [this, worker, at = leader.endpoint()] {
      return run_worker(worker, data_, at, tcp);
    });
  }
  static bool trains_with(TestServer& leader, std::size_t workers) {
    return leader.wait_until([&](const auto& view) {
      return view.world == workers && leader.present() == workers && view.version > 0;
    });
  }
  static server::ServerView server(TestServer& leader, const std::string& name) {
    for (const auto& one : leader.servers())
      if (one.name == name) return one;
    return {};
  }
  static bool serve(TestServer& leader, std::size_t servers) {
    return leader.wait_until([&](const auto&) {
      const auto all = leader.servers();
      return all.size() == servers && std::ranges::all_of(all, [](const auto& one) {
               return one.chunks > 0 && one.moves == 0 && one.state != "draining";
             });
    });
  }
  static bool goes_on(TestServer& leader) {
    const auto before = leader.view().version;
    return leader.wait_until([&](const auto& view) { return view.version > before + 1; });
  }
  static double lost(TestServer& leader) {
    return leader.registry().counter("centroid_server_state_lost_total", "").value();
  }
  static double handshakes_refused(TestServer& leader) {
    return leader.registry().counter("centroid_server_handshakes_refused_total", "").value();
  }
  /// What a server says that has no memory for its share of so many.
  static auto says_too_large(const std::string& name, int servers, std::uint64_t limit) {
    return testing::AllOf(HasSubstr("server '" + name + "', with its share of a model on " +
                                    std::to_string(servers) + " servers"),
                          HasSubstr("parameters and needs "),
                          HasSubstr("memory_limit allows " + std::to_string(limit)));
  }
  /// Two with which servers are given the model, and reckon with one more; then that one.
  void join_three(TestServer& leader) {
    for (int number = 0; number < 2; ++number) workers_.push_back(join(leader, spec(number)));
    EXPECT_TRUE(trains_with(leader, 2));
    workers_.push_back(join(leader, spec(2)));
    EXPECT_TRUE(trains_with(leader, 3));
  }
  /// One worker more is refused by its name and the server's, and nobody else notices.
  void expect_refused(TestServer& leader, WorkerSpec worker, const char* workers) {
    const auto before = leader.view();
    worker.join_timeout = std::chrono::seconds(3);
    workers_.push_back(join(leader, worker));
    ASSERT_EQ(workers_.back().wait_for(std::chrono::seconds(60)), std::future_status::ready)
        << "it trains";
    const Status refused = workers_.back().get().status;
    workers_.pop_back();
    ASSERT_FALSE(refused.ok());
    const std::string why = refused.error().to_string();
    EXPECT_THAT(why, HasSubstr("worker '" + worker.name + "' is refused"));
    EXPECT_THAT(why,
                HasSubstr(std::string("no memory for contributions of ") + workers + " workers"));
    EXPECT_THAT(why, says_too_large("s1", 2, kForThree));
    EXPECT_TRUE(leader.wait_until([&](const auto& view) { return view.version > before.version; }));
    EXPECT_EQ(leader.view().generation, before.generation) << "it was a member";
  }

  void leave() {
    for (auto& worker : workers_) (void)worker.get();
    workers_.clear();
  }

  TemporaryDirectory directory_;
  const worker::DataSplit data_ = make_blobs(256, 8, 4, 1);
  /// They end when the leader has, also where a test ends early.
  std::vector<std::future<WorkerOutcome>> workers_;
};

TEST_F(ServersRoom, AWorkerBeyondThoseThatAShardServerHasMemoryForIsRefused) {
  TestServer leader(config(), tcp);
  TestShard shard("s1", leader.endpoint(), "", kForThree);
  join_three(leader);
  expect_refused(leader, spec(3), "4");
  WorkerSpec small = spec(4);  // it brings less, and is reckoned as those that bring most
  small.codec = "bf16";
  expect_refused(leader, small, "4");
  for (const auto& worker : leader.workers())
    if (worker.name == "w2") {
      EXPECT_TRUE(leader.drain(worker.member).ok());
    }
  EXPECT_TRUE(workers_[2].get().status.ok());
  ASSERT_TRUE(trains_with(leader, 2));
  workers_[2] = join(leader, spec(3));
  EXPECT_TRUE(trains_with(leader, 3)) << "there is room again";
  leader.stop();
  EXPECT_TRUE(leader.join().ok());
  leave();
  EXPECT_TRUE(shard.join().ok());
}

TEST_F(ServersRoom, SoIsOneBeyondThemWhenAJobGoesOnWithMoreWorkersThanItHad) {
  server::ServerConfig c = config();
  c.goal.rounds = 4;
  c.leaving.when_finished = true;
  for (const bool resumes : {false, true}) {
    SCOPED_TRACE(resumes);
    c.resume = resumes;
    if (resumes) c.goal.rounds = 0, c.leaving.when_finished = false;
    TestServer leader(c, tcp);
    TestShard shard("s1", leader.endpoint(), "", kForThree);
    if (resumes) join_three(leader);
    for (int number = 0; !resumes && number < 2; ++number)
      workers_.push_back(join(leader, spec(number)));
    if (resumes) {
      EXPECT_GT(leader.view().version, 3U);
      expect_refused(leader, spec(3), "4");
      leader.stop();
    }
    EXPECT_TRUE(leader.join().ok());
    leave();
    EXPECT_TRUE(shard.join().ok());
  }
}

/// Where nobody says how many there will be, memory is reckoned with eight.
TEST_F(ServersRoom, AServerThatHasNoMemoryForWorkersThatAreThereLeaves) {
  server::ServerConfig c = config();
  c.workers.min = 1;
  TestServer leader(c, tcp);
  TestShard shard("s1", leader.endpoint(), "", kForThree);
  auto worker = join(leader, spec(0));
  const Status left = shard.join();
  ASSERT_FALSE(left.ok());
  EXPECT_THAT(left.error().to_string(), HasSubstr("server 's1', with its share"));
  leader.stop();
  (void)leader.join();
  (void)worker.get();
}

TEST_F(ServersRoom, WhoAsksIsToldWhenAServerDoesNotSayWhetherItHasMemory) {
  server::ServerConfig c = config();
  c.servers = 3;
  c.timeouts.lease = std::chrono::seconds(60);
  TestServer leader(c, tcp);
  TestShard first("s1", leader.endpoint()), second("s2", leader.endpoint());
  join_three(leader);
  ASSERT_TRUE(serve(leader, 3));
  auto held = first.hold();
  workers_.push_back(join(leader, spec(3)));
  const Status refused = leader.drain_server("s2");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(refused.error().to_string(),
              HasSubstr("server 's2' is not drained, nothing has moved: whether there is memory "
                        "for its chunks elsewhere is not known: server 's1'"));
  EXPECT_TRUE(leader.wait_until([&](const auto&) { return handshakes_refused(leader) > 0; }));
  EXPECT_EQ(leader.present(), 3U);
  EXPECT_EQ(server(leader, "s2").state, "serving");
  held.reset();
  EXPECT_TRUE(trains_with(leader, 4)) << "it asks again";
  EXPECT_EQ(lost(leader), 0);
  leader.stop();
  EXPECT_TRUE(leader.join().ok());
  leave();
  EXPECT_TRUE(first.join().ok());
  EXPECT_TRUE(second.join().ok());
}

TEST_F(ServersRoom, AServerThatIsLostWhileItIsAskedHoldsUpNoWorker) {
  server::ServerConfig c = config();
  c.timeouts.lease = std::chrono::seconds(1);
  c.timeouts.servers = std::chrono::milliseconds(1);
  TestServer leader(c, tcp);
  TestShard shard("s1", leader.endpoint());
  join_three(leader);
  auto held = shard.hold();
  workers_.push_back(join(leader, spec(3)));
  EXPECT_TRUE(leader.wait_until([&](const auto&) { return lost(leader) == 1; }));
  EXPECT_TRUE(trains_with(leader, 4)) << "the leader has all chunks";
  held.reset();
  leader.stop();
  EXPECT_TRUE(leader.join().ok());
  leave();
  (void)shard.stop();
}

TEST_F(ServersRoom, AServerIsNotDrainedWhereTheOthersHaveNoMemoryForItsChunks) {
  server::ServerConfig c = config();
  c.servers = 3;
  TestServer leader(c, tcp);
  TestShard first("s1", leader.endpoint(), "", kThird);
  TestShard second("s2", leader.endpoint());
  for (int number = 0; number < 2; ++number) workers_.push_back(join(leader, spec(number)));
  ASSERT_TRUE(trains_with(leader, 2));
  ASSERT_TRUE(serve(leader, 3));
  const auto before = server(leader, "s1");
  const Status refused = leader.drain_server("s2");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(refused.error().to_string(),
              HasSubstr("server 's2' is not drained, nothing has moved: there is no memory for its "
                        "chunks elsewhere"));
  EXPECT_THAT(refused.error().to_string(), says_too_large("s1", 2, kThird));
  EXPECT_TRUE(goes_on(leader));
  EXPECT_TRUE(serve(leader, 3));
  EXPECT_EQ(server(leader, "s1").bytes, before.bytes);
  // Its share stays what it was reckoned with: a third worker has room.
  workers_.push_back(join(leader, spec(2)));
  EXPECT_TRUE(trains_with(leader, 3));
  TestShard third("s3", leader.endpoint());  // who has memory for what the second has
  EXPECT_TRUE(serve(leader, 4));
  EXPECT_TRUE(leader.drain_server("s2").ok());
  EXPECT_TRUE(second.join().ok());
  ASSERT_TRUE(serve(leader, 3));
  EXPECT_TRUE(leader.drain_server("s1").ok()) << "the other one has no limit";
  EXPECT_TRUE(first.join().ok());
  EXPECT_TRUE(serve(leader, 2));
  EXPECT_EQ(lost(leader), 0);
  leader.stop();
  EXPECT_TRUE(leader.join().ok());
  leave();
  EXPECT_TRUE(third.join().ok());
}

TEST_F(ServersRoom, AServerThatStopsWaitsForOneThatHasMemoryForItsChunks) {
  server::ServerConfig c = config();
  c.servers = 3;
  TestServer leader(c, tcp);
  TestShard first("s1", leader.endpoint(), "", kThird);
  TestShard second("s2", leader.endpoint());
  for (int number = 0; number < 2; ++number) workers_.push_back(join(leader, spec(number)));
  ASSERT_TRUE(trains_with(leader, 2));
  ASSERT_TRUE(serve(leader, 3));
  auto stopped = std::async(std::launch::async, [&] { return second.stop(); });
  EXPECT_TRUE(leader.wait_for_wait("servers", "server 's2' is not drained, nothing has moved"));
  EXPECT_EQ(server(leader, "s2").state, "serving");
  EXPECT_TRUE(goes_on(leader));
  TestShard third("s3", leader.endpoint());
  EXPECT_TRUE(stopped.get().ok());
  EXPECT_TRUE(serve(leader, 3));
  EXPECT_EQ(lost(leader), 0);
  leader.stop();
  EXPECT_TRUE(leader.join().ok());
  leave();
  EXPECT_TRUE(first.join().ok());
  EXPECT_TRUE(third.join().ok());
}

TEST_F(ServersRoom, OneThatCannotTakeMoreLeavesBeforeTheFirstChunkMoves) {
  server::ServerConfig c = config();
  c.servers = 3;
  TestServer leader(c, tcp);
  TestShard first("s1", leader.endpoint(), "", kThird);  // for which there would be room
  TestShard second("s2", leader.endpoint(), "", 33u << 20);
  for (int number = 0; number < 2; ++number) workers_.push_back(join(leader, spec(number)));
  const Status small = second.join(), larger = first.join();
  ASSERT_FALSE(small.ok());
  EXPECT_THAT(small.error().to_string(), says_too_large("s2", 3, 33u << 20));
  ASSERT_FALSE(larger.ok());
  EXPECT_THAT(larger.error().to_string(), says_too_large("s1", 2, kThird));
  EXPECT_TRUE(trains_with(leader, 2)) << "the leader has all chunks";
  EXPECT_EQ(lost(leader), 0);
  leader.stop();
  EXPECT_TRUE(leader.join().ok());
  leave();
}

TEST_F(ServersRoom, ALostServersShareIsNotPutOnOneWithoutMemoryForIt) {
  server::ServerConfig c = config();
  c.servers = 3;
  c.timeouts.servers = std::chrono::milliseconds(1);
  TestServer leader(c, tcp);
  TestShard first("s1", leader.endpoint(), "", kThird);
  const auto now = [](server::ShardOptions& options) { options.drain_timeout = {}; };
  TestShard second("s2", leader.endpoint(), "", 0, false, now);
  for (int number = 0; number < 2; ++number) workers_.push_back(join(leader, spec(number)));
  ASSERT_TRUE(trains_with(leader, 2));
  ASSERT_TRUE(serve(leader, 3));
  (void)second.stop();
  const Status left = first.join();
  ASSERT_FALSE(left.ok());
  EXPECT_THAT(left.error().to_string(), says_too_large("s1", 2, kThird));
  EXPECT_TRUE(trains_with(leader, 2));
  EXPECT_TRUE(serve(leader, 1));
  leader.stop();
  EXPECT_TRUE(leader.join().ok());
  leave();
}

TEST_F(ServersRoom, ACheckpointOfMoreServersIsNotLoadedWhereAShareHasNoRoom) {
  server::ServerConfig c = config();
  c.servers = 3;
  c.goal.rounds = 4;
  c.leaving.when_finished = true;
  {
    TestServer leader(c, tcp);
    TestShard first("s1", leader.endpoint(), "", kThird);
    TestShard second("s2", leader.endpoint(), "", kThird);
    for (int number = 0; number < 2; ++number) workers_.push_back(join(leader, spec(number)));
    EXPECT_TRUE(leader.join().ok());
    for (auto& worker : workers_) EXPECT_TRUE(worker.get().status.ok());
    workers_.clear();
    EXPECT_TRUE(first.join().ok());
    EXPECT_TRUE(second.join().ok());
  }
  c.servers = 2;
  c.goal.rounds = 0;
  c.leaving.when_finished = false;
  c.resume = true;
  TestServer leader(c, tcp);
  TestShard small("s1", leader.endpoint(), "", kThird);
  for (int number = 0; number < 2; ++number) workers_.push_back(join(leader, spec(number)));
  const Status left = small.join();
  ASSERT_FALSE(left.ok());
  EXPECT_THAT(left.error().to_string(), says_too_large("s1", 2, kThird));
  TestShard larger("s2", leader.endpoint());
  EXPECT_TRUE(trains_with(leader, 2));
  EXPECT_TRUE(serve(leader, 2));
  EXPECT_GT(leader.view().version, 4U);
  leader.stop();
  EXPECT_TRUE(leader.join().ok());
  leave();
  EXPECT_TRUE(larger.join().ok());
}

}  // namespace
}  // namespace centroid::test
