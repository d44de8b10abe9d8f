#include <functional>

#include "tests/component/contract.h"

/// A worker with error feedback that comes again within a round, to which it has contributed: what
/// it learns of that contribution.
namespace centroid::test {
namespace {

constexpr std::size_t kNumbers = 16;

std::unique_ptr<Client> make_client(const std::string& name, const transport::Endpoint& server) {
  auto client = std::make_unique<Client>();
  client->join.name = client->greeting.name = name;
  client->join.codec = "bf16:feedback=on";
  client->join.train_samples = 64;
  client->join.manifest = {{.name = "v", .dtype = DType::kF32, .shape = {kNumbers}},
                           {.name = "w", .dtype = DType::kF32, .shape = {kNumbers}}};
  EXPECT_TRUE(client->open(server).ok());
  return client;
}

void push(Client& client, const proto::RoundOpen& open, std::uint32_t chunks) {
  proto::Push head;
  head.generation = open.generation;
  head.round = open.round;
  head.attempt = open.attempt;
  head.weight = static_cast<double>(open.end - open.begin);
  for (std::uint32_t i = 0; i < chunks; ++i) {
    head.chunk = ChunkId(i);
    EXPECT_TRUE(client.send(Kind::kPush, head, 2 * kNumbers).ok());
  }
}

void contribute(Client& client, const proto::RoundOpen& open) {
  push(client, open, 2);
  EXPECT_TRUE(client.send(Kind::kPushEnd, Client::end_of(open)).ok());
}

class CountedContract : public testing::Test {
 protected:
  /// Three workers; the first has contributed to round 1, lost its connection and come again, and
  /// `rest` is what the second does. Then the third contributes.
  void begin(const std::string& nonfinite,
             const std::function<void(std::unique_ptr<Client>&, const proto::RoundOpen&)>& rest) {
    server::ServerConfig c;
    c.run_dir = directory_.path();
    c.goal.epochs = 2;
    c.workers.min = 3;
    c.transfer.chunk_bytes = 64;
    c.timeouts.drain = std::chrono::seconds(2);
    c.nonfinite = nonfinite;
    server_ = std::make_unique<TestServer>(
        c, [](Executor executor) { return transport::make_tcp(executor); });
    auto lost = make_client("w0", server_->endpoint());
    auto second = make_client("w1", server_->endpoint());
    third_ = make_client("w2", server_->endpoint());
    for (Client* const client : {lost.get(), second.get(), third_.get()})
      ASSERT_TRUE(client->enter().ok());
    const auto whole = lost->round(), of_second = second->round(), of_third = third_->round();
    ASSERT_TRUE(whole && of_second && of_third);
    contribute(*lost, *whole);
    ASSERT_TRUE(server_->wait_until([this](const auto&) {
      const auto workers = server_->workers();
      return !workers.empty() && workers.front().samples > 0;
    }));
    lost.reset();
    back_ = make_client("w0", server_->endpoint());
    const auto reply = back_->enter();
    ASSERT_TRUE(reply.ok());
    EXPECT_EQ(reply->counted, Round(1));
    rest(second, *of_second);
    contribute(*third_, second ? *of_third : third_->round(Round(1), 1).value());
  }
  /// In the place of its next round.
  void expect_taken_back() {
    EXPECT_THAT(back_->ended(), AllOf(HasSubstr("aborted"), HasSubstr("round 1 does not count"),
                                      HasSubstr("join again")));
    EXPECT_FALSE(back_->newest());
    back_ = make_client("w0", server_->endpoint());
    const auto reply = back_->enter();
    ASSERT_TRUE(reply.ok());
    EXPECT_EQ(reply->counted, Round());
  }

  const TemporaryDirectory directory_;
  std::unique_ptr<TestServer> server_;
  std::unique_ptr<Client> third_, back_;
};

TEST_F(CountedContract, ASumThatBeganAnewWithoutItIsSaid) {
  begin("halt", [](std::unique_ptr<Client>& second, const proto::RoundOpen& open) {
    push(*second, open, 1);
    second.reset();  // its part is in the sum, with the whole of the first
  });
  expect_taken_back();
}

TEST_F(CountedContract, ASkippedRoundIsSaid) {
  begin("skip", [](std::unique_ptr<Client>& second, const proto::RoundOpen& open) {
    auto end = Client::end_of(open);
    end.nonfinite = true;
    EXPECT_TRUE(second->send(Kind::kPushEnd, end).ok());
  });
  expect_taken_back();
}

TEST_F(CountedContract, ACommittedRoundKeepsIt) {
  begin("halt", [](std::unique_ptr<Client>& second, const proto::RoundOpen& open) {
    contribute(*second, open);
  });
  const auto next = back_->round(Round(2));
  ASSERT_TRUE(next);
  EXPECT_EQ(next->version, Version(2));
}

}  // namespace
}  // namespace centroid::test
