#include "tests/component/contract.h"

#include <boost/asio/use_future.hpp>

namespace centroid::test {
namespace {

/// Who is lost with half a contribution costs the others another attempt: what they send again
/// counts once.
TEST(Contract, WhatIsSentAgainCountsOnce) {
  TemporaryDirectory directory;
  server::ServerConfig c;
  c.run_dir = directory.path();
  c.goal.epochs = 2;
  c.workers.min = 2;
  c.timeouts.drain = std::chrono::seconds(2);
  TestServer server(c, [](Executor executor) { return transport::make_tcp(executor); });
  Client first;
  auto lost = std::make_unique<Client>();
  lost->join.name = lost->greeting.name = "w1";
  for (Client* const client : {&first, lost.get()}) {
    ASSERT_TRUE(client->open(server.endpoint()).ok());
    ASSERT_TRUE(client->enter().ok());
  }
  const auto open = first.round(), half = lost->round();
  ASSERT_TRUE(open && half);
  const auto counted = [&server](std::uint64_t samples) {
    const auto workers = server.workers();
    return !workers.empty() && workers.front().samples == samples;
  };
  first.contribute(*open);
  ASSERT_TRUE(server.wait_until([&](const auto&) { return counted(4); }));
  const auto received = [&server] { return server.workers().back().receive_seconds; };
  ASSERT_EQ(received(), 0);
  lost->push(*half);
  ASSERT_TRUE(server.wait_until([&](const auto&) { return received() > 0; }));
  lost.reset();
  const auto again = first.round(open->round, open->attempt + 1);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->round, open->round);
  EXPECT_TRUE(again->resend);
  first.contribute(*again);
  ASSERT_TRUE(server.wait_until([](const auto& view) { return view.samples_total > 0; }));
  EXPECT_EQ(server.view().samples_total, 4u);
  EXPECT_TRUE(counted(4)) << server.workers().front().samples;
  EXPECT_EQ(server.workers().front().rounds, 1u);
}

/// Who has contributed and left cannot be asked again: a worker that is silent for round_timeout
/// beside it does not cost that contribution.
TEST(Contract, WhatALostWorkerContributedCountsThoughAnotherIsTooSlow) {
  const TemporaryDirectory directory;
  server::ServerConfig c;
  c.run_dir = directory.path();
  c.goal.epochs = 2;
  c.workers.min = 2;
  c.timeouts.round = std::chrono::seconds(3);
  c.timeouts.lease = std::chrono::seconds(90);
  c.timeouts.drain = std::chrono::seconds(2);
  TestServer server(c, [](Executor executor) { return transport::make_tcp(executor); });
  Client leaves, slow;
  slow.join.name = slow.greeting.name = "w1";
  slow.says_ready = true;
  for (Client* const client : {&leaves, &slow}) {
    ASSERT_TRUE(client->open(server.endpoint()).ok());
    ASSERT_TRUE(client->enter().ok());
  }
  const auto open = leaves.round();
  ASSERT_TRUE(open && slow.round());
  leaves.contribute(*open);
  ASSERT_TRUE(leaves.ask(Kind::kLeave, proto::Leave{.reason = "done"}).ok());
  ASSERT_TRUE(server.wait_until([](const auto& view) { return view.version == 2; }));
  EXPECT_EQ(server.view().samples_total, 4u);
  EXPECT_EQ(server.view().losses.aborted_attempts, 0u);
  const auto again = slow.round(Round(2));  // it is taken along
  ASSERT_TRUE(again);
  EXPECT_EQ(again->version, Version(2));
  slow.contribute(*again);
  ASSERT_TRUE(server.wait_until([](const auto& view) { return view.version == 3; }));
  const auto rounds = server.rounds();
  const auto first = std::ranges::find(rounds, 1u, &server::RoundView::round);
  ASSERT_NE(first, rounds.end());
  EXPECT_THAT(first->contributors, testing::ElementsAre("w0"));
  EXPECT_THAT(first->missing, testing::ElementsAre("w1"));
}

TEST(Contract, WhatALostWorkerContributedIsTrainedByOthersWhereTheSumBeginsAnew) {
  const TemporaryDirectory directory;
  server::ServerConfig c;
  c.run_dir = directory.path();
  c.goal.epochs = 2;
  c.workers.min = 3;
  c.transfer.chunk_bytes = 64;
  c.timeouts.drain = std::chrono::seconds(2);
  TestServer server(c, [](Executor executor) { return transport::make_tcp(executor); });
  Client leaves, stays;
  auto dies = std::make_unique<Client>();
  dies->join.name = dies->greeting.name = "w1";
  stays.join.name = stays.greeting.name = "w2";
  for (Client* const client : {&leaves, dies.get(), &stays}) {
    client->join.train_samples = 64;
    client->join.manifest = {{.name = "v", .dtype = DType::kF32, .shape = {16}},
                             {.name = "w", .dtype = DType::kF32, .shape = {16}}};
    ASSERT_TRUE(client->open(server.endpoint()).ok());
    ASSERT_TRUE(client->enter().ok());
  }
  const auto whole = leaves.round(), part = dies->round();
  ASSERT_TRUE(whole && part);
  leaves.contribute(*whole);
  ASSERT_TRUE(leaves.ask(Kind::kLeave, proto::Leave{.reason = "done"}).ok());
  dies->push(*part, 1);
  dies.reset();  // its part is in the sum, with the whole of the other
  std::vector<int> trained(64);
  for (auto open = stays.round(Round(1), 1); open && open->epoch == 0;
       open = stays.round(open->round.next())) {
    for (std::uint64_t i = open->begin; i < open->end; ++i) ++trained[i];
    stays.contribute(*open);
  }
  EXPECT_THAT(trained, testing::Each(1));
  EXPECT_EQ(server.view().losses.aborted_attempts, 1u);
}

TEST_F(ContractTest, AWaitingWorkerIsToldWhatItWaitsFor) {
  enter();
  const auto alone = client.round();
  ASSERT_TRUE(alone);
  Client late;
  late.join.name = late.greeting.name = "w1";
  ASSERT_TRUE(late.open(server.endpoint()).ok());
  ASSERT_TRUE(late.enter().ok());
  client.contribute(*alone);
  const auto both = client.round(Round(2));
  ASSERT_TRUE(both);
  ASSERT_TRUE(late.round(Round(2)));
  client.contribute(*both);
  const auto told = client.wait();
  ASSERT_TRUE(told);
  EXPECT_GE(told->ms, 2000u);
  EXPECT_THAT(told->what, HasSubstr("round 2 waits for w1: contribution"));
  EXPECT_FALSE(late.was_told()) << "it waits for nobody";
}

/// One of two stalls in the middle of a contribution that is larger than the credit: the chunks of
/// the other wait for those of the stalled one, in the order of the sum, until its credit is used
/// up. It is not the one that is waited for.
TEST(Contract, AWorkerQueuedAfterAStalledOneIsNotBlamed) {
  const TemporaryDirectory directory;
  server::ServerConfig config;
  config.run_dir = directory.path();
  config.transfer.chunk_bytes = 64;
  config.transfer.credit_bytes = 128;
  config.workers.min = 2;
  config.goal.epochs = 2;
  config.timeouts.lease = config.timeouts.stall = std::chrono::seconds(90);
  config.timeouts.drain = std::chrono::seconds(2);
  TestServer server(config, [](Executor executor) { return transport::make_tcp(executor); });
  Client stalled, behind;
  behind.join.name = behind.greeting.name = "w1";
  for (Client* client : {&stalled, &behind}) {
    client->join.manifest.clear();
    for (const char* const name : {"a", "b", "c", "d"})
      client->join.manifest.push_back({.name = name, .dtype = DType::kF32, .shape = {16}});
    ASSERT_TRUE(client->open(server.endpoint()).ok());
    ASSERT_TRUE(client->enter().ok());
  }
  const auto first = stalled.round(), second = behind.round();
  ASSERT_TRUE(first && second);
  stalled.push(*first, 1);
  behind.push(*second, 3);  // of its credit there is nothing left: one has been added
  ASSERT_TRUE(server.wait_for_wait("w0", "credit: 128 bytes of its contribution wait here"));
  bool is_named = false;
  for (const server::WaitView& wait : server.waits()) {
    EXPECT_NE(wait.waits_for, "w1") << wait.waiter << ": " << wait.what;
    is_named = is_named || (wait.waits_for == "w0" && wait.waiter == "round 1");
    if (wait.waiter != "worker w1") continue;
    EXPECT_THAT(wait.what, HasSubstr("from chunk 1 of round 1 on"));
    EXPECT_GT(wait.seconds, 0);
  }
  EXPECT_TRUE(is_named);
  const auto told = behind.wait_for_text("credit");  // its own wait is younger than the round's
  ASSERT_TRUE(told);
  EXPECT_THAT(told->what, AllOf(HasSubstr("round 1 waits for w0: contribution"),
                                HasSubstr("worker w1 waits for w0: credit")));
  EXPECT_FALSE(stalled.was_told()) << "it waits for nobody";
  stalled.push(*first, 4, 1);  // it goes on
  behind.push(*second, 4, 3);
  EXPECT_TRUE(stalled.send(Kind::kPushEnd, Client::end_of(*first)).ok());
  EXPECT_TRUE(behind.send(Kind::kPushEnd, Client::end_of(*second)).ok());
  EXPECT_TRUE(stalled.round(Round(2)));
}

/// With as many copies of the state on their way as there is memory for, a newcomer is told so.
TEST(Contract, WhoWaitsForACopyOfTheStateIsTold) {
  const TemporaryDirectory directory;
  server::ServerConfig config;
  config.run_dir = directory.path() / "refused";
  config.policy = "quorum:1,grace=0";
  config.apply = "worker";
  config.optimizer.name = "momentum";  // a copy has two planes
  config.transfer.chunk_bytes = 64;
  config.goal.epochs = 10;
  config.memory.limit = 1;
  config.timeouts.lease = config.timeouts.stall = std::chrono::seconds(90);
  config.timeouts.drain = std::chrono::seconds(2);
  const auto tcp = [](Executor executor) { return transport::make_tcp(executor); };
  const auto prepare = [](Client& client, const std::string& name) {
    client.join.name = client.greeting.name = name;
    client.join.train_samples = 64;
    client.join.manifest = {{.name = "v", .dtype = DType::kF32, .shape = {16}},
                            {.name = "w", .dtype = DType::kF32, .shape = {16}}};
    client.greeting.credit_bytes = 64;
  };
  {  // what the model needs, and not a byte for more copies
    TestServer refuses(config, tcp);
    Client client;
    prepare(client, "w0");
    ASSERT_TRUE(client.open(refuses.endpoint()).ok());
    const auto reply = client.enter();
    ASSERT_FALSE(reply.ok());
    const std::string why = reply.error().message();
    const std::size_t at = why.find("needs ");
    ASSERT_NE(at, std::string::npos) << why;
    config.memory.limit = std::strtoull(why.c_str() + at + 6, nullptr, 10);
    config.memory.limit += 3 * 2 * 2 * 16 * sizeof(float);  // the contributions of three more
    refuses.stop();
    (void)refuses.join();
  }
  config.run_dir = directory.path() / "run";
  TestServer server(config, tcp);
  Client first, second, third, newcomer;
  prepare(first, "w0");
  ASSERT_TRUE(first.open(server.endpoint()).ok());
  ASSERT_TRUE(first.enter().ok());
  auto open = first.round();
  ASSERT_TRUE(open);
  const auto next = [&] {
    first.contribute(*open);
    open = first.round(open->round.next());
    return open.has_value();
  };
  ASSERT_TRUE(next());
  std::vector<std::shared_ptr<void>> held;
  int name = 1;
  for (Client* const client : {&second, &third}) {  // of another version each
    prepare(*client, "w" + std::to_string(name++));
    ASSERT_TRUE(client->open(server.endpoint()).ok());
    ASSERT_TRUE(client->enter().ok());
    held.push_back(client->hold());
    const auto is_sent = [&](const auto&) {
      return std::ranges::any_of(server.waits(), [&](const server::WaitView& wait) {
        return wait.waiter == "worker " + client->join.name && wait.waits_for == "its connection";
      });
    };
    ASSERT_TRUE(next());
    ASSERT_TRUE(server.wait_until(is_sent));
    ASSERT_TRUE(next());
  }
  prepare(newcomer, "w3");
  ASSERT_TRUE(newcomer.open(server.endpoint()).ok());
  ASSERT_TRUE(newcomer.enter().ok());
  ASSERT_TRUE(next());
  const auto told = newcomer.wait_for_text("copy of the state");
  ASSERT_TRUE(told);
  EXPECT_THAT(told->what, HasSubstr("worker w3 waits for a copy of the state: 2 of at most 2"));
  held.clear();
  EXPECT_TRUE(newcomer.round());
}

/// A pause that begins late has not lasted for as long as the server.
TEST_F(ContractTest, APhaseIsWaitedForSinceItBegan) {
  enter();
  const auto open = client.round();
  ASSERT_TRUE(open);
  ASSERT_TRUE(server.wait_until([](const auto& view) { return view.uptime_seconds > 1; }));
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_TRUE(server.pause().ok());
  client.contribute(*open);
  ASSERT_TRUE(server.wait_for_wait("operator", "paused by an operator"));
  for (const server::WaitView& wait : server.waits()) {
    const std::chrono::duration<double> since = std::chrono::steady_clock::now() - begin;
    EXPECT_LE(wait.seconds, since.count()) << wait.what;
  }
}

/// Whose credit does not hold the whole state, and who does not read.
TEST(Contract, WhoHasNotGotTheStateIsNotTakenToCompute) {
  for (const std::string policy : {"bsp", "quorum:1"}) {
    SCOPED_TRACE(policy);
    const TemporaryDirectory directory;
    server::ServerConfig config;
    config.run_dir = directory.path();
    config.policy = policy;
    config.transfer.chunk_bytes = 64;
    config.leaving.when_finished = true;
    config.timeouts.drain = std::chrono::seconds(2);
    TestServer server(config, [](Executor executor) { return transport::make_tcp(executor); });
    Client first, late;
    for (Client* client : {&first, &late})
      client->join.manifest = {{.name = "v", .dtype = DType::kF32, .shape = {16}},
                               {.name = "w", .dtype = DType::kF32, .shape = {16}}};
    late.join.name = late.greeting.name = "w1";
    late.greeting.credit_bytes = 64;
    ASSERT_TRUE(first.open(server.endpoint()).ok());
    ASSERT_TRUE(first.enter().ok());
    const auto alone = first.round();
    ASSERT_TRUE(alone);
    ASSERT_TRUE(late.open(server.endpoint()).ok());
    ASSERT_TRUE(late.enter().ok());
    auto held = late.hold();
    first.contribute(*alone);
    EXPECT_TRUE(server.wait_for_wait("its connection", "chunk 2 of 2"));
    EXPECT_TRUE(server.wait_for_wait("w1", "contribution, for which it has not got the state"));
    held.reset();
    EXPECT_TRUE(late.round(Round(2)));
  }
}

/// A contribution that may not come late any more is nobody's loss when its worker never began: it
/// was lost while its state was on its way.
TEST(Contract, TheShareOfWhoNeverGotTheStateIsTrainedByOthers) {
  const TemporaryDirectory directory;
  server::ServerConfig config;
  config.run_dir = directory.path();
  config.policy = "quorum:1";
  config.late = "carry:max=1";
  config.transfer.chunk_bytes = 64;
  config.goal.epochs = 2;
  config.timeouts.drain = std::chrono::seconds(2);
  TestServer server(config, [](Executor executor) { return transport::make_tcp(executor); });
  Client first, late;
  for (Client* client : {&first, &late}) {
    client->join.train_samples = 64;
    client->join.manifest = {{.name = "v", .dtype = DType::kF32, .shape = {16}},
                             {.name = "w", .dtype = DType::kF32, .shape = {16}}};
  }
  late.join.name = late.greeting.name = "w1";
  late.greeting.credit_bytes = 64;
  ASSERT_TRUE(first.open(server.endpoint()).ok());
  ASSERT_TRUE(first.enter().ok());
  auto open = first.round();
  ASSERT_TRUE(open);
  ASSERT_TRUE(late.open(server.endpoint()).ok());
  const auto reply = late.enter();
  ASSERT_TRUE(reply.ok()) << reply.error().to_string();
  const auto held = late.hold();
  std::vector<int> trained(64);
  while (open->epoch == 0) {
    for (std::uint64_t i = open->begin; i < open->end; ++i) ++trained[i];
    first.contribute(*open);
    if (open->round == Round(1)) {
      EXPECT_TRUE(server.wait_for_wait("its connection", "chunk 2 of 2"));
    }
    open = first.round(open->round.next());
    ASSERT_TRUE(open);
    if (open->round != Round(4)) continue;  // what is of round 2 does not count any more
    auto evicted = to_optional(server.control().evict(reply->member.value, 60, "by the test"));
    const auto gone =
        boost::asio::co_spawn(server.executor(), std::move(evicted), boost::asio::use_future).get();
    ASSERT_TRUE(gone->ok()) << gone->error().to_string();
  }
  EXPECT_THAT(trained, testing::Each(1));
  EXPECT_EQ(server.view().losses.late_dropped, 0u) << "it had no samples";
}

TEST_F(ContractTest, PayloadsOfAnotherMachineCarryAChecksum) {
  client.join.node = "another";
  ASSERT_TRUE(client.open(server.endpoint()).ok());
  const auto reply = client.enter();
  ASSERT_TRUE(reply.ok()) << reply.error().to_string();
  EXPECT_FALSE(reply->no_payload_crc);
  const auto round = client.round();
  ASSERT_TRUE(round);
  client.send_unsummed();
  proto::Push push;
  push.generation = round->generation;
  push.round = round->round;
  (void)client.send(Kind::kPush, push, 16);
  EXPECT_THAT(client.ended(), HasSubstr("closed the connection"));
}

/// payload_checksum always.
struct ChecksumTest : ContractTest {
  ChecksumTest() : ContractTest("always") {}
};

TEST_F(ContractTest, PayloadsWithinAMachineHaveNoChecksum) {
  client.join.node = transport::this_node();
  ASSERT_TRUE(client.open(server.endpoint()).ok());
  client.accept_without_crc();
  const auto reply = client.enter();
  ASSERT_TRUE(reply.ok()) << reply.error().to_string();
  EXPECT_TRUE(reply->no_payload_crc);
  const auto round = client.round();
  ASSERT_TRUE(round);
  client.send_unsummed();
  client.damage_next_write();  // nobody sees it
  client.contribute(*round);
  const auto result = client.result();
  ASSERT_TRUE(result);
  EXPECT_NE(result->flags & transport::kFlagNoPayloadCrc, 0u);
  EXPECT_EQ(result->payload_crc, 0u);
}

TEST_F(ChecksumTest, PayloadsWithinAMachineHaveOneToo) {
  client.join.node = transport::this_node();
  ASSERT_TRUE(client.open(server.endpoint()).ok());
  client.accept_without_crc();
  const auto reply = client.enter();
  ASSERT_TRUE(reply.ok()) << reply.error().to_string();
  EXPECT_FALSE(reply->no_payload_crc);
  const auto round = client.round();
  ASSERT_TRUE(round);
  client.contribute(*round);
  const auto result = client.result();
  ASSERT_TRUE(result);
  EXPECT_EQ(result->flags & transport::kFlagNoPayloadCrc, 0u);
  EXPECT_NE(result->payload_crc, 0u);
}

TEST_F(ChecksumTest, AChangedBitEndsTheSession) {
  client.join.node = transport::this_node();
  ASSERT_TRUE(client.open(server.endpoint()).ok());
  ASSERT_TRUE(client.enter().ok());
  const auto round = client.round();
  ASSERT_TRUE(round);
  client.damage_next_write();
  proto::Push push;
  push.generation = round->generation;
  push.round = round->round;
  push.attempt = round->attempt;
  push.weight = static_cast<double>(round->end - round->begin);
  (void)client.send(Kind::kPush, push, 16);
  EXPECT_THAT(client.ended(), HasSubstr("closed the connection"));
  EXPECT_TRUE(server.wait_until([&](const auto&) { return server.present() == 0; }));
}

TEST_F(ChecksumTest, PayloadsWithoutOneEndTheSession) {
  client.join.node = transport::this_node();
  ASSERT_TRUE(client.open(server.endpoint()).ok());
  ASSERT_TRUE(client.enter().ok());
  const auto round = client.round();
  ASSERT_TRUE(round);
  client.send_unsummed();
  proto::Push push;
  push.generation = round->generation;
  push.round = round->round;
  (void)client.send(Kind::kPush, push, 16);
  EXPECT_THAT(client.ended(), HasSubstr("closed the connection"));
}

TEST_F(ContractTest, LeaveWithoutTheRequestFlagEndsTheSession) {
  enter();
  ASSERT_TRUE(client.send(Kind::kLeave, proto::Leave{.reason = "done"}).ok());
  expect_ended("Leave (27) arrived without the request flag");
}

TEST_F(ContractTest, JoinWithoutTheRequestFlagEndsTheSession) {
  ASSERT_TRUE(client.open(server.endpoint()).ok());
  ASSERT_TRUE(client.send(Kind::kJoin, client.join).ok());
  expect_ended("Join (16) arrived without the request flag");
}

TEST_F(ContractTest, OneWayMessageAsARequestEndsTheSession) {
  enter();
  const auto round = client.round();
  ASSERT_TRUE(round);
  EXPECT_FALSE(client.ask(Kind::kPushEnd, Client::end_of(*round)).ok());
  expect_ended("PushEnd (23) arrived with the request flag");
}

TEST_F(ContractTest, PayloadWhereThereIsNoneEndsTheSession) {
  enter();
  ASSERT_TRUE(client.send(Kind::kHeartbeat, proto::Empty(), 8).ok());
  expect_ended("Heartbeat (26) arrived with a payload of 8 bytes");
}

TEST_F(ContractTest, HeadOfAMessageWithoutOneEndsTheSession) {
  enter();
  ASSERT_TRUE(client.send(Kind::kInitDone, proto::Leave{.reason = "x"}).ok());
  expect_ended("InitDone (19) arrived with a head of 5 bytes, but has none");
}

TEST_F(ContractTest, NumbersOutOfRangeInPushEndEndTheSession) {
  enter();
  const auto round = client.round();
  ASSERT_TRUE(round);
  proto::PushEnd end = Client::end_of(*round);
  end.loss_sum = std::numeric_limits<double>::infinity();
  ASSERT_TRUE(client.send(Kind::kPushEnd, end).ok());
  expect_ended("PushEnd.loss_sum is inf");
}

TEST_F(ContractTest, ReportThatNobodyAskedForEndsTheSession) {
  enter();
  const auto round = client.round();
  ASSERT_TRUE(round && !round->evaluate);
  proto::Report report;
  report.version = round->version;
  report.samples = report.correct = 10;
  ASSERT_TRUE(client.send(Kind::kReport, report).ok());
  expect_ended("Report.version of w0 is 1, which nobody asked it to evaluate");
  EXPECT_LT(server.view().test.accuracy, 0) << "it changed nothing";
}

TEST_F(ContractTest, OneReportAnswersOneQuestion) {
  enter();
  auto round = client.round();
  ASSERT_TRUE(round);
  const auto begin = server.checkpoint();
  ASSERT_TRUE(begin.ok());
  // Shares of 4 of 8 samples: the third round is the first of the next epoch, and asks.
  for (int i = 0; i < 2; ++i) {
    client.contribute(*round);
    round = client.round(round->round.next());
    ASSERT_TRUE(round);
  }
  ASSERT_TRUE(round->evaluate);
  proto::Report report;
  report.version = round->version;
  report.samples = 10;
  report.correct = 9;
  ASSERT_TRUE(client.send(Kind::kReport, report).ok());
  ASSERT_TRUE(server.wait_until([](const auto& view) { return view.test.accuracy == 0.9; }));
  report.correct = 10;
  ASSERT_TRUE(client.send(Kind::kReport, report).ok());
  expect_ended("which nobody asked it to evaluate");
  EXPECT_EQ(server.view().test.accuracy, 0.9);
  ASSERT_TRUE(server.restore(begin->version).ok());
  EXPECT_EQ(server.view().test.accuracy, -1) << "of a version that was given up";
  EXPECT_EQ(server.view().test.version, 0u);
}

TEST_F(ContractTest, ReportOnOtherParametersEndsTheSession) {
  enter();
  auto round = client.round();
  ASSERT_TRUE(round);
  for (int i = 0; i < 3; ++i) {
    client.contribute(*round);
    round = client.round(round->round.next());
    ASSERT_TRUE(round);
  }
  client.contribute(*round);
  const auto finish = client.finish();
  ASSERT_TRUE(finish && finish->evaluate);
  proto::Report report;
  report.version = finish->version.next();
  ASSERT_TRUE(client.send(Kind::kReport, report).ok());
  expect_ended("asked was");
}

TEST_F(ContractTest, ManifestOfAnotherHashThanHelloSaidIsRefused) {
  client.greeting.manifest_hash = 4711;
  ASSERT_TRUE(client.open(server.endpoint()).ok());
  const auto reply = client.enter();
  ASSERT_FALSE(reply.ok());
  EXPECT_EQ(reply.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(
      reply.error().message(),
      AllOf(HasSubstr("4711"), HasSubstr(std::to_string(manifest_hash(client.join.manifest)))));
}

TEST_F(ContractTest, ManifestOfTheHashThatHelloSaidIsTaken) {
  client.greeting.manifest_hash = manifest_hash(client.join.manifest);
  enter();
  EXPECT_TRUE(client.round());
}

}  // namespace
}  // namespace centroid::test
