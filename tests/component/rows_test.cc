#include "common/proto/rows.h"

#include <cmath>
#include <future>
#include <limits>
#include <numeric>
#include <thread>

#include <gmock/gmock.h>

#include "client/rows_client.h"
#include "common/base/prometheus_registry.h"
#include "common/base/random.h"
#include "server/election/fence.h"
#include "server/rows/row_rules.h"
#include "server/rows/row_table.h"
#include "server/service/job_server.h"
#include "tests/support/cluster.h"
#include "tests/support/rows_peers.h"
#include "tests/unit/temporary_directory.h"

namespace centroid::test {
namespace {

using client::RowsClient;
using client::RowsClientOptions;
using proto::RowsKind;
using testing::HasSubstr;
using Keys = std::vector<std::uint64_t>;
using Floats = std::vector<float>;

constexpr const char* kOwnTables =
    "emb:dim=4,lr=0.1,init=uniform:0.05,seed=3;wide:dim=4096,optimizer=sgd;"
    "timed:dim=1,optimizer=sgd,lr=1,schedule=step:every=10,factor=0.5";

server::ServerConfig config(const std::filesystem::path& folder) {
  server::ServerConfig c;
  c.run_dir = folder;
  c.tables = kOwnTables;
  c.transfer.chunk_bytes = 64 << 10;
  return c;
}

/// Why a server with these tables does not begin, in a folder with checkpoints or without.
std::string prepare_error(const std::filesystem::path& folder, const std::string& tables,
                          std::uint64_t memory_limit) {
  server::ServerConfig c = config(folder);
  c.tables = tables;
  c.memory.limit = memory_limit;
  c.resume = memory_limit == 0;
  EXPECT_TRUE(server::finish(c).ok());
  IoThread service{"test-service"}, blocking{"test-blocking"};
  const SystemClock clock;
  metrics::PrometheusRegistry registry;
  server::JobServer cluster(service.executor(), blocking.executor(), c, clock, registry);
  const Status prepared = service.wait(cluster.prepare());
  return prepared.ok() ? "it began" : prepared.error().to_string();
}

class RowsServiceTest : public testing::Test {
 protected:
  std::unique_ptr<RowsClient> client_of(const std::string& table) {
    RowsClientOptions options;
    options.servers = server.endpoint().to_string();
    auto client = RowsClient::open(options, table);
    EXPECT_TRUE(client.ok()) << client.error().to_string();
    return std::move(client).value();
  }
  double metric(const std::string& name) {
    return server.registry().counter(name, "", {{"table", "emb"}}).value();
  }

