#include <gmock/gmock.h>

#include "tests/conformance/session_fixture.h"
#include "transport/handshake.h"

namespace centroid::transport {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<std::byte> pattern(std::size_t size, std::uint64_t seed) {
  std::vector<std::byte> out(size);
  for (std::size_t i = 0; i < size; ++i)
    out[i] = static_cast<std::byte>(seed * 31 + i * 7 + (i >> 8));
  return out;
}

Task<Result<Reply>> ask(Session& session, std::uint16_t kind, std::string head,
                        std::vector<std::byte> payload, Duration limit = seconds(10)) {
  co_return co_await session.request(kind, as_bytes(head), payload, in(limit));
}

Task<Status> tell(Session& session, std::uint16_t kind, std::size_t size,
                  Duration limit = seconds(10)) {
  const std::vector<std::byte> payload(size, std::byte{7});
  co_return co_await session.send(kind, as_bytes("h"), payload, in(limit));
}

Task<void> tell_into(Session& session, std::uint16_t kind, std::size_t size,
                     std::optional<Status>& out) {
  Status status = co_await tell(session, kind, size);
  out.emplace(std::move(status));
}

Task<void> ask_into(Session& session, std::uint16_t kind, std::optional<Result<Reply>>& out) {
  Result<Reply> reply = co_await ask(session, kind, "h", std::vector<std::byte>());
  out.emplace(std::move(reply));
}

class SessionTest : public ::testing::TestWithParam<World> {
 protected:
  bool start(std::uint64_t server_credit = ~std::uint64_t{0}) {
    Greeting server = SessionWorld::greeting("server", "server-0");
    server.run_id = "run-1";
    server.credit_bytes = server_credit;
    return world.start(server, SessionWorld::greeting("worker", "worker-2"));
  }
  template <class F>
  auto on_server(F function) {
    return within(*world.server.thread,
                  run_on(world.server.thread->executor(), std::move(function)));
  }
  template <class F>
  auto on_client(F function) {
    return within(*world.client.thread,
                  run_on(world.client.thread->executor(), std::move(function)));
  }
  template <class T>
  T client_does(Task<T> task) {
    return within(*world.client.thread, std::move(task));
  }
  Session& session() { return *world.client.session; }

  SessionWorld world{GetParam()};
};

TEST_P(SessionTest, request_comes_back_with_head_and_payload) {
  ASSERT_TRUE(start());
  for (const std::size_t size : {std::size_t{0}, std::size_t{64}, std::size_t{3} << 20}) {
    const auto payload = pattern(size, size);
    const auto reply = client_does(ask(session(), kEcho, "head", payload));
    ASSERT_TRUE(reply.ok()) << reply.error().to_string();
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(reply.value().head.data()),
                          reply.value().head.size()),
              "head");
    EXPECT_TRUE(reply.value().payload == payload);
  }
  EXPECT_EQ(session().peer().name, "server-0");
  EXPECT_EQ(session().peer().run_id, "run-1");
  EXPECT_EQ(world.server.session->peer().name, "worker-2");
  EXPECT_EQ(world.server.session->peer().role, "worker");
}

