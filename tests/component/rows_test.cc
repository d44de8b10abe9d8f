#include "common/proto/rows.h"

#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <thread>

#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
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

/// Stands between clients and a server, and cuts the first connection instead of passing on the
/// server's frame number `cut_at` (HelloReply is 1).
class CuttingRelay {
 public:
  CuttingRelay(const transport::Endpoint& server, int cut_at)
      : server_(tcp::endpoint(boost::asio::ip::make_address(server.host), server.port)),
        cut_at_(cut_at),
        thread_([this] { run(); }) {}
  ~CuttingRelay() {
    is_ending_ = true;
    // Wakes accept.
    boost::asio::io_context context;
    tcp::socket last(context);
    boost::system::error_code ignored;
    last.connect(acceptor_.local_endpoint(), ignored);
    thread_.join();
  }
  transport::Endpoint endpoint() const {
    transport::Endpoint out;
    out.port = acceptor_.local_endpoint().port();
    return out;
  }
  int connections() const { return connections_; }

 private:
  using tcp = boost::asio::ip::tcp;

  void run() {
    for (;;) {
      tcp::socket client = acceptor_.accept();
      if (is_ending_) return;
      ++connections_;
      tcp::socket server(context_);
      server.connect(server_);
      std::thread up([&] { copy_bytes(client, server); });
      copy_frames(server, client, connections_ == 1 ? cut_at_ : 0);
      boost::system::error_code ignored;
      client.shutdown(tcp::socket::shutdown_both, ignored);
      server.shutdown(tcp::socket::shutdown_both, ignored);
      up.join();
    }
  }
  static void copy_bytes(tcp::socket& from, tcp::socket& to) {
    std::vector<std::byte> buffer(64 << 10);
    boost::system::error_code failed;
    while (!failed) {
      const std::size_t n = from.read_some(boost::asio::buffer(buffer), failed);
      if (!failed) boost::asio::write(to, boost::asio::buffer(buffer.data(), n), failed);
    }
    to.shutdown(tcp::socket::shutdown_both, failed);
  }
  static void copy_frames(tcp::socket& from, tcp::socket& to, int cut_at) {
    boost::system::error_code failed;
    for (int frame = 1;; ++frame) {
      std::vector<std::byte> bytes(transport::kFrameHeaderBytes);
      boost::asio::read(from, boost::asio::buffer(bytes), failed);
      if (failed) return;
      const auto header = transport::decode_header(bytes, transport::FrameLimits{});
      if (!header.ok() || frame == cut_at) return;
      bytes.resize(bytes.size() + header->head_bytes + header->payload_bytes);
      const auto rest = boost::asio::buffer(bytes) + transport::kFrameHeaderBytes;
      boost::asio::read(from, rest, failed);
      if (!failed) boost::asio::write(to, boost::asio::buffer(bytes), failed);
      if (failed) return;
    }
  }

  boost::asio::io_context context_;
  tcp::acceptor acceptor_{context_, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0)};
  const tcp::endpoint server_;
  const int cut_at_;
  std::atomic<bool> is_ending_{false};
  std::atomic<int> connections_{0};
  std::thread thread_;
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

TEST_F(RowsServiceTest, AClientWhoseAnswerWasLostConnectsAgainAndItsPushCountsOnce) {
  // 1: HelloReply, 2: RowsOpenReply, 3: the answer to the first call.
  for (const int cut_at : {1, 2, 3, 4}) {
    SCOPED_TRACE("cut at frame " + std::to_string(cut_at));
    const CuttingRelay relay(server.endpoint(), cut_at);
    RowsClientOptions options;
    options.server = relay.endpoint();
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
              HasSubstr("the first message must be Join (16) or RowsOpen (64), not 66"));
}

}  // namespace
}  // namespace centroid::test
