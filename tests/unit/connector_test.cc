// Pauses, deadlines and the choice of the next server, in virtual time.

#include "transport/connector.h"

#include <functional>
#include <string>

#include <gmock/gmock.h>

#include "common/async/io_thread.h"
#include "common/base/refusal.h"
#include "tests/simulation/world.h"

namespace centroid::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const Endpoint kA{"a", 1}, kB{"b", 2}, kC{"c", 3};
const Error kGone(ErrorCode::kUnavailable, "connection refused");

/// Runs `act` on an I/O thread of a simulated process.
void play(const std::function<Task<void>(Executor)>& act) {
  simulation::World world(7);
  world.run([&] {
    IoThread io("io");
    io.wait(act(io.executor()));
  });
}

Connector::Options options_of(std::vector<Endpoint> servers) {
  return {.servers = std::move(servers), .timeout = seconds(60), .timeout_name = "join_timeout"};
}

TEST(Connector, PausesGrowUntilItGivesUp) {
  play([](Executor executor) -> Task<void> {
    Connector connector(executor, options_of({kA}));
    const TimePoint begin = now();
    TimePoint last = begin;
    Duration longest{};
    int tries = 0;
    Status again;
    while (again.ok()) {
      again = co_await connector.retry(kGone);
      if (again.ok()) ++tries;
      longest = std::max(longest, now() - last);
      last = now();
    }
    EXPECT_EQ(again.error().code(), ErrorCode::kUnavailable);
    EXPECT_THAT(again.error().message(),
                testing::AllOf(testing::HasSubstr("could not join a:1 after 60000 ms"),
                               testing::HasSubstr("join_timeout"),
                               testing::HasSubstr("connection refused")));
    EXPECT_GT(now() - begin, seconds(55));
    EXPECT_LE(now() - begin, seconds(60));
    EXPECT_LE(longest, seconds(2));
    EXPECT_GT(longest, seconds(1));
    EXPECT_LT(tries, 70);
  });
}

TEST(Connector, WaitsForAServerThatIsNotReady) {
  play([](Executor executor) -> Task<void> {
    Connector connector(executor, options_of({kA}));
    const TimePoint begin = now();
    const Error not_yet = not_ready("the journal is replayed");
    int tries = 0;
    for (; now() - begin < std::chrono::hours(1); ++tries) {
      connector.try_begins();
      const Status again = co_await connector.retry(not_yet);
      EXPECT_TRUE(again.ok());
      if (!again.ok()) co_return;
    }
    EXPECT_GT(connector.time_limit(), now() + seconds(55));
    EXPECT_LT(tries, 2 * 3600) << "its pauses grow to a second";
  });
}

TEST(Connector, CallsTheLeaderThatAStandbyNamesAtOnce) {
  play([](Executor executor) -> Task<void> {
    Connector connector(executor, options_of({kA, kB}));
    const TimePoint begin = now();
    const Error standby = not_leader("c", kC.to_string());
    const Status again = co_await connector.retry(standby);
    EXPECT_TRUE(again.ok());
    EXPECT_EQ(connector.present(), kC);
    EXPECT_EQ(now(), begin);
  });
}

TEST(Connector, TriesAllServersBetweenShortPauses) {
  play([](Executor executor) -> Task<void> {
    Connector connector(executor, options_of({kA, kB}));
    int calls_of_b = 0;
    for (int i = 0; i < 40; ++i) {
      const TimePoint begin = now();
      const Status again = co_await connector.retry(kGone);
      EXPECT_TRUE(again.ok());
      EXPECT_LE(now() - begin, milliseconds(400));
      if (connector.present() == kB) ++calls_of_b;
    }
    EXPECT_EQ(calls_of_b, 20);
  });
}

TEST(Connector, TheTimeoutBeginsWithTheFirstTry) {
  play([](Executor executor) -> Task<void> {
    Connector connector(executor, options_of({kA}));
    (void)co_await sleep_until(now() + seconds(600));  // a program loads its data
    connector.try_begins();
    const Status again = co_await connector.retry(kGone);
    EXPECT_TRUE(again.ok());
  });
}

TEST(Connector, AMembershipBeginsTheTimeoutAnew) {
  play([](Executor executor) -> Task<void> {
    Connector connector(executor, options_of({kA}));
    connector.joined();
    (void)co_await sleep_until(now() + seconds(600));
    const Status again = co_await connector.retry(kGone);
    EXPECT_TRUE(again.ok());
  });
}

TEST(Connector, EndsWhereAnotherTryCannotHelp) {
  play([](Executor executor) -> Task<void> {
    Connector connector(executor, options_of({kA, kB}));
    const Error refused(ErrorCode::kFailedPrecondition, "token refused");
    const Status again = co_await connector.retry(refused);
    EXPECT_EQ(again.error().message(), "token refused");
    EXPECT_EQ(connector.present(), kA);
    (void)co_await connector.retry(kGone);
    const TimePoint begin = now(), soon = now() + milliseconds(10);
    const Status late = co_await connector.retry(kGone, soon);
    EXPECT_EQ(late.error().message(), kGone.message());
    EXPECT_EQ(now(), begin);
  });
}

TEST(Connector, StopEndsAPause) {
  play([](Executor executor) -> Task<void> {
    Connector connector(executor, options_of({kA}));
    TaskGroup tasks(executor);
    auto stop = [](Connector* one) -> Task<void> {
      (void)co_await sleep_until(now() + milliseconds(5));
      one->stop();
    };
    tasks.spawn(stop(&connector));
    const TimePoint begin = now();
    const Status again = co_await connector.retry(kGone);
    EXPECT_EQ(again.error().code(), ErrorCode::kCancelled);
    EXPECT_EQ(now() - begin, milliseconds(5));
    co_await tasks.join();
  });
}

/// A machine that was suspended with both sides: what the peer has sent is read now.
TEST(Pulse, TheTimeInWhichThisProcessStoodStillIsNoSilence) {
  simulation::World world(7);
  const auto act = [](simulation::World* all) -> Task<void> {
    Pulse pulse{seconds(1), seconds(12)};
    const TimePoint heard = now();
    all->freeze(all->process(), seconds(40));
    bool rested = co_await pulse.rest();
    EXPECT_TRUE(rested);
    EXPECT_GE(now() - heard, seconds(40));
    int beats = 0;
    while (pulse.check(heard, "the leader").ok() && rested && beats < 100) {
      rested = co_await pulse.rest();
      ++beats;
    }
    EXPECT_EQ(beats, 13);
    EXPECT_THAT(pulse.check(heard, "the leader").error().message(),
                testing::HasSubstr("the leader was silent for 13000 ms"));
  };
  world.run([&] {
    IoThread io("io");
    io.wait(act(&world));
  });
}

}  // namespace
}  // namespace centroid::transport
