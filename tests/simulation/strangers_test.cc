// What strangers do to the port for workers: the real server on a simulated network, in virtual
// time.

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <boost/asio/post.hpp>
#include <gtest/gtest.h>

#include "common/async/io_thread.h"
#include "common/base/log_level.h"
#include "common/base/metrics.h"
#include "common/base/prometheus_registry.h"
#include "common/proto/rows.h"
#include "server/service/job_server.h"
#include "tests/simulation/memory_storage.h"
#include "tests/simulation/network.h"
#include "transport/session.h"

namespace centroid::simulation {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using transport::Connection;
using transport::Session;

constexpr const char* kToken = "secret";
const transport::Endpoint kServer{.host = "server", .port = 7070};

/// Takes whatever comes.
struct AnyFrame final : transport::FrameSink {
  Task<Status> on_frame(Session& session, transport::InFrame /*frame*/) override {
    co_return co_await session.skip_payload();
  }
};

transport::Greeting greeting_of(const std::string& name, const std::string& token) {
  transport::Greeting greeting;
  greeting.role = "worker";
  greeting.name = name;
  greeting.token = token;
  greeting.limits.max_payload_bytes = 64u << 20;
  return greeting;
}

/// Connections of one process to the server, on a thread of it.
class Client {
 public:
  Client(World& world, Network& network, const std::string& name)
      : process_(world.add_process(name)), network_(network), world_(world) {}

  /// Run `act(*this)` as the process's thread until it has ended.
  void run(std::function<Task<void>(Client&)> act) {
    const auto body = [this, act = std::move(act)] {
      IoThread io("io");
      executor = io.executor();
      net = network_.make_transport(io.executor(), {});
      io.wait(close_after(act));
      net.reset();
    };
    thread_ = world_.start(process_, "main", body);
  }
  void join() { world_.join_thread(thread_); }

  /// A worker's join. Its session stays until the client ends.
  Task<Status> join_as(std::string name) {
    const TimePoint limit = now() + seconds(20);
    auto opened =
        co_await transport::connect_session(*net, kServer, greeting_of(name, kToken), limit);
    if (!opened.ok()) co_return std::move(opened).error();
    Session& session = keep(std::move(opened).value());
    proto::Join join;
    join.name = std::move(name);
    join.exchange = "star";
    join.codec = "f32";
    join.batch = 1;
    join.train_samples = 1000;
    const Manifest manifest{{.name = "a", .dtype = DType::kF32, .shape = {8}}};
    const auto head = proto::encode(join);
    const auto payload = proto::encode_manifest(manifest);
    const auto kind = static_cast<std::uint16_t>(proto::Kind::kJoin);
    const auto reply = co_await session.request(kind, head, payload, limit);
    co_return reply.ok() ? Status() : Status(reply.error());
  }
  /// A client of tables.
  Task<Status> open_table(std::string name) {
    const TimePoint limit = now() + seconds(20);
    auto opened =
        co_await transport::connect_session(*net, kServer, greeting_of(name, kToken), limit);
    if (!opened.ok()) co_return std::move(opened).error();
    Session& session = keep(std::move(opened).value());
    proto::RowsOpen open;
    open.client = 1 + sessions_.size();
    open.table = "t";
    const auto head = proto::encode(open);
    const auto kind = static_cast<std::uint16_t>(proto::RowsKind::kOpen);
    const auto reply = co_await session.request(kind, head, Bytes(), limit);
    co_return reply.ok() ? Status() : Status(reply.error());
  }
  Task<Connection*> connect() {
    auto made = co_await net->connect(kServer, now() + seconds(20));
    if (!made.ok()) co_return nullptr;
    silent.push_back(std::move(made).value());
    co_return silent.back().get();
  }

  Executor executor;
  std::unique_ptr<transport::Transport> net;
  std::vector<std::unique_ptr<Connection>> silent;

 private:
  Session& keep(std::unique_ptr<Session> session) {
    sessions_.push_back(std::move(session));
    tasks_->spawn(run_session(sessions_.back().get()));
    return *sessions_.back();
  }
  static Task<void> run_session(Session* session) {
    AnyFrame sink;
    (void)co_await session->run(sink);
  }
  Task<void> close_after(const std::function<Task<void>(Client&)>& act) {
    tasks_.emplace(executor);
    co_await act(*this);
    const Error over(ErrorCode::kCancelled, "the test is over");
    for (const auto& session : sessions_) session->close(over);
    for (const auto& one : silent) one->close(over);
    co_await tasks_->join();
    sessions_.clear();
    silent.clear();
    tasks_.reset();
  }

