#include <atomic>
#include <future>

#include <boost/asio/use_future.hpp>
#include <gmock/gmock.h>

#include "common/base/prometheus_registry.h"
#include "tests/support/test_shard.h"
#include "tests/unit/temporary_directory.h"
#include "transport/session.h"
#include "worker/exchange/cluster_exchange.h"

/// A leader whose term is over: who has followed a later one leaves it by name, workers and shard
/// servers.
namespace centroid::test {
namespace {

using proto::Kind;
using testing::HasSubstr;
using transport::InFrame;
using transport::Session;

constexpr std::uint64_t kTerm = 5;

/// Takes whoever comes, in term 5 the first time, for a moment, and in term 4 from then on. Who
/// stays then finds nobody any more.
class OldLeader final : public transport::FrameSink {
 public:
  OldLeader() : listener_(transport_->listen({"127.0.0.1", 0}).value()) {
    serving_ = boost::asio::co_spawn(thread_.context(), serve(this), boost::asio::use_future);
  }
  ~OldLeader() override {
    boost::asio::post(thread_.executor(), boost::asio::use_future([this] {
                        if (session_) session_->close(Error(ErrorCode::kCancelled, "the end"));
                        listener_->close();
                      }))
        .get();
    serving_.get();
  }
  transport::Endpoint endpoint() const { return listener_->endpoint(); }
  int joined() const { return joined_; }

 private:
  static Task<void> serve(OldLeader* self) {
    while (!self->is_followed_) {
      auto connection = co_await self->listener_->accept();
      if (!connection.ok()) co_return;
      transport::Greeting greeting;
      greeting.role = greeting.name = "server";
      greeting.run_id = "run";
      const TimePoint limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
      auto session = co_await Session::accept(std::move(connection).value(), greeting, limit);
      if (!session.ok()) continue;
      self->session_ = std::move(session).value();
      TaskGroup tasks(self->thread_.executor());
      tasks.spawn(watch(self, self->session_.get()));
      (void)co_await self->session_->run(*self);
      tasks.cancel();
      co_await tasks.join();
    }
    self->listener_->close();
  }
  static Task<void> watch(OldLeader* self, Session* session) {
    const TimePoint limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    if (!co_await sleep_until(limit)) co_return;
    self->is_followed_ = true;
    session->close(Error(ErrorCode::kUnavailable, "it was not left"));
  }
  Task<Status> on_frame(Session& session, InFrame frame) override {
    const std::uint64_t term = joined_ == 0 ? kTerm : kTerm - 1;
    std::vector<std::byte> head;
    if (frame.header.kind == static_cast<std::uint16_t>(proto::ServersKind::kServerJoin)) {
      proto::ServerTerms terms;
      terms.run_id = "run";
      terms.lease_ms = 60'000;
      terms.term = term;
      head = proto::encode(terms);
    } else if (frame.header.kind == static_cast<std::uint16_t>(Kind::kJoin)) {
      CENTROID_CO_ASSIGN(auto join, proto::decode<proto::Join>(frame.head));
      Buffer manifest(frame.header.payload_bytes);
      CENTROID_CO_TRY(co_await session.read_payload(manifest.bytes()));
      CENTROID_CO_ASSIGN(join.manifest, proto::decode_manifest(manifest.bytes()));
      proto::JoinReply reply;
      reply.member = MemberId(1);
      reply.run_id = "run";
      reply.chunk_bytes = 1 << 20;
      reply.plan_hash = ChunkPlan::make(join.manifest, reply.chunk_bytes).value().hash();
      reply.lease_ms = 60'000;
      reply.optimizer.name = "sgd";
      reply.term = term;
      head = proto::encode(reply);
    } else {
      co_return Status();
    }
    const bool is_first = ++joined_ == 1;
    CENTROID_CO_TRY(co_await session.respond(frame.header, head));
    const Error over(ErrorCode::kUnavailable, "this session is over");
    if (is_first) co_await session.goodbye(over);
    co_return Status();
  }

  IoThread thread_{"test-leader"};
  std::unique_ptr<transport::Transport> transport_ = tcp(thread_.executor());
  std::unique_ptr<transport::Listener> listener_;
  std::unique_ptr<Session> session_;
  std::atomic<int> joined_ = 0;
  bool is_followed_ = false;
  std::future<void> serving_;
};

constexpr std::chrono::milliseconds kJoinTimeout{4000};

TEST(ServersDeposed, AShardServerLeavesALeaderOfAnOlderTermByName) {
  OldLeader leader;
  TestShard shard("s1", leader.endpoint(), "", 0, false,
                  [](server::ShardOptions& o) { o.join_timeout = kJoinTimeout; });
  const Status ended = shard.join();
  ASSERT_FALSE(ended.ok());
  EXPECT_EQ(ended.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(ended.error().message(),
              HasSubstr(leader.endpoint().to_string() +
                        " leads in term 4, this server has followed term 5: that server is "
                        "deposed"));
  EXPECT_GT(leader.joined(), 1);
}

TEST(ServersDeposed, AWorkerLeavesALeaderOfAnOlderTermByName) {
  OldLeader leader;
  TemporaryDirectory directory;
  std::vector<float> params(4), gradients(4);
  worker::ClusterOptions options;
  options.servers = {leader.endpoint()};
  options.join.name = "w0";
  options.join.exchange = "star";
  options.join.codec = "f32";
  options.join.batch = 4;
  options.join.train_samples = 8;
  options.join.manifest = {{.name = "w", .dtype = DType::kF32, .shape = {4}}};
  options.state_dir = directory.path();
  options.join_timeout = kJoinTimeout;
  worker::ExchangeMemory memory;
  memory.params = params;
  memory.gradients = gradients;
  memory.initialize = [](std::uint64_t) {};
  metrics::PrometheusRegistry registry;
  IoThread io{"io"};
  const auto exchange = worker::make_cluster_exchange(
      io.executor(), tcp(io.executor()), std::move(options), std::move(memory), registry);
  const auto next = exchange->next();
  ASSERT_FALSE(next.ok());
  EXPECT_EQ(next.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(next.error().message(),
              HasSubstr(leader.endpoint().to_string() +
                        " leads in term 4, this worker has followed term 5: that server is "
                        "deposed"));
  EXPECT_GT(leader.joined(), 1);
}

}  // namespace
}  // namespace centroid::test
