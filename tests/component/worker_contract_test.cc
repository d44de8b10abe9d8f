#include <condition_variable>
#include <future>
#include <mutex>
#include <optional>
#include <set>

#include <boost/asio/use_future.hpp>
#include <gmock/gmock.h>

#include "common/async/io_thread.h"
#include "common/base/prometheus_registry.h"
#include "common/proto/about.h"
#include "common/proto/messages.h"
#include "tests/unit/temporary_directory.h"
#include "transport/session.h"
#include "worker/exchange/cluster_exchange.h"

namespace centroid::test {
namespace {

using proto::Kind;
using testing::Each;
using transport::InFrame;
using transport::Session;

/// A server written from docs/reference/wire.md that has one worker and says what the test tells it
/// to say.
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

  /// The only chunk of the state, filled with `value`.
  Status send_state(Version version, float value) {
    proto::StateChunk chunk;
    chunk.version = version;
    const std::vector<float> values(4, value);
    const Bytes bytes = std::as_bytes(std::span(values));
    return spawn(send_frame(this, Kind::kStateChunk, proto::encode(chunk),
                            std::vector<std::byte>(bytes.begin(), bytes.end())))
        .get();
  }
  /// A result of the only chunk, filled with `value`.
  Status send_result(std::uint64_t round, float value) {
    proto::ResultChunk chunk;
    chunk.round = Round(round);
    const std::vector<float> values(4, value);
    const Bytes bytes = std::as_bytes(std::span(values));
    return spawn(send_frame(this, Kind::kResult, proto::encode(chunk),
                            std::vector<std::byte>(bytes.begin(), bytes.end())))
        .get();
  }
  /// The worker has sent a message of this kind, or does so within two minutes.
  bool hears(Kind kind) {
    std::unique_lock lock(mutex_);
    return heard_more_.wait_for(lock, std::chrono::seconds(120),
                                [&] { return heard_.contains(kind); });
  }
  /// The last it sent.
  proto::PushEnd end() {
    const std::lock_guard lock(mutex_);
    return end_;
  }
  /// Its answers to Keep, when there are so many, or within two minutes.
  std::vector<proto::Kept> kept(std::size_t count) {
    std::unique_lock lock(mutex_);
    heard_more_.wait_for(lock, std::chrono::seconds(120), [&] { return kept_.size() >= count; });
    return kept_;
  }
  /// What it sent of its state.
  std::vector<float> state() {
    const std::lock_guard lock(mutex_);
    return state_;
  }
  template <class M>
  Status send(Kind kind, const M& message) {
    return spawn(send_frame(this, kind, proto::encode(message), {})).get();
  }

 private:
  template <class T>
  std::future<T> spawn(Task<T> task) {
    return boost::asio::co_spawn(thread_.context(), std::move(task), boost::asio::use_future);
  }
  static Task<void> serve(Server* self) {
    auto connection = co_await self->listener_->accept();
    transport::Greeting greeting;
    greeting.role = greeting.name = "server";
    greeting.run_id = "run";
    auto session = co_await Session::accept(std::move(connection).value(), greeting, self->limit());
    self->session_ = std::move(session).value();
    (void)co_await self->session_->run(*self);
  }
  static Task<void> stop(Server* self) {
    if (self->session_) self->session_->close(Error(ErrorCode::kCancelled, "the test ends"));
    self->listener_->close();
    co_return;
  }
  static Task<Status> send_frame(Server* self, Kind kind, std::vector<std::byte> head,
                                 std::vector<std::byte> payload) {
    const TimePoint deadline = self->limit();
    while (!self->is_joined_) {
      if (co_await self->joined_.wait(deadline)) continue;
      co_return Error(ErrorCode::kDeadlineExceeded, "nobody joined");
    }
    co_return co_await self->session_->send(static_cast<std::uint16_t>(kind), head, payload,
                                            self->limit());
  }
  Task<Status> on_frame(Session& session, InFrame frame) override {
    const auto kind = static_cast<Kind>(frame.header.kind);
    std::vector<float> values;
    if (kind == Kind::kStateChunk) {
      values.resize(frame.header.payload_bytes / sizeof(float));
      const auto into = std::as_writable_bytes(std::span(values));
      CENTROID_CO_TRY(co_await session.read_payload(into));
    }
    if (kind == Kind::kPushEnd) {
      CENTROID_CO_ASSIGN(const auto end, proto::decode<proto::PushEnd>(frame.head));
      const std::lock_guard lock(mutex_);
      end_ = end;
    }
    if (kind == Kind(proto::AboutKind::kKept)) {
      CENTROID_CO_ASSIGN(const auto kept, proto::decode<proto::Kept>(frame.head));
      const std::lock_guard lock(mutex_);
      kept_.push_back(kept);
    }
    heard(kind, values);
    if (kind == Kind::kLeave) co_return co_await session.respond(frame.header, Bytes());
    if (kind != Kind::kJoin) co_return Status();
    CENTROID_CO_ASSIGN(auto join, proto::decode<proto::Join>(frame.head));
    Buffer manifest(frame.header.payload_bytes);
    CENTROID_CO_TRY(co_await session.read_payload(manifest.bytes()));
    CENTROID_CO_ASSIGN(join.manifest, proto::decode_manifest(manifest.bytes()));
    const auto head = proto::encode(terms(join));
    CENTROID_CO_TRY(co_await session.respond(frame.header, head));
    is_joined_ = true;
    joined_.notify_all();
    co_return Status();
  }
  void heard(Kind kind, const std::vector<float>& values) {
    const std::lock_guard lock(mutex_);
    heard_.insert(kind);
    state_.insert(state_.end(), values.begin(), values.end());
    heard_more_.notify_all();
  }
  static proto::JoinReply terms(const proto::Join& join) {
    proto::JoinReply reply;
    reply.member = MemberId(1);
    reply.run_id = "run";
    reply.chunk_bytes = 1 << 20;
    reply.plan_hash = ChunkPlan::make(join.manifest, reply.chunk_bytes).value().hash();
    reply.lease_ms = 60'000;
    reply.optimizer.name = "sgd";
    return reply;
  }
  TimePoint limit() const { return std::chrono::steady_clock::now() + std::chrono::seconds(120); }

