#include <fstream>
#include <thread>

#include <gtest/gtest.h>

#include "server/events/event_log.h"
#include "tests/component/contract.h"
#include "tests/support/in_process.h"
#include "worker/exchange/feedback_keeper.h"

/// What a server hears of the parts that workers keep of a checkpoint's state.
namespace centroid::test {
namespace {

using proto::SavedState;
using server::ServerConfig;

struct NotKept {
  std::string worker, why;
  std::uint64_t round = 0;
};

std::vector<NotKept> not_kept(TestServer& server) {
  std::vector<NotKept> found;
  const auto is_ours = [](std::string_view type) { return type == "checkpoint.state_save_failed"; };
  for (const auto& event : server.control().events().read(0, 4096, is_ours).events) {
    NotKept& one = found.emplace_back();
    for (const auto& [name, value] : event.fields) {
      if (name == "worker") one.worker = std::get<std::string>(value);
      if (name == "why") one.why = std::get<std::string>(value);
      if (name == "round") one.round = std::get<std::uint64_t>(value);
    }
  }
  return found;
}

/// So many, or fewer when two minutes have passed.
std::vector<NotKept> wait_not_kept(TestServer& server, std::size_t count) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (not_kept(server).size() < count && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  return not_kept(server);
}

class KeptTest : public testing::Test, protected InProcess {};
class KeptPartTest : public KeptTest, public testing::WithParamInterface<const char*> {};

/// The folder of one of two workers cannot be written any more: the server names it, round after
/// round, and not the other one.
TEST_P(KeptPartTest, AWorkerThatCannotWriteItsStateIsNamed) {
  const bool is_local = std::string(GetParam()) == "local";
  const auto data = make_blobs(64, 8, 4, 1);
  ServerConfig config = config_of_own();
  config.run_id = "run";
  config.goal.rounds = 1'000'000;
  config.workers.min = 2;
  config.checkpoint.every_rounds = 100;
  if (is_local) config.local.count = 2;
  TestServer server(config, transports());
  WorkerSpec spec;
  spec.state_dir = directory_.path() / "state";
  spec.codec = is_local ? "f32" : "topk:0.5";
  const auto spoil = [&](const worker::Share& share, const auto&, const auto&, const auto&) {
    if (share.round != Round(1)) return;
    auto folder = worker::state_folder(spec.state_dir, "run", "bad");
    if (is_local) folder += ".local";
    std::filesystem::remove_all(folder);
    std::ofstream(folder) << "not a folder";  // tests may run as root, whom no mode holds up
  };
  std::vector<std::thread> threads;
  for (const char* name : {"bad", "good"}) {
    spec.name = name;
    const bool is_bad = spec.name == "bad";
    threads.emplace_back([&, spec, is_bad] {
      (void)run_worker(spec, data, server.endpoint(), transports(),
                       is_bad ? worker::RoundObserver(spoil) : worker::RoundObserver());
    });
  }
  const auto told = wait_not_kept(server, 2);
  server.stop();
  for (std::thread& thread : threads) thread.join();
  (void)server.join();
  ASSERT_GE(told.size(), 2u);
  for (const NotKept& one : told) {
    if (one.why.find("had not answered") != std::string::npos) continue;  // a slow disk
    EXPECT_EQ(one.worker, "bad");
    EXPECT_EQ(one.round % 100, 0u);
    EXPECT_THAT(one.why, HasSubstr("run@bad"));
  }
}

INSTANTIATE_TEST_SUITE_P(Parts, KeptPartTest, testing::Values("feedback", "local"),
                         [](const auto& part) { return std::string(part.param); });

/// Rounds of local steps, whose contributions need no codec, and a checkpoint behind each.
class KeptContractTest : public KeptTest {
 protected:
  ServerConfig config() {
    ServerConfig c = config_of_own();
    c.goal.epochs = 1'000'000;
    c.local.count = 2;
    c.checkpoint.every_rounds = 1;
    return c;
  }
  void enter(bool tells) {
    ASSERT_TRUE(client_->open(server_.endpoint()).ok());
    const auto reply = client_->enter();
    ASSERT_TRUE(reply.ok()) << reply.error().to_string();
    ASSERT_TRUE(client_->send(Kind::kHeartbeat, proto::Empty()).ok());
    const auto beat = client_->beat_reply();
    ASSERT_TRUE(beat.has_value());
    EXPECT_EQ(beat->takes & proto::BeatReply::kAcceptsSaved, proto::BeatReply::kAcceptsSaved);
    if (tells) say(SavedState::kWillReport, Round(), "");
  }
  void say(SavedState state, Round round, const std::string& why) {
    proto::Kept kept;
    kept.round = round;
    kept.state = state;
    kept.why = why;
    ASSERT_TRUE(client_->send(Kind(proto::AboutKind::kKept), kept).ok());
  }
  /// Trains until it is to keep its state after round `from` or a later one.
  Round train(Round from) {
    std::optional<Round> keep;
    while (!keep || *keep < from) {
      const auto open = client_->round(next_);
      EXPECT_TRUE(open.has_value());
      if (!open) return Round();
      next_ = Round(open->round.value + 1);
      client_->contribute(*open);
      EXPECT_TRUE(client_->round(next_).has_value());
      keep = client_->keep();
    }
    return *keep;
  }

  TestServer server_{config(), [](Executor executor) { return transport::make_tcp(executor); }};
  Round next_{1};
  std::unique_ptr<Client> client_ = std::make_unique<Client>();
};

TEST_F(KeptContractTest, WhoIsGoneBeforeItAnswersHasNotKeptItsPart) {
  enter(true);
  const Round first = train(Round(1));
  say(SavedState::kKept, first, "");
  const Round second = train(Round(first.value + 1));
  client_.reset();
  const auto told = wait_not_kept(server_, 1);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].worker, "w0");
  EXPECT_EQ(told[0].round, second.value);
  EXPECT_THAT(told[0].why, HasSubstr("the worker is gone: "));
}

TEST_F(KeptContractTest, WhoDoesNotAnswerBeforeTheNextHasNotKeptItsPart) {
  enter(true);
  const Round first = train(Round(1));
  const Round second = train(Round(first.value + 1));
  say(SavedState::kNotSaved, second, "no room");
  const auto told = wait_not_kept(server_, 2);
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[0].round, first.value);
  EXPECT_THAT(told[0].why, HasSubstr("had not answered"));
  EXPECT_EQ(told[1].round, second.value);
  EXPECT_EQ(told[1].why, "no room");
}

TEST_F(KeptContractTest, OfWhoSaysGoodbyeOrNeverTellsNothingIsSaid) {
  enter(true);
  (void)train(Round(1));
  proto::Leave leave;
  leave.reason = "enough";
  ASSERT_TRUE(client_->ask(Kind::kLeave, leave).ok());
  client_ = std::make_unique<Client>();
  enter(false);
  (void)train(next_);
  client_.reset();
  EXPECT_TRUE(server_.wait_until([&](const auto&) { return server_.present() == 0; }));
  EXPECT_TRUE(not_kept(server_).empty());
}

}  // namespace
}  // namespace centroid::test
