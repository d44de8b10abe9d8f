#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "client/rows_client.h"
#include "common/base/random.h"
#include "server/rows/row_table.h"
#include "tests/support/cluster.h"
#include "tests/support/rows_peers.h"
#include "tests/support/test_shard.h"

/// Tables of sparse rows on several servers: a leader, shard servers and clients in one process.
namespace centroid::test {

using client::RowsClient;
using client::RowsClientOptions;
using Keys = std::vector<std::uint64_t>;
using Floats = std::vector<float>;

inline constexpr const char* kTables =
    "emb:dim=4,lr=0.1,init=uniform:0.05,seed=3;seldom:dim=2,optimizer=ftrl,l1=0.01,admit_after=3";

inline constexpr const char* kScheduledTables =
    "emb:dim=4,lr=0.1,schedule=cosine:rounds=900,warmup=50,init=uniform:0.05,seed=3;"
    "seldom:dim=2,optimizer=ftrl,lr=0.1,schedule=step:every=300,l1=0.01,admit_after=3";

/// A leader with tables, and shard servers s1, s2, ...
class Servers {
 public:
  Servers(const std::filesystem::path& folder, std::size_t servers, bool resume,
          const std::string& tables = kTables, bool journal = false,
          const std::function<void(server::ServerConfig&)>& set = {})
      : folder_(folder), journal_(journal) {
    server::ServerConfig c;
    c.run_dir = folder;
    c.run_id = "r";
    c.tables = tables;
    c.servers = servers;
    c.resume = resume;
    c.journal.mode = journal ? "on" : "off";
    c.transfer.chunk_bytes = 64 << 10;
    if (set) set(c);
    leader = std::make_unique<TestServer>(c, tcp);
    for (std::size_t i = 1; i < servers; ++i) start(i);
  }
  ~Servers() { stop(); }
  static std::string name_of(std::size_t i) {
    std::string name("s");
    return name.append(std::to_string(i));
  }
  void start(std::size_t i, std::uint64_t memory_limit = 0, bool drains = false) {
    const std::string name = name_of(i);
    shards[i] = std::make_unique<TestShard>(
        name, leader->endpoint(), (folder_ / ("journal-" + name)).string(), memory_limit, drains);
  }
  /// Block until `servers` servers serve, all have buckets, and no bucket is to move.
  bool wait_settled(std::size_t servers) {
    return leader->wait_until([&](const auto&) {
      for (const server::WaitView& wait : waits())
        if (wait.waiter == "tables" || wait.waiter == "clients of rows") return false;
      const auto views = leader->servers();
      return views.size() == servers && std::ranges::all_of(views, [](const auto& view) {
               return view.buckets > 0 && view.bucket_moves == 0;
             });
    });
  }
  /// End the job: a checkpoint then has all rows.
  void stop() {
    if (leader) leader->stop();
    leader.reset();
    shards.clear();
  }
  std::map<std::string, server::TableView> tables() {
    std::map<std::string, server::TableView> tables;
    for (const auto& view : io_.wait(leader->control().tables())) tables[view.name] = view;
    return tables;
  }
  std::vector<server::WaitView> waits() { return io_.wait(leader->control().waits()); }

  std::unique_ptr<TestServer> leader;
  std::map<std::size_t, std::unique_ptr<TestShard>> shards;

 private:
  const std::filesystem::path folder_;
  const bool journal_;
  IoThread io_{"test-views"};
};

inline std::unique_ptr<RowsClient> client_of(
    const transport::Endpoint& server, const std::string& table,
    std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
  RowsClientOptions options;
  options.servers = server.to_string();
  options.timeout = timeout;
  auto client = RowsClient::open(options, table);
  EXPECT_TRUE(client.ok()) << client.error().to_string();
  return std::move(client).value();
}

inline Floats pulled(RowsClient& client, const Keys& keys) {
  Floats out(keys.size() * client.dim());
  const Status done = client.pull(keys, out);
  EXPECT_TRUE(done.ok()) << done.error().to_string();
  return out;
}

inline Keys drawn(CounterRng& rng, std::size_t most, std::uint64_t space) {
  Keys keys(1 + rng.below(most));
  for (auto& key : keys) key = mix64(rng.below(space));
  return keys;
}

/// One round of random calls on both tables, and the same on tables in memory.
inline void call_all(CounterRng& rng, RowsClient& client, server::RowTable& expected,
                     std::size_t calls) {
  for (std::size_t call = 0; call < calls; ++call) {
    const Keys keys = drawn(rng, 300, 2000);
    if (rng.below(3) == 0) {
      Floats want(keys.size() * client.dim());
      expected.pull(keys, want, 0);
      ASSERT_EQ(pulled(client, keys), want);
      continue;
    }
    Floats gradients(keys.size() * client.dim());
    for (auto& g : gradients) g = static_cast<float>(rng.normal());
    const std::uint64_t step = 1 + rng.below(1000);  // for tables with a schedule
    const Status pushed = client.push(keys, gradients, step);
    ASSERT_TRUE(pushed.ok()) << pushed.error().to_string();
    ASSERT_TRUE(expected.push(keys, gradients, 0, step).ok());
  }
}

inline void expect_same(const server::TableView& view, const server::RowTable& expected) {
  const server::RowCounters& want = expected.counters();
  EXPECT_EQ(view.rows, expected.rows());
  EXPECT_EQ(view.waiting, expected.candidates());
  EXPECT_EQ(view.payload_bytes, expected.payload_bytes());
  EXPECT_EQ(view.pushed, want.pushed);
  EXPECT_EQ(view.admitted, want.admitted);
  EXPECT_EQ(view.held_back, want.held_back);
}

}  // namespace centroid::test
