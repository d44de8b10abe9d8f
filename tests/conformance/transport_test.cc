// The contract of Connection, Listener and Transport, for every implementation.

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <map>

#include <gmock/gmock.h>

#include "tests/conformance/transport_fixture.h"

namespace centroid::transport::testing {
namespace {

using ::testing::HasSubstr;

class TransportConformance : public ::testing::TestWithParam<Kind> {
 protected:
  void run(Task<void> (*body)(Kind)) { wait(here_, body(GetParam())); }
  void run_pair(Task<void> (*body)(Pair&), TransportOptions options = {}) {
    wait(here_, with_pair(GetParam(), options, body));
  }
  IoThread here_{"here"};

 private:
  static Task<void> with_pair(Kind kind, TransportOptions options, Task<void> (*body)(Pair&)) {
    const auto pair = co_await connect_pair(kind, options);
    co_await body(*pair);
  }
};

Task<Status> send_ids(Connection& c, std::uint64_t first, std::uint64_t count, std::uint64_t seed) {
  CounterRng rng(seed, first);
  for (std::uint64_t id = first; id < first + count; ++id) {
    const std::size_t head = rng.below(200),
                      payload = rng.below(4) == 0 ? rng.below(300'000) : rng.below(300);
    CENTROID_CO_TRY(co_await send(c, id, head, payload));
  }
  co_return Status();
}

Task<void> frames_in_order(Pair& pair) {
  const std::vector<std::size_t> sizes{0,      1,      7,      47,      48,       49,       4096,
                                       16'336, 16'384, 16'385, 262'144, 1u << 20, 3'000'001};
  auto sender = [](Connection& c, std::vector<std::size_t> all) -> Task<Status> {
    std::uint64_t id = 0;
    for (const std::size_t payload : all) {
      for (const std::size_t head : {0, 1, 300, 40'000})
        CENTROID_CO_TRY(co_await send(c, id++, head, payload));
    }
    co_return Status();
  };
  auto sending = start(pair.client->executor(), sender(*pair.client, sizes));
  for (std::uint64_t id = 0; id < 4 * sizes.size(); ++id) {
    const auto got = co_await receive(*pair.server);
    CO_ASSERT(got.ok());
    EXPECT_EQ(*got, id);
  }
  CO_ASSERT(co_await ended(sending));
  EXPECT_TRUE(sending->result->ok());
  EXPECT_EQ(pair.server->traffic().frames_in, pair.client->traffic().frames_out);
  EXPECT_EQ(pair.server->traffic().bytes_in, pair.client->traffic().bytes_out);
}
TEST_P(TransportConformance, FramesOfAnySizeArriveWholeAndInOrder) { run_pair(frames_in_order); }

Task<void> small_frames(Pair& pair, bool do_wait) {
  Connection& client = *pair.client;
  const std::uint64_t before = client.traffic().bytes_out;
  for (const std::uint64_t id : {1, 2}) CO_ASSERT((co_await send(client, id, 30, 100, true)).ok());
  EXPECT_EQ(client.traffic().bytes_out == before, do_wait);
  auto flushed = co_await client.flush();
  CO_ASSERT(flushed.ok());
  EXPECT_EQ(*flushed, do_wait);
  flushed = co_await client.flush();
  CO_ASSERT(flushed.ok());
  EXPECT_FALSE(*flushed) << "nothing waits";
  CO_ASSERT((co_await send(client, 3, 30, 100, true)).ok());
  CO_ASSERT((co_await send(client, 4, 30, 100)).ok());
  CO_ASSERT((co_await send(client, 5, 30, 5000, true)).ok());
  EXPECT_GT(client.traffic().bytes_out, before + 5000) << "a large one does not wait";
  for (const std::uint64_t id : {1, 2, 3, 4, 5}) {
    const auto got = co_await receive(*pair.server);
    CO_ASSERT(got.ok());
    EXPECT_EQ(*got, id);
  }
  if (!do_wait) co_return;
  auto writing = start(client.executor(), send(client, 6, 0, 60u << 20));  // until it is read
  CO_ASSERT((co_await send(client, 7, 30, 100, true)).ok());
  auto queued = start(client.executor(), send(client, 8, 0, 5000));
  auto behind = start(client.executor(), send(client, 9, 30, 100, true));  // not before that one
  for (const std::uint64_t id : {6, 7, 8, 9}) {
    const auto got = co_await receive(*pair.server);
    CO_ASSERT(got.ok());
    EXPECT_EQ(*got, id);
  }
  CO_ASSERT(co_await ended(writing));
  CO_ASSERT(co_await ended(queued));
  CO_ASSERT(co_await ended(behind));
  const std::uint64_t sent = client.traffic().bytes_out;
  for (std::uint64_t id = 10; id < 40; ++id)
    CO_ASSERT((co_await send(client, id, 30, 100, true)).ok());
  EXPECT_GT(client.traffic().bytes_out, sent) << "many small ones do not wait together";
  flushed = co_await client.flush();
  CO_ASSERT(flushed.ok());
  for (std::uint64_t id = 10; id < 40; ++id) {
    const auto got = co_await receive(*pair.server);
    CO_ASSERT(got.ok());
    EXPECT_EQ(*got, id);
  }
}
Task<void> small_frames_wait(Pair& pair) { return small_frames(pair, true); }
Task<void> small_frames_leave(Pair& pair) { return small_frames(pair, false); }
TEST_P(TransportConformance, SmallFramesMayWaitForTheNext) {
  const bool is_shm = GetParam().name.starts_with("shm");  // frames there begin aligned
  run_pair(is_shm ? small_frames_leave : small_frames_wait);
}

Task<void> limits_hold(Pair& pair) {
  const FrameLimits limits{1000, 100'000};
  pair.client->set_limits(limits);
  pair.server->set_limits(limits);
  auto sending = start(pair.client->executor(), send(*pair.client, 1, 1000, 100'000));
  auto got = co_await receive(*pair.server);
  CO_ASSERT(got.ok());
  CO_ASSERT(co_await ended(sending));
  Status status = co_await send(*pair.client, 2, 1001, 0);
  CO_ASSERT(!status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kResourceExhausted);
  status = co_await send(*pair.client, 3, 0, 100'001);
  CO_ASSERT(!status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(status.error().message(), HasSubstr("100001 bytes"));
  status = co_await send(*pair.client, 4, 0, 0);
  EXPECT_TRUE(status.ok()) << "a refused frame leaves the connection open";
  got = co_await receive(*pair.server);
  CO_ASSERT(got.ok());
  EXPECT_EQ(*got, 4U);
  pair.client->set_limits(FrameLimits());
  status = co_await send(*pair.client, 5, 0, 100'001);
  got = co_await receive(*pair.server);
  CO_ASSERT(!got.ok());
  EXPECT_EQ(got.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(got.error().message(), HasSubstr("limit of 100000"));
  status = co_await send(*pair.server, 6, 0, 0);
  EXPECT_TRUE(status.ok()) << "the peer can be told";
  got = co_await receive(*pair.server);
  CO_ASSERT(!got.ok());
  EXPECT_EQ(got.error().code(), ErrorCode::kResourceExhausted) << "nothing more is read";
}
TEST_P(TransportConformance, LimitsHoldOnBothSides) { run_pair(limits_hold); }

Task<void> pieces_make_the_payload(Pair& pair) {
  std::vector<std::shared_ptr<Child<Status>>> sending;  // a child outlives its own end
  const std::array<std::size_t, 6> sizes = {0, 1, 64, 1000, 4096, 300'001};
  for (const std::size_t size : sizes) {
    sending.push_back(start(pair.client->executor(), send(*pair.client, size, 48, size)));
    const auto frame = co_await pair.server->read_header();
    CO_ASSERT(frame.ok());
    std::vector<std::byte> scratch(4096), got;
    while (true) {
      const auto piece = co_await pair.server->read_piece(scratch);
      CO_ASSERT(piece.ok());
      if (piece->empty()) break;
      got.insert(got.end(), piece->begin(), piece->end());
      EXPECT_TRUE(piece->size() % 64 == 0 || got.size() == size);
    }
    EXPECT_TRUE(got == pattern(size * 2 + 1, size));
    CO_ASSERT(co_await ended(sending.back()));
  }
  sending.push_back(start(pair.client->executor(), send(*pair.client, 1, 0, 300'000)));
  const auto long_frame = co_await pair.server->read_header();
  CO_ASSERT(long_frame.ok());
  std::vector<std::byte> scratch(4096);
  const auto first = co_await pair.server->read_piece(scratch);
  CO_ASSERT(first.ok());
  const Status skipped = co_await pair.server->skip_payload();
  EXPECT_TRUE(skipped.ok()) << "the rest can be dropped";
  CO_ASSERT(co_await ended(sending.back()));
  sending.push_back(start(pair.client->executor(), send(*pair.client, 2, 10, 100)));
  const auto next = co_await receive(*pair.server);
  CO_ASSERT(next.ok());
  EXPECT_EQ(*next, 2U);
  CO_ASSERT(co_await ended(sending.back()));
}
TEST_P(TransportConformance, PiecesMakeThePayload) { run_pair(pieces_make_the_payload); }

Task<void> checksums_may_be_left_out(Pair& pair) {
  const auto payload = pattern(1, 100);
  OutFrame frame;
  frame.kind = 20;
  frame.flags = kFlagNoPayloadCrc;
  frame.payload = payload;
  FrameLimits limits = pair.server->limits();
  limits.accepts_without_crc = true;
  pair.server->set_limits(limits);
  Status status = co_await pair.client->write(frame);
  CO_ASSERT(status.ok());
  auto header = co_await pair.server->read_header();
  CO_ASSERT(header.ok());
  EXPECT_EQ(header->header.payload_crc, 0U);
  std::vector<std::byte> got(100);
  status = co_await pair.server->read_payload(got);
  CO_ASSERT(status.ok());
  EXPECT_TRUE(got == payload);
  limits.accepts_without_crc = false;
  pair.server->set_limits(limits);
  status = co_await pair.client->write(frame);
  CO_ASSERT(status.ok());
  header = co_await pair.server->read_header();
  CO_ASSERT(!header.ok());
  EXPECT_EQ(header.error().code(), ErrorCode::kDataLoss) << "only where it was agreed";
}
TEST_P(TransportConformance, ChecksumsMayBeLeftOut) { run_pair(checksums_may_be_left_out); }

Task<void> writers_do_not_interleave(Pair& pair) {
  const std::uint64_t seed = static_cast<std::uint64_t>(now().time_since_epoch().count());
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::vector<std::shared_ptr<Child<Status>>> writers;
  for (std::uint64_t w = 0; w < 8; ++w) {
    writers.push_back(start(pair.client->executor(), send_ids(*pair.client, w * 1000, 30, seed)));
  }
  std::map<std::uint64_t, std::uint64_t> next;
  for (int i = 0; i < 8 * 30; ++i) {
    const auto got = co_await receive(*pair.server);
    CO_ASSERT(got.ok());
    EXPECT_EQ(*got % 1000, next[*got / 1000]++) << "each writer's frames in its order";
  }
  for (const auto& writer : writers) CO_ASSERT(co_await ended(writer));
}
TEST_P(TransportConformance, ConcurrentWritersDoNotInterleave) {
  run_pair(writers_do_not_interleave);
}

Task<void> close_ends_all(Pair& pair) {
  Connection& client = *pair.client;
  auto reading = start(client.executor(), header_of(client));
  std::vector<std::shared_ptr<Child<Status>>> writing;
  for (std::uint64_t i = 0; i < 6; ++i) {
    writing.push_back(start(client.executor(), send(client, i, 10, 30u << 20)));
  }
  auto is_blocked = [&client, last = std::uint64_t{0}, since = now()]() mutable {
    if (client.traffic().bytes_out != std::exchange(last, client.traffic().bytes_out))
      since = now();
    return last != 0 && now() - since > 20ms;
  };
  CO_ASSERT(co_await until(is_blocked));
  EXPECT_LT(client.traffic().bytes_out, 160u << 20)
      << "a peer that does not read holds the writer back";
  client.close(stop("first cause"));
  client.close(stop("second cause"));
  EXPECT_EQ(reading->endings, 0) << "no completion inside close";
  for (const auto& one : writing) EXPECT_LE(one->endings, 1);
  CO_ASSERT(co_await ended(reading));
  EXPECT_EQ(reading->result->error().message(), "first cause");
  for (const auto& one : writing) {
    CO_ASSERT(co_await ended(one));
    if (one->result->ok()) continue;
    EXPECT_EQ(one->result->error().message(), "first cause");
  }
  EXPECT_FALSE(writing.back()->result->ok());
  const auto later = co_await client.read_header();
  EXPECT_EQ(later.error().message(), "first cause");
  const Status write = co_await send(client, 9, 0, 0);
  EXPECT_EQ(write.error().message(), "first cause");
  const Status payload = co_await client.skip_payload();
  EXPECT_EQ(payload.error().message(), "first cause");
  co_await sleep_until(now());
  EXPECT_EQ(reading->endings, 1);
  for (const auto& one : writing) EXPECT_EQ(one->endings, 1);
}
TEST_P(TransportConformance, CloseEndsEveryCallOnceWithItsCause) {
  TransportOptions options;
  options.socket_buffer_bytes = 64 << 10;
  run_pair(close_ends_all, options);
}

Task<void> peer_closes_between(Pair& pair) {
  Status status = co_await send(*pair.client, 1, 5, 5000);
  CO_ASSERT(status.ok());
  pair.client->close(stop());
  auto got = co_await receive(*pair.server);
  EXPECT_TRUE(got.ok()) << "what was written before a close arrives";
  got = co_await receive(*pair.server);
  CO_ASSERT(!got.ok());
  EXPECT_EQ(got.error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(got.error().message(), pair.server->peer() + " closed the connection");
  status = co_await send(*pair.server, 2, 0, 0);
  EXPECT_EQ(status.error().code(), ErrorCode::kUnavailable);
}
TEST_P(TransportConformance, PeerThatClosesBetweenFramesIsNamed) { run_pair(peer_closes_between); }

Task<void> peer_closes_within(Pair& pair) {
  Connection& client = *pair.client;
  auto writing = start(client.executor(), send(client, 1, 100, 60u << 20));
  auto is_under_way = [&client] { return client.traffic().bytes_out > 10'000; };
  CO_ASSERT(co_await until(is_under_way));
  client.close(stop());
  CO_ASSERT(co_await ended(writing));
  const auto got = co_await receive(*pair.server);
  CO_ASSERT(!got.ok());
  EXPECT_EQ(got.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(
      got.error().message(),
      HasSubstr(pair.server->peer() + " closed the connection in the middle of a frame (got "));
  EXPECT_THAT(got.error().message(), HasSubstr(" of 62914708 bytes)"));
}
TEST_P(TransportConformance, PeerThatClosesWithinAFrameIsNamedWithWhatCame) {
  run_pair(peer_closes_within);
}

Task<void> cancel_idle_read(Pair& pair) {
  auto reading = start(pair.server->executor(), header_of(*pair.server));
  co_await sleep_until(now() + 1ms);
  reading->cancel();
  EXPECT_EQ(reading->endings, 0);
  CO_ASSERT(co_await ended(reading));
  EXPECT_EQ(reading->result->error().code(), ErrorCode::kCancelled);
  const Status status = co_await send(*pair.client, 7, 10, 10);
  CO_ASSERT(status.ok());
  const auto got = co_await receive(*pair.server);
  EXPECT_TRUE(got.ok()) << "a read cancelled between frames leaves nothing behind";
}
TEST_P(TransportConformance, ReadCancelledBetweenFramesLeavesNothingBehind) {
  run_pair(cancel_idle_read);
}

Task<void> cancel_within(Pair& pair) {
  Connection& client = *pair.client;
  auto writing = start(client.executor(), send(client, 1, 0, 60u << 20));
  auto queued = start(client.executor(), send(client, 2, 0, 10));
  auto last = start(client.executor(), send(client, 3, 0, 10));
  co_await sleep_until(now() + 1ms);
  queued->cancel();
  CO_ASSERT(co_await ended(queued));
  EXPECT_EQ(queued->result->error().code(), ErrorCode::kCancelled);
  auto got = co_await receive(*pair.server);
  CO_ASSERT(got.ok());
  CO_ASSERT(co_await ended(writing));
  CO_ASSERT(co_await ended(last));
  EXPECT_TRUE(writing->result->ok());
  EXPECT_TRUE(last->result->ok());
  got = co_await receive(*pair.server);
  CO_ASSERT(got.ok());
  EXPECT_EQ(*got, 3U) << "a cancelled writer in the queue sends nothing";
  writing = start(client.executor(), send(client, 4, 0, 60u << 20));
  auto is_under_way = [&client] { return client.traffic().bytes_out > (60u << 20) + 10'000; };
  CO_ASSERT(co_await until(is_under_way));
  auto reading = start(client.executor(), header_of(client));
  co_await sleep_until(now() + 1ms);
  writing->cancel();
  CO_ASSERT(co_await ended(writing));
  EXPECT_EQ(writing->result->error().code(), ErrorCode::kCancelled);
  CO_ASSERT(co_await ended(reading));
  EXPECT_EQ(reading->result->error().code(), ErrorCode::kCancelled)
      << "half a frame ends the connection";
}
TEST_P(TransportConformance, CancelledWriterLeavesNothingOrEndsTheConnection) {
  run_pair(cancel_within);
}

Task<void> peer_takes_nothing(Pair& pair) {
  const TimePoint begin = now();
  const Status status = co_await send(*pair.client, 1, 0, 60u << 20);
  CO_ASSERT(!status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(status.error().message(), HasSubstr(pair.client->peer() + " took nothing for 60 ms"));
  EXPECT_GE(now() - begin, 60ms);
}
TEST_P(TransportConformance, PeerThatTakesNothingEndsTheConnection) {
  TransportOptions options;
  options.stall_timeout = 60ms;
  run_pair(peer_takes_nothing, options);
}

Task<void> idle_is_legal(Pair& pair) {
  auto reading = start(pair.server->executor(), receive(*pair.server));
  Status status = co_await send(*pair.client, 1, 10, 100'000);
  CO_ASSERT(co_await ended(reading));
  reading = start(pair.server->executor(), receive(*pair.server));
  co_await sleep_until(now() + 60ms);
  status = co_await send(*pair.client, 2, 10, 100'000);
  CO_ASSERT(co_await ended(reading));
  EXPECT_TRUE(reading->result->ok());
}
TEST_P(TransportConformance, IdlenessBetweenFramesIsLegal) {
  TransportOptions options;
  options.stall_timeout = 20ms;
  run_pair(idle_is_legal, options);
}

Task<void> wrong_payload_crc(Pair& pair) {
  const auto payload = pattern(1, 5000);
  OutFrame frame;
  frame.payload = payload;
  frame.payload_crc = 12345;
  CO_ASSERT((co_await pair.client->write(frame)).ok());
  const auto header = co_await pair.server->read_header();
  CO_ASSERT(header.ok());
  EXPECT_EQ(header->header.payload_crc, 12345U) << "a given checksum is sent as it is";
  std::vector<std::byte> into(5000);
  const Status status = co_await pair.server->read_payload(into);
  CO_ASSERT(!status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kDataLoss);
  const auto later = co_await pair.server->read_header();
  EXPECT_EQ(later.error().code(), ErrorCode::kDataLoss);
}
TEST_P(TransportConformance, WrongChecksumIsDataLossAndEndsTheConnection) {
  run_pair(wrong_payload_crc);
}

Task<void> wrong_use(Pair& pair) {
  Connection& server = *pair.server;
  Status status = co_await send(*pair.client, 1, 10, 50'000);
  status = co_await send(*pair.client, 2, 10, 70'000);
  status = co_await send(*pair.client, 3, 10, 0);
  auto header = co_await server.read_header();
  CO_ASSERT(header.ok());
  std::vector<std::byte> into(49'999);
  status = co_await server.read_payload(into);
  EXPECT_EQ(status.error().code(), ErrorCode::kInvalidArgument);
  header = co_await server.read_header();
  EXPECT_EQ(header.error().code(), ErrorCode::kFailedPrecondition) << "the payload still waits";
  into.resize(50'000);
  status = co_await server.read_payload(into);
  EXPECT_TRUE(status.ok()) << "a bad argument leaves the connection open";
  header = co_await server.read_header();
  CO_ASSERT(header.ok());
  status = co_await server.skip_payload();
  EXPECT_TRUE(status.ok());
  header = co_await server.read_header();
  CO_ASSERT(header.ok());
  EXPECT_EQ(header->header.id, 3U);
  status = co_await server.read_payload(MutableBytes());
  EXPECT_TRUE(status.ok()) << "an empty payload needs no read and allows one";
  auto reading = start(server.executor(), header_of(server));
  co_await sleep_until(now() + 1ms);
  header = co_await server.read_header();
  EXPECT_EQ(header.error().code(), ErrorCode::kFailedPrecondition) << "one reader at a time";
  server.close(stop());
  CO_ASSERT(co_await ended(reading));
}
TEST_P(TransportConformance, WrongUseIsSaidAndHarmless) { run_pair(wrong_use); }

Task<void> listen_and_connect_errors(Kind kind) {
  const Executor here = co_await boost::asio::this_coro::executor;
  const auto transport = kind.make(here, make_inprocess_hub(), TransportOptions());
  Endpoint any;
  any.host = kind.host;
  auto first = transport->listen(any);
  CO_ASSERT(first.ok());
  const Endpoint taken = (*first)->endpoint();
  EXPECT_NE(taken.port, 0);
  const auto second = transport->listen(taken);
  CO_ASSERT(!second.ok());
  EXPECT_EQ(second.error().code(), ErrorCode::kAlreadyExists);
  EXPECT_THAT(second.error().message(), HasSubstr(taken.to_string()));
  auto late = co_await transport->connect(taken, now() - 1s);
  CO_ASSERT(!late.ok());
  EXPECT_EQ(late.error().code(), ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(late.error().message(), HasSubstr(taken.to_string()));
  auto accepting = start(here, accept_on(**first));
  co_await sleep_until(now() + 1ms);
  accepting->cancel();
  CO_ASSERT(co_await ended(accepting));
  EXPECT_EQ(accepting->result->error().code(), ErrorCode::kCancelled);
  accepting = start(here, accept_on(**first));
  auto connected = co_await transport->connect(taken, soon());
  EXPECT_TRUE(connected.ok()) << "a cancelled accept leaves the listener open";
  CO_ASSERT(co_await ended(accepting));
  accepting = start(here, accept_on(**first));
  co_await sleep_until(now() + 1ms);
  (*first)->close();
  EXPECT_EQ(accepting->endings, 0) << "no completion inside close";
  CO_ASSERT(co_await ended(accepting));
  EXPECT_EQ(accepting->result->error().code(), ErrorCode::kCancelled);
  (*first)->close();
  const auto after = co_await (*first)->accept();
  EXPECT_EQ(after.error().code(), ErrorCode::kCancelled);
  const auto refused = co_await transport->connect(taken, soon());
  CO_ASSERT(!refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(refused.error().message(), HasSubstr(taken.to_string()));
  EXPECT_TRUE(transport->listen(taken).ok()) << "a closed listener frees its port";
}
using NameOfSocket = int (*)(int, sockaddr*, socklen_t*);

/// Of the connected socket of this process whose own (getsockname) or peer's (getpeername) port it
/// is; -1: there is none.
int user_timeout(NameOfSocket name, std::uint16_t port) {
  for (int fd = 3; fd < 1024; ++fd) {
    sockaddr_in peer{}, found{};
    socklen_t peer_size = sizeof peer, size = sizeof found;
    const bool is_it = ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_size) == 0 &&
                       name(fd, reinterpret_cast<sockaddr*>(&found), &size) == 0 &&
                       found.sin_family == AF_INET && ntohs(found.sin_port) == port;
    int time = 0;
    size = sizeof time;
    if (is_it && ::getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &time, &size) == 0) return time;
  }
  return -1;
}

struct Times {
  int connected = 0, accepted = 0;
};

Task<std::optional<Status>> connect_and_look(Transport* transport, Listener* listener,
                                             Times* times) {
  const std::uint16_t port = listener->endpoint().port;
  const Endpoint here{"127.0.0.1", port};
  auto connection = co_await transport->connect(here, soon());
  if (!connection.ok()) co_return Status(connection.error());
  const auto accepted = co_await listener->accept();
  if (!accepted.ok()) co_return Status(accepted.error());
  times->connected = user_timeout(::getpeername, port);
  times->accepted = user_timeout(::getsockname, port);
  (*connection)->close(stop());
  (*accepted)->close(stop());
  co_return Status();
}

TEST(TcpTransport, TheSystemEndsAConnectionWhosePeerAcknowledgesNothing) {
  for (const char* host : {"127.0.0.1", "0.0.0.0"}) {
    IoThread io("io");
    TransportOptions options;
    options.stall_timeout = 7s;
    const auto transport = make_tcp(io.executor(), options);
    const auto listener = transport->listen({host, 0}).value();
    Times times;
    EXPECT_TRUE(io.wait(connect_and_look(transport.get(), listener.get(), &times))->ok());
    EXPECT_EQ(times.connected, 7000);
    EXPECT_EQ(times.accepted, 7000);
  }
}

TEST(TcpTransport, FindsTheAddressesOfANameAndOfAnAddress) {
  IoThread io("io");
  const auto transport = make_tcp(io.executor());
  const auto listener = transport->listen({"127.0.0.1", 0}).value();
  const auto found = io.wait(transport->resolve({"localhost", listener->endpoint().port}));
  ASSERT_TRUE(found.ok()) << found.error().to_string();
  EXPECT_THAT(*found, ::testing::Contains(listener->endpoint()));
  EXPECT_THAT(*io.wait(transport->resolve({"::1", 7})), ::testing::ElementsAre(Endpoint{"::1", 7}));
  const std::string name(300, 'x');  // too long to be asked for
  const auto nobody = io.wait(transport->resolve({name, 7}));
  ASSERT_FALSE(nobody.ok());
  EXPECT_EQ(nobody.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(nobody.error().message(), HasSubstr("resolve " + name + ": cannot resolve the name"));
}

TEST_P(TransportConformance, ListenAndConnectErrorsNameTheEndpoint) {
  run(listen_and_connect_errors);
}

INSTANTIATE_TEST_SUITE_P(All, TransportConformance, ::testing::ValuesIn(kinds()),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace centroid::transport::testing
