#include <atomic>
#include <memory>
#include <stdexcept>
#include <thread>

#include <boost/asio/this_coro.hpp>
#include <boost/asio/thread_pool.hpp>
#include <gtest/gtest.h>

#include "common/async/io_thread.h"
#include "common/async/task.h"
#include "common/async/task_group.h"
#include "common/async/until.h"

namespace centroid {
namespace {

namespace asio = boost::asio;
using namespace std::chrono_literals;

TimePoint in(Duration duration) { return std::chrono::steady_clock::now() + duration; }

// Run one coroutine to its end on this thread; a hang becomes a failure.
void run(Task<void> task) {
  asio::io_context context(1);
  bool ended = false;
  std::exception_ptr failure;
  asio::co_spawn(context, std::move(task), [&](std::exception_ptr thrown) {
    ended = true;
    failure = thrown;
  });
  // Drained, not left at the first exception: a pool's thread may still be leaving a run_on and
  // holds the executor of this context until then.
  context.run_for(10s);
  ASSERT_TRUE(ended) << "did not end within 10 s";
  if (failure) std::rethrow_exception(failure);
}

// Let everything that is ready run once.
Task<void> pass() { co_await asio::post(co_await asio::this_coro::executor, asio::use_awaitable); }

Task<void> count_cancelled_sleep(int& begun, int& cancelled) {
  ++begun;
  const bool slept = co_await sleep_until(in(1h));
  if (!slept) ++cancelled;
}

Task<void> cancel_hundred() {
  TaskGroup group(co_await asio::this_coro::executor);
  int begun = 0;
  int cancelled = 0;
  for (int i = 0; i < 100; ++i) group.spawn(count_cancelled_sleep(begun, cancelled));
  while (begun < 100) co_await pass();
  EXPECT_EQ(group.size(), 100U);
  group.cancel();
  EXPECT_TRUE(group.is_cancelled());
  co_await group.join();
  EXPECT_EQ(cancelled, 100);
  EXPECT_EQ(group.size(), 0U);
}
TEST(TaskGroup, CancelsAndJoinsAHundredTasks) { run(cancel_hundred()); }

Task<void> cancel_at_once() {
  TaskGroup group(co_await asio::this_coro::executor);
  int begun = 0;
  int cancelled = 0;
  for (int i = 0; i < 100; ++i) group.spawn(count_cancelled_sleep(begun, cancelled));
  group.cancel();
  co_await group.join();
  EXPECT_EQ(begun, cancelled);
}
TEST(TaskGroup, TasksCancelledBeforeTheyBeginEndQuietly) { run(cancel_at_once()); }

Task<void> spawn_after_cancel() {
  TaskGroup group(co_await asio::this_coro::executor);
  group.cancel();
  int begun = 0;
  int cancelled = 0;
  group.spawn(count_cancelled_sleep(begun, cancelled));
  co_await group.join();
  EXPECT_EQ(cancelled, 1);
  // Joined: the group begins anew.
  bool slept = false;
  auto nap = [](bool& done) -> Task<void> { done = co_await sleep_until(in(1ms)); };
  group.spawn(nap(slept));
  co_await group.join();
  EXPECT_TRUE(slept);
}
TEST(TaskGroup, ATaskSpawnedAfterCancelIsCancelledByTheJoin) { run(spawn_after_cancel()); }

// A raw wait begun after the cancellation was delivered: nothing but asking again ends it.
Task<void> wait_twice(int& ended) {
  asio::steady_timer timer(co_await asio::this_coro::executor, in(1h));
  auto [first] = co_await timer.async_wait(kAwait);
  EXPECT_EQ(first, asio::error::operation_aborted);
  auto [second] = co_await timer.async_wait(kAwait);
  EXPECT_EQ(second, asio::error::operation_aborted);
  ++ended;
}
Task<void> cancel_waits_again() {
  TaskGroup group(co_await asio::this_coro::executor);
  int ended = 0;
  group.spawn(wait_twice(ended));
  co_await pass();
  co_await pass();
  group.cancel();
  co_await group.join();
  EXPECT_EQ(ended, 1);
}
TEST(TaskGroup, AWaitBegunAfterTheCancellationEndsToo) { run(cancel_waits_again()); }

// A parent that is cancelled can cancel and join its own children, and run its clean-up.
Task<void> parent(int& begun, int& cancelled, bool& cleaned) {
  TaskGroup children(co_await asio::this_coro::executor);
  for (int i = 0; i < 10; ++i) children.spawn(count_cancelled_sleep(begun, cancelled));
  const bool slept = co_await sleep_until(in(1h));
  EXPECT_FALSE(slept);
  children.cancel();
  co_await children.join();
  const bool again = co_await sleep_until(in(1h));
  EXPECT_FALSE(again) << "the cancellation must outlive the join";
  cleaned = true;
}
Task<void> cancel_nested() {
  TaskGroup group(co_await asio::this_coro::executor);
  int begun = 0;
  int cancelled = 0;
  bool cleaned = false;
  group.spawn(parent(begun, cancelled, cleaned));
  while (begun < 10) co_await pass();
  group.cancel();
  co_await group.join();
  EXPECT_EQ(cancelled, 10);
  EXPECT_TRUE(cleaned);
}
TEST(TaskGroup, ACancelledParentJoinsItsChildren) { run(cancel_nested()); }

Task<void> throws_later(int& others) {
  TaskGroup group(co_await asio::this_coro::executor);
  auto thrower = []() -> Task<void> {
    co_await sleep_until(in(1ms));
    throw std::runtime_error("bug");
  };
  auto other = [](int& count) -> Task<void> {
    co_await sleep_until(in(3ms));
    ++count;
  };
  group.spawn(thrower());
  group.spawn(other(others));
  co_await group.join();
}
TEST(TaskGroup, JoinWaitsForAllThenRethrowsTheFirstException) {
  int others = 0;
  EXPECT_THROW(run(throws_later(others)), std::runtime_error);
  EXPECT_EQ(others, 1);
}

Task<void> join_twice() {
  TaskGroup group(co_await asio::this_coro::executor);
  TaskGroup joiners(co_await asio::this_coro::executor);
  int begun = 0;
  int cancelled = 0;
  int joined = 0;
  group.spawn(count_cancelled_sleep(begun, cancelled));
  auto joiner = [](TaskGroup& whose, int& count) -> Task<void> {
    co_await whose.join();
    ++count;
  };
  joiners.spawn(joiner(group, joined));
  joiners.spawn(joiner(group, joined));
  while (begun < 1) co_await pass();
  group.cancel();
  co_await joiners.join();
  EXPECT_EQ(joined, 2);
}
TEST(TaskGroup, TwoMayJoinTheSameGroup) { run(join_twice()); }

TEST(TaskGroupDeathTest, AbortsWhenDestroyedUnjoined) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  asio::io_context context(1);
  auto never = []() -> Task<void> { co_await sleep_until(in(1h)); };
  EXPECT_DEATH(
      {
        TaskGroup group(context.get_executor());
        group.spawn(never());
      },
      "CENTROID_CHECK failed");
}

Task<void> wait_for(Event& event, Deadline deadline, int& notified, int& late) {
  const bool came = co_await event.wait(deadline);
  ++(came ? notified : late);
}

Task<void> notify() {
  Event event(co_await asio::this_coro::executor);
  TaskGroup group(co_await asio::this_coro::executor);
  int notified = 0;
  int late = 0;
  for (int i = 0; i < 20; ++i) group.spawn(wait_for(event, in(1h), notified, late));
  for (int i = 0; i < 5; ++i) group.spawn(wait_for(event, in(-1ms), notified, late));
  while (late < 5) co_await pass();
  EXPECT_EQ(notified, 0);
  event.notify_all();
  co_await group.join();
  EXPECT_EQ(notified, 20);
  EXPECT_EQ(late, 5);
}
TEST(Event, WakesEveryWaiterAndHonoursDeadlines) { run(notify()); }

Task<void> cancelled_waiter() {
  Event event(co_await asio::this_coro::executor);
  TaskGroup group(co_await asio::this_coro::executor);
  int notified = 0;
  int late = 0;
  for (int i = 0; i < 10; ++i) group.spawn(wait_for(event, in(1h), notified, late));
  for (int i = 0; i < 5; ++i) co_await pass();
  group.cancel();
  co_await group.join();
  EXPECT_EQ(notified, 0);
  EXPECT_EQ(late, 10);
  event.notify_all();  // nobody is left in the list
}
TEST(Event, ACancelledWaiterIsNotNotified) { run(cancelled_waiter()); }

Task<void> two_rounds() {
  Event event(co_await asio::this_coro::executor);
  event.notify_all();  // wakes only those who wait
  const bool came = co_await event.wait(in(1ms));
  EXPECT_FALSE(came);
}
TEST(Event, ANotificationIsNotKept) { run(two_rounds()); }

Task<void> await_three(Event& event, const int& count, Deadline deadline, int& asked, int& came) {
  const auto is_three = [&count, &asked] {
    ++asked;
    return count == 3;
  };
  const bool is_true = co_await until(event, is_three, deadline);
  came = is_true ? 1 : -1;
}

Task<void> until_three() {
  Event event(co_await asio::this_coro::executor);
  TaskGroup group(co_await asio::this_coro::executor);
  int count = 0;
  int asked = 0;
  int came = 0;
  group.spawn(await_three(event, count, TimePoint::max(), asked, came));
  for (int times = 1; times <= 3; ++times) {
    for (int i = 0; i < 5; ++i) co_await pass();
    EXPECT_EQ(asked, times) << "once at first, then after each notification";
    EXPECT_EQ(came, 0);
    if (times < 3) event.notify_all();
  }
  count = 3;
  event.notify_all();
  co_await group.join();
  EXPECT_EQ(came, 1);
  group.spawn(await_three(event, count, in(-1ms), asked, came));
  co_await group.join();
  EXPECT_EQ(came, 1) << "true at once, whatever the deadline";
  count = 0;
  group.spawn(await_three(event, count, in(1ms), asked, came));
  co_await group.join();
  EXPECT_EQ(came, -1);
  came = 0;
  group.spawn(await_three(event, count, TimePoint::max(), asked, came));
  for (int i = 0; i < 5; ++i) co_await pass();
  group.cancel();
  co_await group.join();
  EXPECT_EQ(came, -1);
}
TEST(Until, EndsWhenTheConditionIsTrueTheDeadlinePassesOrTheWaiterIsCancelled) {
  run(until_three());
}

// A type without a default, as Result is.
Task<void> run_elsewhere(Executor pool) {
  const auto home = std::this_thread::get_id();
  auto where = [] { return std::this_thread::get_id(); };
  const auto there = co_await run_on(pool, where);
  EXPECT_NE(there, home);
  EXPECT_EQ(std::this_thread::get_id(), home);
  auto result = []() -> Result<std::unique_ptr<int>> { return std::make_unique<int>(3); };
  const auto value = co_await run_on(pool, result);
  EXPECT_EQ(*value.value(), 3);
  bool called = false;
  auto nothing = [&called] { called = true; };
  co_await run_on(pool, nothing);
  EXPECT_TRUE(called);
}
TEST(RunOn, RunsElsewhereAndComesBack) {
  asio::thread_pool pool(1);
  run(run_elsewhere(pool.get_executor()));
}

Task<void> throwing_elsewhere(Executor pool) {
  auto bad = []() -> int { throw std::runtime_error("bug"); };
  co_await run_on(pool, bad);
}
TEST(RunOn, AnExceptionComesBackToo) {
  asio::thread_pool pool(1);
  EXPECT_THROW(run(throwing_elsewhere(pool.get_executor())), std::runtime_error);
}

Task<void> busy(Executor pool, std::atomic<int>& calls, int& results) {
  auto count = [&calls] { return ++calls; };
  const int result = co_await run_on(pool, count);
  if (result > 0) ++results;
}
Task<void> cancel_while_elsewhere(Executor pool) {
  TaskGroup group(co_await asio::this_coro::executor);
  std::atomic<int> calls = 0;
  int begun_results = 0;
  for (int i = 0; i < 100; ++i) group.spawn(busy(pool, calls, begun_results));
  co_await pass();
  co_await pass();
  group.cancel();
  co_await group.join();
  EXPECT_EQ(begun_results, calls.load()) << "a function that ran gives its result";
}
TEST(RunOn, ACancelledCallerStillGetsTheResult) {
  asio::thread_pool pool(2);
  for (int i = 0; i < 20; ++i) run(cancel_while_elsewhere(pool.get_executor()));
}

TEST(IoThread, RunsATaskAndGivesItsValue) {
  IoThread thread("test-io");
  auto id = []() -> Task<std::thread::id> { co_return std::this_thread::get_id(); };
  EXPECT_NE(thread.wait(id()), std::this_thread::get_id());
  EXPECT_EQ(thread.wait(id()), thread.wait(id()));
  auto result = []() -> Task<Result<int>> { co_return Error(ErrorCode::kAborted, "x"); };
  EXPECT_EQ(thread.wait(result()).error().code(), ErrorCode::kAborted);
  auto nothing = []() -> Task<void> { co_await pass(); };
  thread.wait(nothing());
  auto bad = []() -> Task<int> {
    co_await pass();
    throw std::runtime_error("bug");
  };
  EXPECT_THROW(thread.wait(bad()), std::runtime_error);
}

Task<void> across(Executor other) {
  for (int i = 0; i < 100; ++i) {
    auto nothing = [] {};
    co_await run_on(other, nothing);
  }
}
TEST(IoThread, TwoThreadsCallEachOther) {
  IoThread first("first");
  IoThread second("a-name-longer-than-fifteen");
  {
    std::jthread caller([&] { second.wait(across(first.executor())); });
    first.wait(across(second.executor()));
  }
  // Neither is destroyed while the other's thread is still leaving a call for it.
  first.wait(pass());
  second.wait(pass());
}

}  // namespace
}  // namespace centroid
