#include <boost/asio/co_spawn.hpp>
#include <boost/asio/use_future.hpp>
#include <gmock/gmock.h>

#include "tests/component/contract.h"
#include "tests/support/in_process.h"

/// What is told of an epoch, by worker, and when that is all.
namespace centroid::test {
namespace {

using server::EpochView;
using server::ServerConfig;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<EpochView> epochs_of(TestServer& server) {
  return boost::asio::co_spawn(server.executor(), server.control().epochs(1000, std::nullopt),
                               boost::asio::use_future)
      .get();
}

struct Ended {
  std::uint64_t epoch = 0, workers = 0;
  double loss = 0;
  bool operator==(const Ended&) const = default;
};

/// In the order in which they were told.
std::vector<Ended> ended(TestServer& server) {
  std::vector<Ended> out;
  const auto page = server.control().events().read(
      0, 4096, [](std::string_view type) { return type == "epoch.ended"; });
  for (const auto& event : page.events) {
    Ended one;
    for (const auto& [name, value] : event.fields) {
      if (name == "epoch") one.epoch = std::get<std::uint64_t>(value);
      if (name == "workers") one.workers = std::get<std::uint64_t>(value);
      if (name == "loss") one.loss = std::get<double>(value);
    }
    out.push_back(one);
  }
  return out;
}

/// Two workers that do what the test says, with batches of 4 of epochs of 16 samples.
class AheadTest : public testing::TestWithParam<const char*> {
 protected:
  AheadTest() : server_(config(), [](Executor executor) { return transport::make_tcp(executor); }) {
    enter(*slow_, "slow", 2);
    enter(*fast_, "fast", 1);
  }
  void enter(Client& client, const std::string& name, std::uint32_t devices) {
    client.join.name = client.greeting.name = name;
    client.join.train_samples = 16;
    client.join.devices = devices;
    client.says_ready = true;
    EXPECT_TRUE(client.open(server_.endpoint()).ok());
    EXPECT_TRUE(client.enter().ok());
  }
  ServerConfig config() const {
    ServerConfig c;
    c.run_dir = directory_.path();
    c.policy = GetParam();
    c.workers.min = 2;
    c.goal.epochs = 4;
    c.timeouts.drain = std::chrono::seconds(2);
    return c;
  }
  /// The next round that is opened for it.
  static proto::RoundOpen begin(Client& client, Round& last) {
    const auto open = client.round(last.next());
    EXPECT_TRUE(open.has_value()) << client.join.name << " after round " << last.value;
    last = open ? open->round : last;
    return open.value_or(proto::RoundOpen{});
  }
  static void contribute(Client& client, const proto::RoundOpen& open, double loss) {
    client.push(open);
    proto::PushEnd end = Client::end_of(open);
    end.loss_sum = loss * static_cast<double>(end.samples);
    end.compute_seconds = 0.5;
    EXPECT_TRUE(client.send(Kind::kPushEnd, end).ok());
  }
  bool is_held() {
    return server_.wait_until([&](const auto&) {
      for (const server::WaitView& wait : server_.waits())
        if (wait.waiter == "worker fast" && wait.waits_for == "slow" &&
            wait.what ==
                "samples of epoch 0 are not trained yet; until they are, nobody begins "
                "epoch 2")
          return true;
      return false;
    });
  }
  /// The slow one begins, and the fast one trains all that is left of its epoch and the next one.
  void run_ahead() {
    began_ = begin(*slow_, slow_round_);
    EXPECT_EQ(began_.epoch, 0u);
    const std::vector<std::uint64_t> expected{0, 0, 0, 1, 1, 1, 1};
    for (const std::uint64_t epoch : expected) {
      const auto open = begin(*fast_, fast_round_);
      EXPECT_EQ(open.epoch, epoch);
      EXPECT_EQ(open.end - open.begin, 4u);
      contribute(*fast_, open, 1 + static_cast<double>(epoch));
    }
    ASSERT_TRUE(is_held());
    EXPECT_EQ(fast_->newest()->round, fast_round_) << "it begins another epoch";
    EXPECT_THAT(ended(server_), IsEmpty());
  }

