#include <future>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/proto/servers.h"
#include "tests/support/custom_group.h"
#include "tests/support/fault_points.h"
#include "tests/support/rows_servers.h"
#include "tests/unit/temporary_directory.h"

/// Servers with tables that are lost, and come back, while something else is under way.
namespace centroid::test {
namespace {

using server::ServerConfig;
using testing::HasSubstr;

/// No report is asked for while a test holds a server up.
void be_patient(ServerConfig& c) { c.timeouts.lease = std::chrono::minutes(5); }

/// Of one chunk, which stays where it is.
class OneTensor final : public CustomGroup {
 public:
  OneTensor() : CustomGroup(8, 0.5f) {}
  Result<worker::GroupStep> step(const worker::Dataset&, std::span<const std::uint64_t> samples,
                                 const std::function<void(TensorId)>& on_ready) override {
    on_ready(TensorId(0));
    worker::GroupStep done;
    done.samples = samples.size();
    return done;
  }
};

std::shared_ptr<const CustomModel> one_tensor() {
  auto model = std::make_shared<CustomModel>();
  model->manifest.push_back({.name = "t", .dtype = DType::kF32, .shape = {8}});
  model->make_group = [] { return std::make_unique<OneTensor>(); };
  model->initialize = [](std::uint64_t, std::span<float> params) {
    std::ranges::fill(params, 1.0f);
  };
  return model;
}

class RowsOnLostServers : public testing::Test {
 protected:
  RowsOnLostServers() : keys(300), pushed(4 * keys.size(), 1.0f) {
    std::iota(keys.begin(), keys.end(), 1u);
  }
  static bool waits_for(Servers& all, const std::string& what) {
    return std::ranges::any_of(
        all.waits(), [&](const auto& wait) { return wait.what.find(what) != std::string::npos; });
  }
  /// When the server joined; 0: it is not here.
  static double joined_of(Servers& all, const std::string& name) {
    for (const auto& view : all.leader->servers())
      if (view.name == name) return view.joined_unix_seconds;
    return 0;
  }
  static std::future<Result<server::CheckpointView>> begin_checkpoint(Servers& all) {
    return std::async(std::launch::async, [&all] { return all.leader->checkpoint(); });
  }
  static std::future<WorkerOutcome> begin_worker(Servers& all, const worker::DataSplit& data,
                                                 std::shared_ptr<const CustomModel> model = {}) {
    return std::async(std::launch::async, [&all, &data, model = std::move(model)] {
      WorkerSpec spec;
      spec.name = "w0";
      spec.custom = model;
      return run_worker(spec, data, all.leader->endpoint(), tcp);
    });
  }

