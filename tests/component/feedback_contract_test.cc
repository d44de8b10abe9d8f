// What a worker with error feedback sends when its server breaks off and comes back, against a
// server that never does.

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <boost/asio/use_future.hpp>
#include <gmock/gmock.h>

#include "common/async/io_thread.h"
#include "common/base/prometheus_registry.h"
#include "common/base/random.h"
#include "common/proto/messages.h"
#include "tests/unit/temporary_directory.h"
#include "transport/session.h"
#include "worker/exchange/cluster_exchange.h"

namespace centroid::test::feedback_contract_test {
namespace {

using proto::Kind;
using transport::InFrame;
using transport::Session;

constexpr std::size_t kNumbers = 64;
using Payload = std::vector<std::byte>;

/// A server written from docs/reference/wire.md with one worker, which may come again and again.
class Server final : public transport::FrameSink {
 public:
  Server() : listener_(transport_->listen({"127.0.0.1", 0}).value()) {
    serving_ = spawn(serve(this));
  }
  ~Server() override {
    spawn(stop(this)).get();
    serving_.get();
    thread_.context().stop();
  }
  transport::Endpoint endpoint() const { return listener_->endpoint(); }

  /// Open the round, behind the state when the worker has just come; what it sends for it.
  Payload open(std::uint64_t round) {
    proto::RoundOpen message;
    message.generation = Generation(1);
    message.round = Round(round);
    message.world = 1;
    message.version = Version(round);
    message.end = 4;
    {
      const std::lock_guard lock(mutex_);
      payload_.reset();
    }
    EXPECT_TRUE(spawn(transfer_state(this, message.version)).get().ok());
    send(Kind::kRoundOpen, message);
    std::unique_lock lock(mutex_);
    const bool came = heard_.wait_for(lock, kPatience, [&] { return payload_.has_value(); });
    EXPECT_TRUE(came) << "no contribution to round " << round;
    return payload_.value_or(Payload());
  }
  void commit(std::uint64_t round) {
    proto::ResultChunk result;
    result.round = Round(round);
    send(Kind::kResult, result, kNumbers * sizeof(float));
    close(round, proto::Outcome::kCommitted);
  }
  void close(std::uint64_t round, proto::Outcome outcome) {
    proto::RoundClosed message;
    message.round = Round(round);
    message.outcome = outcome;
    message.version = Version(round + 1);
    send(Kind::kRoundClosed, message);
  }
  /// End the connection; the worker is told at its return which contribution counted last.
  void drop(std::uint64_t counted) { spawn(end_session(this, Round(counted))).get(); }
  void finish() { send(Kind::kFinish, proto::Finish()); }

 private:
  static constexpr std::chrono::seconds kPatience{60};

