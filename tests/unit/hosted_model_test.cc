#include "server/shard/hosted_model.h"

#include <exception>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/prometheus_registry.h"
#include "server/store/turns.h"
#include "tests/support/in_process_transport.h"
#include "transport/transport.h"

/// The leader's requests to a shard server that change its state: each counts once.
namespace centroid::server {
namespace {

using testing::HasSubstr;
using transport::Session;

constexpr std::size_t kOfChunk = 16, kChunks = 3 * kChunksPerTurn;  // a step takes several turns
constexpr std::size_t kOfModel = kChunks * kOfChunk;

class HostedModelTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto hub = transport::make_inprocess_hub();
    network_ = transport::make_inprocess(io_.get_executor(), hub);
    const auto listener = network_->listen({}).value();
    start(accept(listener.get(), &leader_));
    start(open(network_.get(), listener->endpoint(), &session_));
    run_until([this] { return leader_ && session_; });
    context_.leader.begin(*session_, tasks_);
  }
  void TearDown() override {
    context_.leader.end();
    for (const auto* const one : {&session_, &leader_})
      (*one)->close(Error(ErrorCode::kCancelled, "the test ends"));
    io_.poll();
  }

  /// Model, Place, Load and Begin: zeros, in version 1. `set`: changes Model
  void begin(bool apply_on_worker, const std::function<void(proto::ServerModel&)>& set = {}) {
    proto::ServerModel model;
    model.manifest = {{.name = "w", .dtype = DType::kF32, .shape = {kOfModel}}};
    model.chunk_bytes = kOfChunk * sizeof(float);
    model.plan_hash = ChunkPlan::make(model.manifest, model.chunk_bytes).value().hash();
    model.apply_on_worker = apply_on_worker;
    model.optimizer.name = "momentum";  // its state shows a step that is made twice
    model.optimizer.learning_rate = 1;
    model.refuses_nonfinite = true;
    model.codec_down = "f32";
    model.aggregate = "mean";
    model.flags = proto::ServerModel::kNamesSummed;
    if (set) set(model);
    ASSERT_TRUE(run(model_.take_model(model)).ok());
    proto::Route route;
    route.version = 1;
    route.servers = {{.name = "leader", .endpoint = ""}, {.name = "s", .endpoint = "s:1"}};
    route.owners.assign(kChunks, 1);
    ASSERT_TRUE(model_.place(route).ok());
    ASSERT_TRUE(run(model_.begin(state(0))).ok());
  }
  /// A whole contribution of ones to this round, and no other.
  void contribute(std::uint64_t round) {
    proto::Opened opened;
    opened.generation = Generation(1);
    opened.round = Round(round);
    opened.summed = {member_};
    model_.open(opened);
    for (const Chunk& chunk : model_.chunks().plan().chunks()) {
      ASSERT_TRUE(model_.expect(key(round), codec_));
      Buffer ones(chunk.elements * sizeof(float));
      std::ranges::fill(ones.as<float>(), 1.0F);
      proto::Push push;
      push.chunk = chunk.id;
      push.weight = 1;
      const std::size_t bytes = ones.size();
      ASSERT_TRUE(model_.take(key(round), codec_, push, std::move(ones), bytes).ok());
    }
  }
  proto::ContributionKey key(std::uint64_t round) const {
    return {member_, Generation(1), Round(round), 0};
  }
  /// `set`: changes Merge
  Task<Status> merge(std::uint64_t round, const std::function<void(proto::Merge&)>& set = {}) {
    proto::Merge merge;
    merge.round = Round(round);
    merge.version = model_.chunks().store().version();
    merge.total_weight = 1;
    merge.parts.push_back({.key = key(round), .weight = 1});
    if (set) set(merge);
    return status_of(model_.merge(std::move(merge)), &overflow_);
  }
  static void ask_norm(proto::Merge& merge) { merge.needs_norm = true; }
  Task<Status> step(std::uint64_t round) {
    proto::Step step;
    step.round = Round(round);
    step.factor = 1;
    return status_of(model_.step(step), &overflow_);
  }
  /// Of the version that the round makes, where none was skipped.
  Task<Status> commit(std::uint64_t round) { return model_.commit(state(round)); }
  /// The version stays.
  Task<Status> skip(std::uint64_t round) {
    proto::ServerState skipped = state(0);
    skipped.round = Round(round);
    return model_.commit(skipped);
  }
  static proto::ServerState state(std::uint64_t round) {
    proto::ServerState state;
    state.version = Version(round + 1);
    state.optimizer_step = round;
    state.round = Round(round);
    return state;
  }

