#include <cstring>

#include <gtest/gtest.h>

#include "tests/support/in_process.h"
#include "worker/model/model.h"

namespace centroid::test {
namespace {

class LoadAheadTest : public testing::Test, protected InProcess {
 protected:
  std::vector<WorkerOutcome> train(std::uint64_t ahead) {
    const auto data = make_blobs(101, 8, 4, 1);
    const std::shared_ptr<const worker::Model> model = worker::make_model("mlp:8-16-4").value();
    const auto custom = std::make_shared<CustomModel>();
    custom->manifest = model->manifest();
    custom->make_group = [=] {
      worker::GroupOptions options;
      options.devices = "cpu:0";
      options.load_ahead = ahead;
      options.batch = 8;
      return worker::make_replica_group(*model, std::move(options)).value();
    };
    custom->initialize = [=](std::uint64_t seed, std::span<float> params) {
      model->initialize(seed, params);
    };
    server::ServerConfig config = config_of_own();
    config.goal.epochs = 4;
    config.workers.min = 2;
    TestServer server(config, transports());
    WorkerSpec first, second;
    first.name = "a", second.name = "b";
    second.batch = 5;
    first.custom = second.custom = custom;
    auto outcomes = run_workers({first, second}, data, server.endpoint(), transports());
    EXPECT_TRUE(server.join().ok());
    return outcomes;
  }
};

/// Rounds of one gradient, whose shares are a guess, with an epoch's end that is shorter.
TEST_F(LoadAheadTest, ChangesNoBit) {
  const auto plain = train(0);
  for (const std::uint64_t ahead : {1, 3, 100}) {
    const auto loaded = train(ahead);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(loaded[i].status.ok());
      EXPECT_EQ(loaded[i].summary.rounds, plain[i].summary.rounds);
      ASSERT_EQ(loaded[i].params.size(), plain[i].params.size());
      EXPECT_EQ(std::memcmp(loaded[i].params.data(), plain[i].params.data(),
                            plain[i].params.size() * sizeof(float)),
                0)
          << ahead;
    }
  }
}

}  // namespace
}  // namespace centroid::test
