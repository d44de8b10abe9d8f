#pragma once

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_future.hpp>
#include <gtest/gtest.h>

#include "common/async/io_thread.h"
#include "common/base/random.h"
#include "tests/support/certificates.h"
#include "tests/support/faulty_transport.h"
#include "tests/support/in_process_transport.h"
#include "transport/transport.h"

#define CO_ASSERT(condition)                     \
  if (!(condition)) {                            \
    ADD_FAILURE() << "expected: " << #condition; \
    co_return;                                   \
  }                                              \
  static_assert(true)

namespace centroid::transport::testing {

using namespace std::chrono_literals;

inline TimePoint now() { return std::chrono::steady_clock::now(); }
inline Deadline soon() { return now() + 20s; }
inline Error stop(std::string why = "the test stops") {
  return {ErrorCode::kCancelled, std::move(why)};
}

/// Wait for a condition on this executor; false when it did not come within 20 s.
inline Task<bool> until(std::function<bool()> condition) {
  const Deadline deadline = soon();
  while (!condition()) {
    if (now() > deadline) co_return false;
    co_await sleep_until(now() + 200us);
  }
  co_return true;
}

/// A task beside the test's own: its result when it has ended, and the means to cancel it.
template <class T>
struct Child {
  std::optional<T> result;
  int endings = 0;
  boost::asio::cancellation_signal signal;
  void cancel() { signal.emit(boost::asio::cancellation_type::terminal); }
};

template <class T>
Task<void> keep_result(std::shared_ptr<Child<T>> child, Task<T> task) {
  co_await boost::asio::this_coro::throw_if_cancelled(false);
  child->result.emplace(co_await std::move(task));
  ++child->endings;
}

template <class T>
std::shared_ptr<Child<T>> start(Executor executor, Task<T> task) {
  auto child = std::make_shared<Child<T>>();
  auto ended = [](std::exception_ptr failure) { EXPECT_FALSE(failure); };
  boost::asio::co_spawn(executor, keep_result(child, std::move(task)),
                        boost::asio::bind_cancellation_slot(child->signal.slot(), ended));
  return child;
}

template <class T>
Task<bool> ended(std::shared_ptr<Child<T>> child) {
  auto has_ended = [child] { return child->endings != 0; };
  const bool is_over = co_await until(has_ended);
  // Its frame goes in the next turns, and looks at the signal then.
  const Executor here = co_await boost::asio::this_coro::executor;
  for (int turn = 0; turn < 3; ++turn) co_await boost::asio::post(here, boost::asio::use_awaitable);
  co_return is_over;
}

/// Run a coroutine on a thread and wait for its end under a deadline.
template <class T>
T wait(IoThread& thread, Task<T> task) {
  auto future = boost::asio::co_spawn(thread.executor(), std::move(task), boost::asio::use_future);
  if (future.wait_for(60s) != std::future_status::ready) {
    std::fputs("the test's coroutine hangs\n", stderr);
    std::abort();
  }
  return future.get();
}

/// What the suite needs to know of an implementation.
struct Kind {
  std::string name;
  std::string host;
  std::function<std::unique_ptr<Transport>(Executor, std::shared_ptr<InProcessHub>,
                                           TransportOptions)>
      make;
  bool is_tcp = false;
  bool is_plain = true;
  bool shakes_hands = false;  ///< in the first write and read, not in connect and accept
};
inline void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

inline std::vector<Kind> kinds() {
  Kind tcp{"tcp", "127.0.0.1", {}, true, true};
  tcp.make = [](Executor e, std::shared_ptr<InProcessHub>, TransportOptions o) {
    return make_tcp(e, o);
  };
  Kind tls{"tls", "127.0.0.1", {}, false, true, true};
  tls.make = [](Executor e, std::shared_ptr<InProcessHub>, TransportOptions o) {
    o.layer = test::mutual_tls();
    return make_tcp(e, o);
  };
  Kind inprocess{"inprocess", "server", {}, false, true};
  inprocess.make = [](Executor e, std::shared_ptr<InProcessHub> hub, TransportOptions o) {
    return make_inprocess(e, hub, o);
  };
  Kind shm{"shm", "server", {}, false, true};
  shm.make = [](Executor e, std::shared_ptr<InProcessHub>, TransportOptions o) {
    return make_shm(e, o);
  };
  std::vector<Kind> all{tcp, tls, inprocess, shm};
  for (const Kind& plain : {tcp, tls, inprocess, shm}) {
    Kind faulty = plain;
    faulty.name += "_faulty";
    faulty.is_plain = false;
    faulty.make = [make = plain.make](Executor e, std::shared_ptr<InProcessHub> hub,
                                      TransportOptions o) {
      return make_faulty(make(e, hub, o), FaultPlan());
    };
    all.push_back(faulty);
  }
  return all;
}

using Side = std::unique_ptr<Connection>;

/// Both ends of one connection, and the listener it came through.
struct Pair {
  std::unique_ptr<Transport> client_transport, server_transport;
  std::unique_ptr<Listener> listener;
  Side client, server;
};

inline Task<Result<Side>> accept_on(Listener& listener) { co_return co_await listener.accept(); }

inline Task<bool> say(Connection& connection) {
  OutFrame frame;
  frame.kind = 1;
  co_return (co_await connection.write(frame)).ok();
}
inline Task<bool> hear(Connection& connection) {
  co_return (co_await connection.read_header()).ok();
}

/// Connect both ends on one executor.
inline Task<std::unique_ptr<Pair>> connect_pair(Kind kind, TransportOptions options = {}) {
  const Executor here = co_await boost::asio::this_coro::executor;
  auto hub = make_inprocess_hub();
  auto pair = std::make_unique<Pair>();
  pair->client_transport = kind.make(here, hub, options);
  pair->server_transport = kind.make(here, hub, options);
  Endpoint any;
  any.host = kind.host;
  auto listener = pair->server_transport->listen(any);
  EXPECT_TRUE(listener.ok()) << listener.error().to_string();
  pair->listener = std::move(*listener);
  auto accepted = start(here, accept_on(*pair->listener));
  auto client = co_await pair->client_transport->connect(pair->listener->endpoint(), soon());
  EXPECT_TRUE(client.ok()) << client.error().to_string();
  EXPECT_TRUE(co_await ended(accepted));
  EXPECT_TRUE(accepted->result->ok());
  pair->client = std::move(*client);
  pair->server = std::move(**accepted->result);
  if (kind.shakes_hands) {
    auto said = start(here, say(*pair->client));
    EXPECT_TRUE(co_await hear(*pair->server));
    EXPECT_TRUE(co_await ended(said));
  }
  co_return pair;
}

inline std::vector<std::byte> pattern(std::uint64_t seed, std::size_t size) {
  std::vector<std::byte> out(size);
  CounterRng rng(seed);
  for (std::size_t i = 0; i < size; i += 8) {
    const std::uint64_t word = rng.next();
    std::memcpy(out.data() + i, &word, std::min<std::size_t>(8, size - i));
  }
  return out;
}

/// Coroutines over a connection that outlives them.
inline Task<Result<InFrame>> header_of(Connection& c) { co_return co_await c.read_header(); }
inline Task<Status> send(Connection& c, std::uint64_t id, std::size_t head, std::size_t payload,
                         bool may_wait = false) {
  const auto head_bytes = pattern(id * 2, head), payload_bytes = pattern(id * 2 + 1, payload);
  OutFrame frame;
  frame.kind = 20;
  frame.id = id;
  frame.head = head_bytes;
  frame.payload = payload_bytes;
  frame.may_wait = may_wait;
  co_return co_await c.write(frame);
}
/// Read one frame made by `send` and check every byte; gives its id.
inline Task<Result<std::uint64_t>> receive(Connection& c) {
  CENTROID_CO_ASSIGN(const InFrame frame, co_await c.read_header());
  std::vector<std::byte> payload(frame.header.payload_bytes);
  CENTROID_CO_TRY(co_await c.read_payload(payload));
  EXPECT_EQ(frame.header.kind, 20);
  EXPECT_TRUE(frame.head == pattern(frame.header.id * 2, frame.head.size()));
  EXPECT_TRUE(payload == pattern(frame.header.id * 2 + 1, payload.size()));
  co_return frame.header.id;
}

}  // namespace centroid::transport::testing
