#include <chrono>
#include <future>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/rows_client.h"
#include "common/checkpoint/checkpoint.h"
#include "tests/support/cluster.h"
#include "tests/support/fault_points.h"
#include "tests/unit/temporary_directory.h"

/// Pushes to tables while a checkpoint of them is written.
namespace centroid::test {
namespace {

using client::RowsClient;
using client::RowsClientOptions;
using Keys = std::vector<std::uint64_t>;
using Floats = std::vector<float>;

/// A share of the processor so small that what is written beside pushes rests for hours.
constexpr double kForHours = 1e-9;

class RowsBesideCheckpoints : public testing::Test {
 protected:
  server::ServerConfig config(const std::string& tables) {
    server::ServerConfig c;
    c.run_dir = directory.path();
    c.tables = tables;
    return c;
  }
  static std::unique_ptr<TestServer> start(const server::ServerConfig& config) {
    return std::make_unique<TestServer>(
        config, [](Executor executor) { return transport::make_tcp(executor); });
  }
  static std::unique_ptr<RowsClient> client_of(const TestServer& server) {
    RowsClientOptions options;
    options.servers = server.endpoint().to_string();
    auto client = RowsClient::open(options, "emb");
    EXPECT_TRUE(client.ok()) << client.error().to_string();
    return std::move(client).value();
  }
  /// `count` rows from `first` on.
  static void push(RowsClient& client, std::uint64_t first, std::size_t count, float gradient) {
    Keys keys(std::min<std::size_t>(count, client.max_rows()));
    for (std::size_t done = 0; done < count; done += keys.size()) {
      keys.resize(std::min(keys.size(), count - done));
      std::iota(keys.begin(), keys.end(), first + done);
      const Status pushed = client.push(keys, Floats(keys.size() * client.dim(), gradient));
      ASSERT_TRUE(pushed.ok()) << pushed.error().to_string();
    }
  }
  static Floats pull(RowsClient& client, const Keys& keys) {
    Floats out(keys.size() * client.dim());
    EXPECT_TRUE(client.pull(keys, out).ok());
    return out;
  }
  std::size_t checkpoints() const {
    const auto folder = CheckpointDirectory::view(directory.path() / "checkpoints");
    return folder.ok() ? folder->list(false).size() : 0;
  }
  /// A folder is there that is no checkpoint yet.
  bool is_written_now() const {
    std::size_t folders = 0;
    std::error_code ignored;
    for (const auto& entry :
         std::filesystem::directory_iterator(directory.path() / "checkpoints", ignored))
      folders += entry.is_directory(ignored) ? 1 : 0;
    return folders > checkpoints();
  }
  TemporaryDirectory directory;
};

TEST_F(RowsBesideCheckpoints, OneRestsWhilePushesGoOnUntilSomebodyWaitsForIt) {
  server::ServerConfig c = config("emb:dim=64,optimizer=sgd");
  c.checkpoint.interval = std::chrono::milliseconds(1);
  c.checkpoint.processor_share = kForHours;
  c.checkpoint.keep = 1000;
  const auto server = start(c);
  const auto client = client_of(*server);
  // Those of the first rows are written before their first rest; from some 4000 rows on one rests.
  const int rests = times_reached("duty.rests");
  ASSERT_NO_FATAL_FAILURE(push(*client, 1, 40'000, 1.0f));
  ASSERT_TRUE(server->wait_until([&](const auto&) { return times_reached("duty.rests") > rests; }))
      << "none rests";
  const std::size_t before = checkpoints();
  for (int turns = 0; turns < 50; ++turns) ASSERT_NO_FATAL_FAILURE(push(*client, 1, 4'000, 1.0f));
  EXPECT_EQ(checkpoints(), before);
  EXPECT_TRUE(is_written_now());
  const auto asked = server->checkpoint();
  ASSERT_TRUE(asked.ok()) << asked.error().to_string();
  EXPECT_GE(checkpoints(), before + 2) << "the one that rested, and this one";
}

TEST_F(RowsBesideCheckpoints, APushThatHasToWaitHurriesIt) {
  server::ServerConfig c = config("emb:dim=64,optimizer=sgd,max_bytes=6000000");
  c.checkpoint.interval = std::chrono::milliseconds(1);
  c.checkpoint.processor_share = kForHours;
  const auto server = start(c);
  const auto client = client_of(*server);
  // Each of the later ones may evict, for which a checkpoint must have been read.
  std::uint64_t first = 1;
  for (; checkpoints() < 2; first += 40'000)
    ASSERT_NO_FATAL_FAILURE(push(*client, first, 40'000, 1.0f));
  EXPECT_GT(
      server->registry().counter("centroid_rows_evicted_total", "", {{"table", "emb"}}).value(), 0);
}

TEST_F(RowsBesideCheckpoints, PushesGoOnAsFarAsTheMemoryHoldsTheirCopies) {
  constexpr std::size_t kRows = 6'000;  // of 16 KiB: their copies take 98 MB
  for (const bool has_room : {true, false}) {
    SCOPED_TRACE(has_room);
    server::ServerConfig c = config("emb:dim=4096,optimizer=sgd,lr=1");
    c.run_dir = directory.path() / (has_room ? "large" : "small");
    c.memory.limit = (has_room ? 1024u : 230u) << 20;
    c.transfer.chunk_bytes = 1 << 20;
    auto server = start(c);
    auto client = client_of(*server);
    ASSERT_NO_FATAL_FAILURE(push(*client, 1, kRows, 1.0f));
    const Keys some{1, 2, kRows / 2, kRows};
    const Floats values = pull(*client, some);

    auto disk = server->hold_disk();
    auto written = std::async(std::launch::async, [&] { return server->checkpoint(); });
    ASSERT_TRUE(server->wait_for_wait("disk", "which is written to"));
    auto changed = std::async(std::launch::async, [&] { push(*client, 1, kRows, 2.0f); });
    if (has_room) {
      EXPECT_EQ(changed.wait_for(std::chrono::seconds(60)), std::future_status::ready)
          << "a push is held up";
    } else {
      EXPECT_TRUE(server->wait_for_wait("checkpoint", "a checkpoint of the tables"));
    }
    disk.reset();
    changed.get();
    ASSERT_TRUE(written.get().ok());
    EXPECT_NE(pull(*client, some), values);

    // The checkpoint has the rows as they were when it began.
    const auto kept = CheckpointDirectory::view(c.run_dir / std::filesystem::path("checkpoints"));
    ASSERT_TRUE(kept.ok());
    const auto path = kept->list(false).at(0).path;
    server->stop();
    EXPECT_TRUE(server->join().ok());
    client.reset();
    for (const CheckpointEntry& entry : kept->list(false))
      if (entry.path != path) std::filesystem::remove_all(entry.path);
    server.reset();
    c.resume = true;
    server = start(c);
    client = client_of(*server);
    EXPECT_EQ(pull(*client, some), values);
  }
}

}  // namespace
}  // namespace centroid::test