  TemporaryDirectory directory_;
  TestServer server_;
  std::unique_ptr<Client> slow_ = std::make_unique<Client>(), fast_ = std::make_unique<Client>();
  Round slow_round_, fast_round_;
  proto::RoundOpen began_;
};

/// Who is fast begins no second epoch while a sample of the one before has not been trained; what
/// comes late counts in the epoch that it was made for, and epochs end in their order.
TEST_P(AheadTest, NobodyIsTwoEpochsAhead) {
  run_ahead();
  const auto open = epochs_of(server_);
  ASSERT_EQ(open.size(), 2u);
  EXPECT_EQ(open[0].state, "open");
  EXPECT_EQ(open[0].epoch, 1u);
  EXPECT_EQ(open[0].trained, 1);
  EXPECT_EQ(open[1].trained, 0.75);

  contribute(*slow_, began_, 9);
  const auto next = begin(*fast_, fast_round_);
  EXPECT_EQ(next.epoch, 2u);
  EXPECT_THAT(ended(server_), ElementsAre(Ended{1, 2, 3.0}, Ended{2, 1, 2.0}));
  const auto epochs = epochs_of(server_);
  ASSERT_EQ(epochs.size(), 2u);
  EXPECT_EQ(epochs[0].epoch, 1u);
  EXPECT_EQ(epochs[0].workers.size(), 1u);
  const EpochView& first = epochs[1];
  EXPECT_EQ(first.epoch, 0u);
  EXPECT_EQ(first.state, "ended");
  EXPECT_EQ(first.samples, 16u);
  EXPECT_EQ(first.trained, 1);
  EXPECT_EQ(first.loss, 3.0);  // 12 samples of 1, 4 of 9
  ASSERT_EQ(first.workers.size(), 2u);
  const auto& fast = first.workers[0];
  EXPECT_EQ(fast.name, "fast");
  EXPECT_EQ(fast.contributions, 3u);
  EXPECT_EQ(fast.samples, 12u);
  EXPECT_EQ(fast.loss, 1.0);
  EXPECT_EQ(fast.share, 0.75);
  EXPECT_EQ(fast.compute_seconds, 1.5);
  EXPECT_EQ(fast.samples_per_second, 8.0);
  EXPECT_EQ(fast.devices, 1u);
  EXPECT_EQ(first.workers[1].name, "slow");
  EXPECT_EQ(first.workers[1].loss, 9.0);
  EXPECT_EQ(first.workers[1].devices, 2u);
}

/// What a lost worker had ends the wait: another one trains it first.
TEST_P(AheadTest, ALostWorkerHoldsNobody) {
  run_ahead();
  slow_.reset();
  const auto again = begin(*fast_, fast_round_);
  EXPECT_EQ(again.epoch, 0u);
  EXPECT_EQ(again.begin, began_.begin);
  EXPECT_EQ(again.end, began_.end);
  EXPECT_THAT(ended(server_), IsEmpty());
  contribute(*fast_, again, 5);
  EXPECT_EQ(begin(*fast_, fast_round_).epoch, 2u);
  EXPECT_THAT(ended(server_), ElementsAre(Ended{1, 1, 2.0}, Ended{2, 1, 2.0}));
}

/// So does what the one had that took it, lost in the same round: another one closes that round.
TEST_P(AheadTest, TwoThatAreLostInOneRoundHoldNobody) {
  run_ahead();
  Client third;
  enter(third, "third", 1);
  slow_.reset();
  EXPECT_EQ(begin(*fast_, fast_round_).begin, began_.begin);
  fast_.reset();
  Round round;
  proto::RoundOpen open = begin(third, round);
  if (open.epoch != 0) {
    contribute(third, open, 1);
    open = begin(third, round);
  }
  EXPECT_EQ(open.epoch, 0u);
  EXPECT_EQ(open.begin, began_.begin);
}

INSTANTIATE_TEST_SUITE_P(Policies, AheadTest, testing::Values("asp", "ssp:50"),
                         [](const auto& one) { return std::string(one.param).substr(0, 3); });

class EpochsTest : public testing::Test, protected InProcess {};

/// Rounds that reach over the ends of epochs: every epoch has all its samples, by worker as its
/// share says, and one training alone has the same.
TEST_F(EpochsTest, ARoundOverTheEndOfAnEpochCountsInBoth) {
  const auto data = make_blobs(500, 8, 4, 1);
  ServerConfig c = config_of_own();
  c.workers.min = 2;
  c.goal.epochs = 3;
  c.local.count = 5;
  c.cadence.mode = "speed";
  c.cadence.ratios = "3,1";  // rounds of 160 samples
  TestServer server(c, transports());
  std::vector<WorkerSpec> specs(2);
  specs[0].name = "a", specs[1].name = "b";
  for (const auto& outcome : run_workers(specs, data, server.endpoint(), transports()))
    ASSERT_TRUE(outcome.status.ok());
  ASSERT_TRUE(server.join().ok());
  const auto epochs = epochs_of(server);
  ASSERT_EQ(epochs.size(), 3u);
  for (std::size_t i = 0; i < epochs.size(); ++i) {
    SCOPED_TRACE(i);
    const EpochView& one = epochs[i];
    EXPECT_EQ(one.epoch, 2 - i);
    EXPECT_EQ(one.state, "ended");
    EXPECT_EQ(one.samples, 500u);
    EXPECT_EQ(one.trained, 1);
    EXPECT_GT(one.seconds, 0);
    ASSERT_EQ(one.workers.size(), 2u);
    EXPECT_NEAR(one.workers[0].share, 0.75, 0.13);  // a's part of a round is the first
    EXPECT_EQ(one.workers[0].samples + one.workers[1].samples, 500u);
    double loss = 0;
    for (const auto& worker : one.workers) {
      EXPECT_GT(worker.compute_seconds, 0);
      EXPECT_DOUBLE_EQ(worker.samples_per_second,
                       static_cast<double>(worker.samples) / worker.compute_seconds);
      loss += worker.share * worker.loss;
    }
    EXPECT_NEAR(one.loss, loss, 1e-9);
  }
  EXPECT_EQ(ended(server).size(), 3u);
}

}  // namespace
}  // namespace centroid::test
