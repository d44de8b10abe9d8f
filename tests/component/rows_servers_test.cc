#include "tests/support/rows_servers.h"

#include <cmath>
#include <filesystem>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/proto/servers.h"
#include "tests/unit/temporary_directory.h"

/// Tables of sparse rows on several servers: a leader, shard servers and clients in one process.
namespace centroid::test {
namespace {

using testing::HasSubstr;

class RowsOnServers : public testing::Test {
 protected:
  static server::RowTable table(std::size_t number, const char* tables = kTables) {
    return server::RowTable(server::parse_tables(tables)->at(number));
  }
  /// Keys that were pushed, of rows that were zero.
  static std::size_t applied_of(RowsClient& client, const Keys& keys) {
    const Floats values = pulled(client, keys);
    std::size_t applied = 0;
    for (std::size_t i = 0; i < keys.size(); ++i) applied += values[i * client.dim()] != 0;
    return applied;
  }
  TemporaryDirectory folder;
};

TEST_F(RowsOnServers, AnyNumberOfThemGivesTheSameRowsAndAdmitsTheSameKeys) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  for (const std::size_t servers : {1, 2, 3}) {
    SCOPED_TRACE(servers);
    Servers all(folder.path() / std::to_string(servers), servers, false);
    const auto emb = client_of(all.leader->endpoint(), "emb");
    const auto seldom = client_of(all.leader->endpoint(), "seldom");
    server::RowTable embs = table(0), seldoms = table(1);
    CounterRng rng(seed);
    for (int turn = 0; turn < 4; ++turn) {
      ASSERT_NO_FATAL_FAILURE(call_all(rng, *emb, embs, 8));
      ASSERT_NO_FATAL_FAILURE(call_all(rng, *seldom, seldoms, 8));
    }
    auto views = all.tables();
    expect_same(views["emb"], embs);
    expect_same(views["seldom"], seldoms);
    EXPECT_THAT(views["emb"].spec, HasSubstr("emb:dim=4,")) << "of the whole table";
  }
}

TEST_F(RowsOnServers, TheStepOfAPushGivesItsRateOnAnyNumberOfThemAndInTheirJournals) {
  for (const std::size_t servers : {1, 2, 3}) {
    SCOPED_TRACE(servers);
    Servers all(folder.path() / std::to_string(servers), servers, false, kScheduledTables, true);
    const auto emb = client_of(all.leader->endpoint(), "emb");
    const auto seldom = client_of(all.leader->endpoint(), "seldom");
    server::RowTable embs = table(0, kScheduledTables), seldoms = table(1, kScheduledTables);
    CounterRng rng(11);
    for (int turn = 0; turn < 3; ++turn) {
      ASSERT_NO_FATAL_FAILURE(call_all(rng, *emb, embs, 8));
      ASSERT_NO_FATAL_FAILURE(call_all(rng, *seldom, seldoms, 8));
      if (turn == 0) {
        ASSERT_TRUE(all.leader->checkpoint().ok());
      }
      if (servers == 1) continue;
      all.shards.erase(1);
      all.start(1);
    }
    const Status silent = emb->push(Keys{1, 2, 3, 4}, Floats(16, 1.0f));
    ASSERT_FALSE(silent.ok());
    EXPECT_EQ(silent.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(silent.error().message(), HasSubstr("has the schedule cosine:rounds=900"));
    EXPECT_THAT(all.tables()["emb"].spec, HasSubstr("schedule=cosine:rounds=900,warmup=50"));
    ASSERT_NO_FATAL_FAILURE(call_all(rng, *emb, embs, 8));
  }
}

TEST_F(RowsOnServers, ARequestForKeysOfAnotherServerIsRefusedByNameAndChangesNothing) {
  Servers all(folder.path(), 3, false);
  const auto client = client_of(all.leader->endpoint(), "emb");
  RawClient raw(all.leader->endpoint());
  ASSERT_TRUE(raw.open_table(9, "emb").ok());
  const auto answer = raw.ask_empty(proto::RowsKind::kRoute);
  ASSERT_TRUE(answer.ok()) << answer.error().to_string();
  const auto route = proto::decode<proto::Route>(answer->head);
  ASSERT_TRUE(route.ok());
  ASSERT_EQ(route->servers.size(), 3u);
  Keys by_server(3);
  for (std::uint64_t key = 0; key < 1000; ++key)
    by_server[route->owners[proto::row_bucket(key)]] = key;
  const Floats before = pulled(*client, by_server);
  for (std::size_t server = 0; server < 3; ++server) {
    transport::Endpoint endpoint = all.leader->endpoint();
    if (server > 0) endpoint = transport::Endpoint::parse(route->servers[server].endpoint).value();
    RawClient there(endpoint);
    ASSERT_TRUE(there.open_table(10 + server, "emb").ok());
    const std::size_t other = (server + 1) % 3;
    // One key of its own, one of another's: neither is applied.
    const Keys both{by_server[server], by_server[other]};
    for (const auto& refused : {there.push(1, both, Floats(8, 1.0f)), there.pull(both)}) {
      ASSERT_FALSE(refused.ok());
      EXPECT_EQ(refused.error().code(), ErrorCode::kAborted);
      EXPECT_THAT(refused.error().message(),
                  HasSubstr("on server '" + route->servers[other].name + "', not on '" +
                            route->servers[server].name + "'"));
    }
    EXPECT_TRUE(there.pull({by_server[server]}).ok());
  }
  EXPECT_EQ(pulled(*client, by_server), before);
}

TEST_F(RowsOnServers, WhatAServerWouldRefuseIsRefusedInItsWordsBeforeAnythingIsSent) {
  Servers all(folder.path(), 3, false);
  const auto client = client_of(all.leader->endpoint(), "emb");
  Keys keys(client->max_rows() + 300);  // two messages
  std::iota(keys.begin(), keys.end(), 1u);
  const Keys some(keys.begin(), keys.begin() + 300);
  const Floats before = pulled(*client, some);
  const float nan = std::nanf(""), infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {nan, infinity, -infinity, 1.0001e18f}) {
    SCOPED_TRACE(bad);
    Floats gradients(keys.size() * 4, 1.0f);
    gradients[gradients.size() - 3] = bad;  // the last key, column 1
    const Status refused = client->push(keys, gradients);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(refused.error().message(),
                HasSubstr("the gradient of key " + std::to_string(keys.back()) + ", column 1, is"));
    EXPECT_EQ(client->rest(), 0u);
  }
  // Each is within the bound, the sum is not: as one server says it.
  const Keys twice{1, 2, 3, 4, 5, 6, 7, 8, 5};
  Floats halves(twice.size() * 4, 1.0f);
  halves[4 * 4 + 2] = halves[8 * 4 + 2] = 6e17f;
  Servers one(folder.path() / "one", 1, false);
  RawClient raw(one.leader->endpoint());
  ASSERT_TRUE(raw.open_table(9, "emb").ok());
  const auto said = raw.push(1, twice, halves);
  ASSERT_FALSE(said.ok());
  const Status refused = client->push(twice, halves);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), said.error().code());
  EXPECT_EQ(refused.error().message(), said.error().message());
  EXPECT_THAT(refused.error().message(), HasSubstr("the sum of gradients of key 5, column 2, is"));
  Floats gradients(twice.size() * 4, 1.0f);
  gradients[5] = nan;
  EXPECT_EQ(client->push(twice, gradients).error().message(),
            raw.push(2, twice, gradients).error().message());
  EXPECT_EQ(pulled(*client, some), before) << "nothing was applied anywhere";
  EXPECT_EQ(client->pushed(), 0u);
  // What is at the bound is taken, here and there.
  gradients[5] = 1e18f;
  EXPECT_TRUE(client->push(twice, gradients).ok());
  EXPECT_TRUE(raw.push(3, twice, gradients).ok());
}