  template <class T>
  std::future<T> spawn(Task<T> task) {
    return boost::asio::co_spawn(thread_.context(), std::move(task), boost::asio::use_future);
  }
  template <class M>
  void send(Kind kind, const M& message, std::size_t payload = 0) {
    EXPECT_TRUE(spawn(send_frame(this, kind, proto::encode(message), payload)).get().ok());
  }
  static Task<void> serve(Server* self) {
    for (;;) {
      auto connection = co_await self->listener_->accept();
      if (!connection.ok()) co_return;
      transport::Greeting greeting;
      greeting.role = greeting.name = "server";
      greeting.run_id = "run";
      auto session = co_await Session::accept(std::move(connection).value(), greeting, limit());
      if (!session.ok()) continue;
      self->session_ = std::move(session).value();
      (void)co_await self->session_->run(*self);
    }
  }
  static Task<void> stop(Server* self) {
    if (self->session_) self->session_->close(Error(ErrorCode::kCancelled, "the test ends"));
    self->listener_->close();
    co_return;
  }
  static Task<void> end_session(Server* self, Round counted) {
    self->counted_ = counted;
    self->is_joined_ = false;
    self->session_->close(Error(ErrorCode::kUnavailable, "killed"));
    co_return;
  }
  static Task<Status> send_frame(Server* self, Kind kind, Payload head, std::size_t bytes) {
    const TimePoint deadline = limit();
    while (!self->is_joined_) {
      if (co_await self->joined_.wait(deadline)) continue;
      co_return Error(ErrorCode::kDeadlineExceeded, "nobody joined");
    }
    const Payload payload(bytes);
    co_return co_await self->session_->send(static_cast<std::uint16_t>(kind), head, payload,
                                            limit());
  }
  static Task<Status> transfer_state(Server* self, Version version) {
    proto::StateChunk chunk;
    chunk.version = version;
    auto head = proto::encode(chunk);
    if (self->has_state_ && self->is_joined_) co_return Status();
    const Status sent =
        co_await send_frame(self, Kind::kStateChunk, std::move(head), kNumbers * sizeof(float));
    self->has_state_ = true;
    co_return sent;
  }
  Task<Status> on_frame(Session& session, InFrame frame) override {
    const auto kind = static_cast<Kind>(frame.header.kind);
    Payload bytes(frame.header.payload_bytes);
    if (!bytes.empty()) {
      CENTROID_CO_TRY(co_await session.read_payload(bytes));
    }
    if (kind == Kind::kPush) pushed_ = bytes;
    if (kind == Kind::kPushEnd) {
      const std::lock_guard lock(mutex_);
      payload_ = pushed_;
      heard_.notify_all();
    }
    if (kind == Kind::kLeave) co_return co_await session.respond(frame.header, Bytes());
    if (kind != Kind::kJoin) co_return Status();
    CENTROID_CO_ASSIGN(auto join, proto::decode<proto::Join>(frame.head));
    CENTROID_CO_ASSIGN(join.manifest, proto::decode_manifest(bytes));
    proto::JoinReply reply;
    reply.member = MemberId(1);
    reply.run_id = "run";
    reply.chunk_bytes = 1 << 20;
    reply.plan_hash = ChunkPlan::make(join.manifest, reply.chunk_bytes).value().hash();
    reply.lease_ms = 60'000;
    reply.optimizer.name = "sgd";
    reply.checkpoint_rounds = 1;
    reply.counted = counted_;
    const auto head = proto::encode(reply);
    CENTROID_CO_TRY(co_await session.respond(frame.header, head));
    has_state_ = false;
    is_joined_ = true;
    joined_.notify_all();
    co_return Status();
  }
  static TimePoint limit() { return std::chrono::steady_clock::now() + kPatience; }

  IoThread thread_{"test-server"};
  std::unique_ptr<transport::Transport> transport_ = transport::make_tcp(thread_.executor());
  std::unique_ptr<transport::Listener> listener_;
  std::unique_ptr<Session> session_;
  Event joined_{thread_.executor()};
  bool is_joined_ = false, has_state_ = false;
  Round counted_;
  Payload pushed_;
  std::mutex mutex_;
  std::condition_variable heard_;
  std::optional<Payload> payload_;
  std::future<void> serving_;
};

/// A worker in a thread of its own. Its gradients depend on the round alone, as those of a round
/// that is computed again do.
class Worker {
 public:
  Worker(const transport::Endpoint& server, const std::string& codec,
         const std::string& state_dir = "") {
    worker::ClusterOptions options;
    options.servers = {server};
    options.state_dir = state_dir;
    options.join.name = "w0";
    options.join.exchange = "star";
    options.join.codec = codec;
    options.join.batch = 4;
    options.join.train_samples = 8;
    options.join.data_fingerprint = 1;
    options.join.manifest = {{.name = "w", .dtype = DType::kF32, .shape = {kNumbers}}};
    worker::ExchangeMemory memory;
    memory.params = params_;
    memory.gradients = gradients_;
    memory.initialize = [](std::uint64_t) {};
    exchange_ = worker::make_cluster_exchange(io_.executor(), transport::make_tcp(io_.executor()),
                                              std::move(options), std::move(memory), registry_);
    loop_ = std::async(std::launch::async, [this] { train(); });
  }
  ~Worker() {
    exchange_->abandon("the test ends");
    loop_.get();
    exchange_.reset();
  }

 private:
  void train() {
    for (;;) {
      const auto next = exchange_->next();
      if (!next.ok() || !std::holds_alternative<worker::Share>(*next)) return;
      const auto share = std::get<worker::Share>(*next);
      CounterRng random(7, share.round.value);
      for (float& x : gradients_) x = static_cast<float>(random.normal());
      exchange_->begin(share);
      exchange_->ready(TensorId(0));
      if (!exchange_->finish({.samples = 4}).ok()) return;
    }
  }

