#include <atomic>
#include <filesystem>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/prometheus_registry.h"
#include "common/proto/servers.h"
#include "tests/support/rows_servers.h"
#include "tests/unit/temporary_directory.h"

/// Servers that come and go while tables of sparse rows are in use.
namespace centroid::test {
namespace {

using testing::HasSubstr;

/// Large enough that buckets go in several steps.
constexpr const char* kWide =
    "emb:dim=64,lr=0.1,schedule=linear:rounds=1000,init=uniform:0.05,seed=3;"
    "seldom:dim=2,optimizer=ftrl,l1=0.01,admit_after=3";
constexpr std::uint64_t kSpace = 20'000;

proto::Route route_of(RawClient& raw) {
  const auto answer = raw.ask_empty(proto::RowsKind::kRoute);
  EXPECT_TRUE(answer.ok()) << answer.error().to_string();
  return proto::decode<proto::Route>(answer->head).value();
}

class RowsThatMove : public testing::Test {
 protected:
  TemporaryDirectory folder;
};

/// Servers join, are drained, leave, and are lost, at random, while two clients call.
void churn(const std::filesystem::path& folder, bool journal, std::uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed) + (journal ? ", journal" : ""));
  CounterRng rng(seed);
  server::RowTable embs(server::parse_tables(kWide)->at(0));
  server::RowTable seldoms(server::parse_tables(kWide)->at(1));
  Servers all(folder, 2, false, kWide, journal);
  const auto emb = client_of(all.leader->endpoint(), "emb");
  const auto seldom = client_of(all.leader->endpoint(), "seldom");
  Keys every(kSpace);
  for (std::uint64_t i = 0; i < kSpace; ++i) every[i] = mix64(i);
  const Floats ones(kSpace * 64, 0.5f);
  ASSERT_TRUE(emb->push(every, ones, 1).ok());
  ASSERT_TRUE(embs.push(every, ones, 0, 1).ok());
  std::set<std::size_t> here{1};
  std::size_t next = 2;
  for (int turn = 0; turn < 10; ++turn) {
    const std::uint64_t what = rng.below(journal ? 5 : 4);
    std::size_t some = 0;
    if (!here.empty()) some = *std::next(here.begin(), static_cast<long>(rng.below(here.size())));
    std::size_t drained = 0;
    if (what <= 1 && here.size() < 4) {
      // A name that was here before comes again now and then.
      const std::size_t fresh = next > 2 && rng.below(3) == 0 ? next - 1 : next++;
      if (!here.contains(fresh)) {
        all.shards.erase(fresh);
        all.start(fresh);
        here.insert(fresh);
      }
    } else if (what == 2 && some != 0) {
      ASSERT_TRUE(all.leader->wait_until([&](const auto&) {  // it may have been started just now
        return std::ranges::any_of(all.leader->servers(), [&](const server::ServerView& one) {
          return one.name == Servers::name_of(some);
        });
      }));
      const Status asked = all.leader->drain_server(Servers::name_of(some));
      ASSERT_TRUE(asked.ok()) << asked.error().to_string();
      here.erase(some);
      drained = some;
    } else if (what == 3) {
      Status written;
      ASSERT_TRUE(all.leader->wait_until([&](const auto&) {  // one that was lost is awaited
        const auto made = all.leader->checkpoint();
        written = made.ok() ? Status() : Status(made.error());
        return written.ok() || written.error().code() != ErrorCode::kUnavailable;
      }));
      ASSERT_TRUE(written.ok()) << written.error().to_string();
    } else if (what == 4 && some != 0) {
      all.shards.erase(some);
      all.start(some);
    }
    ASSERT_NO_FATAL_FAILURE(call_all(rng, *emb, embs, 10));
    ASSERT_NO_FATAL_FAILURE(call_all(rng, *seldom, seldoms, 10));
    if (drained != 0) {
      const Status ended = all.shards[drained]->join();
      ASSERT_TRUE(ended.ok()) << ended.error().to_string();
      all.shards.erase(drained);
    } else if (rng.below(2) == 0) {
      ASSERT_TRUE(all.wait_settled(here.size() + 1));
    }
  }
  ASSERT_TRUE(all.wait_settled(here.size() + 1));
  ASSERT_NO_FATAL_FAILURE(call_all(rng, *emb, embs, 10));
  ASSERT_NO_FATAL_FAILURE(call_all(rng, *seldom, seldoms, 10));
  Floats want(every.size() * 64);
  embs.pull(every, want, 0);
  EXPECT_EQ(pulled(*emb, every), want);
  EXPECT_EQ(emb->lost(), 0u);
  EXPECT_EQ(seldom->lost(), 0u);
  auto views = all.tables();
  EXPECT_EQ(views["emb"].rows, embs.rows());
  EXPECT_EQ(views["seldom"].rows, seldoms.rows());
  EXPECT_EQ(views["seldom"].waiting, seldoms.candidates());
}