  TemporaryDirectory folder;
  Keys keys;
  const Floats pushed;
};

TEST_F(RowsOnLostServers, ACheckpointFailsIfAServerWithFrozenRowsWasLostAlsoIfItReturned) {
  for (const bool is_back : {false, true}) {
    SCOPED_TRACE(is_back);
    Servers all(folder.path() / (is_back ? "back" : "gone"), 3, false, kTables, false, be_patient);
    ASSERT_TRUE(all.wait_settled(3));
    const auto client = client_of(all.leader->endpoint(), "emb");
    ASSERT_TRUE(client->push(keys, pushed).ok());
    (void)all.tables();
    const auto& stored =
        all.leader->registry().gauge("centroid_rows_stored", "", {{"table", "emb"}});
    const double before = stored.value();
    auto held = all.shards[2]->hold();
    const int frozen = times_reached("tables.server_frozen");
    auto written = begin_checkpoint(all);
    EXPECT_TRUE(all.leader->wait_until(  // s1, which is asked before s2
        [&](const auto&) { return times_reached("tables.server_frozen") > frozen; }));
    all.shards.erase(1);
    EXPECT_TRUE(all.leader->wait_until([&](const auto&) { return stored.value() < before; }));
    if (is_back) {
      all.start(1);
      EXPECT_TRUE(all.leader->wait_until(
          [&](const auto&) { return !waits_for(all, "server 's1' is gone with its rows"); }));
    }
    const double joined = joined_of(all, "s1");
    held.reset();
    const auto failed = written.get();
    ASSERT_FALSE(failed.ok());
    EXPECT_EQ(failed.error().code(), ErrorCode::kUnavailable);
    EXPECT_THAT(failed.error().to_string(), HasSubstr("server 's1'"));
    if (!is_back) all.start(1);
    ASSERT_TRUE(all.wait_settled(3));
    if (is_back) {
      EXPECT_EQ(joined_of(all, "s1"), joined) << "it had to join again";
    }
    const auto again = all.leader->checkpoint();
    EXPECT_TRUE(again.ok()) << again.error().to_string();
  }
}

TEST_F(RowsOnLostServers, OneComesBackWhenTheModelsGoalIsReached) {
  const auto data = make_blobs(200, 8, 4, 5);
  const auto set = [](ServerConfig& c) { c.goal.rounds = 3; };
  const auto is_over = [](const auto& view) { return view.state == "finished"; };
  Floats rows;
  {
    Servers all(folder.path(), 2, false, kTables, true, set);
    ASSERT_TRUE(all.wait_settled(2));
    const auto client = client_of(all.leader->endpoint(), "emb");
    ASSERT_TRUE(client->push(keys, pushed).ok());
    rows = pulled(*client, keys);
    const WorkerOutcome outcome = begin_worker(all, data).get();
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.error().to_string();
    ASSERT_TRUE(all.leader->wait_until(is_over));
    all.shards.erase(1);
    all.start(1);
    ASSERT_TRUE(all.wait_settled(2));
    EXPECT_EQ(pulled(*client, keys), rows);
    ASSERT_TRUE(client->push(keys, pushed).ok());
    rows = pulled(*client, keys);
  }
  for (const bool was_whole : {false, true}) {  // the last checkpoint, of the model and of all rows
    SCOPED_TRACE(was_whole);
    Servers all(folder.path(), 2, true, kTables, true, set);
    ASSERT_TRUE(all.leader->wait_until(is_over));
    ASSERT_TRUE(all.wait_settled(2));
    const auto client = client_of(all.leader->endpoint(), "emb");
    EXPECT_EQ(pulled(*client, keys), rows);
    all.leader->stop();
    const Status ended = all.leader->join();
    EXPECT_TRUE(ended.ok()) << ended.error().to_string();
    all.leader.reset();
    const Status left = all.shards[1]->join();
    EXPECT_TRUE(left.ok()) << left.error().to_string();
    all.shards.clear();
  }
}

TEST_F(RowsOnLostServers, AServerLostDuringItsFirstCheckpointDelaysTheJournal) {
  const auto data = one_feature("numbers", std::vector<float>(64, 1.0f));
  const auto set = [](ServerConfig& c) {
    be_patient(c);
    c.goal.rounds = 3;
  };
  Servers all(folder.path(), 3, false, kTables, true, set);
  ASSERT_TRUE(all.wait_settled(3));
  const auto client = client_of(all.leader->endpoint(), "emb");
  ASSERT_TRUE(client->push(keys, pushed).ok());
  // s1 is drained while no bucket can leave it, so that the model does not know it.
  auto disk = all.leader->hold_disk();
  auto of_rows = begin_checkpoint(all);
  ASSERT_TRUE(all.leader->wait_for_wait("disk", "which is written to"));
  auto begun = all.leader->hold_disk();  // work gets to that thread in two steps
  ASSERT_TRUE(all.leader->drain_server("s1").ok());
  auto training = begin_worker(all, data, one_tensor());
  ASSERT_TRUE(all.leader->wait_until([](const auto& view) { return view.version > 0; }));
  for (int turns = 0; turns < 2000; ++turns) (void)all.leader->view();  // s2 knows the model
  disk.reset();
  for (int turns = 0; turns < 2000; ++turns) (void)all.leader->view();
  auto later = all.leader->hold_disk();
  begun.reset();
  ASSERT_EQ(of_rows.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_TRUE(of_rows.get().ok());
  ASSERT_TRUE(all.leader->wait_for_wait("disk", "which is written to"));
  all.shards.erase(1);
  ASSERT_TRUE(all.leader->wait_until([&](const auto&) { return joined_of(all, "s1") == 0; }));
  all.start(1);
  ASSERT_TRUE(all.leader->wait_until([&](const auto&) { return joined_of(all, "s1") > 0; }));
  auto held = all.shards[2]->hold();  // it is not done when s1 has its rows again
  later.reset();
  EXPECT_TRUE(all.leader->wait_until([&](const auto&) { return !waits_for(all, "server 's1'"); }));
  held.reset();
  const WorkerOutcome outcome = training.get();
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.error().to_string();
  EXPECT_EQ(outcome.summary.rounds, 3u);
  EXPECT_TRUE(all.leader->wait_until([](const auto& view) { return view.state == "finished"; }));
}

TEST_F(RowsOnLostServers, AServerLoadsANewerCheckpointIfTheOneFoundIsGone) {
  const auto set = [](ServerConfig& c) { c.checkpoint.keep = 1; };
  Servers all(folder.path(), 2, false, kTables, false, set);
  ASSERT_TRUE(all.wait_settled(2));
  const auto client = client_of(all.leader->endpoint(), "emb");
  ASSERT_TRUE(client->push(keys, pushed).ok());
  ASSERT_TRUE(all.leader->checkpoint().ok());
  ASSERT_TRUE(all.leader->drain_server("s1").ok());
  EXPECT_TRUE(all.shards[1]->join().ok());
  all.shards.erase(1);
  ASSERT_TRUE(client->push(keys, pushed).ok());
  const Floats rows = pulled(*client, keys);
  RawClient raw(all.leader->endpoint());
  ASSERT_TRUE(raw.open_table(9, "emb").ok());
  const auto servers = [&] {
    const auto answer = raw.ask_empty(proto::RowsKind::kRoute);
    return answer.ok() ? proto::decode<proto::Route>(answer->head)->servers.size() : 0;
  };
  ASSERT_EQ(servers(), 1u);
  auto disk = all.leader->hold_disk();
  all.start(1);
  ASSERT_TRUE(all.leader->wait_until([&](const auto&) { return servers() == 2; }));
  auto written = begin_checkpoint(all);  // behind the look for the newest one
  ASSERT_TRUE(all.leader->wait_for_wait("disk", "which is written to"));
  disk.reset();
  EXPECT_TRUE(written.get().ok());
  EXPECT_TRUE(all.wait_settled(2));
  EXPECT_EQ(pulled(*client, keys), rows);
}

}  // namespace
}  // namespace centroid::test