TEST_F(RowsOnServers, APushThatOneServerHasNoMemoryForIsRepeatedThereAlone) {
  Servers all(folder.path(), 1, false);
  all.stop();
  server::ServerConfig c;
  c.run_dir = folder.path() / "small";
  c.run_id = "r";
  c.tables = "emb:dim=64,optimizer=sgd,lr=1,init=zeros";
  c.servers = 2;
  c.journal.mode = "on";
  c.transfer.chunk_bytes = 64 << 10;
  all.leader = std::make_unique<TestServer>(c, tcp);
  all.start(1, 132u << 20);  // 4 MB for its half: enough for the first rows only
  const auto client = client_of(all.leader->endpoint(), "emb");
  Keys keys(60'000);
  std::iota(keys.begin(), keys.end(), 0u);
  const Floats ones(keys.size() * 64, 1.0f);
  Status refused = client->push(keys, ones);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted) << refused.error().message();
  const std::uint64_t rest = client->rest();
  EXPECT_GT(rest, 1000u);
  EXPECT_LT(rest, 60'000u);
  const std::string applied = std::to_string(keys.size() - rest), missing = std::to_string(rest);
  EXPECT_THAT(refused.error().message(),
              HasSubstr("; of the 60000 keys of this push " + applied + " were applied ("));
  EXPECT_THAT(refused.error().message(), HasSubstr(missing + " were not (server 's1': "));
  EXPECT_EQ(applied_of(*client, keys), keys.size() - rest);
  refused = client->push_rest();  // what the leader can take it takes
  ASSERT_FALSE(refused.ok());
  const std::uint64_t again = client->rest();
  EXPECT_LE(again, rest);
  EXPECT_EQ(applied_of(*client, keys), keys.size() - again);
  all.shards.erase(1);
  all.start(1);
  const Status done = client->push_rest();
  ASSERT_TRUE(done.ok()) << done.error().to_string();
  EXPECT_EQ(client->rest(), 0u);
  EXPECT_TRUE(client->push_rest().ok()) << "there is nothing left to do";
  EXPECT_EQ(pulled(*client, keys), Floats(keys.size() * 64, -1.0f)) << "each key once";
}

TEST_F(RowsOnServers, ACheckpointOfSomeGoesOntoAnyOtherNumberAndTheClientFollows) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  CounterRng rng(seed);
  for (const bool journal : {false, true}) {
    SCOPED_TRACE(journal ? "journal" : "no journal");
    const auto run = folder.path() / (journal ? "journal" : "plain");
    server::RowTable embs = table(0), seldoms = table(1);
    std::unique_ptr<SwitchingRelay> relay;  // an address that stays
    std::unique_ptr<RowsClient> emb, seldom;
    std::unique_ptr<Servers> all;
    // A server that comes again passes over the journal of before its rows were elsewhere.
    for (const std::size_t servers : {2, 3, 1, 3}) {
      SCOPED_TRACE(servers);
      if (all) {
        relay->cut();
        all->stop();
      }
      all = std::make_unique<Servers>(run, servers, relay != nullptr, kTables, journal);
      if (!relay) {
        relay = std::make_unique<SwitchingRelay>(all->leader->endpoint());
        emb = client_of(relay->endpoint(), "emb");
        seldom = client_of(relay->endpoint(), "seldom");
      } else {
        relay->to(all->leader->endpoint());
      }
      ASSERT_NO_FATAL_FAILURE(call_all(rng, *emb, embs, 12));
      ASSERT_NO_FATAL_FAILURE(call_all(rng, *seldom, seldoms, 12));
      auto views = all->tables();
      expect_same(views["emb"], embs);
      expect_same(views["seldom"], seldoms);
    }
    EXPECT_EQ(emb->lost(), 0u);
    EXPECT_EQ(seldom->lost(), 0u);
  }
}

