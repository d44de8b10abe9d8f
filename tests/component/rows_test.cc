#include "common/proto/rows.h"

#include <cmath>
#include <limits>
#include <numeric>

#include <gmock/gmock.h>

#include "client/rows_client.h"
#include "common/base/random.h"
#include "server/rows/row_rules.h"
#include "tests/support/cluster.h"
#include "tests/unit/temporary_directory.h"

namespace centroid::test {
namespace {

using client::RowsClient;
using client::RowsClientOptions;
using proto::RowsKind;
using testing::HasSubstr;
using Keys = std::vector<std::uint64_t>;
using Floats = std::vector<float>;

constexpr const char* kTables =
    "emb:dim=4,lr=0.1,init=uniform:0.05,seed=3;wide:dim=4096,optimizer=sgd";

server::ServerConfig config(const std::filesystem::path& folder) {
  server::ServerConfig c;
  c.run_dir = folder;
  c.tables = kTables;
  c.chunk_bytes = 64 << 10;
  return c;
}

/// A session that says what the test tells it to say.
class RawClient final : public transport::FrameSink {
 public:
  explicit RawClient(transport::Endpoint server) : server_(std::move(server)) {
    const Status opened = thread_.wait(open(this));
    EXPECT_TRUE(opened.ok());
  }
  ~RawClient() override { thread_.wait(close(this)); }

  template <class M>
  Result<transport::Reply> ask(RowsKind kind, const M& message,
                               std::vector<std::byte> payload = {}) {
    return thread_.wait(send(this, kind, proto::encode(message), std::move(payload)));
  }
  Result<transport::Reply> open_table(std::uint64_t client, const std::string& table) {
    proto::RowsOpen open;
    open.client = client;
    open.table = table;
    return ask(RowsKind::kOpen, open);
  }
  Result<transport::Reply> push(std::uint64_t sequence, const Keys& keys, const Floats& gradients,
                                std::uint32_t table = 0) {
    proto::RowsPush head;
    head.table = table;
    head.rows = static_cast<std::uint32_t>(keys.size());
    head.sequence = sequence;
    ByteWriter payload;
    for (const auto key : keys) payload.put(key);
    for (const auto g : gradients) payload.put(g);
    return ask(RowsKind::kPush, head, payload.take());
  }

 private:
  static TimePoint limit() { return std::chrono::steady_clock::now() + std::chrono::seconds(20); }
  static Task<Status> open(RawClient* self) {
    transport::Greeting greeting;
    greeting.role = "client";
    greeting.name = "raw";
    auto made =
        co_await transport::connect_session(*self->transport_, self->server_, greeting, limit());
    if (!made.ok()) co_return made.error();
    self->session_ = std::move(made).value();
    self->tasks_.spawn(read(self));
    co_return Status();
  }
  static Task<void> read(RawClient* self) { (void)co_await self->session_->run(*self); }
  static Task<Result<transport::Reply>> send(RawClient* self, RowsKind kind,
                                             std::vector<std::byte> head,
                                             std::vector<std::byte> payload) {
    co_return co_await self->session_->request(static_cast<std::uint16_t>(kind), head, payload,
                                               limit());
  }
  static Task<void> close(RawClient* self) {
    if (self->session_) self->session_->close(Error(ErrorCode::kCancelled, "the test ends"));
    co_await self->tasks_.join();
    self->session_.reset();
  }
  Task<Status> on_frame(transport::Session&, transport::InFrame) override { co_return Status(); }

  transport::Endpoint server_;
  IoThread thread_{"raw"};
  std::unique_ptr<transport::Transport> transport_ = transport::make_tcp(thread_.executor());
  TaskGroup tasks_{thread_.executor()};
  std::unique_ptr<transport::Session> session_;
};

class RowsServiceTest : public testing::Test {
 protected:
  std::unique_ptr<RowsClient> client_of(const std::string& table) {
    RowsClientOptions options;
    options.server = server.endpoint();
    auto client = RowsClient::open(options, table);
    EXPECT_TRUE(client.ok()) << client.error().to_string();
    return std::move(client).value();
  }
  double metric(const std::string& name) {
    return server.registry().counter(name, "", {{"table", "emb"}}).value();
  }

  server::RowSpec spec = server::parse_tables(kTables)->at(0);
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
  options.server = server.endpoint();
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

TEST_F(RowsServiceTest, AMalformedMessageEndsTheSession) {
  RawClient raw(server.endpoint());
  EXPECT_THAT(raw.open_table(0, "emb").error().to_string(), HasSubstr("RowsOpen.client is 0"));
  RawClient other(server.endpoint());
  EXPECT_THAT(other.push(1, {1}, {1, 2, 3, 4}).error().to_string(),
              HasSubstr("the first message must be Join (16) or RowsOpen (64), not 66"));
}

}  // namespace
}  // namespace centroid::test
