#include <bit>
#include <cstring>

#include <gtest/gtest.h>

#include "tests/support/cluster.h"
#include "tests/support/in_process_transport.h"
#include "tests/unit/temporary_directory.h"

/// A bit that changes in the memory of one worker, where every worker makes the steps by itself.
namespace centroid::test {
namespace {

using server::ServerConfig;
using ::testing::TestParamInfo;

struct DriftWay {
  std::string name, exchange = "star", apply = "auto", codec_down = "f32";
  std::uint64_t local_steps = 1;
};

void flip_lowest_bit(float& number) {
  number = std::bit_cast<float>(std::bit_cast<std::uint32_t>(number) ^ 1u);
}

class DriftTest : public ::testing::TestWithParam<DriftWay> {
 protected:
  static constexpr std::uint64_t kFlipRound = 10, kRounds = 30;

  ServerConfig config(std::size_t workers) {
    const DriftWay& way = GetParam();
    ServerConfig c;
    c.run_dir = directory_.path() / "run";
    c.leaving.when_finished = true;
    c.exchange = way.exchange;
    c.apply = way.apply;
    c.transfer.codec_down = way.codec_down;
    c.transfer.chunk_bytes = 256;
    c.reduce.bucket_bytes = 300;
    c.local.count = way.local_steps;
    if (way.local_steps == 1) c.optimizer = {.name = "adam", .learning_rate = 0.01};
    c.goal.rounds = kRounds;
    c.workers.min = workers;
    c.replicas.check_rounds = 4;
    return c;
  }

  /// A job in which a bit of the last worker's parameters changes, unless `flips` is false.
  struct End {
    Status server;
    std::vector<WorkerOutcome> workers;
    std::vector<server::EventRecord> drifts;
    double compared = 0, drifted = 0;
  };
  End train(const ServerConfig& c, bool flips = true) {
    const auto data = make_blobs(240, 8, 4, 1);
    TestServer server(c, transports());
    std::vector<WorkerSpec> specs(c.workers.min);
    for (std::size_t i = 0; i < specs.size(); ++i) {
      specs[i].name = "worker-" + std::to_string(i);
      specs[i].exchange = c.exchange;
      specs[i].peers = transports();
    }
    if (flips)
      specs.back().after_round = [](const worker::Share& share, std::span<float> params) {
        if (share.round.value == kFlipRound) flip_lowest_bit(params[3]);
      };
    End end;
    end.workers = run_workers(specs, data, server.endpoint(), transports());
    end.server = server.join();
    for (const auto& event : server.control().events().read(0, 10'000, nullptr).events)
      if (event.type == "replica.drifted") end.drifts.push_back(event);
    const auto count = [&](const char* name) {
      return server.registry().counter(name, "").value();
    };
    end.compared = count("centroid_server_replicas_compared_total");
    end.drifted = count("centroid_server_replicas_drifted_total");
    return end;
  }

  static void expect_one_state(const End& end) {
    EXPECT_TRUE(end.server.ok()) << end.server.error().to_string();
    for (const WorkerOutcome& one : end.workers) {
      EXPECT_TRUE(one.status.ok()) << one.status.error().to_string();
      EXPECT_EQ(std::memcmp(one.params.data(), end.workers[0].params.data(),
                            one.params.size() * sizeof(float)),
                0);
      EXPECT_EQ(one.summary.lost + one.summary.late, 0U) << "no worker had to join again";
      EXPECT_EQ(one.summary.optimizer_fingerprint, end.workers[0].summary.optimizer_fingerprint);
    }
  }

  static std::string text_of(const server::EventRecord& event, std::string_view field) {
    for (const auto& [name, value] : event.fields)
      if (name == field)
        if (const auto* text = std::get_if<std::string>(&value)) return *text;
    return "";
  }

  TestServer::TransportFactory transports() {
    return [hub = hub_](Executor executor) { return transport::make_inprocess(executor, hub, {}); };
  }

  std::shared_ptr<transport::InProcessHub> hub_ = transport::make_inprocess_hub();
  TemporaryDirectory directory_;
};

INSTANTIATE_TEST_SUITE_P(
    Ways, DriftTest,
    ::testing::Values(DriftWay{.name = "ring", .exchange = "ring"},
                      DriftWay{.name = "hierarchical", .exchange = "hierarchical"},
                      DriftWay{.name = "star", .apply = "worker"},
                      DriftWay{.name = "encoded", .codec_down = "int8"},
                      DriftWay{.name = "local", .exchange = "ring", .local_steps = 4}),
    [](const TestParamInfo<DriftWay>& way) { return way.param.name; });

TEST_P(DriftTest, OneThatDiffersIsNamedAndGetsTheStateOfMost) {
  const End end = train(config(3));
  expect_one_state(end);
  ASSERT_EQ(end.drifts.size(), 1U);
  EXPECT_EQ(text_of(end.drifts[0], "worker"), "worker-2");
  EXPECT_EQ(end.drifted, 1);
  EXPECT_EQ(end.compared, 7) << "versions 4, 8, ..., 28";
}

TEST_P(DriftTest, EqualReplicasAreComparedAndNothingIsSaid) {
  const End end = train(config(2), false);
  expect_one_state(end);
  EXPECT_TRUE(end.drifts.empty());
  EXPECT_EQ(end.compared, 7);
}

TEST_P(DriftTest, OfTwoThatOfTheServerOrTheFirstStays) {
  const End end = train(config(2));
  expect_one_state(end);
  ASSERT_EQ(end.drifts.size(), GetParam().exchange == "star" ? 2U : 1U);
  EXPECT_EQ(text_of(end.drifts.back(), "worker"), "worker-1");
}

TEST_P(DriftTest, TheJobHaltsWhereThatIsSet) {
  ServerConfig c = config(3);
  c.replicas.on_drift = "halt";
  const End end = train(c);
  ASSERT_FALSE(end.server.ok());
  EXPECT_NE(end.server.error().message().find("of version 12 differ on worker-2 from those of most "
                                              "workers (replica_drift halt)"),
            std::string::npos)
      << end.server.error().message();
}

TEST_P(DriftTest, NothingIsComparedWhereThatIsSet) {
  ServerConfig c = config(2);
  c.replicas.check_rounds = 0;
  EXPECT_EQ(train(c).compared, 0);
}

}  // namespace
}  // namespace centroid::test