  Status run(Task<Status> task) {
    std::optional<Status> ended;
    start(end(std::move(task), &ended));
    run_until([&] { return ended.has_value(); });
    return *ended;
  }
  /// The second one comes while the first is under way, or could be.
  std::pair<Status, Status> run(Task<Status> first, Task<Status> second) {
    std::optional<Status> ended[2];
    start(end(std::move(first), &ended[0]));
    start(end(std::move(second), &ended[1]));
    run_until([&] { return ended[0] && ended[1]; });
    return {*ended[0], *ended[1]};
  }

  /// Of the first parameter, after so many steps of momentum with ones.
  static float expected(int steps) {
    float parameter = 0, moment = 0;
    for (int i = 0; i < steps; ++i) {
      moment = static_cast<float>(OptimizerConfig().momentum) * moment + 1;
      parameter -= moment;
    }
    return parameter;
  }
  void expect_steps(int steps) const {
    const ParameterStore& store = model_.chunks().store();
    EXPECT_EQ(store.version(), Version(static_cast<std::uint64_t>(1 + steps)));
    for (const Chunk& chunk : model_.chunks().plan().chunks())
      for (const float x : store.params(chunk)) ASSERT_EQ(x, expected(steps));
  }
  std::uint64_t times_aggregated() {
    const auto stage = registry_.histogram("centroid_server_stage_seconds", "",
                                           metrics::latency_bounds(), {{"stage", "aggregate"}});
    return stage.count();
  }
  static void expect_refused(const Status& status, const std::string& what) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code(), ErrorCode::kFailedPrecondition);
    EXPECT_THAT(status.error().message(), HasSubstr(what));
  }

 private:
  void run_until(const std::function<bool()>& is_over) {
    io_.restart();
    while (!is_over()) CENTROID_CHECK(io_.run_one() > 0);
  }
  void start(Task<void> task) {
    const auto ended = [](const std::exception_ptr& thrown) {
      if (thrown) std::rethrow_exception(thrown);
    };
    boost::asio::co_spawn(io_, std::move(task), ended);
  }
  static Task<void> end(Task<Status> task, std::optional<Status>* ended) {
    *ended = co_await std::move(task);
  }
  static Task<Status> status_of(Task<Result<proto::MergeReply>> task, std::uint32_t* overflow) {
    const auto reply = co_await std::move(task);
    if (!reply.ok()) co_return reply.error();
    *overflow = reply->overflow;
    co_return Status();
  }
  static Task<void> accept(transport::Listener* listener, std::unique_ptr<Session>* out) {
    auto connection = co_await listener->accept();
    transport::Greeting greeting;
    greeting.role = greeting.name = "server";
    greeting.run_id = "run";
    greeting.accepts_roles.emplace_back("server");
    auto session = co_await Session::accept(std::move(connection).value(), std::move(greeting),
                                            now() + std::chrono::minutes(1));
    *out = std::move(session).value();
  }
  static Task<void> open(transport::Transport* network, transport::Endpoint there,
                         std::unique_ptr<Session>* out) {
    auto connection = co_await network->connect(std::move(there), now() + std::chrono::minutes(1));
    transport::Greeting greeting;
    greeting.role = greeting.name = "server";
    auto session = co_await Session::open(std::move(connection).value(), std::move(greeting),
                                          now() + std::chrono::minutes(1));
    *out = std::move(session).value();
  }

  static ShardOptions options() {
    ShardOptions options;
    options.name = "s";
    return options;
  }

  const MemberId member_{7};
  const std::shared_ptr<const Codec> codec_ = make_codec("f32").value();
  SystemClock clock_;
  metrics::PrometheusRegistry registry_;
  boost::asio::io_context io_{1};
  std::unique_ptr<transport::Transport> network_;
  std::unique_ptr<Session> session_, leader_;
  TaskGroup tasks_{io_.get_executor()};
  ShardContext context_{io_.get_executor(), io_.get_executor(), options(), clock_, registry_};
  ShardRows rows_{io_.get_executor(), io_.get_executor(), {.name = "s", .journal_dir = {}}, clock_};

 protected:
  std::uint32_t overflow_ = 0;  ///< as the last answer says
  HostedModel model_{context_, rows_, [](const auto&, const ShardResult&) {},
                     [](MemberId, std::size_t) {}};
};

