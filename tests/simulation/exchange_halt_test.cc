// Workers cannot exchange, and no worker is named as the cause. In virtual time.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/post.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/async/io_thread.h"
#include "common/base/log_level.h"
#include "common/base/metrics.h"
#include "common/base/prometheus_registry.h"
#include "common/checkpoint/checkpoint.h"
#include "server/service/job_server.h"
#include "tests/simulation/memory_storage.h"
#include "tests/simulation/network.h"
#include "transport/session.h"

namespace centroid::simulation::exchange_halt_test {
namespace {

using proto::Kind;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using transport::InFrame;
using transport::Session;

const transport::Endpoint kServer{.host = "server", .port = 7070};
const Manifest kModel{{.name = "a", .dtype = DType::kF32, .shape = {3}}};

/// A worker of exchange ring that adds the first round with the others, and no later one. It names
/// nobody as the cause.
class Worker final : public transport::FrameSink {
 public:
  explicit Worker(std::string name) : name_(std::move(name)) {}

  /// As the thread of its process, until the job is over for it.
  void live(Network& network) {
    IoThread io("io");
    const auto net = network.make_transport(io.executor(), {});
    io.wait(work(this, net.get(), io.executor()));
  }
  const std::optional<proto::Finish>& finish() const { return finish_; }
  int failures() const { return failures_; }

 private:
  static Task<void> work(Worker* self, transport::Transport* net, Executor executor) {
    self->tasks_.emplace(executor);
    transport::Greeting greeting;
    greeting.role = "worker";
    greeting.name = self->name_;
    greeting.limits.max_payload_bytes = 64u << 20;
    const TimePoint limit = now() + seconds(20);
    auto opened = co_await transport::connect_session(*net, kServer, greeting, limit);
    if (!opened.ok()) {
      ADD_FAILURE() << opened.error().to_string();
      co_return;
    }
    self->session_ = std::move(opened).value();
    self->tasks_->spawn(read(self));
    co_await join(self, limit);
    const std::vector<float> none;
    while (!self->finish_ && !self->session_->is_closed() && self->failures_ < kMostFailures) {
      std::vector<std::byte> beat;
      co_await send(self, Kind::kHeartbeat, std::move(beat), none);
      const TimePoint next = now() + milliseconds(200);
      (void)co_await sleep_until(next);
    }
    const Error over(ErrorCode::kCancelled, "the job is over");
    self->session_->close(over);
    co_await self->tasks_->join();
    self->session_.reset();
    self->tasks_.reset();
  }
  static Task<void> join(Worker* self, TimePoint limit) {
    proto::Join join;
    join.name = self->name_;
    join.exchange = "ring";
    join.codec = "f32";
    join.batch = 1;
    join.train_samples = 1000;
    join.peer_endpoint = self->name_ + ":1";
    const auto head = proto::encode(join);
    const auto payload = proto::encode_manifest(kModel);
    const auto kind = static_cast<std::uint16_t>(Kind::kJoin);
    const auto reply = co_await self->session_->request(kind, head, payload, limit);
    EXPECT_TRUE(reply.ok()) << reply.error().to_string();
  }
  static Task<void> read(Worker* self) { (void)co_await self->session_->run(*self); }
  static Task<void> send(Worker* self, Kind kind, std::vector<std::byte> head,
                         std::vector<float> values) {
    const TimePoint limit = now() + seconds(20);
    (void)co_await self->session_->send(static_cast<std::uint16_t>(kind), head,
                                        std::as_bytes(std::span(values)), limit);
  }
  static Task<void> send_values(Worker* self, Kind kind, std::vector<std::byte> head, Kind done,
                                std::vector<std::byte> mark, std::vector<float> values) {
    co_await send(self, kind, std::move(head), std::move(values));
    const std::vector<float> none;
    co_await send(self, done, std::move(mark), none);
  }

