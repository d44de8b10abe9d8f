#include <random>

#include "tests/component/contract.h"

namespace centroid::test {
namespace {

/// ssp:S (Ho et al. 2013): who has made c steps begins the next with a version that holds the first
/// c - S steps of everybody.
class Staleness : public testing::TestWithParam<std::uint64_t> {};

TEST_P(Staleness, NobodyBeginsWithAVersionThatIsStalerThanTheBound) {
  const std::uint64_t bound = GetParam(), seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const TemporaryDirectory directory;
  server::ServerConfig config;
  config.run_dir = directory.path();
  config.policy = "ssp:" + std::to_string(bound);
  config.workers.min = 3;
  config.goal.epochs = 1;
  config.timeouts.drain = std::chrono::seconds(2);
  TestServer server(config, [](Executor executor) { return transport::make_tcp(executor); });
  struct Worker {
    Client client;
    std::uint64_t steps = 0;  ///< that it has contributed
    std::optional<proto::RoundOpen> open;
    Round begun;
  };
  struct Begin {
    std::string worker;
    std::uint64_t steps = 0, version = 0;
  };
  std::array<Worker, 3> workers;
  std::vector<Begin> begins;
  const auto note = [&](Worker& worker, const std::optional<proto::RoundOpen>& open) {
    if (!open || open->round <= worker.begun) return;
    worker.begun = open->round;
    worker.open = open;
    begins.push_back({worker.client.join.name, worker.steps, open->version.value});
  };
  for (std::size_t i = 0; i < workers.size(); ++i) {
    Client& client = workers[i].client;
    client.join.name = client.greeting.name = "w" + std::to_string(i);
    client.join.train_samples = 1 << 20;  // no share is empty
    client.says_ready = true;
    ASSERT_TRUE(client.open(server.endpoint()).ok());
    ASSERT_TRUE(client.enter().ok());
  }
  // One comes to the bound: it has made so many steps that it may begin another with none of the
  // others'.
  Worker& first = workers[0];
  for (; first.steps < bound; ++first.steps) {
    note(first, first.client.round(first.begun.next()));
    ASSERT_TRUE(first.open) << first.steps;
    first.client.contribute(*std::exchange(first.open, std::nullopt));
  }
  note(first, first.client.round(first.begun.next()));
  std::mt19937_64 random(seed);
  std::discrete_distribution<std::size_t> pick{6, 3, 1};
  for (std::size_t i = 0; i < 200; ++i) {
    for (Worker& worker : workers) note(worker, worker.client.newest());
    Worker& next = workers[pick(random)];
    const auto least = std::ranges::min_element(workers, {}, &Worker::steps)->steps;
    if (!next.open && next.steps > least + bound) continue;  // it waits
    if (!next.open) note(next, next.client.round(next.begun.next()));
    ASSERT_TRUE(next.open) << next.client.join.name << " after " << next.steps << " steps";
    next.client.contribute(*std::exchange(next.open, std::nullopt));
    ++next.steps;
  }
  for (Worker& worker : workers) note(worker, worker.client.newest());

  std::map<std::string, std::vector<std::uint64_t>> versions;  // that its steps made
  for (const server::RoundView& round : server.rounds()) {
    if (round.outcome != "committed") continue;
    std::vector<std::string> whose = round.contributors;
    whose.insert(whose.end(), round.late.begin(), round.late.end());
    ASSERT_EQ(whose.size(), 1u) << "round " << round.round;
    versions[whose.front()].push_back(round.version);
  }
  bool is_reached = false;
  for (const Begin& begin : begins)
    for (const Worker& worker : workers) {
      const std::string& name = worker.client.join.name;
      const auto held = static_cast<std::uint64_t>(std::ranges::count_if(
          versions[name], [&](std::uint64_t version) { return version <= begin.version; }));
      EXPECT_GE(held + bound, begin.steps)
          << begin.worker << " with version " << begin.version << " lacks steps of " << name;
      is_reached = is_reached || held + bound == begin.steps;
    }
  EXPECT_TRUE(is_reached) << "nobody came to the bound";
}

INSTANTIATE_TEST_SUITE_P(Bounds, Staleness, testing::Values(0, 1, 3));

}  // namespace
}  // namespace centroid::test
