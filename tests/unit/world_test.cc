// The simulated machine itself: time, threads, timers, connections. What it finds in the product is
// in tests/simulation.

#include "tests/simulation/world.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/async/io_thread.h"
#include "common/async/task_group.h"
#include "common/base/thread.h"
#include "tests/simulation/network.h"

namespace centroid::simulation {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Task<void> sleep_and_note(World* world, milliseconds time, std::string what) {
  EXPECT_TRUE(co_await sleep_until(now() + time));
  world->note(what);
}

/// Three threads of two processes that sleep, wait for each other and draw numbers.
std::uint64_t play(std::uint64_t seed) {
  World world(seed);
  world.run([&] {
    Process& other = world.add_process("other");
    Mutex mutex;
    Condition changed;
    int turns = 0;
    std::vector<Host::Number> threads;
    for (int i = 0; i < 3; ++i)
      threads.push_back(world.start(other, "t" + std::to_string(i), [&, i] {
        for (int k = 0; k < 5; ++k) {
          world.let_pass(milliseconds(world.random_numbers().below(5)));
          world.note("thread " + std::to_string(i));
          const std::lock_guard lock(mutex);
          ++turns;
          changed.notify_all();
        }
      }));
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return turns == 15; });
  });
  return world.log_hash();
}

TEST(World, SameSeedGivesTheSameEventsAndAnotherSeedOthers) {
  const std::uint64_t first = play(1);
  EXPECT_EQ(play(1), first);
  EXPECT_NE(play(2), first);
}

TEST(World, TimeMovesOnlyToTheNextDeadline) {
  World world(1);
  world.run([&] {
    const TimePoint begin = now();
    world.let_pass(seconds(3600));
    EXPECT_EQ(now() - begin, seconds(3600));
    Mutex mutex;
    Condition never;
    std::unique_lock lock(mutex);
    EXPECT_FALSE(never.wait_for(lock, milliseconds(5), [] { return false; }));
    EXPECT_EQ(now() - begin, seconds(3600) + milliseconds(5));
  });
}

TEST(World, CoroutinesSleepAndAreCancelledOnIoThreads) {
  World world(1);
  world.run([&] {
    IoThread io("io");
    const TimePoint begin = now();
    io.wait(sleep_and_note(&world, milliseconds(20), "slept"));
    EXPECT_EQ(now() - begin, milliseconds(20));
    auto cancelled = [](World* w) -> Task<void> {
      TaskGroup group(co_await boost::asio::this_coro::executor);
      auto sleeper = []() -> Task<void> {
        EXPECT_FALSE(co_await sleep_until(now() + seconds(1000)));
      };
      group.spawn(sleeper());
      co_await sleep_until(now() + seconds(1));
      group.cancel();
      co_await group.join();
      w->note("joined");
    };
    io.wait(cancelled(&world));
    EXPECT_LT(now() - begin, seconds(2));
  });
}

TEST(World, ProcessThatStandsStillRunsNothingAndThenGoesOn) {
  World world(1);
  world.run([&] {
    Process& other = world.add_process("other");
    std::vector<double> ticks;
    const auto thread = world.start(other, "ticker", [&] {
      for (int i = 0; i < 4; ++i) {
        world.let_pass(seconds(1));
        ticks.push_back(world.seconds());
      }
    });
    world.let_pass(milliseconds(1500));
    world.freeze(other, seconds(10));
    world.join_thread(thread);
    EXPECT_EQ(ticks, (std::vector<double>{1, 11.5, 12.5, 13.5}));
  });
}

TEST(World, ProcessesHaveClocksOfDifferentOrigins) {
  World world(7);
  world.run([&] {
    Process& other = world.add_process("other");
    TimePoint there;
    world.join_thread(world.start(other, "t", [&] { there = now(); }));
    EXPECT_NE(there, now());
    const TimePoint begin = now();
    world.join_thread(world.start(other, "t", [&] { world.let_pass(seconds(5)); }));
    EXPECT_EQ(now() - begin, seconds(5));
  });
}

