#include "server/service/waits.h"

#include <boost/asio/io_context.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace centroid::server {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class WaitsTest : public testing::Test {
 protected:
  Task<void> await_done(BlockedOn on) {
    const auto is_done = [this] { return is_done_; };
    has_come_ = co_await waits_.until(is_done, on);
  }
  void run() {
    context_.restart();
    context_.poll();
  }
  std::vector<std::string> shown() {
    std::vector<WaitView> views;
    waits_.list(views);
    std::vector<std::string> out;
    for (const WaitView& one : views)
      out.push_back(one.waiter + " waits for " + one.waits_for + ": " + one.what);
    return out;
  }

  boost::asio::io_context context_;
  ManualClock clock_;
  Event changed_{context_.get_executor()};
  Waits waits_{clock_, changed_};
  TaskGroup tasks_{context_.get_executor()};
  bool is_done_ = false, has_come_ = false;
};

TEST_F(WaitsTest, AWaitIsShownFromAQuarterOfASecondOnUntilItEnds) {
  const BlockedOn on{WaitCause::kCheckpoint, "checkpoint", "disk", [] { return "its files"; }};
  tasks_.spawn(await_done(on));
  run();
  EXPECT_THAT(shown(), IsEmpty()) << "it is young";
  clock_.advance(Waits::kYoung);
  EXPECT_THAT(shown(), ElementsAre("checkpoint waits for disk: its files"));
  changed_.notify_all();
  run();
  EXPECT_THAT(shown(), ElementsAre("checkpoint waits for disk: its files"));
  EXPECT_FALSE(has_come_);
  is_done_ = true;
  changed_.notify_all();
  run();
  EXPECT_TRUE(has_come_);
  EXPECT_THAT(shown(), IsEmpty());
}

TEST_F(WaitsTest, AWaitThatIsShownElsewhereIsNotShownTwice) {
  tasks_.spawn(await_done(kShownElsewhere));
  run();
  clock_.advance(Waits::kYoung);
  EXPECT_THAT(shown(), IsEmpty());
  is_done_ = true;
  changed_.notify_all();
  run();
  EXPECT_TRUE(has_come_);
}

}  // namespace
}  // namespace centroid::server
