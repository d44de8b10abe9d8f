#include <algorithm>
#include <filesystem>
#include <numeric>

#include <boost/asio/post.hpp>
#include <boost/asio/use_future.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/rows_client.h"
#include "server/service/job_server.h"
#include "tests/support/cluster.h"
#include "tests/unit/temporary_directory.h"

namespace centroid::test {
namespace {

using client::RowsClient;
using client::RowsClientOptions;
using Keys = std::vector<std::uint64_t>;
using Floats = std::vector<float>;

constexpr std::uint32_t kDim = 64;

/// What is left of a server that was killed is its folder of that moment: a copy of it.
class RowsJournalled : public testing::Test {
 protected:
  std::unique_ptr<TestServer> start(const std::string& run, const std::string& tables,
                                    bool resume) {
    server::ServerConfig c;
    c.run_dir = folder.path() / run;
    c.run_id = "r";
    c.tables = tables;
    c.journal.mode = "on";
    c.journal.sync = std::chrono::minutes(10);
    c.resume = resume;
    return std::make_unique<TestServer>(
        c, [](Executor executor) { return transport::make_tcp(executor); });
  }
  static std::unique_ptr<RowsClient> client_of(const TestServer& server) {
    RowsClientOptions options;
    options.servers = server.endpoint().to_string();
    auto client = RowsClient::open(options, "emb");
    EXPECT_TRUE(client.ok()) << client.error().to_string();
    return std::move(client).value();
  }
  static Keys range(std::uint64_t first, std::uint64_t last) {
    Keys keys(last - first);
    std::iota(keys.begin(), keys.end(), first);
    return keys;
  }
  static void push(RowsClient& client, std::uint64_t first, std::uint64_t last) {
    const Keys keys = range(first, last);
    ASSERT_TRUE(client.push(keys, Floats(keys.size() * kDim, 1.0f)).ok());
  }
  static Floats pull(RowsClient& client, std::uint64_t first, std::uint64_t last) {
    const Keys keys = range(first, last);
    Floats rows(keys.size() * kDim);
    EXPECT_TRUE(client.pull(keys, rows).ok());
    return rows;
  }

  TemporaryDirectory folder;
};

TEST_F(RowsJournalled, PullsCountThereWhereTheyDecideWhichRowsAreEvicted) {
  const std::string table = "emb:dim=64,optimizer=sgd,lr=1,max_bytes=2200000";
  const auto server = start("first", table, false);
  const auto client = client_of(*server);
  for (std::uint64_t step = 0; step < 24; ++step) {
    push(*client, 500 * step, 500 * step + 500);
    pull(*client, 100, 600);  // else the oldest would go
  }
  std::filesystem::copy(folder.path() / "first", folder.path() / "second",
                        std::filesystem::copy_options::recursive);
  const Floats rows = pull(*client, 0, 12000);
  const auto kept = static_cast<std::size_t>(std::ranges::count(rows, -1.0f)) / kDim;
  EXPECT_GT(kept, 4000u);
  EXPECT_LT(kept, 9000u);
  EXPECT_THAT(pull(*client, 100, 600), testing::Each(-1.0f));

  const auto again = start("second", table, true);
  EXPECT_EQ(pull(*client_of(*again), 0, 12000), rows);
}

TEST_F(RowsJournalled, TheStepsOfPushesStandThereSoThatTheirRatesComeBack) {
  const std::string table = "emb:dim=64,optimizer=ftrl,lr=0.5,schedule=cosine:rounds=30,warmup=4";
  const auto server = start("first", table, false);
  const auto client = client_of(*server);
  const Keys keys = range(0, 50);
  const auto push_at = [&](RowsClient& to, std::uint64_t step) {
    const auto gradient = static_cast<float>(step) - 12.5f;
    EXPECT_TRUE(to.push(keys, Floats(keys.size() * kDim, gradient), step).ok());
  };
  for (std::uint64_t step = 1; step <= 20; ++step) push_at(*client, step);
  std::filesystem::copy(folder.path() / "first", folder.path() / "second",
                        std::filesystem::copy_options::recursive);
  // Rates may be others at the restart: what stands in the journal has those of then.
  const auto again = start("second", table + ",floor=0.5", true);
  EXPECT_EQ(pull(*client_of(*again), 0, 50), pull(*client, 0, 50));
  push_at(*client, 21);
  push_at(*client_of(*again), 21);
  EXPECT_NE(pull(*client_of(*again), 0, 50), pull(*client, 0, 50));
}

/// It was stopped while the push was written, and another one leads meanwhile: that one has read
/// the journal without it.
TEST_F(RowsJournalled, APushIsAnsweredOnlyByAServerThatStillLeads) {
  const auto server = start("first", "emb:dim=64,optimizer=sgd,lr=1", false);
  const auto client = client_of(*server);
  int asked = 0;  // of the service thread
  const auto on_service = [&](const std::function<void()>& act) {
    boost::asio::post(server->cluster().context().executor, boost::asio::use_future(act)).get();
  };
  on_service([&] {
    server->cluster().parts().rows.lead_by([&asked]() -> Status {
      if (++asked == 2) return Error(ErrorCode::kAborted, "deposed");
      return {};
    });
  });
  push(*client, 0, 4);  // refused once, and repeated
  on_service([&] {
    EXPECT_GE(asked, 3) << "before it is applied, when it is written, when it has come again";
    server->cluster().parts().rows.lead_by(nullptr);
  });
  EXPECT_THAT(pull(*client, 0, 4), testing::Each(-1.0f)) << "it was applied once";
}

}  // namespace
}  // namespace centroid::test
