#include <algorithm>
#include <atomic>
#include <regex>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/pull.h"
#include "client/rows_client.h"
#include "tests/support/cluster.h"
#include "tests/unit/temporary_directory.h"

/// The server's memory: what is refused when more comes than it was reckoned with.
namespace centroid::test {
namespace {

using testing::HasSubstr;

constexpr const char* kModel = "mlp:8-256-1024-4";
constexpr std::uint64_t kPlane = 269'572 * sizeof(float);
constexpr std::uint64_t kProcess = 32u << 20, kCopies = 64u << 20;

class Room : public testing::Test {
 protected:
  TestServer::TransportFactory tcp() {
    return [](Executor executor) { return transport::make_tcp(executor); };
  }
  server::ServerConfig config(std::uint64_t limit) {
    server::ServerConfig c;
    c.run_dir = directory_.path();
    c.memory.limit = limit;
    return c;
  }
  WorkerSpec spec(int number) {
    WorkerSpec out;
    out.name = "w" + std::to_string(number);
    out.model = kModel;
    return out;
  }

  TemporaryDirectory directory_;
};

/// A model's memory is reckoned with 8 workers; what each more one may bring is looked at when it
/// comes.
TEST_F(Room, AWorkerWithoutMemoryForItsContributionsIsRefusedWithBothNumbers) {
  const auto data = make_blobs(256, 8, 4, 1);
  // Two planes and two copied, results and two images; two contributions of each of 9 workers.
  server::ServerConfig c = config(kProcess + (2 + 2 + 3 + 2 * 9) * kPlane + (1u << 20));
  c.policy = "quorum:8";
  c.workers.min = 8;
  c.goal.rounds = 0;
  TestServer server(c, tcp());
  std::vector<std::thread> threads;
  std::vector<WorkerOutcome> outcomes(13);
  std::atomic<int> ended = 0;
  const auto join = [&](int number, std::size_t place) {
    threads.emplace_back([&, number, place] {
      WorkerSpec one = spec(number);
      one.join_timeout = std::chrono::milliseconds(place < 9 || place == 12 ? 20'000 : 5'000);
      outcomes[place] = run_worker(one, data, server.endpoint(), tcp());
      ++ended;
    });
  };
  for (int number = 0; number < 9; ++number) join(number, static_cast<std::size_t>(number));
  EXPECT_TRUE(server.wait_until([&](const auto&) { return server.present() == 9; }));
  for (int number = 9; number < 12; ++number) join(number, static_cast<std::size_t>(number));
  EXPECT_TRUE(server.wait_until([&](const auto&) { return ended == 3 || server.present() > 9; }));
  EXPECT_EQ(server.present(), 9u);
  join(8, 12);  // who comes back under its name has its room
  EXPECT_TRUE(server.wait_until([&](const auto&) {
    const auto workers = server.workers();
    return std::ranges::count_if(workers, [](const auto& w) { return w.name == "w8"; }) == 2;
  }));
  server.stop();
  for (std::thread& thread : threads) thread.join();
  for (std::size_t place = 9; place < 12; ++place) {
    const Status& refused = outcomes[place].status;
    ASSERT_FALSE(refused.ok());
    const std::string why = refused.error().to_string();
    EXPECT_THAT(why, HasSubstr("no memory for contributions of 10 workers"));
    EXPECT_THAT(why, HasSubstr("269572 parameters and needs "));
    EXPECT_THAT(why, HasSubstr("memory_limit allows " + std::to_string(c.memory.limit)));
  }
}

/// With a policy that keeps contributions whole they are the larger part of what is needed.
TEST_F(Room, ContributionsAreReckonedByFragmentCodecAndTheWorkersOfTheSettings) {
  const auto data = make_blobs(256, 8, 4, 1);
  int runs = 0;
  using Change = std::function<void(server::ServerConfig&, WorkerSpec&)>;
  const auto needed = [&](const Change& change) -> std::uint64_t {
    server::ServerConfig c = config(1);
    c.run_dir += "/" + std::to_string(runs++);
    c.policy = "quorum:2";
    WorkerSpec worker = spec(0);
    change(c, worker);
    TestServer server(c, tcp());
    const Status refused = run_worker(worker, data, server.endpoint(), tcp()).status;
    std::smatch found;
    const std::string why = refused.ok() ? "it was taken" : refused.error().message();
    EXPECT_TRUE(std::regex_search(why, found, std::regex("needs ([0-9]+) bytes"))) << why;
    return found.empty() ? 0 : std::stoull(found[1]);
  };
  const std::uint64_t need = needed([](auto&, auto&) {});
  const std::uint64_t more = need - (2 + 2 + 3 + 2 * 2) * kPlane - kProcess;
  EXPECT_LT(more, 1u << 16) << "planes, copies, results and images, two of each of two workers";
  EXPECT_EQ(needed([](auto& c, auto&) { c.policy = "quorum:5"; }) - need, 3 * 2 * kPlane);
  EXPECT_EQ(needed([](auto& c, auto&) { c.policy = "backup:3"; }) - need, 2 * 2 * kPlane);
  EXPECT_EQ(needed([](auto& c, auto&) { c.workers.min = 6; }) - need, 4 * 2 * kPlane);
  EXPECT_EQ(need - needed([](auto&, auto& worker) { worker.codec = "bf16"; }), 2 * 2 * kPlane / 2);
  const std::uint64_t of_fragments = needed([](auto& c, auto&) {
    c.local.count = 4;
    c.local.outer = "average";  // without slots, too
    c.local.fragments = 2;
  });
  const std::uint64_t largest = 256 * 1024 * sizeof(float);  // one tensor is nearly all
  EXPECT_EQ(need - of_fragments, (2 * 2 + 1) * (kPlane - largest));
}

/// A server that goes on reckons as it did: with the codec that its checkpoint tells of. One with
/// another codec is looked at when it comes.
TEST_F(Room, AfterARestartMemoryIsReckonedWithTheCodecThatTheWorkersHad) {
  const auto data = make_blobs(256, 8, 4, 1);
  server::ServerConfig c = config(kProcess + (2 + 2 + 3 + 2 * 2) * kPlane - kPlane);
  c.policy = "quorum:2";
  c.goal.rounds = 2;
  c.leaving.when_finished = true;
  WorkerSpec small = spec(0), large = spec(1);
  small.codec = "bf16";
  large.join_timeout = std::chrono::milliseconds(1000);
  for (c.goal.rounds = 2; c.goal.rounds <= 4; c.goal.rounds += 2, c.resume = true) {
    SCOPED_TRACE(c.goal.rounds);
    TestServer server(c, tcp());
    const Status refused = run_worker(large, data, server.endpoint(), tcp()).status;
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.error().to_string(), HasSubstr("needs "));
    const Status trained = run_worker(small, data, server.endpoint(), tcp()).status;
    ASSERT_TRUE(trained.ok()) << trained.error().to_string();
    EXPECT_TRUE(server.join().ok());
  }
}

/// What is left beside the model is given to tables, readers and copies once, not to each of them.
TEST_F(Room, TablesAndReadersShareWhatIsFree) {
  const auto data = make_blobs(256, 8, 4, 1);
  // As for 8 workers of plain SGD, with copies for a checkpoint of model and tables.
  const std::uint64_t need = kProcess + (2 + 8 + 2) * kPlane + kCopies;
  server::ServerConfig c = config(need + (4u << 20));
  c.tables = "emb:dim=16,optimizer=sgd";
  c.goal.rounds = 2;
  TestServer server(c, tcp());
  EXPECT_TRUE(run_worker(spec(0), data, server.endpoint(), tcp()).status.ok());

  const auto number_in = [](const std::string& text, const char* before) -> std::uint64_t {
    std::smatch found;
    EXPECT_TRUE(std::regex_search(text, found, std::regex(std::string(before) + "([0-9]+)")))
        << text;
    return found.empty() ? 0 : std::stoull(found[1]);
  };
  client::PullOptions reader;
  reader.servers = server.endpoint().to_string();
  const auto pulled = client::pull_tensors(reader, {});
  ASSERT_FALSE(pulled.ok()) << "there is room for a copy: the test needs less memory";
  const std::uint64_t readers = number_in(pulled.error().message(), "copies for readers may take ");

  client::RowsClientOptions options;
  options.servers = server.endpoint().to_string();
  const auto rows = client::RowsClient::open(options, "emb");
  ASSERT_TRUE(rows.ok()) << rows.error().to_string();
  std::vector<std::uint64_t> keys(1000);
  const std::vector<float> gradients(keys.size() * 16, 1.0f);
  Status pushed;
  for (std::uint64_t key = 0; pushed.ok() && key < 1'000'000;) {
    for (auto& k : keys) k = ++key;
    pushed = (*rows)->push(keys, gradients);
  }
  ASSERT_FALSE(pushed.ok());
  const std::uint64_t tables = number_in(pushed.error().message(), "leaves them ");
  EXPECT_GT(tables, 1u << 20);
  EXPECT_LE(need + readers + tables, c.memory.limit);
}

}  // namespace
}  // namespace centroid::test