TEST_F(HostedModelTest, AStepOfTheWorkersIsMadeOnceHoweverOftenItIsCommitted) {
  begin(true);
  contribute(1);
  ASSERT_TRUE(run(merge(1)).ok());
  const auto [first, second] = run(commit(1), commit(1));
  EXPECT_TRUE(first.ok()) << first.error().to_string();
  expect_refused(second, "Commit of version 2");
  expect_steps(1);
}

TEST_F(HostedModelTest, AMergeWaitsForChunksThatOtherThreadsCombine) {
  begin(false, [](proto::ServerModel& model) { model.aggregate = "median"; });
  contribute(1);
  const Status merged = run(merge(1));
  ASSERT_TRUE(merged.ok()) << merged.error().to_string();
  ASSERT_TRUE(run(commit(1)).ok());
  expect_steps(1);
  EXPECT_EQ(times_aggregated(), kChunks);
}

TEST_F(HostedModelTest, ACommitThatComesAgainChangesNothing) {
  for (const bool apply_on_worker : {false, true}) {
    SCOPED_TRACE(apply_on_worker);
    begin(apply_on_worker);
    contribute(1);
    ASSERT_TRUE(run(merge(1)).ok());
    ASSERT_TRUE(run(commit(1)).ok());
    EXPECT_TRUE(run(commit(1)).ok());
    contribute(2);
    ASSERT_TRUE(run(merge(2)).ok());
    EXPECT_TRUE(run(commit(1)).ok()) << "of a round before the one that is merged";
    const Status committed = run(commit(2));
    EXPECT_TRUE(committed.ok()) << committed.error().to_string();
    expect_steps(2);
  }
}

TEST_F(HostedModelTest, OnlyWhatIsPreparedIsCommitted) {
  expect_refused(run(commit(1)), "Commit of version 2");  // there is no model
  for (const bool apply_on_worker : {false, true}) {
    SCOPED_TRACE(apply_on_worker);
    begin(apply_on_worker);
    expect_refused(run(commit(1)), "Commit of version 2");
    contribute(1);
    const auto [merged, early] = run(merge(1), commit(1));
    EXPECT_TRUE(merged.ok());
    expect_refused(early, "Commit of version 2");
    expect_refused(run(commit(2)), "Commit of version 3");
    ASSERT_TRUE(run(commit(1)).ok());
    expect_steps(1);
  }
}

TEST_F(HostedModelTest, AStepThatWaitedForTheNormIsMadeOnce) {
  for (const bool apply_on_worker : {false, true}) {
    SCOPED_TRACE(apply_on_worker);
    begin(apply_on_worker, [](proto::ServerModel& model) { model.optimizer.clip_norm = 1e9; });
    contribute(1);
    const auto [merged, early] = run(merge(1, ask_norm), step(1));
    EXPECT_TRUE(merged.ok());
    expect_refused(early, "Step of round 1");
    expect_refused(run(commit(1)), "Commit of version 2");
    const auto [first, second] = run(step(1), step(1));
    EXPECT_TRUE(first.ok());
    expect_refused(second, "Step of round 1");
    expect_refused(run(step(1)), "Step of round 1");
    ASSERT_TRUE(run(commit(1)).ok());
    expect_steps(1);
  }
}

TEST_F(HostedModelTest, ACommitOfThePresentVersionDropsTheRoundThatIsSkipped) {
  begin(true);
  contribute(1);
  ASSERT_TRUE(run(merge(1)).ok());
  EXPECT_TRUE(run(skip(1)).ok());
  expect_refused(run(commit(1)), "Commit of version 2");
  expect_steps(0);
}

/// Here the first step would make small numbers of large ones, and the second one infinite ones.
TEST_F(HostedModelTest, WhatWasTriedOfASkippedRoundSaysNothingOfTheNextOne) {
  begin(true, [](proto::ServerModel& model) {
    model.optimizer.name = "sgd";
    model.optimizer.weight_decay = 1;
  });
  const std::vector<float> large(kOfChunk, 3e38F);
  for (const Chunk& chunk : model_.chunks().plan().chunks()) {
    proto::ServerChunk head;
    head.chunk = chunk.id;
    ASSERT_TRUE(model_.load(head, std::as_bytes(std::span(large))).ok());
  }
  contribute(1);
  ASSERT_TRUE(run(merge(1)).ok());
  EXPECT_EQ(overflow_, 0u);
  ASSERT_TRUE(run(skip(1)).ok());
  contribute(2);
  ASSERT_TRUE(run(merge(2, [](proto::Merge& merge) { merge.rate_factor = 10; })).ok());
  EXPECT_NE(overflow_, 0u);
}

}  // namespace
}  // namespace centroid::server