TEST_F(RowsOnServers, AServerThatIsGoneIsNamedAndGetsItsRowsOfTheCheckpointAgain) {
  Servers all(folder.path(), 2, false);
  const auto client = client_of(all.leader->endpoint(), "emb");
  const auto patient = client_of(all.leader->endpoint(), "emb");
  const auto hasty = client_of(all.leader->endpoint(), "emb", std::chrono::milliseconds(1500));
  Keys keys(100);
  std::iota(keys.begin(), keys.end(), 1u);
  ASSERT_TRUE(client->push(keys, Floats(400, 1.0f)).ok());
  ASSERT_TRUE(patient->push(keys, Floats(400, 1.0f)).ok());
  const Floats kept = pulled(*client, keys);
  ASSERT_TRUE(all.leader->checkpoint().ok());
  ASSERT_TRUE(client->push(keys, Floats(400, 1.0f)).ok());
  all.shards.erase(1);
  Floats out(400);
  const Status refused = hasty->pull(keys, out);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().to_string(), HasSubstr("server 's1' of table 'emb'"));
  bool is_told = false;
  for (const auto& wait : all.waits())
    is_told = is_told || wait.what.find("server 's1' is gone with its rows") == 0;
  EXPECT_TRUE(is_told);
  EXPECT_FALSE(all.leader->checkpoint().ok()) << "it cannot be whole";
  all.start(1);
  // Who pushed since is told, once; what the leader has stays.
  const Status told = client->push(keys, Floats(400, 1.0f));
  ASSERT_FALSE(told.ok());
  EXPECT_EQ(told.error().code(), ErrorCode::kAborted);
  EXPECT_THAT(told.error().message(), HasSubstr("server 's1' of table 'emb' restarted from "));
  EXPECT_EQ(client->lost(), 1u);
  EXPECT_EQ(patient->lost(), 0u);
  const Floats now = pulled(*patient, keys);
  std::size_t back = 0, stayed = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const bool is_back = std::equal(&kept[4 * i], &kept[4 * i] + 4, &now[4 * i]);
    ++(is_back ? back : stayed);
    EXPECT_EQ(is_back, proto::row_bucket(keys[i]) >= proto::kRowBuckets / 2);
  }
  EXPECT_GT(back, 20u);
  EXPECT_GT(stayed, 20u);
  EXPECT_TRUE(client->push(keys, Floats(400, 1.0f)).ok());
  EXPECT_TRUE(all.leader->checkpoint().ok());
}

