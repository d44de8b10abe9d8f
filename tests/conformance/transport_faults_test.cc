// What breaks: planned faults at every operation, a wire that delivers as it likes, many
// connections.

#include <dirent.h>

#include <boost/asio/post.hpp>
#include <boost/asio/use_future.hpp>
#include <gmock/gmock.h>

#include "common/base/crc32c.h"
#include "tests/conformance/transport_fixture.h"
#include "transport/framed_connection.h"

namespace centroid::transport::testing {
namespace {

using ::testing::HasSubstr;
using Action = FaultPlan::Action;

// ---- fail at operation N, for every N until the run succeeds

Task<Status> echo_until_end(Listener& listener) {
  CENTROID_CO_ASSIGN(const Side server, co_await listener.accept());
  while (true) {
    CENTROID_CO_ASSIGN(const InFrame request, co_await server->read_header());
    std::vector<std::byte> payload(request.header.payload_bytes);
    CENTROID_CO_TRY(co_await server->read_payload(payload));
    OutFrame answer;
    answer.kind = request.header.kind;
    answer.id = request.header.id;
    answer.head = request.head;
    answer.payload = payload;
    CENTROID_CO_TRY(co_await server->write(answer));
  }
}

Task<Status> ask_thrice(Transport& transport, Endpoint endpoint) {
  CENTROID_CO_ASSIGN(const Side client, co_await transport.connect(endpoint, soon()));
  for (std::uint64_t id = 1; id <= 3; ++id) {
    CENTROID_CO_TRY(co_await send(*client, id, 20, 1000 * id));
    CENTROID_CO_ASSIGN(const std::uint64_t answered, co_await receive(*client));
    EXPECT_EQ(answered, id) << "an answer that arrives is the right one";
  }
  co_return Status();
}

struct Outcome {
  Status client;
  Status server;
};

Task<Outcome> run_with_fault(Kind kind, FaultPlan plan) {
  const Executor here = co_await boost::asio::this_coro::executor;
  auto hub = make_inprocess_hub();
  const auto listening = kind.make(here, hub, TransportOptions());
  const auto faulty = make_faulty(kind.make(here, hub, TransportOptions()), plan);
  Endpoint any;
  any.host = kind.host;
  auto listener = listening->listen(any);
  EXPECT_TRUE(listener.ok());
  auto serving = start(here, echo_until_end(**listener));
  Outcome outcome;
  outcome.client = co_await ask_thrice(*faulty, (*listener)->endpoint());
  if (*plan.operations <= 1) (*listener)->close();
  EXPECT_TRUE(co_await ended(serving)) << "the other side learns of every end";
  outcome.server = *serving->result;
  co_return outcome;
}

class TransportFaults : public ::testing::TestWithParam<Kind> {
 protected:
  /// Plans `action` at every operation of the run in turn; gives how many runs there were.
  std::uint64_t at_every_operation(Action action, std::function<void(const Outcome&)> check) {
    for (std::uint64_t n = 0;; ++n) {
      FaultPlan plan;
      plan.action = action;
      plan.at_operation = n;
      plan.delay = 1ms;
      const Outcome outcome = wait(here_, run_with_fault(GetParam(), plan));
      if (*plan.operations <= n) {
        EXPECT_TRUE(outcome.client.ok()) << "no fault was planned within the run";
        return n;
      }
      check(outcome);
    }
  }
  IoThread here_{"here"};
};

constexpr std::uint64_t kOperations =
    1 + 3 * 3;  // connect, then write, read_header, read_payload, three times

TEST_P(TransportFaults, FailedCallIsReportedWhereverItStrikes) {
  const auto runs = at_every_operation(Action::kFail, [](const Outcome& outcome) {
    ASSERT_FALSE(outcome.client.ok());
    EXPECT_EQ(outcome.client.error().code(), ErrorCode::kUnavailable);
    EXPECT_THAT(outcome.client.error().message(), HasSubstr("fault planned at operation"));
  });
  EXPECT_EQ(runs, kOperations);
}

TEST_P(TransportFaults, CutConnectionIsReportedUnlessTheWorkWasDone) {
  std::uint64_t completed = 0;
  const auto runs = at_every_operation(Action::kCut, [&](const Outcome& outcome) {
    if (outcome.client.ok()) {
      ++completed;
    } else {
      EXPECT_EQ(outcome.client.error().code(), ErrorCode::kUnavailable);
    }
  });
  EXPECT_EQ(runs, kOperations);
  EXPECT_EQ(completed, 1U) << "only a cut behind the last read harms nothing";
}

TEST_P(TransportFaults, CorruptBytesAreDataLossForTheirReader) {
  const auto runs = at_every_operation(Action::kCorrupt, [](const Outcome& outcome) {
    if (outcome.client.ok()) return;  // nothing to corrupt in a connect
    const bool is_clients = outcome.client.error().code() == ErrorCode::kDataLoss;
    const bool is_servers = outcome.server.error().code() == ErrorCode::kDataLoss;
    EXPECT_TRUE(is_clients != is_servers)
        << outcome.client.error().to_string() << " / " << outcome.server.error().to_string();
  });
  EXPECT_EQ(runs, kOperations);
}

TEST_P(TransportFaults, TruncatedFrameIsSaidSo) {
  std::uint64_t seen = 0;
  const auto runs = at_every_operation(Action::kTruncate, [&](const Outcome& outcome) {
    ASSERT_FALSE(outcome.client.ok());
    EXPECT_EQ(outcome.client.error().code(), ErrorCode::kUnavailable);
    const std::string& message = outcome.server.error().message();
    if (message.find("in the middle of a frame (got ") != std::string::npos) ++seen;
  });
  EXPECT_EQ(runs, kOperations);
  EXPECT_EQ(seen, 3U) << "each of the three requests, cut in half";
}

TEST_P(TransportFaults, DelayHarmsNothing) {
  const auto runs = at_every_operation(
      Action::kDelay, [](const Outcome& outcome) { EXPECT_TRUE(outcome.client.ok()); });
  EXPECT_EQ(runs, kOperations);
}

// ---- many connections

std::size_t open_files() {
  std::size_t n = 0;
  DIR* const dir = ::opendir("/proc/self/fd");
  while (::readdir(dir) != nullptr) ++n;
  ::closedir(dir);
  return n;
}

Task<void> connect_and_close(Kind kind, int cycles) {
  const Executor here = co_await boost::asio::this_coro::executor;
  const auto transport = kind.make(here, make_inprocess_hub(), TransportOptions());
  Endpoint any;
  any.host = kind.host;
  const auto listener = transport->listen(any);
  CO_ASSERT(listener.ok());
  std::size_t before = 0;
  for (int i = 0; i < cycles; ++i) {
    if (i == 1) before = open_files();  // the first cycle opened the reactor's own
    auto client = co_await transport->connect((*listener)->endpoint(), soon());
    CO_ASSERT(client.ok());
    auto server = co_await (*listener)->accept();
    CO_ASSERT(server.ok());
    (*client)->close(stop());
  }
  EXPECT_EQ(open_files(), before);
}
TEST_P(TransportFaults, ManyConnectionsLeakNoFiles) {
  wait(here_, connect_and_close(GetParam(), 10'000));
}

// ---- two executors

Task<int> serve_connections(Listener& listener, int count) {
  int whole = 0;
  for (int i = 0; i < count; ++i) {
    auto server = co_await listener.accept();
    if (!server.ok()) co_return -1;
    while ((co_await receive(**server)).ok()) ++whole;
  }
  co_return whole;
}

Task<void> send_and_part(Transport& transport, Endpoint endpoint, int count) {
  for (int i = 0; i < count; ++i) {
    auto client = co_await transport.connect(endpoint, soon());
    CO_ASSERT(client.ok());
    for (std::uint64_t id = 0; id < 3; ++id)
      EXPECT_TRUE((co_await send(**client, id, 10, 3000)).ok());
    auto cut = start((*client)->executor(), send(**client, 9, 0, 5u << 20));
    co_await sleep_until(now());
    (*client)->close(stop());
    CO_ASSERT(co_await ended(cut));
  }
}

TEST_P(TransportFaults, EndsMayLiveOnTwoExecutors) {
  constexpr int kConnections = 30;
  IoThread there("there");
  const auto hub = make_inprocess_hub();
  const auto near = GetParam().make(here_.executor(), hub, TransportOptions());
  const auto far = GetParam().make(there.executor(), hub, TransportOptions());
  Endpoint any;
  any.host = GetParam().host;
  const auto listener = far->listen(any);
  ASSERT_TRUE(listener.ok());
  auto whole = boost::asio::co_spawn(there.executor(), serve_connections(**listener, kConnections),
                                     boost::asio::use_future);
  wait(here_, send_and_part(*near, (*listener)->endpoint(), kConnections));
  // A busy system drops what it has no room for, and TCP's repetitions come seconds apart; what
  // does not move at all the transport ends itself after its stall timeout.
  const auto limit = 2 * TransportOptions().stall_timeout;
  ASSERT_EQ(whole.wait_for(limit), std::future_status::ready) << "the peer learns of every end";
  const int got = whole.get();
  EXPECT_GE(got, 3 * kConnections) << "what was handed over before the close arrives";
  EXPECT_LE(got, 4 * kConnections);
}

std::vector<Kind> plain_kinds() {
  auto all = kinds();
  std::erase_if(all, [](const Kind& kind) { return !kind.is_plain; });
  return all;
}
INSTANTIATE_TEST_SUITE_P(All, TransportFaults, ::testing::ValuesIn(plain_kinds()),
                         [](const auto& kind) { return kind.param.name; });

// ---- a wire that gives and takes a few bytes at a time

class ScriptedStream final : public ByteStream {
 public:
  ScriptedStream(Executor executor, std::vector<std::byte> in, std::size_t piece,
                 std::vector<std::byte>* out)
      : executor_(std::move(executor)), in_(std::move(in)), out_(out), piece_(piece) {}
  Moved try_read(MutableBytes) override { return blocked(); }
  Moved try_write(std::span<const Bytes>) override { return blocked(); }
  Task<Moved> read_some(MutableBytes into) override {
    co_await boost::asio::post(executor_, boost::asio::use_awaitable);
    Moved moved;
    moved.bytes = std::min({piece_, into.size(), in_.size() - at_});
    std::copy_n(in_.begin() + static_cast<std::ptrdiff_t>(at_), moved.bytes, into.begin());
    at_ += moved.bytes;
    if (moved.bytes == 0) {  // silence: only a close ends it
      boost::asio::steady_timer forever(executor_, TimePoint::max());
      silent_ = &forever;
      if (!is_closed_) co_await forever.async_wait(kAwait);
      moved.error = boost::asio::error::operation_aborted;
    }
    co_return moved;
  }
  Task<Moved> write_some(std::span<const Bytes> parts) override {
    co_await boost::asio::post(executor_, boost::asio::use_awaitable);
    Moved moved;
    for (const Bytes part : parts) {
      const Bytes taken = part.first(std::min(part.size(), piece_ - moved.bytes));
      out_->insert(out_->end(), taken.begin(), taken.end());
      moved.bytes += taken.size();
    }
    co_return moved;
  }
  void close() noexcept override {
    is_closed_ = true;
    if (silent_ != nullptr) silent_->cancel();
  }
  std::string peer() const override { return "script"; }
  Executor executor() const override { return executor_; }

 private:
  static Moved blocked() {
    Moved moved;
    moved.error = boost::asio::error::would_block;
    return moved;
  }
  const Executor executor_;
  const std::vector<std::byte> in_;
  std::vector<std::byte>* const out_;
  const std::size_t piece_;
  std::size_t at_ = 0;
  bool is_closed_ = false;
  boost::asio::steady_timer* silent_ = nullptr;
};

std::vector<std::byte> frame_bytes(std::uint64_t id, std::size_t head, std::size_t payload) {
  const auto head_bytes = pattern(id * 2, head), payload_bytes = pattern(id * 2 + 1, payload);
  FrameHeader header;
  header.kind = 20;
  header.id = id;
  header.head_bytes = static_cast<std::uint32_t>(head);
  header.payload_bytes = payload;
  header.head_crc = crc32c(head_bytes);
  header.payload_crc = crc32c(payload_bytes);
  ByteWriter out;
  out.put_bytes(encode_header(header));
  out.put_bytes(head_bytes);
  out.put_bytes(payload_bytes);
  return out.take();
}

Task<void> pieces_of_every_size() {
  const Executor here = co_await boost::asio::this_coro::executor;
  std::vector<std::byte> wire = frame_bytes(1, 9, 31);
  for (const auto& more : {frame_bytes(2, 0, 64), frame_bytes(3, 40, 0)})
    wire.insert(wire.end(), more.begin(), more.end());
  for (std::size_t piece = 1; piece <= wire.size(); ++piece) {
    std::vector<std::byte> written;
    const TransportOptions options;
    FramedConnection connection(std::make_unique<ScriptedStream>(here, wire, piece, &written),
                                options);
    for (std::uint64_t id = 1; id <= 3; ++id) {
      const auto got = co_await receive(connection);
      CO_ASSERT(got.ok());
      EXPECT_EQ(*got, id) << "piece " << piece;
    }
    EXPECT_TRUE((co_await send(connection, 1, 9, 31)).ok());
    EXPECT_TRUE((co_await send(connection, 2, 0, 64)).ok());
    EXPECT_TRUE((co_await send(connection, 3, 40, 0)).ok());
    EXPECT_TRUE(written == wire) << "piece " << piece;
  }
}
TEST(FramedConnection, ReadsAndWritesInPiecesOfEverySize) {
  IoThread here("here");
  wait(here, pieces_of_every_size());
}

Task<void> silence_within_a_frame() {
  const Executor here = co_await boost::asio::this_coro::executor;
  const auto wire = frame_bytes(1, 20, 100);
  TransportOptions options;
  options.stall_timeout = 10ms;
  for (const std::size_t got : {1UL, 47UL, 48UL, 60UL, 68UL, 167UL}) {
    std::vector<std::byte> cut(wire.begin(), wire.begin() + static_cast<std::ptrdiff_t>(got)),
        written;
    FramedConnection connection(std::make_unique<ScriptedStream>(here, cut, 1000, &written),
                                options);
    const auto end = co_await receive(connection);
    CO_ASSERT(!end.ok());
    EXPECT_EQ(end.error().code(), ErrorCode::kUnavailable);
    EXPECT_THAT(end.error().message(),
                HasSubstr("script sent nothing for 10 ms in the middle of a frame (got " +
                          std::to_string(got) + " of " + (got < 48 ? "48" : "168")));
  }
}
TEST(FramedConnection, SilenceWithinAFrameEndsTheConnection) {
  IoThread here("here");
  wait(here, silence_within_a_frame());
}

Task<void> absurd_length() {
  const Executor here = co_await boost::asio::this_coro::executor;
  FrameHeader header;
  header.payload_bytes = std::uint64_t{1} << 60;
  const auto raw = encode_header(header);
  std::vector<std::byte> wire(raw.begin(), raw.end()), written;
  const TransportOptions options;
  FramedConnection connection(std::make_unique<ScriptedStream>(here, wire, 1000, &written),
                              options);
  const auto end = co_await connection.read_header();
  CO_ASSERT(!end.ok());
  EXPECT_EQ(end.error().code(), ErrorCode::kResourceExhausted);
}
TEST(FramedConnection, AbsurdLengthIsRefusedBeforeMemoryIsTaken) {
  IoThread here("here");
  wait(here, absurd_length());
}

}  // namespace
}  // namespace centroid::transport::testing