  IoThread thread_{"test-server"};
  std::unique_ptr<transport::Transport> transport_ = transport::make_tcp(thread_.executor());
  std::unique_ptr<transport::Listener> listener_;
  std::unique_ptr<Session> session_;
  Event joined_{thread_.executor()};
  bool is_joined_ = false;
  std::mutex mutex_;
  std::condition_variable heard_more_;
  std::set<Kind> heard_;
  std::vector<float> state_;
  proto::PushEnd end_;
  std::vector<proto::Kept> kept_;
  std::future<void> serving_;
};

/// Numbers that two threads may look at while the exchange has no business with them.
struct WorkerContractTest : testing::Test {
  explicit WorkerContractTest(const std::string& codec = "f32") {
    worker::ClusterOptions options;
    options.servers = {server.endpoint()};
    options.join.name = "w0";
    options.join.exchange = "star";
    options.join.codec = codec;
    options.state_dir = directory.path();
    options.join.batch = 4;
    options.join.train_samples = 8;
    options.join.data_fingerprint = 1;
    options.join.manifest = {{.name = "w", .dtype = DType::kF32, .shape = {4}}};
    worker::ExchangeMemory memory;
    memory.params = params;
    memory.gradients = gradients;
    memory.initialize = [](std::uint64_t) {};
    exchange = worker::make_cluster_exchange(io.executor(), transport::make_tcp(io.executor()),
                                             std::move(options), std::move(memory), registry);
  }
  ~WorkerContractTest() override { exchange.reset(); }

  void open(std::uint64_t round, Version version) {
    proto::RoundOpen message;
    message.generation = Generation(1);
    message.round = Round(round);
    message.world = 1;
    message.version = version;
    message.end = 4;
    ASSERT_TRUE(server.send(Kind::kRoundOpen, message).ok());
  }
  void close(std::uint64_t round, proto::Outcome outcome, Version version) {
    proto::RoundClosed message;
    message.round = Round(round);
    message.outcome = outcome;
    message.version = version;
    ASSERT_TRUE(server.send(Kind::kRoundClosed, message).ok());
  }
  void close_late(std::uint64_t round) { close(round, proto::Outcome::kLate, Version(round + 1)); }
  void close_skipped(std::uint64_t round) { close(round, proto::Outcome::kSkipped, Version(1)); }
  /// The first round, with parameters that are all 3.
  worker::Share begin() {
    auto first = std::async(std::launch::async, [this] { return next(); });  // which connects
    EXPECT_TRUE(server.send_state(Version(1), 3.0f).ok());
    open(1, Version(1));
    return first.get();
  }
  worker::RoundReport::Outcome work(const worker::Share& share) {
    exchange->begin(share);
    exchange->ready(TensorId(0));
    const auto report = exchange->finish({.samples = 4});
    EXPECT_TRUE(report.ok()) << report.error().to_string();
    return report->outcome;
  }
  void ask_for_the_state() {
    proto::StateMark mark;
    mark.version = Version(1);
    ASSERT_TRUE(server.send(Kind::kStateRequest, mark).ok());
    EXPECT_TRUE(server.hears(Kind::kStateDone));
    EXPECT_THAT(server.state(), testing::AllOf(testing::SizeIs(4), Each(3.0f)));
  }
  std::optional<worker::Finished> finished() {
    const auto next = exchange->next();
    if (!next.ok() || !std::holds_alternative<worker::Finished>(next.value())) return std::nullopt;
    return std::get<worker::Finished>(next.value());
  }
  worker::Share next() {
    const auto next = exchange->next();
    EXPECT_TRUE(next.ok()) << next.error().to_string();
    return std::get<worker::Share>(next.value());
  }