TEST(RowsService, OfTwoListsOfClientsAllStayAndOfWhoIsInBothTheNewer) {
  SystemClock clock;
  metrics::PrometheusRegistry registry;
  server::RowsService rows("emb:dim=2", std::chrono::seconds(1), clock, registry);
  const auto list = [](std::uint64_t first, std::uint64_t newest) {
    std::vector<server::PushWindows::Entry> entries(server::PushWindows::kMaxClients);
    for (auto& entry : entries) {
      entry.client = first++;
      entry.newest = newest;
    }
    return entries;
  };
  const std::size_t half = server::PushWindows::kMaxClients / 2;
  rows.load_pushes(list(1, 5));
  rows.load_pushes(list(1 + half, 4));
  rows.load_pushes(list(1 + 2 * half, 6));
  const auto all = rows.store().windows().entries();
  ASSERT_EQ(all.size(), 4 * half);
  for (std::size_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(all[i].client, i + 1);
    ASSERT_EQ(all[i].newest, i < 2 * half ? 5u : 6u);
  }
}

TEST_F(RowsThatMove, AnySequenceOfMovesGivesTheRowsThatNoMoveGives) {
  churn(folder.path(), false, std::random_device{}());
}

TEST_F(RowsThatMove, WithJournalsServersMayBeLostMeanwhile) {
  churn(folder.path(), true, std::random_device{}());
}

/// A server that is asked to go while rows are on their way to it goes when these have left again.
TEST_F(RowsThatMove, WhoIsDrainedWhileRowsComeKeepsNone) {
  Servers all(folder.path(), 2, false, "emb:dim=256,lr=0.1");
  const auto client = client_of(all.leader->endpoint(), "emb");
  Keys keys;  // of one bucket, the first to move: one long step
  for (std::uint64_t i = 0; keys.size() < 4000; ++i)
    if (proto::row_bucket(mix64(i)) == 0) keys.push_back(mix64(i));
  ASSERT_TRUE(client->push(keys, Floats(keys.size() * 256, 0.5f)).ok());
  const Floats want = pulled(*client, keys);
  for (std::size_t which = 1; which < 21; ++which) {
    if (which > 1) all.start(which);
    ASSERT_TRUE(all.leader->wait_until([&](const auto&) {
      const auto views = all.leader->servers();
      return views.size() == 2 && (views.back().buckets > 0 || views.back().bucket_moves > 0);
    }));
    for (std::size_t later = 0; later < 15 * which; ++later) (void)all.leader->servers();
    ASSERT_TRUE(all.leader->drain_server(Servers::name_of(which)).ok());
    const Status ended = all.shards[which]->join();
    ASSERT_TRUE(ended.ok()) << ended.error().to_string();
    ASSERT_EQ(pulled(*client, keys), want) << "after " << which;
  }
}

/// What a server that was drained had counted since the newest checkpoint went with its rows: when
/// one of its name comes again nothing of that is lost.
TEST_F(RowsThatMove, WhoComesAgainAfterItWasDrainedKnowsAllPushes) {
  Servers all(folder.path(), 2, false, "emb:dim=4,lr=0.1");
  const auto client = client_of(all.leader->endpoint(), "emb");
  Keys keys(1000);
  for (std::uint64_t i = 0; i < keys.size(); ++i) keys[i] = mix64(i);
  const auto push = [&] { return client->push(keys, Floats(keys.size() * 4, 0.5f)); };
  ASSERT_TRUE(push().ok());
  ASSERT_TRUE(all.leader->checkpoint().ok());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(push().ok());
  ASSERT_TRUE(all.leader->drain_server("s1").ok());
  ASSERT_TRUE(all.shards[1]->join().ok());
  all.shards.erase(1);
  all.start(1);
  ASSERT_TRUE(all.wait_settled(2));
  const Status done = push();
  EXPECT_TRUE(done.ok()) << done.error().to_string();
  EXPECT_EQ(client->lost(), 0u);
}