TEST_F(RowsOnServers, AServerWithAJournalComesBackWithAllItHasAnswered) {
  server::RowTable expected = table(0);
  CounterRng rng(7);
  Servers all(folder.path(), 3, false, kTables, true);
  const auto client = client_of(all.leader->endpoint(), "emb");
  for (const std::size_t lost : {1, 2, 1}) {
    ASSERT_NO_FATAL_FAILURE(call_all(rng, *client, expected, 10));
    if (lost == 2) {
      ASSERT_TRUE(all.leader->checkpoint().ok());
    }
    ASSERT_NO_FATAL_FAILURE(call_all(rng, *client, expected, 10));
    all.shards.erase(lost);
    all.start(lost);
  }
  ASSERT_NO_FATAL_FAILURE(call_all(rng, *client, expected, 10));
  EXPECT_EQ(client->lost(), 0u);
}

TEST_F(RowsOnServers, AShareOfTheTablesThatDoesNotFitIsRefusedWithTheNumber) {
  // A half of 600 MB, and 64 MiB for the copies of a checkpoint.
  Servers all(folder.path(), 1, false, "emb:dim=4,max_bytes=600000000");
  all.stop();
  server::ServerConfig c;
  c.run_dir = folder.path() / "two";
  c.tables = "emb:dim=4,max_bytes=600000000";
  c.servers = 2;
  all.leader = std::make_unique<TestServer>(c, tcp);
  all.start(1, 200u << 20);
  const Status ended = all.shards[1]->join();
  all.shards.clear();
  ASSERT_FALSE(ended.ok());
  EXPECT_THAT(ended.error().to_string(), HasSubstr("tables of sparse rows may need 36"));
  EXPECT_THAT(ended.error().to_string(), HasSubstr("allows 209715200"));
  EXPECT_THAT(ended.error().to_string(), HasSubstr("server 's1', with its share of the tables"));
}

TEST_F(RowsOnServers, AServerThatCannotTakeItsPartIsNamedAndAnotherOfItsNameGetsIt) {
  Keys keys(60'000);
  std::iota(keys.begin(), keys.end(), 0u);
  const std::string wide = "emb:dim=64,init=uniform:0.05";
  Floats before;
  {
    Servers one(folder.path(), 1, false, wide);
    const auto client = client_of(one.leader->endpoint(), "emb");
    ASSERT_TRUE(client->push(keys, Floats(keys.size() * 64, 1.0f)).ok());
    before = pulled(*client, keys);
  }
  server::ServerConfig c;
  c.run_dir = folder.path();
  c.run_id = "r";
  c.tables = wide;
  c.servers = 2;
  c.resume = true;
  c.journal.mode = "off";
  c.transfer.chunk_bytes = 64 << 10;
  Servers all(folder.path() / "unused", 1, false);
  all.stop();
  all.leader = std::make_unique<TestServer>(c, tcp);
  all.start(1, 104u << 20);  // its half has 8 MB: it is enough for the first rows only
  const Status refused = all.shards[1]->join();
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().to_string(), HasSubstr("allows 109051904"));
  EXPECT_TRUE(all.leader->wait_until([&](const auto&) {  // it hears of the end a moment later
    return std::ranges::any_of(all.waits(), [](const server::WaitView& wait) {
      return wait.what.find("the tables cannot be loaded yet") == 0 &&
             wait.what.find("server 's1'") != std::string::npos;
    });
  }));
  all.start(1);
  const auto client = client_of(all.leader->endpoint(), "emb");
  EXPECT_EQ(pulled(*client, keys), before) << "what the leader had loaded is loaded once";
}