  Process& process_;
  Network& network_;
  World& world_;
  Host::Number thread_ = 0;
  std::optional<TaskGroup> tasks_;
  std::vector<std::unique_ptr<Session>> sessions_;
};

/// The server and its world. `play` runs in the driver's thread while the server accepts.
class StrangersTest : public ::testing::Test {
 protected:
  StrangersTest() {
    log::set_level(log::Level::kError);
    config.run_dir = "/run";
    config.run_id = "simulated";
    config.token = kToken;
    config.goal.rounds = 1'000'000;
    config.memory.limit = 1u << 30;
    config.timeouts.drain = milliseconds(10);
  }
  void play(const std::function<void()>& act) {
    world.run([&] {
      Process& process = world.add_process("server");
      process.storage = &storage;
      const auto thread = world.start(process, "main", [this] { serve(); });
      while (cluster == nullptr) world.let_pass(milliseconds(1));
      act();
      boost::asio::post(executor, [this] { cluster->request_stop("the test is over"); });
      world.join_thread(thread);
    });
  }
  double value_of(const std::string& name) {
    const std::string text = registry.serialize(), line = "\n" + name + " ";
    const auto at = text.find(line);
    return at == std::string::npos ? -1 : std::stod(text.substr(at + line.size()));
  }
  double refused(const std::string& resource) {
    return value_of("centroid_budget_refused_total{resource=\"" + resource + "\"}");
  }
  /// Silent connections, from a process each.
  void be_silent(int processes, int each) {
    for (int i = 0; i < processes; ++i) {
      auto& one = *clients.emplace_back(
          std::make_unique<Client>(world, network, "silent-" + std::to_string(i)));
      one.run([this, each](Client& client) -> Task<void> { return stay(client, each); });
    }
    while (silent_ < processes * each) world.let_pass(milliseconds(1));
  }
  void end_clients() {
    is_over = true;
    for (const auto& one : clients) one->join();
  }
  Task<void> join_one(Client& client, int number) {
    const std::string name = "w" + std::to_string(number);
    const Status joined = co_await client.join_as(name);
    EXPECT_TRUE(joined.ok()) << joined.error().to_string();
    ++joins;
  }
  Task<void> join_all(Client& client) {
    TaskGroup group(client.executor);
    for (int i = 0; i < 4000; ++i) group.spawn(join_one(client, i));
    co_await group.join();
    co_await wait_for_end();
  }
  Task<void> join_and_stay(Client& client, int number, Status& joined) {
    const std::string name = "w" + std::to_string(number);
    joined = co_await client.join_as(name);
    ++joins;
    co_await wait_for_end();
  }
  Task<void> wait_for_end() {
    while (!is_over) {
      const TimePoint next = now() + milliseconds(10);
      (void)co_await sleep_until(next);
    }
  }

  World world{1};
  Network network{world};
  std::shared_ptr<test::MemoryDisk> disk = std::make_shared<test::MemoryDisk>();
  test::MemoryStorage storage{disk};
  server::ServerConfig config;
  metrics::PrometheusRegistry registry;
  server::JobServer* cluster = nullptr;
  Executor executor;
  std::vector<std::unique_ptr<Client>> clients;
  bool is_over = false;
  int joins = 0;