TEST_F(RowsThatMove, EveryPushOfManyClientsCountsOnce) {
  Servers all(folder.path(), 2, false, "count:dim=16,optimizer=sgd,lr=1", true);
  constexpr std::size_t kClients = 3, kKeys = 3000;
  std::vector<std::thread> threads;
  std::vector<std::vector<float>> counts(kClients, std::vector<float>(kKeys));
  std::atomic<bool> is_over{false};
  std::atomic<std::int64_t> longest{0}, calls{0};
  for (std::size_t i = 0; i < kClients; ++i)
    threads.emplace_back([&, i] {
      const auto client = client_of(all.leader->endpoint(), "count");
      CounterRng rng(i + 1);
      while (!is_over) {
        Keys keys(500);
        for (auto& key : keys) key = rng.below(kKeys);
        const auto begin = std::chrono::steady_clock::now();
        const Status pushed = client->push(keys, Floats(keys.size() * 16, -1.0f));
        const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                            std::chrono::steady_clock::now() - begin)
                            .count();
        EXPECT_TRUE(pushed.ok()) << pushed.error().to_string();
        if (!pushed.ok()) return;
        longest = std::max<std::int64_t>(longest, ms);
        ++calls;
        for (const auto key : keys) ++counts[i][key];
      }
    });
  const auto await_calls = [&](std::int64_t more) {
    const std::int64_t until = calls + more;
    EXPECT_TRUE(all.leader->wait_until(
        [&](const auto&) { return calls >= until || testing::Test::HasFailure(); }));
  };
  for (const std::size_t turn : {0, 1, 2}) {
    await_calls(20);
    all.start(2 + turn);
    EXPECT_TRUE(all.wait_settled(3));
    await_calls(20);
    EXPECT_TRUE(all.leader->drain_server(Servers::name_of(1 + turn)).ok());
    EXPECT_TRUE(all.shards[1 + turn]->join().ok());
  }
  await_calls(20);
  is_over = true;
  for (std::thread& thread : threads) thread.join();
  const auto client = client_of(all.leader->endpoint(), "count");
  Keys keys(kKeys);
  std::iota(keys.begin(), keys.end(), 0u);
  const Floats rows = pulled(*client, keys);
  for (std::size_t key = 0; key < kKeys; ++key)
    ASSERT_EQ(rows[16 * key], counts[0][key] + counts[1][key] + counts[2][key]) << "key " << key;
  RecordProperty("calls", static_cast<int>(calls));
  RecordProperty("longest_call_ms", static_cast<int>(longest));
}

TEST_F(RowsThatMove, AServerThatIsStoppedGivesItsRowsAwayAndEnds) {
  Servers all(folder.path(), 2, false);
  all.start(2, 0, true);
  ASSERT_TRUE(all.wait_settled(3));
  const auto client = client_of(all.leader->endpoint(), "emb");
  Keys keys(500);
  std::iota(keys.begin(), keys.end(), 1u);
  ASSERT_TRUE(client->push(keys, Floats(2000, 1.0f)).ok());
  const Floats before = pulled(*client, keys);
  const Status stopped = all.shards[2]->stop();
  EXPECT_TRUE(stopped.ok()) << stopped.error().to_string();
  EXPECT_TRUE(all.wait_settled(2));
  EXPECT_EQ(pulled(*client, keys), before);
  EXPECT_EQ(client->lost(), 0u);
  EXPECT_EQ(client->pushed(), 3u) << "one part on each server, those that have gone too";
}