TEST_F(RowsOnServers, TheLastCheckpointWaitsForAServerThatIsAway) {
  server::RowTable expected = table(0);
  CounterRng rng(3);
  {
    Servers all(folder.path(), 2, false, kTables, true);
    const auto client = client_of(all.leader->endpoint(), "emb");
    ASSERT_NO_FATAL_FAILURE(call_all(rng, *client, expected, 20));
    all.shards.erase(1);
    all.leader->stop();
    ASSERT_TRUE(all.leader->wait_until([&](const auto&) {
      return std::ranges::any_of(all.waits(), [](const auto& wait) {
        return wait.waiter == "the last checkpoint of the tables" &&
               wait.what.find("server 's1'") == 0;
      });
    }));
    all.start(1);
    const Status ended = all.leader->join();
    ASSERT_TRUE(ended.ok()) << ended.error().to_string();
  }
  // It was the last one: nothing is in journals, so one server may go on.
  Servers one(folder.path(), 1, true, kTables, true);
  const auto client = client_of(one.leader->endpoint(), "emb");
  ASSERT_NO_FATAL_FAILURE(call_all(rng, *client, expected, 20));
}

TEST_F(RowsOnServers, ACheckpointThatBeganBeforeTheEndIsNotTheLast) {
  constexpr std::size_t kKeys = 100'000;
  Keys keys(kKeys);
  std::iota(keys.begin(), keys.end(), 0u);
  std::size_t pushes = 1;
  const std::string count = "count:dim=32,optimizer=sgd,lr=1";
  {
    Servers all(folder.path(), 2, false, count, true);
    const auto client = client_of(all.leader->endpoint(), "count", std::chrono::seconds(5));
    ASSERT_TRUE(client->push(keys, Floats(kKeys * 32, -1.0f)).ok());
    std::thread writing([&] { (void)all.leader->checkpoint(); });
    // Behind what is kept, and before the end: they are in the journals alone.
    const auto folders = [&] {
      const std::filesystem::directory_iterator all_of_them(folder.path() / "checkpoints");
      return std::distance(begin(all_of_them), end(all_of_them));
    };
    EXPECT_TRUE(all.leader->wait_until([&](const auto&) { return folders() > 1; }));
    const Keys some(keys.begin(), keys.begin() + 100);
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(client->push(some, Floats(3200, -1.0f)).ok());
      ++pushes;
    }
    all.leader->stop();
    writing.join();
    const Status ended = all.leader->join();
    ASSERT_TRUE(ended.ok()) << ended.error().to_string();
  }
  Servers one(folder.path(), 1, true, count, true);
  const auto client = client_of(one.leader->endpoint(), "count");
  EXPECT_EQ(pulled(*client, {0, 99})[0], static_cast<float>(pushes));
  EXPECT_EQ(pulled(*client, {100})[0], 1.0f);
}

TEST_F(RowsOnServers, TheLeaderNeedsMemoryForItsShareOnly) {
  server::ServerConfig c;
  c.run_dir = folder.path();
  c.tables = "emb:dim=4,max_bytes=600000000";
  c.journal.mode = "off";
  c.memory.limit = 450u << 20;  // between a half and all
  c.servers = 2;
  TestServer leader(c, tcp);
  TestShard shard("s1", leader.endpoint(), "", c.memory.limit);
  const auto client = client_of(leader.endpoint(), "emb");
  EXPECT_TRUE(client->push(Keys{1, 2, 3}, Floats(12, 1.0f)).ok());
  leader.stop();
  const Status ended = leader.join();
  EXPECT_TRUE(ended.ok()) << ended.error().to_string();
}

}  // namespace
}  // namespace centroid::test
