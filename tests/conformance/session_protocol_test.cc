#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <gmock/gmock.h>

#include "tests/conformance/session_fixture.h"
#include "transport/handshake.h"

namespace centroid::transport {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Task<Status> connect_raw(Node& node, Endpoint endpoint, std::unique_ptr<Connection>& out) {
  auto connection = co_await node.transport->connect(std::move(endpoint), in(seconds(5)));
  if (!connection.ok()) co_return connection.error();
  out = std::move(connection).value();
  co_return Status();
}

Task<Status> greet_raw(Connection& connection) {
  auto peer = co_await send_hello(connection, SessionWorld::greeting("worker", "raw"));
  if (!peer.ok()) co_return peer.error();
  co_return Status();
}

Task<Status> write_raw(Connection& connection, std::uint16_t kind, std::uint32_t flags,
                       std::uint64_t id, std::vector<std::byte> head,
                       std::size_t payload_size = 0) {
  const std::vector<std::byte> payload(payload_size, std::byte{1});
  OutFrame frame;
  frame.kind = kind;
  frame.flags = flags;
  frame.id = id;
  frame.head = head;
  frame.payload = payload;
  co_return co_await connection.write(frame);
}

/// The next frame, which has no payload.
Task<Result<InFrame>> read_raw(Connection& connection) {
  co_return co_await connection.read_header();
}

/// Read until the connection ends; the error of a Goodbye or of a reply, else of the connection.
Task<Error> read_to_end(Connection& connection) {
  while (true) {
    auto frame = co_await connection.read_header();
    if (!frame.ok()) co_return frame.error();
    const bool is_error = (frame.value().header.flags & kFlagError) != 0;
    if (frame.value().header.kind == kGoodbye || is_error)
      co_return decode_error(frame.value().head);
    const Status skipped = co_await connection.skip_payload();
    if (!skipped.ok()) co_return skipped.error();
  }
}

Task<void> drop(std::unique_ptr<Connection>& connection) {
  Error why(ErrorCode::kCancelled, "the test ends");
  if (connection) connection->close(std::move(why));
  connection.reset();
  co_return;
}

class ProtocolTest : public ::testing::TestWithParam<World> {
 protected:
  ~ProtocolTest() override { on_client(drop(raw)); }

  template <class T>
  T on_client(Task<T> task) {
    return within(*world.client.thread, std::move(task));
  }
  void connect(Greeting greeting, Duration limit = seconds(5)) {
    world.listen(std::move(greeting), limit);
    ASSERT_TRUE(on_client(connect_raw(world.client, world.endpoint, raw)).ok());
  }
  void start(std::uint64_t credit = 1000) {
    Greeting greeting = SessionWorld::greeting("server", "server-0");
    greeting.credit_bytes = credit;
    connect(greeting);
    ASSERT_TRUE(on_client(greet_raw(*raw)).ok());
    ASSERT_TRUE(within(*world.server.thread, until_started(world.server)));
  }
  /// The server ends its session with `code` and tells the peer the same text.
  void expect_refused(ErrorCode code, const std::string& text) {
    const Error told = on_client(read_to_end(*raw));
    on_client(drop(raw));
    ASSERT_TRUE(within(*world.server.thread, until_ended(world.server)));
    EXPECT_EQ(world.server.ended->code(), code) << world.server.ended->to_string();
    EXPECT_THAT(world.server.ended->message(), AllOf(HasSubstr(text), HasSubstr("raw")));
    EXPECT_EQ(told.message(), world.server.ended->message());
  }
  /// The server makes no session of it.
  const Error& refusal() {
    EXPECT_TRUE(within(*world.server.thread, until_started(world.server)));
    return *world.server.failed;
  }