TEST_P(SessionTest, error_of_the_peer_comes_back_with_code_and_text) {
  ASSERT_TRUE(start());
  const auto reply = client_does(ask(session(), kRefuse, "", pattern(10, 1)));
  ASSERT_FALSE(reply.ok());
  EXPECT_EQ(reply.error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(reply.error().message(), "no such chunk");
  EXPECT_TRUE(client_does(ask(session(), kEcho, "", pattern(10, 1))).ok());
}

Task<void> ask_own(Session& session, std::uint64_t seed, std::size_t& right) {
  const auto payload = pattern(seed * 37 % 5000, seed);
  const auto reply = co_await ask(session, kEcho, std::to_string(seed), payload);
  if (reply.ok() && reply.value().payload == payload) ++right;
}

Task<std::size_t> ask_many(Node& node, std::size_t count) {
  TaskGroup group(node.thread->executor());
  std::size_t right = 0;
  for (std::size_t i = 0; i < count; ++i) group.spawn(ask_own(*node.session, i, right));
  co_await group.join();
  co_return right;
}

TEST_P(SessionTest, replies_find_their_requests_when_many_are_out) {
  ASSERT_TRUE(start());
  EXPECT_EQ(client_does(ask_many(world.client, 200)), 200U);
}

TEST_P(SessionTest, request_past_its_deadline_fails_and_the_session_goes_on) {
  ASSERT_TRUE(start());
  const auto late = client_does(ask(session(), kLater, "h", pattern(5, 1), milliseconds(30)));
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.error().code(), ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(late.error().message(), AllOf(HasSubstr("server-0"), HasSubstr("kind 22")));
  // The late reply has a payload, which is skipped: the next reply is whole.
  EXPECT_TRUE(client_does(tell(session(), kFlush, 0)).ok());
  EXPECT_TRUE(client_does(ask(session(), kEcho, "h", pattern(100, 2))).ok());
  const auto counters = on_client([&] { return session().counters(); });
  EXPECT_EQ(counters.late_replies, 1U);
  EXPECT_EQ(counters.unknown_replies, 0U);
  EXPECT_EQ(client_does(ask(session(), kEcho, "h", pattern(1, 1), milliseconds(-1))).error().code(),
            ErrorCode::kDeadlineExceeded);
}

Task<ErrorCode> overfill(Node& node) {
  TaskGroup group(node.thread->executor());
  std::vector<std::optional<Result<Reply>>> replies(kMaxOutstandingRequests);
  for (auto& reply : replies) group.spawn(ask_into(*node.session, kLater, reply));
  // Children start in order: when this task's own request is made all others are out.
  co_await boost::asio::post(node.thread->executor(), boost::asio::use_awaitable);
  const auto refused = co_await ask(*node.session, kEcho, "h", std::vector<std::byte>());
  EXPECT_THAT(node.session->waits(), ::testing::SizeIs(kMaxOutstandingRequests));
  (void)co_await tell(*node.session, kFlush, 0);
  co_await group.join();
  for (const auto& reply : replies) EXPECT_TRUE(reply->ok());
  co_return refused.ok() ? ErrorCode::kInternal : refused.error().code();
}

TEST_P(SessionTest, requests_without_an_answer_are_bounded) {
  ASSERT_TRUE(start());
  EXPECT_EQ(client_does(overfill(world.client)), ErrorCode::kResourceExhausted);
  EXPECT_TRUE(client_does(ask(session(), kEcho, "h", pattern(100, 2))).ok());
}

TEST_P(SessionTest, send_waits_for_credit_and_goes_on_when_it_comes) {
  world.server.sink.releases_at_once = false;
  ASSERT_TRUE(start(1000));
  ASSERT_TRUE(client_does(tell(session(), kData, 900)).ok());
  const auto refused = client_does(tell(session(), kData, 1001));
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
  const auto late = client_does(tell(session(), kData, 200, milliseconds(30)));
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.error().code(), ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(late.error().message(), AllOf(HasSubstr("server-0"), HasSubstr("200 bytes")));
  EXPECT_TRUE(client_does(tell(session(), kData, 100)).ok())
      << "one that fits goes when the big one has given up";

  std::optional<Status> first, second;
  on_client([&] {
    world.client.group.spawn(tell_into(session(), kData, 500, first));
    world.client.group.spawn(tell_into(session(), kData, 50, second));
  });
  const auto waits = on_client([&] { return session().waits(); });
  ASSERT_EQ(waits.size(), 2U);
  EXPECT_THAT(waits[0].what, AllOf(HasSubstr("credit from server-0"), HasSubstr("for 500 bytes")));
  EXPECT_LE(waits[0].since, waits[1].since);
  EXPECT_LE(waits[1].since, in(seconds(0)));
  EXPECT_TRUE(within(*world.server.thread, until_frames(world.server, 2)));
  on_server([&] { world.server.sink.release(*world.server.session, 1000); });
  EXPECT_TRUE(within(*world.server.thread, until_frames(world.server, 4)));
  EXPECT_TRUE(client_does(ask(session(), kEcho, "h", pattern(9, 9))).ok());
  on_client([&] { EXPECT_TRUE(first && first->ok() && second && second->ok()); });
  on_server(
      [&] { EXPECT_THAT(world.server.sink.sizes, ::testing::ElementsAre(900, 100, 500, 50)); });
}

Task<void> tell_in_vain(Session& session, std::size_t size, std::optional<Status>& out) {
  Status status = co_await tell(session, kData, size, milliseconds(30));
  out.emplace(std::move(status));
}

TEST_P(SessionTest, send_behind_one_that_gave_up_goes_when_it_fits) {
  world.server.sink.releases_at_once = false;
  ASSERT_TRUE(start(1000));
  ASSERT_TRUE(client_does(tell(session(), kData, 900)).ok());
  std::optional<Status> big, small;
  on_client([&] {
    world.client.group.spawn(tell_in_vain(session(), 200, big));
    world.client.group.spawn(tell_into(session(), kData, 100, small));
  });
  EXPECT_TRUE(within(*world.server.thread, until_frames(world.server, 2)));
  client_does(stop(world.client));
  EXPECT_EQ(big->error().code(), ErrorCode::kDeadlineExceeded);
  EXPECT_TRUE(small->ok());
}

TEST_P(SessionTest, payload_left_by_the_sink_is_skipped_and_its_credit_comes_back) {
  ASSERT_TRUE(start(1000));
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(client_does(tell(session(), kDrop, 700)).ok());
  EXPECT_TRUE(client_does(ask(session(), kEcho, "h", pattern(9, 9))).ok());
}

TEST_P(SessionTest, credit_that_waits_leaves_with_a_frame_and_not_once_payload_comes) {
  world.server.sink.releases_at_once = false;
  ASSERT_TRUE(start(1000));
  ASSERT_TRUE(client_does(tell(session(), kData, 900)).ok());
  ASSERT_TRUE(within(*world.server.thread, until_frames(world.server, 1)));
  on_server([&] {
    world.server.session->let_credit_wait();
    world.server.sink.release(*world.server.session, 900);
  });
  const auto late = client_does(tell(session(), kData, 200, milliseconds(30)));
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.error().code(), ErrorCode::kDeadlineExceeded);
  EXPECT_TRUE(client_does(ask(session(), kEcho, "h", pattern(9, 9))).ok());
  world.server.sink.releases_at_once = true;
  on_server([&] { world.server.session->let_credit_wait(); });
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(client_does(tell(session(), kData, 800)).ok());
}