  server::RowSpec spec = server::parse_tables(kOwnTables)->at(0);
  TemporaryDirectory directory;
  TestServer server{config(directory.path()),
                    [](Executor executor) { return transport::make_tcp(executor); }};
};

TEST_F(RowsServiceTest, AServerWithoutATrainingJobServesRows) {
  const auto client = client_of("emb");
  EXPECT_EQ(client->dim(), 4u);
  server::RowTable expected(spec);
  for (const std::uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    CounterRng rng(seed);
    // More than a message holds.
    Keys keys(client->max_rows() + 100);
    for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = mix64(seed, i % 4000);
    Floats gradients(keys.size() * 4);
    for (auto& g : gradients) g = static_cast<float>(rng.normal());
    ASSERT_TRUE(client->push(keys, gradients).ok());
    const std::span<const std::uint64_t> all(keys);
    const std::span<const float> values(gradients);
    const std::size_t first = client->max_rows();
    ASSERT_TRUE(expected.push(all.first(first), values.first(4 * first), 0).ok());
    ASSERT_TRUE(expected.push(all.subspan(first), values.subspan(4 * first), 0).ok());
    keys.push_back(~seed);  // not stored
    Floats got(keys.size() * 4), want(keys.size() * 4);
    ASSERT_TRUE(client->pull(keys, got).ok());
    expected.pull(keys, want, 0);
    EXPECT_EQ(got, want);
  }
  EXPECT_EQ(metric("centroid_rows_admitted_total"), 12'000);
}

TEST_F(RowsServiceTest, RefusalsNameTheReasonAndChangeNothing) {
  const auto client = client_of("emb");
  Floats before(8), after(8);
  ASSERT_TRUE(client->push(Keys{1}, Floats{1, 2, 3, 4}).ok());
  ASSERT_TRUE(client->pull(Keys{1, 2}, before).ok());
  const Status bad =
      client->push(Keys{2, 1}, Floats{1, 1, 1, 1, 1, 1, std::numeric_limits<float>::infinity(), 1});
  EXPECT_EQ(bad.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(bad.error().message(), HasSubstr("table 'emb': the gradient of key 1, column 2"));
  EXPECT_THAT(client->push(Keys{1}, Floats{1}).error().message(), HasSubstr("dim 4"));
  ASSERT_TRUE(client->pull(Keys{1, 2}, after).ok());
  EXPECT_EQ(before, after);
  RowsClientOptions options;
  options.servers = server.endpoint().to_string();
  const auto unknown = RowsClient::open(options, "embeddings");
  EXPECT_EQ(unknown.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(unknown.error().message(), HasSubstr("this server has emb, wide"));

  RawClient raw(server.endpoint());
  ASSERT_TRUE(raw.open_table(9, "emb").ok());
  const auto message = [](const Result<transport::Reply>& reply) {
    return reply.ok() ? "it was served" : reply.error().message();
  };
  EXPECT_THAT(message(raw.push(1, {1}, {1, 2, 3})), HasSubstr("it must be 24 (keys, gradients)"));
  EXPECT_THAT(message(raw.push(1, {1}, {1, 2, 3, 4}, 7)), HasSubstr("no table number 7"));
  proto::RowsPull pull;
  pull.table = 1;
  pull.rows = 100;  // of dim 4096: over a message's limit, though the question is small
  EXPECT_THAT(message(raw.ask(RowsKind::kPull, pull, std::vector<std::byte>(800))),
              HasSubstr("over the limit"));
  ASSERT_TRUE(client->pull(Keys{1, 2}, after).ok());
  EXPECT_EQ(before, after);
}

TEST_F(RowsServiceTest, AClientThatKnowsOfNoStepsIsRefusedByATableWithAScheduleAndMayPull) {
  RawClient raw(server.endpoint());
  ASSERT_TRUE(raw.open_table(9, "timed").ok());
  const auto silent = raw.push(1, {5}, {1.0f}, 2);
  ASSERT_FALSE(silent.ok());
  EXPECT_EQ(silent.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(silent.error().message(), HasSubstr("table 'timed' has the schedule step:every=10"));
  EXPECT_THAT(silent.error().message(), HasSubstr("must say which step"));
  ASSERT_TRUE(raw.push(1, {5}, {1.0f}, 2, 15).ok()) << "mended, under its number";
  const auto row = raw.pull({5}, 2);
  ASSERT_TRUE(row.ok());
  EXPECT_EQ(*reinterpret_cast<const float*>(row->payload.data()), -0.5f);
}

TEST_F(RowsServiceTest, APushThatComesAgainOnANewSessionIsNotAppliedAgain) {
  Floats once(4), again(4);
  const auto client = client_of("emb");
  for (const bool is_repeat : {false, true}) {
    RawClient raw(server.endpoint());
    const auto opened = raw.open_table(77, "emb");
    ASSERT_TRUE(opened.ok());
    EXPECT_EQ(proto::decode<proto::RowsOpenReply>(opened->head)->newest, is_repeat ? 5u : 0u);
    const auto pushed = raw.push(5, {1}, {1, 2, 3, 4});
    ASSERT_TRUE(pushed.ok());
    EXPECT_EQ(proto::decode<proto::RowsPushReply>(pushed->head)->applied, !is_repeat);
    ASSERT_TRUE(client->pull(Keys{1}, is_repeat ? again : once).ok());
  }
  EXPECT_EQ(once, again);
  EXPECT_NE(once[0], 0.0f);
}

TEST_F(RowsServiceTest, AClientWhoseAnswerWasLostConnectsAgainAndItsPushCountsOnce) {
  // 1: HelloReply, 2: RowsOpenReply, 3: the answer to the first call.
  for (const int cut_at : {1, 2, 3, 4}) {
    SCOPED_TRACE("cut at frame " + std::to_string(cut_at));
    const CuttingRelay relay(server.endpoint(), cut_at);
    RowsClientOptions options;
    options.servers = relay.endpoint().to_string();
    const auto client = RowsClient::open(options, "emb");
    ASSERT_TRUE(client.ok()) << client.error().to_string();
    server::RowTable expected(spec);
    const Keys keys{static_cast<std::uint64_t>(1000 + cut_at), 5000};
    const Floats gradients{1, 2, 3, 4, 0, 0, 0, 0};
    for (int push = 0; push < 3; ++push) {
      const Status pushed = (*client)->push(keys, gradients);
      ASSERT_TRUE(pushed.ok()) << pushed.error().to_string();
      ASSERT_TRUE(expected.push(keys, gradients, 0).ok());
    }
    Floats got(8), want(8);
    ASSERT_TRUE((*client)->pull(keys, got).ok());
    expected.pull(keys, want, 0);
    EXPECT_EQ(got, want);
    EXPECT_EQ(relay.connections(), 2);
  }
}

TEST_F(RowsServiceTest, AMalformedMessageEndsTheSession) {
  RawClient raw(server.endpoint());
  EXPECT_THAT(raw.open_table(0, "emb").error().to_string(), HasSubstr("RowsOpen.client is 0"));
  RawClient other(server.endpoint());
  EXPECT_THAT(other.push(1, {1}, {1, 2, 3, 4}).error().to_string(),
              HasSubstr("the first message must be Join (16), RowsOpen (64) or Pull (80), not 66"));
}

/// Tables over restarts.
class RowsRestartTest : public testing::Test {
 protected:
  std::unique_ptr<TestServer> start(bool resume, const std::string& tables = kOwnTables) {
    server::ServerConfig c = config(directory.path());
    c.resume = resume;
    c.tables = tables;
    return std::make_unique<TestServer>(
        c, [](Executor executor) { return transport::make_tcp(executor); });
  }
  static Floats pulled(RowsClient& client, const Keys& keys) {
    Floats out(keys.size() * client.dim());
    EXPECT_TRUE(client.pull(keys, out).ok());
    return out;
  }
  TemporaryDirectory directory;
};

TEST_F(RowsRestartTest, AStopKeepsTheRowsAndAContinuedRunHasTheSameBits) {
  const server::RowSpec spec = server::parse_tables(kOwnTables)->at(0);
  server::RowTable expected(spec);
  const Keys keys{1, 2, 3, 1};
  Floats gradients(16);
  for (int run = 0; run < 3; ++run) {
    const auto server = start(run > 0);
    RowsClientOptions options;
    options.servers = server->endpoint().to_string();
    const auto client = RowsClient::open(options, "emb");
    ASSERT_TRUE(client.ok()) << client.error().to_string();
    for (int push = 0; push < 5; ++push) {
      for (std::size_t i = 0; i < 16; ++i)
        gradients[i] = static_cast<float>(run + push) - 3 * static_cast<float>(i);
      ASSERT_TRUE((*client)->push(keys, gradients).ok());
      ASSERT_TRUE(expected.push(keys, gradients, 0).ok());
    }
    Floats want(16);
    expected.pull(keys, want, 0);
    EXPECT_EQ(pulled(**client, keys), want);
  }
}

TEST_F(RowsRestartTest, AClientIsToldOnceWhichOfItsPushesAServerThatBeganAnewLacks) {
  auto server = start(false);
  // A relay whose address stays, as that of a real server does.
  const auto relay = std::make_unique<SwitchingRelay>(server->endpoint());
  RowsClientOptions options;
  options.servers = relay->endpoint().to_string();
  const auto client = RowsClient::open(options, "emb");
  ASSERT_TRUE(client.ok()) << client.error().to_string();
  const Keys keys{1, 2};
  for (int push = 0; push < 3; ++push) ASSERT_TRUE((*client)->push(keys, Floats(8, 1.0f)).ok());
  ASSERT_TRUE(server->checkpoint().ok());
  const Floats kept = pulled(**client, keys);
  // What a kill leaves: the folder as it is now.
  const auto copy = directory.path() / "copy";
  std::filesystem::copy(directory.path() / "checkpoints", copy,
                        std::filesystem::copy_options::recursive);
  for (int push = 0; push < 4; ++push) ASSERT_TRUE((*client)->push(keys, Floats(8, 2.0f)).ok());
  EXPECT_EQ((*client)->pushed(), 7u);
  relay->cut();
  server.reset();
  std::filesystem::remove_all(directory.path() / "checkpoints");
  std::filesystem::rename(copy, directory.path() / "checkpoints");
  server = start(true);
  relay->to(server->endpoint());

  const Status told = (*client)->push(keys, Floats(8, 3.0f));
  ASSERT_FALSE(told.ok());
  EXPECT_EQ(told.error().code(), ErrorCode::kAborted);
  EXPECT_THAT(told.error().message(), HasSubstr("from checkpoint-000000000000"));
  EXPECT_THAT(told.error().message(), HasSubstr("up to number 3 of the 7 that were answered"));
  EXPECT_EQ((*client)->lost(), 4u);
  EXPECT_EQ(pulled(**client, keys), kept);
  ASSERT_TRUE((*client)->push(keys, Floats(8, 3.0f)).ok());
  EXPECT_NE(pulled(**client, keys), kept);
}

TEST_F(RowsRestartTest, ATableThatIsInTheCheckpointMustBeInTheSettings) {
  {
    const auto server = start(false);
    RowsClientOptions options;
    options.servers = server->endpoint().to_string();
    const auto client = RowsClient::open(options, "emb");
    ASSERT_TRUE((*client)->push(Keys{1}, Floats(4, 1.0f)).ok());
  }
  EXPECT_THAT(prepare_error(directory.path(), "wide:dim=4096,optimizer=sgd", 0),
              HasSubstr("has a table 'emb', which the setting `tables` has not"));
  EXPECT_THAT(prepare_error(directory.path(), "emb:dim=5;wide:dim=4096,optimizer=sgd", 0),
              HasSubstr("dim was 4, the setting `tables` says 5"));
}

TEST_F(RowsRestartTest, TablesThatDoNotFitIntoTheMemoryAreRefusedWithTheNumbers) {
  const std::string why =
      prepare_error(directory.path(), "emb:dim=4,max_bytes=300000000", 200u << 20);
  EXPECT_THAT(why, HasSubstr("the tables of sparse rows may need 367108864 bytes"));
  EXPECT_THAT(why, HasSubstr("memory_limit allows 209715200"));
}

TEST_F(RowsRestartTest, ATableWithoutABoundGrowsAsFarAsTheMemoryLimitLets) {
  server::ServerConfig c = config(directory.path());
  c.memory.limit = 112u << 20;  // 32 are the server's own, 64 for copies of a checkpoint
  TestServer server(c, [](Executor executor) { return transport::make_tcp(executor); });
  RowsClientOptions options;
  options.servers = server.endpoint().to_string();
  const auto client = RowsClient::open(options, "emb");
  ASSERT_TRUE(client.ok());
  Keys keys((*client)->max_rows());
  Floats gradients(keys.size() * 4, 1.0f), before(16), after(16);
  Status pushed;
  for (std::uint64_t key = 0; pushed.ok() && key < 4'000'000;) {
    for (auto& k : keys) k = ++key;
    pushed = (*client)->push(keys, gradients);
  }
  ASSERT_FALSE(pushed.ok());
  EXPECT_EQ(pushed.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(pushed.error().message(), HasSubstr("table 'emb' holds"));
  EXPECT_THAT(pushed.error().message(), HasSubstr("memory_limit"));
  // Rows that are there can still be updated, all of them.
  std::iota(keys.begin(), keys.end(), 1);
  const Status again = (*client)->push(keys, gradients);
  EXPECT_TRUE(again.ok()) << again.error().to_string();
}

/// A server knows pushes for so long after they were begun, not after they were tried last.
TEST_F(RowsRestartTest, APushWithoutAnAnswerIsRepeatedForSoLongAfterItWasBegun) {
  auto server = start(false);
  const auto relay = std::make_unique<SwitchingRelay>(server->endpoint());
  RowsClientOptions options;
  options.servers = relay->endpoint().to_string();
  options.timeout = std::chrono::milliseconds(2000);  // a busy machine joins in that time, too
  options.repeat_within = std::chrono::milliseconds(7000);
  const auto client = RowsClient::open(options, "emb");
  ASSERT_TRUE(client.ok()) << client.error().to_string();
  const Keys keys{1, 2};
  ASSERT_TRUE((*client)->push(keys, Floats(8, 1.0f)).ok());
  relay->mute();
  Status tried = (*client)->push(keys, Floats(8, 1.0f));
  int tries = 0;
  for (; tries < 20 && !tried.ok() && tried.error().code() != ErrorCode::kFailedPrecondition;
       ++tries) {
    EXPECT_EQ((*client)->rest(), 2u);
    tried = (*client)->push_rest();
  }
  ASSERT_FALSE(tried.ok());
  EXPECT_EQ(tried.error().code(), ErrorCode::kFailedPrecondition) << tried.error().to_string();
  EXPECT_THAT(tried.error().message(), HasSubstr("7 seconds after the push began"));
  EXPECT_LE(tries, 5);
  EXPECT_EQ((*client)->rest(), 2u);
  // The next push forgets it, also one that is refused before anything is sent.
  EXPECT_FALSE((*client)->push(keys, Floats(8, std::nanf(""))).ok());
  EXPECT_EQ((*client)->rest(), 0u);
  EXPECT_TRUE((*client)->push_rest().ok());
  RowsClientOptions direct;
  direct.servers = server->endpoint().to_string();
  const auto other = RowsClient::open(direct, "emb");
  ASSERT_TRUE(other.ok());
  server::RowTable expected(server::parse_tables(kOwnTables)->at(0));
  for (int push = 0; push < 2; ++push) ASSERT_TRUE(expected.push(keys, Floats(8, 1.0f), 0).ok());
  Floats want(8);
  expected.pull(keys, want, 0);
  EXPECT_EQ(pulled(**other, keys), want) << "each once";
}

TEST_F(RowsRestartTest, AClientDoesNotTrainTheRowsOfAnotherRun) {
  auto server = start(false);
  const auto relay = std::make_unique<SwitchingRelay>(server->endpoint());
  RowsClientOptions options;
  options.servers = relay->endpoint().to_string();
  const auto client = RowsClient::open(options, "emb");
  ASSERT_TRUE(client.ok()) << client.error().to_string();
  const Keys keys{1, 2};
  ASSERT_TRUE((*client)->push(keys, Floats(8, 1.0f)).ok());
  relay->cut();
  server.reset();
  server::ServerConfig c = config(directory.path() / "other");
  c.run_id = "other-run";
  TestServer other(c, [](Executor executor) { return transport::make_tcp(executor); });
  relay->to(other.endpoint());
  RowsClientOptions its;
  its.servers = other.endpoint().to_string();
  const auto its_client = RowsClient::open(its, "emb");
  ASSERT_TRUE(its_client.ok());
  const Floats before = pulled(**its_client, keys);
  for (int call = 0; call < 2; ++call) {
    const Status refused = (*client)->push(keys, Floats(8, 1.0f));
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code(), ErrorCode::kFailedPrecondition);
    EXPECT_THAT(refused.error().message(), HasSubstr("serves \"other-run\""));
  }
  EXPECT_EQ(pulled(**its_client, keys), before);
}

/// A leader that was stopped and wakes up hears later that another one leads; its lease is out
/// before.
TEST_F(RowsRestartTest, ALeaderWhoseLeaseIsOutServesNoRows) {
  const auto later = std::chrono::steady_clock::now() + std::chrono::hours(1);
  server::Fence fence(directory.path() / "checkpoints", "a");
  fence.open(1, later);
  server::ServerConfig c = config(directory.path());
  TestServer server(c, [](Executor executor) { return transport::make_tcp(executor); }, &fence);
  RowsClientOptions options;
  options.servers = server.endpoint().to_string();
  const auto client = RowsClient::open(options, "emb");
  options.timeout = std::chrono::milliseconds(2000);
  const auto impatient = RowsClient::open(options, "emb");
  ASSERT_TRUE(client.ok() && impatient.ok());
  const Keys keys{1, 2};
  ASSERT_TRUE((*client)->push(keys, Floats(8, 1.0f)).ok());
  const Floats before = pulled(**client, keys);
  fence.open(1, TimePoint::min());
  const Status pushed = (*impatient)->push(keys, Floats(8, 1.0f));
  ASSERT_FALSE(pushed.ok());
  EXPECT_THAT(pushed.error().message(), HasSubstr("another server may lead by now"));
  Floats out(8);
  const Status read = (*impatient)->pull(keys, out);
  ASSERT_FALSE(read.ok());
  EXPECT_THAT(read.error().message(), HasSubstr("another server may lead by now"));
  fence.open(1, later);
  EXPECT_EQ(pulled(**client, keys), before);
}

TEST_F(RowsRestartTest, AClientThatIsSilentForALeaseIsClosedAndOneThatStaysIsNot) {
  server::ServerConfig c = config(directory.path());
  c.timeouts.lease = std::chrono::milliseconds(400);
  TestServer server(c, [](Executor executor) { return transport::make_tcp(executor); });
  RowsClientOptions options;
  options.servers = server.endpoint().to_string();
  const auto stays = RowsClient::open(options, "emb");
  ASSERT_TRUE(stays.ok());
  RawClient silent(server.endpoint());
  ASSERT_TRUE(silent.open_table(5, "emb").ok());
  const auto connected = [&] {
    return server.registry().gauge("centroid_rows_clients", "").value();
  };
  EXPECT_EQ(connected(), 2);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (connected() > 1 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_EQ(connected(), 1);
  EXPECT_EQ(server.registry().counter("centroid_rows_silent_clients_total", "").value(), 1);
  EXPECT_FALSE(silent.push(1, {1}, {1, 2, 3, 4}).ok());
  EXPECT_TRUE((*stays)->push(Keys{1}, Floats(4, 1.0f)).ok());
  EXPECT_EQ(connected(), 1);
}

/// Tables alone, under a clock that the test moves, and the sessions of clients.
class TimedTables {
 public:
  TimedTables() : thread_("tables") {
    post([this] {
      auto listening = transport_->listen(transport::Endpoint());
      EXPECT_TRUE(listening.ok());
      listener_ = std::move(listening).value();
      tasks_.spawn(accept(this));
    });
  }
  ~TimedTables() { thread_.wait(stop(this)); }
  transport::Endpoint endpoint() const { return listener_->endpoint(); }
  /// Let time pass, and look who has gone.
  void pass(Duration time) {
    clock_.advance(time);
    post([this] { rows_.tick(); });
  }
  void load(const std::vector<server::PushWindows::Entry>& clients) {
    post([&] { rows_.load_pushes(clients); });
  }
  std::size_t known() {
    std::size_t clients = 0;
    post([&] { clients = rows_.store().windows().entries().size(); });
    return clients;
  }

 private:
  /// Of one session.
  struct Sink final : transport::FrameSink {
    Sink(server::RowsService& rows, transport::Session& session)
        : rows_(rows), client_(rows.sessions(), session) {}
    Task<Status> on_frame(transport::Session& session, transport::InFrame frame) override {
      co_return co_await rows_.on_frame(session, frame, client_);
    }
    server::RowsService& rows_;
    server::RowsSession client_;
  };
  template <class F>
  void post(F work) {
    std::promise<void> done;
    boost::asio::post(thread_.executor(), [&] { work(), done.set_value(); });
    done.get_future().wait();
  }
  static Task<void> accept(TimedTables* self) {
    for (;;) {
      auto connection = co_await self->listener_->accept();
      if (!connection.ok()) co_return;
      self->tasks_.spawn(serve(self, std::move(connection).value()));
    }
  }
  static Task<void> serve(TimedTables* self, std::unique_ptr<transport::Connection> connection) {
    transport::Greeting greeting;
    greeting.role = "server";
    greeting.name = "tables";
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    auto session = co_await transport::Session::accept(std::move(connection), greeting, limit);
    if (!session.ok()) co_return;
    Sink sink(self->rows_, **session);
    (void)co_await (*session)->run(sink);
  }
  static Task<void> stop(TimedTables* self) {
    self->listener_->close();
    self->tasks_.cancel();
    co_await self->tasks_.join();
    self->listener_.reset();
  }

  ManualClock clock_;
  metrics::PrometheusRegistry registry_;
  // Sessions have the system's clock: nobody is silent.
  server::RowsService rows_{"emb:dim=2", std::chrono::hours(1'000'000), clock_, registry_};
  IoThread thread_;
  std::unique_ptr<transport::Transport> transport_ = transport::make_tcp(thread_.executor());
  TaskGroup tasks_{thread_.executor()};
  std::unique_ptr<transport::Listener> listener_;
};

/// With as many clients as are remembered a new one is refused, by name, instead of another's
/// pushes being forgotten within the time in which it may send one again.
TEST(RowsClients, NobodyIsForgottenWithinTenMinutesAndWhoIsTooManyIsRefused) {
  TimedTables tables;
  std::vector<server::PushWindows::Entry> entries(server::PushWindows::kMaxClients);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    entries[i].client = i + 1;
    entries[i].newest = 1;
    entries[i].applied[1] = true;
  }
  tables.load(entries);
  const auto applied = [](const Result<transport::Reply>& reply) {
    return proto::decode<proto::RowsPushReply>(reply.value().head).value().applied;
  };
  const auto push = [&](std::uint64_t client, std::uint64_t sequence) {
    RawClient session(tables.endpoint());
    EXPECT_TRUE(session.open_table(client, "emb").ok());
    return session.push(sequence, {1}, {1, 2});
  };
  RawClient stays(tables.endpoint());
  ASSERT_TRUE(stays.open_table(7, "emb").ok());
  for (const Duration time : {Duration(0), Duration(std::chrono::seconds(599))}) {
    tables.pass(time);
    const auto refused = push(99'999, 1);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
    EXPECT_THAT(refused.error().message(), HasSubstr("client 99999 is refused"));
    EXPECT_FALSE(applied(push(1, 1))) << "it came again";
    EXPECT_TRUE(applied(push(2, 2 + (time.count() > 0)))) << "who is known goes on";
  }
  const std::size_t before = tables.known();
  EXPECT_EQ(before, entries.size());
  tables.pass(std::chrono::seconds(2));
  EXPECT_EQ(tables.known(), 3u) << "who is here, and the two that were heard of since";
  EXPECT_TRUE(applied(push(99'999, 1)));
  EXPECT_FALSE(applied(stays.push(1, {1}, {1, 2}))) << "ten minutes begin when it leaves";
  EXPECT_FALSE(applied(push(1, 1)));
}

}  // namespace
}  // namespace centroid::test