 private:
  void serve() {
    ASSERT_TRUE(server::finish(config).ok());
    const SystemClock clock;
    IoThread service("service"), blocking("blocking");
    const auto transport = network.make_transport(service.executor(), {});
    server::JobServer mine(service.executor(), blocking.executor(), config, clock, registry);
    mine.set_files(blocking.executor());
    const auto listener = transport->listen(kServer);
    ASSERT_TRUE(listener.ok());
    executor = service.executor();
    cluster = &mine;
    (void)service.wait(mine.run(**listener));
  }
  Task<void> stay(Client& client, int count) {
    for (int i = 0; i < count; ++i) {
      const Connection* const made = co_await client.connect();
      EXPECT_NE(made, nullptr);
      ++silent_;
    }
    co_await wait_for_end();
  }
  int silent_ = 0;
};

TEST_F(StrangersTest, SilentAndHandshakingOnesKeepNoWorkerOut) {
  config.workers.min = config.workers.max = 256;
  play([this] {
    be_silent(5, 1000);
    for (int i = 0; i < 5; ++i) {
      auto& one = *clients.emplace_back(
          std::make_unique<Client>(world, network, "guessing-" + std::to_string(i)));
      one.run([](Client& client) -> Task<void> {
        for (int k = 0; k < 100; ++k) {
          const TimePoint limit = now() + seconds(5);
          const auto opened = co_await transport::connect_session(
              *client.net, kServer, greeting_of("guessing", "wrong"), limit);
          EXPECT_FALSE(opened.ok());
        }
      });
    }
    const double begin = world.seconds();
    std::vector<Status> joined(20);
    for (int i = 0; i < 20; ++i) {
      auto& one = *clients.emplace_back(
          std::make_unique<Client>(world, network, "worker-" + std::to_string(i)));
      Status& mine = joined[static_cast<std::size_t>(i)];
      one.run([this, i, &mine](Client& client) -> Task<void> {
        return join_and_stay(client, i, mine);
      });
    }
    while (joins < 20) world.let_pass(milliseconds(1));
    EXPECT_LT(world.seconds() - begin, 1.0);  // of virtual time
    for (const Status& one : joined) EXPECT_TRUE(one.ok()) << one.error().to_string();
    world.let_pass(seconds(3));
    EXPECT_GE(refused("strangers"), 5000 - 320);
    EXPECT_GE(refused("stranger_lines"), 4000) << "each is a line of the log";
    end_clients();
  });
}

TEST_F(StrangersTest, FourThousandJoinFromOneAddress) {
  config.workers.min = config.workers.max = 4000;
  play([this] {
    auto& one = *clients.emplace_back(std::make_unique<Client>(world, network, "cloud"));
    one.run([this](Client& client) -> Task<void> { return join_all(client); });
    while (joins < 4000) world.let_pass(milliseconds(10));
    EXPECT_EQ(refused("strangers"), 0);
    EXPECT_EQ(value_of("centroid_server_handshakes_refused_total"), 0);
    end_clients();
  });
}

TEST_F(StrangersTest, TheDisplacedOneIsTold) {
  config.workers.min = config.workers.max = 1;  // 65 places
  play([this] {
    auto& one = *clients.emplace_back(std::make_unique<Client>(world, network, "silent"));
    one.run([](Client& client) -> Task<void> {
      for (int i = 0; i < 66; ++i) EXPECT_NE(co_await client.connect(), nullptr);
      const auto frame = co_await client.silent.front()->read_header();
      CENTROID_CHECK(frame.ok());
      EXPECT_EQ(frame->header.kind, transport::kHelloReply);
      const Error why = transport::decode_error(frame->head);
      EXPECT_EQ(why.code(), ErrorCode::kResourceExhausted);
      EXPECT_NE(why.message().find("closed for a newer connection: all 65 places"),
                std::string::npos)
          << why.message();
    });
    end_clients();
  });
}

class LentHandshakesTest : public StrangersTest {
 protected:
  /// The most that 60 strangers at once, fewer than may be lent, have used of the share of
  /// handshakes.
  double used_by_strangers() {
    config.workers.min = 1;
    config.timeouts.lease = milliseconds(80);  // an eighth: between two looks at the share
    double most = -1;
    play([this, &most] {
      auto& one = *clients.emplace_back(std::make_unique<Client>(world, network, "guessing"));
      one.run([](Client& client) -> Task<void> {
        TaskGroup group(client.executor);
        for (int i = 0; i < 60; ++i) group.spawn(guess(&client));
        co_await group.join();
      });
      for (int i = 0; i < 100; ++i) {
        world.let_pass(milliseconds(10));
        most = std::max(most, value_of("centroid_budget_used{resource=\"handshake_seconds\"}"));
      }
      one.join();
    });
    return most;
  }

 private:
  static Task<void> guess(Client* client) {
    const TimePoint limit = now() + seconds(20);
    const auto opened = co_await transport::connect_session(*client->net, kServer,
                                                            greeting_of("guess", "wrong"), limit);
    EXPECT_FALSE(opened.ok());
  }
};

TEST_F(LentHandshakesTest, CostNothingWhileTheJobWaitsForWorkers) {
  EXPECT_EQ(used_by_strangers(), 0);
}

TEST_F(LentHandshakesTest, CostTheShareWhereTablesAreServed) {
  config.tables = "t:dim=4";
  EXPECT_GT(used_by_strangers(), 0.001);  // of 60 times 50 us
}

TEST_F(StrangersTest, ClientsOfTablesTakeNoPlaceOfAWorker) {
  config.workers.min = config.workers.max = 1;
  config.tables = "t:dim=4";
  play([this] {
    auto& one = *clients.emplace_back(std::make_unique<Client>(world, network, "tables"));
    one.run([](Client& client) -> Task<void> {
      for (int i = 0; i < 65; ++i) {
        const Status opened = co_await client.open_table("client");
        EXPECT_TRUE(opened.ok()) << opened.error().to_string();
      }
      const Status more = co_await client.open_table("one too many");
      CENTROID_CHECK(!more.ok());
      EXPECT_NE(more.error().message().find("as many as there may be"), std::string::npos)
          << more.error().to_string();
      const Status joined = co_await client.join_as("w0");
      EXPECT_TRUE(joined.ok()) << joined.error().to_string();
    });
    end_clients();
  });
}

}  // namespace
}  // namespace centroid::simulation