Task<void> push(Session& session, std::size_t count, std::size_t size, std::size_t& sent) {
  for (std::size_t i = 0; i < count; ++i) {
    const Status status = co_await tell(session, kData, size);
    if (status.ok()) ++sent;
  }
}

Task<bool> drain(Node& node, std::uint64_t total) {
  const Deadline limit = in(seconds(10));
  while (node.sink.got < total || node.sink.held != 0) {
    if (node.sink.held == 0) {
      if (!co_await node.sink.changed->wait(limit)) co_return false;
      continue;
    }
    node.sink.release(*node.session, std::min<std::uint64_t>(node.sink.held, 10'000));
    co_await boost::asio::post(node.thread->executor(), boost::asio::use_awaitable);
  }
  co_return true;
}

TEST_P(SessionTest, credit_bounds_the_receivers_memory) {
  constexpr std::uint64_t kWindow = 256 << 10;
  constexpr std::size_t kSize = 60'000, kCount = 200;
  world.server.sink.releases_at_once = false;
  ASSERT_TRUE(start(kWindow));
  std::size_t sent = 0;
  on_client([&] { world.client.group.spawn(push(session(), kCount, kSize, sent)); });
  EXPECT_TRUE(within(*world.server.thread, until_frames(world.server, kWindow / kSize)));
  EXPECT_TRUE(within(*world.server.thread, drain(world.server, kCount * kSize)));
  client_does(stop(world.client));  // `push` writes to this frame
  on_server([&] {
    EXPECT_EQ(world.server.sink.got, kCount * kSize);
    EXPECT_LE(world.server.sink.max_held, kWindow);
    EXPECT_GE(world.server.sink.max_held, kWindow - kSize) << "the window is used";
    EXPECT_LE(world.server.session->counters().credit_frames_out,
              kCount * kSize / (kWindow / 4) + kCount);
  });
}

TEST_P(SessionTest, goodbye_arrives_as_the_error_of_run_and_of_what_waits) {
  ASSERT_TRUE(start(1000));
  std::optional<Result<Reply>> reply;
  on_client([&] { world.client.group.spawn(ask_into(session(), kLater, reply)); });
  ASSERT_TRUE(within(*world.server.thread, until_frames(world.server, 1)));
  Error why(ErrorCode::kFailedPrecondition, "generation 9 was evicted");
  within(*world.server.thread, world.server.session->goodbye(std::move(why)));
  ASSERT_TRUE(within(*world.server.thread, until_ended(world.server)));
  ASSERT_TRUE(client_does(until_ended(world.client)));
  EXPECT_EQ(world.client.ended->code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(world.client.ended->message(),
              AllOf(HasSubstr("generation 9 was evicted"), HasSubstr("server-0")));
  EXPECT_EQ(world.server.ended->message(), "generation 9 was evicted");
  on_client([&] {
    ASSERT_TRUE(reply);
    EXPECT_THAT(reply->error().message(), HasSubstr("generation 9 was evicted"));
    EXPECT_TRUE(session().is_closed());
  });
  const auto after = client_does(ask(session(), kEcho, "h", pattern(1, 1)));
  EXPECT_THAT(after.error().message(), HasSubstr("generation 9 was evicted"));
}

TEST_P(SessionTest, goodbye_arrives_while_the_peer_sends_in_bulk) {
  ASSERT_TRUE(start());
  std::size_t sent = 0;
  on_client([&] { world.client.group.spawn(push(session(), 64, 1 << 20, sent)); });
  ASSERT_TRUE(within(*world.server.thread, until_frames(world.server, 3)));
  Error why(ErrorCode::kAborted, "enough");
  within(*world.server.thread, world.server.session->goodbye(std::move(why)));
  ASSERT_TRUE(client_does(until_ended(world.client)));
  client_does(stop(world.client));  // `push` writes to this frame
  EXPECT_EQ(world.client.ended->code(), ErrorCode::kAborted) << world.client.ended->to_string();
}

TEST_P(SessionTest, error_of_the_sink_ends_the_session_on_both_sides) {
  ASSERT_TRUE(start());
  EXPECT_TRUE(client_does(tell(session(), kStop, 100'000)).ok());
  ASSERT_TRUE(client_does(until_ended(world.client)));
  ASSERT_TRUE(within(*world.server.thread, until_ended(world.server)));
  EXPECT_EQ(world.server.ended->code(), ErrorCode::kAborted);
  EXPECT_EQ(world.server.ended->message(), "round 7 has moved on");
  EXPECT_EQ(world.client.ended->code(), ErrorCode::kAborted);
  EXPECT_THAT(world.client.ended->message(), HasSubstr("round 7 has moved on"));
}

Task<void> stop_and_push(Session& session, std::size_t& sent) {
  (void)co_await tell(session, kStop, 100'000);
  co_await push(session, 64, 1 << 20, sent);
}

// The payload that was refused is read all the same, and what comes behind it: else the client's
// system gets a reset, and drops what has not been read.
TEST_P(SessionTest, error_of_the_sink_arrives_while_the_peer_sends_in_bulk) {
  ASSERT_TRUE(start());
  std::size_t sent = 0;
  on_client([&] { world.client.group.spawn(stop_and_push(session(), sent)); });
  ASSERT_TRUE(client_does(until_ended(world.client)));
  client_does(stop(world.client));  // `push` writes to this frame
  EXPECT_EQ(world.client.ended->code(), ErrorCode::kAborted) << world.client.ended->to_string();
}

TEST_P(SessionTest, exception_of_the_sink_becomes_an_internal_error) {
  ASSERT_TRUE(start());
  EXPECT_TRUE(client_does(tell(session(), kThrow, 0)).ok());
  ASSERT_TRUE(client_does(until_ended(world.client)));
  EXPECT_EQ(world.client.ended->code(), ErrorCode::kInternal);
}

TEST_P(SessionTest, close_ends_everything_that_waits_with_its_cause) {
  world.server.sink.releases_at_once = false;
  ASSERT_TRUE(start(100));
  std::optional<Result<Reply>> reply;
  std::optional<Status> first, second;
  on_client([&] {
    world.client.group.spawn(ask_into(session(), kLater, reply));
    world.client.group.spawn(tell_into(session(), kData, 100, first));
    world.client.group.spawn(tell_into(session(), kData, 100, second));
  });
  ASSERT_TRUE(within(*world.server.thread, until_frames(world.server, 2)));
  on_client([&] {
    session().close(Error(ErrorCode::kCancelled, "the worker stops"));
    session().close(Error(ErrorCode::kInternal, "a second cause"));
  });
  ASSERT_TRUE(client_does(until_ended(world.client)));
  EXPECT_EQ(world.client.ended->message(), "the worker stops");
  ASSERT_TRUE(within(*world.server.thread, until_ended(world.server)));
  EXPECT_EQ(world.server.ended->code(), ErrorCode::kUnavailable);
  EXPECT_THAT(world.server.ended->message(), HasSubstr("worker-2"));
  client_does(world.client.group.join());
  EXPECT_EQ(reply->error().message(), "the worker stops");
  EXPECT_TRUE(first->ok());
  EXPECT_EQ(second->error().message(), "the worker stops");
}

Task<void> cancel_and_join(TaskGroup& group) {
  group.cancel();
  co_await group.join();
}

TEST_P(SessionTest, cancelled_tasks_give_back_what_they_had) {
  world.server.sink.releases_at_once = false;
  ASSERT_TRUE(start(100));
  ASSERT_TRUE(client_does(tell(session(), kData, 60)).ok());
  TaskGroup own(world.client.thread->executor());
  std::optional<Result<Reply>> reply;
  std::optional<Status> sent;
  on_client([&] {
    own.spawn(ask_into(session(), kLater, reply));
    own.spawn(tell_into(session(), kData, 90, sent));
  });
  ASSERT_TRUE(within(*world.server.thread, until_frames(world.server, 2)));
  client_does(cancel_and_join(own));
  EXPECT_EQ(reply->error().code(), ErrorCode::kCancelled);
  EXPECT_EQ(sent->error().code(), ErrorCode::kCancelled);
  EXPECT_TRUE(client_does(tell(session(), kData, 40)).ok());
  EXPECT_TRUE(client_does(ask(session(), kEcho, "h", pattern(9, 9))).ok());
  client_does(cancel_and_join(world.client.group));  // the read loop too
  EXPECT_EQ(world.client.ended->code(), ErrorCode::kCancelled);
}

TEST_P(SessionTest, misuse_is_refused_and_harms_nothing) {
  ASSERT_TRUE(start());
  EXPECT_EQ(client_does(tell(session(), kGoodbye, 0)).error().code(), ErrorCode::kInvalidArgument);
  const std::string long_head((64 << 10) + 1, 'x');
  EXPECT_EQ(client_does(ask(session(), kEcho, long_head, pattern(1, 1))).error().code(),
            ErrorCode::kInvalidArgument);
  FrameHeader never;
  never.kind = kEcho;
  never.id = 77;
  EXPECT_EQ(client_does(session().respond(never, Bytes())).error().code(),
            ErrorCode::kFailedPrecondition);
  std::byte one[1];
  EXPECT_EQ(client_does(session().read_payload(one)).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(client_does(session().run(world.client.sink)).code(), ErrorCode::kFailedPrecondition);
  EXPECT_TRUE(client_does(ask(session(), kEcho, "h", pattern(9, 9))).ok());
}

INSTANTIATE_TEST_SUITE_P(Worlds, SessionTest, ::testing::ValuesIn(worlds()), world_name);

}  // namespace
}  // namespace centroid::transport