  Task<Status> on_frame(Session& session, InFrame frame) override {
    const auto kind = static_cast<Kind>(frame.header.kind);
    if (kind == Kind::kInitRequest) {
      tasks_->spawn(send_values(this, Kind::kInitChunk, proto::encode(proto::InitChunk()),
                                Kind::kInitDone, proto::encode(proto::Empty()), {1, 2, 3}));
    } else if (kind == Kind::kRoundOpen) {
      CENTROID_CO_ASSIGN(const auto open, proto::decode<proto::RoundOpen>(frame.head));
      if (open.round == Round(1))
        add(open);
      else
        fail(open);
    } else if (kind == Kind::kStateRequest) {
      CENTROID_CO_ASSIGN(const auto mark, proto::decode<proto::StateMark>(frame.head));
      proto::StateChunk chunk;
      chunk.version = mark.version;
      tasks_->spawn(send_values(this, Kind::kStateChunk, proto::encode(chunk), Kind::kStateDone,
                                proto::encode(mark), {4, 5, 6}));
    } else if (kind == Kind::kFinish) {
      CENTROID_CO_ASSIGN(finish_, proto::decode<proto::Finish>(frame.head));
    }
    co_return co_await session.skip_payload();
  }
  void add(const proto::RoundOpen& open) {
    proto::PushEnd end;
    end.generation = open.generation;
    end.round = open.round;
    end.attempt = open.attempt;
    end.samples = open.end - open.begin;
    end.weight = static_cast<double>(end.samples);
    tasks_->spawn(send(this, Kind::kPushEnd, proto::encode(end), {}));
  }
  void fail(const proto::RoundOpen& open) {
    ++failures_;
    proto::ExchangeFailed failed;
    failed.generation = open.generation;
    failed.round = open.round;
    failed.attempt = open.attempt;
    failed.reason = "a sum that nobody understands";
    tasks_->spawn(send(this, Kind::kExchangeFailed, proto::encode(failed), {}));
  }

  static constexpr int kMostFailures = 20;  // so that the test ends where the job does not
  const std::string name_;
  std::optional<TaskGroup> tasks_;
  std::unique_ptr<Session> session_;
  std::optional<proto::Finish> finish_;
  int failures_ = 0;
};

/// The parameters of the newest checkpoint.
std::vector<float> saved(const std::filesystem::path& folder, Version& version) {
  const auto view = CheckpointDirectory::view(folder);
  if (!view.ok()) return {};
  const auto all = view->list(true);
  if (all.empty()) return {};
  version = all.front().version;
  std::vector<float> out;
  const auto take = [&](std::size_t plane, std::uint64_t, std::span<const float> values) {
    if (plane == 0) out.insert(out.end(), values.begin(), values.end());
    return Status();
  };
  EXPECT_TRUE(view->read(all.front(), kModel, take).ok());
  return out;
}

TEST(ExchangeHaltTest, WorkersThatCannotExchangeEndTheJobWithTheStateOfTheLastRound) {
  log::set_level(log::Level::kError);
  World world{1};
  Network network{world};
  const auto disk = std::make_shared<test::MemoryDisk>();
  test::MemoryStorage storage{disk};
  server::ServerConfig config;
  config.run_dir = "/run";
  config.run_id = "simulated";
  config.exchange = "ring";
  config.workers.min = 2;
  config.goal.rounds = 10;
  config.leaving.when_finished = true;
  config.timeouts.lease = seconds(2);
  metrics::PrometheusRegistry registry;
  Status ended;
  Worker first("w0"), second("w1");
  Version version;
  std::vector<float> values;
  world.run([&] {
    Process& process = world.add_process("server");
    process.storage = &storage;
    server::JobServer* running = nullptr;
    Executor executor;
    const auto server = world.start(process, "main", [&] {
      ASSERT_TRUE(server::finish(config).ok());
      const SystemClock clock;
      IoThread service("service"), blocking("blocking");
      const auto transport = network.make_transport(service.executor(), {});
      server::JobServer job(service.executor(), blocking.executor(), config, clock, registry);
      job.set_files(blocking.executor());
      const auto listener = transport->listen(kServer);
      ASSERT_TRUE(listener.ok());
      executor = service.executor();
      running = &job;
      ended = service.wait(job.run(**listener));
      running = nullptr;
      values = saved(config.checkpoint.dir, version);
    });
    while (running == nullptr) world.let_pass(milliseconds(1));
    std::vector<Host::Number> workers;
    for (Worker* const one : {&first, &second})
      workers.push_back(world.start(world.add_process(one == &first ? "w0" : "w1"), "main",
                                    [one, &network] { one->live(network); }));
    for (const Host::Number one : workers) world.join_thread(one);
    const auto stop = [&] {
      if (running != nullptr) running->request_stop("the test is over");
    };
    if (running != nullptr) boost::asio::post(executor, stop);
    world.join_thread(server);
  });
  ASSERT_FALSE(ended.ok());
  EXPECT_EQ(ended.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(ended.error().message(),
              HasSubstr("the workers cannot exchange: round 2 failed 6 times"));
  for (const Worker* const one : {&first, &second}) {
    EXPECT_EQ(one->failures(), 6);
    ASSERT_TRUE(one->finish());
    EXPECT_EQ(one->finish()->reason, proto::FinishReason::kHalted);
    EXPECT_THAT(one->finish()->text, HasSubstr("no worker is named as the cause"));
  }
  EXPECT_EQ(version, Version(2));
  EXPECT_THAT(values, ElementsAre(4, 5, 6));
}

}  // namespace
}  // namespace centroid::simulation::exchange_halt_test