  std::vector<float> params_ = std::vector<float>(kNumbers),
                     gradients_ = std::vector<float>(kNumbers);
  metrics::PrometheusRegistry registry_;
  IoThread io_{"io"};
  std::unique_ptr<worker::Exchange> exchange_;
  std::future<void> loop_;
};

class FeedbackContract : public testing::TestWithParam<const char*> {
 protected:
  static bool comes(const std::filesystem::path& path) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!std::filesystem::exists(path)) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::yield();
    }
    return true;
  }
  /// Rounds that nobody disturbs.
  static std::vector<Payload> undisturbed(const std::vector<std::uint64_t>& rounds) {
    Server server;
    const Worker worker(server.endpoint(), GetParam());
    std::vector<Payload> sent;
    for (const std::uint64_t round : rounds) {
      sent.push_back(server.open(round));
      server.commit(round);
    }
    server.finish();
    return sent;
  }
  /// Round 2 is promised to count, and the server goes before anything has counted it: memory and
  /// disk are as if there had been none.
  static void is_undone(const std::function<void(Server&)>& promise) {
    const auto without = undisturbed({1, 3, 4});
    const TemporaryDirectory folder;
    Server server;
    const Worker worker(server.endpoint(), GetParam(), folder.path().string());
    server.open(1);
    server.commit(1);
    server.open(2);
    promise(server);
    EXPECT_NE(server.open(3), without[1]);
    const auto saved = folder.path() / "run@w0" / "checkpoint-000000000002";
    EXPECT_TRUE(comes(saved));  // written beside the rounds
    server.drop(1);
    EXPECT_EQ(server.open(3), without[1]);
    EXPECT_FALSE(std::filesystem::exists(saved)) << "a worker that starts again would read it";
    server.commit(3);
    EXPECT_EQ(server.open(4), without[2]);
    server.commit(4);
    server.finish();
  }
};

TEST_P(FeedbackContract, ARoundThatIsBegunAnewSendsTheSameBytes) {
  const auto right = undisturbed({1, 2, 3, 4});
  Server server;
  const Worker worker(server.endpoint(), GetParam());
  for (std::uint64_t round = 1; round <= 4; ++round) {
    for (std::uint64_t again = 0; again < round % 3; ++again) {
      EXPECT_EQ(server.open(round), right[round - 1]) << round;
      server.drop(round - 1);  // between its contribution and the commit
    }
    EXPECT_EQ(server.open(round), right[round - 1]) << round;
    server.commit(round);
  }
  server.finish();
}

TEST_P(FeedbackContract, OneThatCountedIsNotUndone) {
  const auto right = undisturbed({1, 2, 3});
  Server server;
  const Worker worker(server.endpoint(), GetParam());
  EXPECT_EQ(server.open(1), right[0]);
  server.commit(1);
  EXPECT_EQ(server.open(2), right[1]);
  server.drop(2);
  EXPECT_EQ(server.open(3), right[2]);
  server.commit(3);
  server.finish();
}

TEST_P(FeedbackContract, ALateContributionLostWithItsServerIsUndone) {
  is_undone([](Server& server) { server.drop(2); });  // its round is open, and has it
}

TEST_P(FeedbackContract, ALateContributionThatIsLostWithItsServerIsUndone) {
  is_undone([](Server& server) { server.close(2, proto::Outcome::kCarried); });
}

TEST_P(FeedbackContract, ALateContributionThatCountsStays) {
  const auto right = undisturbed({1, 2, 3, 4});
  Server server;
  const Worker worker(server.endpoint(), GetParam());
  server.open(1);
  server.commit(1);
  server.open(2);
  server.close(2, proto::Outcome::kCarried);
  EXPECT_EQ(server.open(3), right[2]);
  server.drop(2);  // it has it still
  EXPECT_EQ(server.open(3), right[2]);
  server.commit(3);
  server.drop(3);
  EXPECT_EQ(server.open(4), right[3]);
  server.commit(4);
  server.finish();
}

INSTANTIATE_TEST_SUITE_P(Codecs, FeedbackContract,
                         testing::Values("topk:0.1", "topk:0.1,values=int8,momentum=0.9", "sign",
                                         "int8:feedback=on"),
                         [](const testing::TestParamInfo<const char*>& of) {
                           return "Codec" + std::to_string(of.index);
                         });

}  // namespace
}  // namespace centroid::test::feedback_contract_test