  SessionWorld world{GetParam()};
  std::unique_ptr<Connection> raw;
};

TEST_P(ProtocolTest, more_payload_than_credit_ends_the_session) {
  world.server.sink.releases_at_once = false;
  start(1000);
  ASSERT_TRUE(on_client(write_raw(*raw, kData, 0, 0, {}, 600)).ok());
  ASSERT_TRUE(on_client(write_raw(*raw, kData, 0, 0, {}, 401)).ok());
  expect_refused(ErrorCode::kResourceExhausted,
                 "401 bytes arrived, but the sender's credit is 400 of 1000");
}

TEST_P(ProtocolTest, credit_that_was_not_taken_ends_the_session) {
  start();
  ASSERT_TRUE(on_client(write_raw(*raw, kCredit, 0, 0, encode_credit(~std::uint64_t{0}))).ok());
  expect_refused(ErrorCode::kInvalidArgument, "Credit");
}

TEST_P(ProtocolTest, malformed_credit_ends_the_session) {
  start();
  ASSERT_TRUE(on_client(write_raw(*raw, kCredit, 0, 0, std::vector<std::byte>(3))).ok());
  expect_refused(ErrorCode::kInvalidArgument, "malformed Credit");
}

TEST_P(ProtocolTest, second_hello_ends_the_session) {
  start();
  const auto head = encode_hello(SessionWorld::greeting("worker", "raw"));
  ASSERT_TRUE(on_client(write_raw(*raw, kHello, kFlagRequest, 0, head)).ok());
  expect_refused(ErrorCode::kInvalidArgument, "kind 1 after the handshake");
}

TEST_P(ProtocolTest, request_and_response_in_one_ends_the_session) {
  start();
  ASSERT_TRUE(on_client(write_raw(*raw, kEcho, kFlagRequest | kFlagResponse, 1, {})).ok());
  expect_refused(ErrorCode::kInvalidArgument, "request and response");
}

TEST_P(ProtocolTest, request_id_used_twice_ends_the_session) {
  start();
  ASSERT_TRUE(on_client(write_raw(*raw, kLater, kFlagRequest, 5, {})).ok());
  ASSERT_TRUE(on_client(write_raw(*raw, kLater, kFlagRequest, 5, {})).ok());
  expect_refused(ErrorCode::kInvalidArgument, "request id 5 after 5: ids begin at 1");
}

TEST_P(ProtocolTest, request_id_that_was_answered_already_ends_the_session) {
  start();
  ASSERT_TRUE(on_client(write_raw(*raw, kEcho, kFlagRequest, 5, {})).ok());
  ASSERT_TRUE(on_client(write_raw(*raw, kEcho, kFlagRequest, 6, {})).ok());
  for (const std::uint64_t id : {5, 6}) {
    const auto answer = on_client(read_raw(*raw));
    ASSERT_TRUE(answer.ok());
    EXPECT_EQ(answer.value().header.id, id);
  }
  ASSERT_TRUE(on_client(write_raw(*raw, kEcho, kFlagRequest, 5, {})).ok());
  expect_refused(ErrorCode::kInvalidArgument, "request id 5 after 6: ids begin at 1");
}

TEST_P(ProtocolTest, request_id_zero_ends_the_session) {
  start();
  ASSERT_TRUE(on_client(write_raw(*raw, kEcho, kFlagRequest, 0, {})).ok());
  expect_refused(ErrorCode::kInvalidArgument, "request id 0: ids begin at 1");
}

TEST_P(ProtocolTest, request_ids_may_leave_numbers_out) {
  start();
  for (const std::uint64_t id : {7ULL, 8ULL, 1ULL << 40, ~0ULL}) {
    ASSERT_TRUE(on_client(write_raw(*raw, kEcho, kFlagRequest, id, {})).ok());
    const auto answer = on_client(read_raw(*raw));
    ASSERT_TRUE(answer.ok());
    EXPECT_EQ(answer.value().header.id, id);
  }
}

TEST_P(ProtocolTest, too_many_requests_without_an_answer_end_the_session) {
  start();
  for (std::uint64_t id = 1; id <= kMaxOutstandingRequests + 1; ++id)
    ASSERT_TRUE(on_client(write_raw(*raw, kLater, kFlagRequest, id, {})).ok());
  expect_refused(ErrorCode::kResourceExhausted, "more than 1024 requests");
}

TEST_P(ProtocolTest, answer_to_nothing_is_dropped_and_counted) {
  start();
  ASSERT_TRUE(on_client(write_raw(*raw, kEcho, kFlagResponse, 99, {}, 50'000)).ok());
  ASSERT_TRUE(on_client(write_raw(*raw, kData, 0, 0, {}, 10)).ok());
  ASSERT_TRUE(within(*world.server.thread, until_frames(world.server, 1)));
  const auto count = [&] { return world.server.session->counters().unknown_replies; };
  EXPECT_EQ(within(*world.server.thread, run_on(world.server.thread->executor(), count)), 1U);
}

TEST_P(ProtocolTest, other_frame_instead_of_hello_is_refused) {
  connect(SessionWorld::greeting("server", "server-0"));
  ASSERT_TRUE(on_client(write_raw(*raw, kEcho, kFlagRequest, 1, {})).ok());
  const Error told = on_client(read_to_end(*raw));
  EXPECT_EQ(told.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(told.message(), HasSubstr("expected a Hello"));
  EXPECT_THAT(told.message(), HasSubstr("got a frame with kind 20, not 1"));
  EXPECT_EQ(refusal().message(), told.message());
}

TEST_P(ProtocolTest, hello_with_other_flags_is_refused_and_told_which) {
  connect(SessionWorld::greeting("server", "server-0"));
  const auto head = encode_hello(SessionWorld::greeting("worker", "raw"));
  ASSERT_TRUE(on_client(write_raw(*raw, kHello, 0, 0, head)).ok());
  const Error told = on_client(read_to_end(*raw));
  EXPECT_EQ(told.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(told.message(), HasSubstr("expected a Hello"));
  EXPECT_THAT(told.message(), HasSubstr("got a frame with flags 0, not 1"));
  EXPECT_EQ(refusal().message(), told.message());
}

TEST_P(ProtocolTest, hello_with_another_id_is_refused_and_told_which) {
  connect(SessionWorld::greeting("server", "server-0"));
  const auto head = encode_hello(SessionWorld::greeting("worker", "raw"));
  ASSERT_TRUE(on_client(write_raw(*raw, kHello, kFlagRequest, 7, head)).ok());
  const Error told = on_client(read_to_end(*raw));
  EXPECT_EQ(told.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(told.message(), HasSubstr("got a frame with id 7, not 0"));
  EXPECT_EQ(refusal().message(), told.message());
}

TEST_P(ProtocolTest, flag_bits_without_a_name_are_ignored_in_a_hello) {
  connect(SessionWorld::greeting("server", "server-0"));
  const auto head = encode_hello(SessionWorld::greeting("worker", "raw"));
  ASSERT_TRUE(on_client(write_raw(*raw, kHello, kFlagRequest | 1u << 9, 0, head)).ok());
  const auto answer = on_client(read_raw(*raw));
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer.value().header.flags, kFlagResponse);
}

TEST_P(ProtocolTest, hello_that_cannot_be_read_is_refused) {
  connect(SessionWorld::greeting("server", "server-0"));
  ASSERT_TRUE(on_client(write_raw(*raw, kHello, kFlagRequest, 0, std::vector<std::byte>(30))).ok());
  EXPECT_THAT(on_client(read_to_end(*raw)).message(), HasSubstr("malformed Hello"));
  EXPECT_EQ(refusal().code(), ErrorCode::kInvalidArgument);
}

TEST_P(ProtocolTest, hello_over_four_kibibytes_is_not_taken) {
  connect(SessionWorld::greeting("server", "server-0"));
  const std::vector<std::byte> head(kMaxGreetingBytes - kFrameHeaderBytes + 1);
  ASSERT_TRUE(on_client(write_raw(*raw, kHello, kFlagRequest, 0, head)).ok());
  EXPECT_EQ(on_client(read_to_end(*raw)).code(), ErrorCode::kUnavailable);
  EXPECT_EQ(refusal().code(), ErrorCode::kResourceExhausted);
}

TEST_P(ProtocolTest, hello_with_payload_is_not_taken) {
  connect(SessionWorld::greeting("server", "server-0"));
  const auto head = encode_hello(SessionWorld::greeting("worker", "raw"));
  ASSERT_TRUE(on_client(write_raw(*raw, kHello, kFlagRequest, 0, head, 1)).ok());
  EXPECT_EQ(on_client(read_to_end(*raw)).code(), ErrorCode::kUnavailable);
  EXPECT_EQ(refusal().code(), ErrorCode::kResourceExhausted);
}

TEST_P(ProtocolTest, silent_peer_is_dropped_at_the_deadline) {
  connect(SessionWorld::greeting("server", "server-0"), milliseconds(50));
  EXPECT_EQ(on_client(read_to_end(*raw)).code(), ErrorCode::kUnavailable);
  EXPECT_EQ(refusal().code(), ErrorCode::kDeadlineExceeded);
}

TEST_P(ProtocolTest, silent_server_fails_the_client_at_its_deadline) {
  // Nobody accepts: the connection stands in the listener's queue.
  Endpoint wanted;
  if (GetParam().transport == "inprocess") wanted.host = "silent";
  const auto listen = [&] { return world.server.transport->listen(wanted); };
  auto listener = within(*world.server.thread, run_on(world.server.thread->executor(), listen));
  ASSERT_TRUE(listener.ok());
  auto session =
      on_client(connect_session(*world.client.transport, listener.value()->endpoint(),
                                SessionWorld::greeting("worker", "w"), in(milliseconds(50))));
  ASSERT_FALSE(session.ok());
  EXPECT_EQ(session.error().code(), ErrorCode::kDeadlineExceeded);
  const auto forget = [&] { listener.value().reset(); };
  within(*world.server.thread, run_on(world.server.thread->executor(), forget));
}

Task<boost::system::error_code> send_garbage(Endpoint endpoint, std::size_t& received) {
  namespace ip = boost::asio::ip;
  ip::tcp::socket socket(co_await boost::asio::this_coro::executor);
  const ip::tcp::endpoint to(ip::make_address(endpoint.host), endpoint.port);
  auto [failed] = co_await socket.async_connect(to, kAwait);
  if (failed) co_return failed;
  const std::string text = "GET /v1/status HTTP/1.1\r\nHost: centroid\r\nAccept: */*\r\n\r\n";
  (void)co_await boost::asio::async_write(socket, boost::asio::buffer(text), kAwait);
  std::array<char, 100> answer;
  auto [ended, count] = co_await socket.async_read_some(boost::asio::buffer(answer), kAwait);
  received = count;
  co_return ended;
}

TEST_P(ProtocolTest, garbage_instead_of_hello_is_dropped_without_an_answer) {
  if (GetParam().transport != "tcp")
    GTEST_SKIP() << "only a bare socket can send other bytes than frames";
  world.listen(SessionWorld::greeting("server", "server-0"));
  std::size_t received = 0;
  EXPECT_TRUE(on_client(send_garbage(world.endpoint, received)));
  EXPECT_EQ(received, 0U);
  EXPECT_EQ(refusal().code(), ErrorCode::kDataLoss);
}

// ---- what the two sides agree on

struct Handshake : ::testing::TestWithParam<World> {
  SessionWorld world{GetParam()};
  Greeting server = SessionWorld::greeting("server", "server-0");
  Greeting client = SessionWorld::greeting("worker", "worker-2");

  /// Both sides fail with the same text.
  void expect_refused(const std::vector<std::string>& texts) {
    EXPECT_FALSE(world.start(server, client));
    ASSERT_TRUE(world.client.failed && world.server.failed);
    EXPECT_EQ(world.client.failed->code(), ErrorCode::kFailedPrecondition);
    EXPECT_EQ(world.client.failed->message(), world.server.failed->message());
    for (const auto& text : texts) EXPECT_THAT(world.client.failed->message(), HasSubstr(text));
  }
};

TEST_P(Handshake, wrong_token_is_refused_and_never_shown) {
  server.token = "open-sesame";
  client.token = "open-barley";
  expect_refused({"token refused by server-0", "worker-2"});
  EXPECT_THAT(world.client.failed->message(), ::testing::Not(HasSubstr("open-")));
}

TEST_P(Handshake, missing_token_is_refused) {
  server.token = "open-sesame";
  expect_refused({"token refused by server-0", "empty"});
}

TEST_P(Handshake, right_token_is_accepted) {
  server.token = client.token = "open-sesame";
  EXPECT_TRUE(world.start(server, client));
}

TEST_P(Handshake, other_versions_are_refused_with_both_ranges) {
  client.min_version = 7;
  client.max_version = 9;
  expect_refused({"1..1", "7..9"});
}

TEST_P(Handshake, other_run_is_refused_with_both_names) {
  server.run_id = "run-a";
  client.run_id = "run-b";
  expect_refused({"run-a", "run-b"});
}

TEST_P(Handshake, another_model_is_refused_with_both_hashes) {
  server.manifest_hash = 0xABCDEF;
  client.manifest_hash = 0x1234567890ABCDEF;
  expect_refused({"another model", "worker-2", "0000000000abcdef", "1234567890abcdef"});
}

TEST_P(Handshake, a_model_that_one_side_does_not_say_is_accepted) {
  client.manifest_hash = 77;
  ASSERT_TRUE(world.start(server, client));
  EXPECT_EQ(world.server.session->peer().manifest_hash, 77U);
  EXPECT_EQ(world.client.session->peer().manifest_hash, 0U);
}

TEST_P(Handshake, a_server_with_a_model_accepts_the_same_and_none) {
  server.manifest_hash = client.manifest_hash = 77;
  EXPECT_TRUE(world.start(server, client));
}

TEST_P(Handshake, limits_are_the_smaller_of_both) {
  server.limits.max_head_bytes = 1000;
  server.limits.max_payload_bytes = 70'000;
  client.limits.max_head_bytes = 5000;
  client.limits.max_payload_bytes = 60'000;
  ASSERT_TRUE(world.start(server, client));
  for (const Node* node : {&world.server, &world.client}) {
    EXPECT_EQ(node->session->peer().limits.max_head_bytes, 1000U);
    EXPECT_EQ(node->session->peer().limits.max_payload_bytes, 60'000U);
  }
}

TEST_P(Handshake, credits_are_those_of_the_other_side) {
  server.credit_bytes = 5;
  client.credit_bytes = 6;
  ASSERT_TRUE(world.start(server, client));
  EXPECT_EQ(world.client.session->peer().credit_bytes, 5U);
  EXPECT_EQ(world.server.session->peer().credit_bytes, 6U);
}

TEST_P(Handshake, greeting_that_cannot_be_sent_names_its_field) {
  client.name = std::string(kMaxNameBytes + 1, 'n');
  EXPECT_FALSE(world.start(server, client));
  EXPECT_EQ(world.client.failed->code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(world.client.failed->message(), HasSubstr("greeting.name"));
}

// ---- a failure at every operation

Task<bool> use(Node& node) {
  std::vector<std::byte> payload(2000, std::byte{3});
  bool is_good = true;
  for (int i = 0; i < 3 && is_good; ++i) {
    auto reply = co_await node.session->request(kEcho, as_bytes("h"), payload, in(seconds(5)));
    is_good = reply.ok() && reply.value().payload == payload;
    const Status sent = co_await node.session->send(kData, as_bytes("h"), payload, in(seconds(5)));
    is_good = is_good && sent.ok();
  }
  Error why(ErrorCode::kCancelled, "done");
  co_await node.session->goodbye(std::move(why));
  co_return is_good;
}

Task<bool> until_ended_if_started(Node& node) {
  if (!node.session) co_return true;
  co_return co_await until_ended(node);
}

struct Outcome {
  bool is_good = false;
  std::uint64_t operations = 0;
};

Outcome run_with(const World& kind, FaultPlan plan) {
  Outcome out;
  plan.operations = std::make_shared<std::atomic<std::uint64_t>>(0);
  {
    SessionWorld world(kind, plan);
    Greeting server = SessionWorld::greeting("server", "server-0");
    server.credit_bytes = 3000;  // sends have to wait
    world.listen(server, seconds(2));
    const Greeting client = SessionWorld::greeting("worker", "worker-2");
    const Deadline limit = in(seconds(2));
    const Status opened =
        within(*world.client.thread, start_client(world.client, world.endpoint, client, limit));
    if (opened.ok()) {
      EXPECT_TRUE(within(*world.server.thread, until_started(world.server)));
      out.is_good = within(*world.client.thread, use(world.client));
    }
    if (world.client.session) {
      EXPECT_TRUE(within(*world.client.thread, until_ended(world.client)));
    }
    // The client's end is certain; what the server sees depends on the fault, but it sees an end.
    within(*world.client.thread, stop(world.client));
    EXPECT_TRUE(within(*world.server.thread, until_ended_if_started(world.server)));
  }
  out.operations = *plan.operations;
  return out;
}

class FaultTest : public ::testing::TestWithParam<World> {};

TEST_P(FaultTest, every_run_ends_whatever_fails_when) {
  const Outcome clean = run_with(GetParam(), FaultPlan());
  ASSERT_TRUE(clean.is_good);
  ASSERT_GT(clean.operations, 15U);
  using Action = FaultPlan::Action;
  for (const Action action :
       {Action::kFail, Action::kCut, Action::kCorrupt, Action::kTruncate, Action::kDelay}) {
    std::size_t failed = 0;
    for (std::uint64_t n = 0; n < clean.operations; ++n) {
      SCOPED_TRACE("action " + std::to_string(static_cast<int>(action)) + " at operation " +
                   std::to_string(n));
      FaultPlan plan;
      plan.action = action;
      plan.at_operation = n;
      plan.delay = milliseconds(1);
      if (!run_with(GetParam(), plan).is_good) ++failed;
    }
    if (action == Action::kDelay) {
      EXPECT_EQ(failed, 0U);
    } else {
      EXPECT_GE(failed, clean.operations / 2);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, ProtocolTest, ::testing::ValuesIn(worlds()), world_name);
INSTANTIATE_TEST_SUITE_P(Worlds, Handshake, ::testing::ValuesIn(worlds()), world_name);
INSTANTIATE_TEST_SUITE_P(Worlds, FaultTest, ::testing::ValuesIn(worlds()), world_name);

}  // namespace
}  // namespace centroid::transport