TEST_F(RowsThatMove, APushWhoseAnswerWasLostIsKnownWhereItWasApplied) {
  Servers all(folder.path(), 2, false, kTables, true);
  ASSERT_TRUE(all.wait_settled(2));
  RawClient leader(all.leader->endpoint());
  ASSERT_TRUE(leader.open_table(8, "emb").ok());
  const proto::Route before = route_of(leader);
  const auto on_s1 = transport::Endpoint::parse(before.servers[1].endpoint).value();
  std::uint64_t key = 0;
  while (before.owners[proto::row_bucket(key)] != 1) ++key;
  RawClient raw(on_s1);
  ASSERT_TRUE(raw.open_table(9, "emb").ok());
  ASSERT_TRUE(raw.push(1, {key}, Floats(4, 1.0f)).ok());
  // Half of s1's buckets go to s2, then the others.
  all.start(2);
  ASSERT_TRUE(all.wait_settled(3));
  const auto again = raw.push(1, {key}, Floats(4, 1.0f));
  ASSERT_TRUE(again.ok()) << again.error().to_string();
  EXPECT_FALSE(proto::decode<proto::RowsPushReply>(again->head)->applied);
  ASSERT_TRUE(all.leader->drain_server("s1").ok());
  ASSERT_TRUE(all.shards[1]->join().ok());
  RawClient instead(all.leader->endpoint());
  const auto opened = instead.open_table(9, "emb");
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(proto::decode<proto::RowsOpenReply>(opened->head)->newest, 1u)
      << "what it knew is the leader's";
  // Who comes again by that name knows it, too.
  all.shards.erase(1);
  all.start(1);
  ASSERT_TRUE(all.wait_settled(3));
  const proto::Route after = route_of(leader);
  for (const proto::RouteServer& server : after.servers) {
    if (server.name != "s1") continue;
    RawClient there(transport::Endpoint::parse(server.endpoint).value());
    const auto known = there.open_table(9, "emb");
    ASSERT_TRUE(known.ok()) << known.error().to_string();
    EXPECT_EQ(proto::decode<proto::RowsOpenReply>(known->head)->newest, 1u);
  }
}

TEST_F(RowsThatMove, AKeyThatHasMovedIsRefusedWithTheNameOfItsServer) {
  Servers all(folder.path(), 2, false);
  ASSERT_TRUE(all.wait_settled(2));
  RawClient raw(all.leader->endpoint());
  ASSERT_TRUE(raw.open_table(9, "emb").ok());
  const proto::Route before = route_of(raw);
  all.start(2);
  ASSERT_TRUE(all.wait_settled(3));
  const proto::Route after = route_of(raw);
  ASSERT_EQ(after.servers.size(), 3u);
  std::uint64_t key = 0;
  const auto moved = [&](std::uint64_t one) {
    const std::size_t bucket = proto::row_bucket(one);
    return before.owners[bucket] == 0 && after.owners[bucket] == 2;
  };
  while (!moved(key)) ++key;
  for (const auto& refused : {raw.push(1, {key}, Floats(4, 1.0f)), raw.pull({key})}) {
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code(), ErrorCode::kAborted);
    EXPECT_THAT(refused.error().message(), HasSubstr("on server 's2', not on"));
  }
}

TEST_F(RowsThatMove, ANewcomerWithoutTheMemoryIsNamedAndCallsGoOn) {
  Servers all(folder.path(), 2, false, kWide);
  const auto client = client_of(all.leader->endpoint(), "emb");
  Keys every(kSpace);
  std::iota(every.begin(), every.end(), 0u);
  ASSERT_TRUE(client->push(every, Floats(kSpace * 64, 1.0f), 1).ok());
  const Floats before = pulled(*client, every);
  // What it needs without rows, and a little.
  all.start(2, 105'200'000);
  const auto is_named = [&] {
    for (const auto& wait : all.waits())
      if (wait.waiter == "buckets of tables" && wait.what.find("to 's2'") != std::string::npos &&
          wait.what.find("has no memory for more") != std::string::npos)
        return true;
    return false;
  };
  EXPECT_TRUE(all.leader->wait_until([&](const auto&) { return is_named(); }));
  EXPECT_EQ(pulled(*client, every), before);
  EXPECT_TRUE(client->push(every, Floats(kSpace * 64, 1.0f), 2).ok());
}

}  // namespace
}  // namespace centroid::test