  TemporaryDirectory directory;
  Server server;
  std::vector<float> params = std::vector<float>(4, 0.0f);
  std::vector<float> gradients = std::vector<float>(4, 0.5f);
  metrics::PrometheusRegistry registry;
  IoThread io{"io"};
  std::unique_ptr<worker::Exchange> exchange;
};

// A round may close without this worker, whose loop still computes with the parameters of the
// round's beginning; the newer ones may be on their way already.
TEST_F(WorkerContractTest, NewerStateWaitsForTheLoop) {
  auto first = std::async(std::launch::async, [this] { return next(); });  // which connects
  const Status sent = server.send_state(Version(1), 1.0f);
  ASSERT_TRUE(sent.ok()) << sent.error().to_string();
  open(1, Version(1));
  const worker::Share share = first.get();
  EXPECT_EQ(share.version, Version(1));
  EXPECT_THAT(params, Each(1.0f));

  close_late(1);
  ASSERT_TRUE(server.send_state(Version(2), 7.0f).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // lint-ok: nothing may happen
  EXPECT_THAT(params, Each(1.0f)) << "the state of version 2 came while the loop computed";
  exchange->begin(share);
  exchange->ready(TensorId(0));
  const auto report = exchange->finish({.samples = 4});
  ASSERT_TRUE(report.ok()) << report.error().to_string();
  EXPECT_EQ(report->outcome, worker::RoundReport::Outcome::kLate);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // lint-ok: as above
  EXPECT_THAT(params, Each(1.0f)) << "the state of version 2 came before `next`";

  auto second = std::async(std::launch::async, [this] { return next(); });
  open(2, Version(2));
  EXPECT_EQ(second.get().version, Version(2));
  EXPECT_THAT(params, Each(7.0f));
}

// A round that opens while the loop is busy is the next one that it gets; between rounds, while it
// waits, the server is answered.
TEST_F(WorkerContractTest, WhatComesMeanwhileIsNotLost) {
  const worker::Share first = begin();
  close_skipped(1);
  open(2, Version(1));
  EXPECT_EQ(work(first), worker::RoundReport::Outcome::kSkipped);
  const worker::Share second = next();
  EXPECT_EQ(second.round, Round(2));
  close_skipped(2);
  EXPECT_EQ(work(second), worker::RoundReport::Outcome::kSkipped);
  auto third = std::async(std::launch::async, [this] { return next(); });
  ask_for_the_state();
  open(3, Version(1));
  EXPECT_EQ(third.get().round, Round(3));
}

// A round that opens ends the one that is open, which nobody has closed: first that at which the
// loop is at work, then those that it has not begun. Each is the loop's once, in their order.
TEST_F(WorkerContractTest, ASecondRoundEndsTheFirst) {
  const worker::Share first = begin();
  open(2, Version(1));
  open(3, Version(1));
  EXPECT_EQ(work(first), worker::RoundReport::Outcome::kLost);
  const worker::Share second = next();
  EXPECT_EQ(second.round, Round(2));
  EXPECT_EQ(work(second), worker::RoundReport::Outcome::kLost);
  const worker::Share third = next();
  EXPECT_EQ(third.round, Round(3));
  close_skipped(3);
  EXPECT_EQ(work(third), worker::RoundReport::Outcome::kSkipped);
}

// A worker that is to stop begins no round any more, gives its state to who asks for it, and
// leaves.
TEST_F(WorkerContractTest, AStoppingWorkerTrainsNoMoreAndStillAnswers) {
  const worker::Share share = begin();
  exchange->request_stop("enough");
  close_skipped(1);
  EXPECT_EQ(work(share), worker::RoundReport::Outcome::kSkipped);
  open(2, Version(1));
  for (int again = 0; again < 2; ++again) {
    const auto end = finished();
    ASSERT_TRUE(end.has_value()) << "it begins a round";
    EXPECT_EQ(end->reason, worker::Finished::Reason::kStopped);
    EXPECT_EQ(end->text, "enough");
  }
  ask_for_the_state();
  exchange->leave("enough");
  EXPECT_TRUE(server.hears(Kind::kLeave));
}

// A process that stood still finds the results of the next round, which went on without it, behind
// those of its own. Its loop has not taken its own yet: they must not be overwritten.
TEST_F(WorkerContractTest, ResultsOfTheNextRoundDoNotReplaceThoseOfACommittedOne) {
  const worker::Share share = begin();
  exchange->begin(share);
  exchange->ready(TensorId(0));
  exchange->complete({.samples = 4});
  ASSERT_TRUE(server.hears(Kind::kPushEnd));
  ASSERT_TRUE(server.send_result(1, 5.0f).ok());
  close(1, proto::Outcome::kCommitted, Version(2));
  open(2, Version(2));
  ASSERT_TRUE(server.send_result(2, 9.0f).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // lint-ok: nothing may happen
  const auto report = exchange->finish({});
  ASSERT_TRUE(report.ok()) << report.error().to_string();
  EXPECT_EQ(report->outcome, worker::RoundReport::Outcome::kCommitted);
  EXPECT_THAT(params, Each(5.0f));
}

TEST_F(WorkerContractTest, AContributionSaysTheNormOfWhatItSent) {
  const worker::Share share = begin();
  auto round = std::async(std::launch::async, [&] { return work(share); });
  ASSERT_TRUE(server.hears(Kind::kPushEnd));
  EXPECT_EQ(server.end().norm, 1.0) << "of four times 0.5";
  close_skipped(1);
  EXPECT_EQ(round.get(), worker::RoundReport::Outcome::kSkipped);
}

TEST_F(WorkerContractTest, TheEndIsHeardWhileTheLoopWaits) {
  const worker::Share share = begin();
  close_skipped(1);
  EXPECT_EQ(work(share), worker::RoundReport::Outcome::kSkipped);
  auto end = std::async(std::launch::async, [this] { return finished(); });
  proto::Finish message;
  message.reason = proto::FinishReason::kDrained;
  message.text = "drained by an operator";
  ASSERT_TRUE(server.send(Kind::kFinish, message).ok());
  const auto said = end.get();
  ASSERT_TRUE(said.has_value());
  EXPECT_EQ(said->reason, worker::Finished::Reason::kDrained);
  EXPECT_EQ(said->text, "drained by an operator");
}

/// Keeps what its codec has left to send.
struct KeepingWorkerTest : WorkerContractTest {
  KeepingWorkerTest() : WorkerContractTest("topk:0.5") {}
  void train(std::uint64_t round, const worker::Share& share) {
    close_skipped(round);
    EXPECT_EQ(work(share), worker::RoundReport::Outcome::kSkipped);
  }
  void keep(std::uint64_t round) {
    proto::Keep message;
    message.round = Round(round);
    ASSERT_TRUE(server.send(Kind::kKeep, message).ok());
  }
};

TEST_F(KeepingWorkerTest, TellsWhatBecameOfItsPartWhereThatIsTaken) {
  const worker::Share share = begin();
  proto::BeatReply reply;
  reply.takes = ~std::uint32_t{0};  // a later server's, too
  ASSERT_TRUE(server.send(Kind::kHeartbeat, reply).ok());
  const auto will = server.kept(1);
  ASSERT_EQ(will.size(), 1u);
  EXPECT_EQ(will[0].state, proto::SavedState::kWillReport);
  train(1, share);
  keep(1);
  const auto first = server.kept(2);
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[1].round, Round(1));
  EXPECT_EQ(first[1].state, proto::SavedState::kKept) << first[1].why;
  keep(1);  // it is there
  keep(7);
  const auto kept = server.kept(4);
  ASSERT_EQ(kept.size(), 4u);
  EXPECT_EQ(kept[2].round, Round(1));
  EXPECT_EQ(kept[2].state, proto::SavedState::kKept);
  EXPECT_EQ(kept[3].round, Round(7));
  EXPECT_EQ(kept[3].state, proto::SavedState::kNotSaved);
  EXPECT_EQ(kept[3].why, "what is in memory is the state after round 1");
}

TEST_F(KeepingWorkerTest, TellsNothingToAServerThatDoesNotKnowIt) {
  const worker::Share share = begin();
  ASSERT_TRUE(server.send(Kind::kHeartbeat, proto::Empty()).ok());
  train(1, share);
  keep(7);  // would be answered at once
  auto end = std::async(std::launch::async, [this] { return finished(); });
  ask_for_the_state();
  EXPECT_THAT(server.kept(0), testing::IsEmpty());
  exchange->request_stop("enough");
  EXPECT_TRUE(end.get().has_value());
}

}  // namespace
}  // namespace centroid::test