/// A server that echoes frames, and a client in another process.
class NetworkTest : public ::testing::Test {
 protected:
  static Task<void> echo(transport::Listener* listener, Status* ended) {
    auto connection = co_await listener->accept();
    if (!connection.ok()) co_return;
    for (;;) {
      auto frame = co_await (*connection)->read_header();
      if (!frame.ok()) {
        *ended = frame.error();
        (*connection)->close(frame.error());
        co_return;
      }
      transport::OutFrame out;
      out.kind = frame->header.kind;
      out.head = frame->head;
      const Status written = co_await (*connection)->write(out);
      if (!written.ok()) co_return;
    }
  }
  static Task<std::optional<std::unique_ptr<transport::Connection>>> connect(
      transport::Transport* transport, transport::Endpoint endpoint) {
    auto made = co_await transport->connect(endpoint, now() + seconds(5));
    if (!made.ok()) co_return std::nullopt;
    co_return std::move(made).value();
  }
  static Task<Status> ask(transport::Connection* connection) {
    std::vector<std::byte> head(16, std::byte{7});
    transport::OutFrame out;
    out.kind = 9;
    out.head = head;
    CENTROID_CO_TRY(co_await connection->write(out));
    CENTROID_CO_ASSIGN(const auto answer, co_await connection->read_header());
    EXPECT_EQ(answer.head, head);
    co_return Status();
  }
  static Task<std::optional<Status>> ask_once(transport::Connection* connection) {
    co_return co_await ask(connection);
  }

  void play(const std::function<void(transport::Connection&, IoThread&)>& act) {
    world_.run([&] {
      Process& server = world_.add_process("server");
      std::optional<transport::Endpoint> endpoint;
      Mutex mutex;
      Condition changed;
      bool is_over = false;
      const auto thread = world_.start(server, "main", [&] {
        IoThread io("io");
        const auto transport = network_.make_transport(io.executor(), {});
        const auto listener = transport->listen({}).value();
        Pending<void> echoing(io.executor(), echo(listener.get(), &server_ended_));
        std::unique_lock lock(mutex);
        endpoint = listener->endpoint();
        changed.notify_all();
        changed.wait(lock, [&] { return is_over; });
        lock.unlock();
        call_on(io.executor(), [&] { listener->close(); });
        echoing.get();
      });
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return endpoint.has_value(); });
      }
      server_ = &server;
      {
        IoThread io("io");
        const auto transport = network_.make_transport(io.executor(), {});
        auto connection = io.wait(connect(transport.get(), *endpoint));
        ASSERT_TRUE(connection);
        act(**connection, io);
        call_on(io.executor(), [&] { (*connection)->close(Error(ErrorCode::kCancelled, "over")); });
        connection->reset();
        const std::lock_guard lock(mutex);
        is_over = true;
        changed.notify_all();
      }
      world_.join_thread(thread);
    });
  }

  World world_{3};
  Network network_{world_};
  Process* server_ = nullptr;
  Status server_ended_;
};

TEST_F(NetworkTest, FramesTakeTime) {
  play([&](transport::Connection& connection, IoThread& io) {
    const TimePoint begin = now();
    EXPECT_TRUE(io.wait(ask_once(&connection))->ok());
    EXPECT_GT(now() - begin, std::chrono::microseconds(80));
    EXPECT_LT(now() - begin, milliseconds(100));
  });
}

TEST_F(NetworkTest, CutIsHeardByBothEnds) {
  play([&](transport::Connection& connection, IoThread& io) {
    network_.cut(world_.process(), *server_);
    EXPECT_EQ(io.wait(ask_once(&connection))->error().code(), ErrorCode::kUnavailable);
    world_.let_pass(seconds(1));
    EXPECT_EQ(server_ended_.error().code(), ErrorCode::kUnavailable);
  });
}

TEST_F(NetworkTest, PartitionDelaysWhatIsSentUntilItHeals) {
  play([&](transport::Connection& connection, IoThread& io) {
    network_.partition(world_.process(), *server_, seconds(20));
    const TimePoint begin = now();
    EXPECT_TRUE(io.wait(ask_once(&connection))->ok());
    EXPECT_GE(now() - begin, seconds(20));
    EXPECT_LT(now() - begin, seconds(21));
  });
}

TEST_F(NetworkTest, WhatIsLostSilentlyIsHeardAfterTheStallTimeout) {
  play([&](transport::Connection& connection, IoThread& io) {
    network_.lose_silently(world_.process(), *server_);
    Pending<std::optional<Status>> asked(io.executor(), ask_once(&connection));
    world_.let_pass(seconds(29));
    EXPECT_FALSE(asked.is_done());
    EXPECT_TRUE(server_ended_.ok());
    world_.let_pass(seconds(2));
    EXPECT_TRUE(asked.is_done());
    EXPECT_FALSE(asked.get()->ok());
    EXPECT_FALSE(server_ended_.ok());
  });
}

}  // namespace
}  // namespace centroid::simulation
