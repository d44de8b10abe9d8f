// What those that call a process of a group may use of it, in virtual time.

#include <memory>
#include <optional>

#include <gtest/gtest.h>

#include "client/group_frames.h"
#include "common/async/io_thread.h"
#include "tests/simulation/network.h"
#include "transport/framed_connection.h"

namespace centroid::client {
namespace {

using namespace std::chrono_literals;
using transport::Moved;
using transport::Strangers;

/// A stranger whose handshake has taken so much processor time.
class Costly final : public transport::ByteStream {
 public:
  Costly(Executor executor, double seconds) : executor_(std::move(executor)), seconds_(seconds) {}
  Moved try_read(MutableBytes) override { return {}; }
  Moved try_write(std::span<const Bytes>) override { return {}; }
  Task<Moved> read_some(MutableBytes) override { co_return Moved(); }
  Task<Moved> write_some(std::span<const Bytes>) override { co_return Moved(); }
  void close() noexcept override {}
  std::string peer() const override { return "127.0.0.1:1"; }
  void count_handshake(std::shared_ptr<double> seconds) override { *seconds = seconds_; }
  Executor executor() const override { return executor_; }

 private:
  const Executor executor_;
  const double seconds_;
};

Task<Status> shake_hands(Strangers* strangers, Executor executor, double seconds) {
  transport::FramedConnection connection(std::make_unique<Costly>(executor, seconds), {});
  const auto place = strangers->admit(connection);
  co_return co_await place->turn();
}

Task<void> count(std::shared_ptr<transport::Connection> connection, int* answers) {
  ++*answers;
  (void)co_await answer_text(*connection, GroupFrame::kMembers, "");
}

Task<Status> call(transport::Transport* network, transport::Endpoint place) {
  const TimePoint limit = centroid::now() + 60s;
  CENTROID_CO_ASSIGN(const auto connection, co_await network->connect(place, limit));
  CENTROID_CO_TRY(co_await send_text(*connection, GroupFrame::kArrive, "hello", limit));
  const auto answer = co_await read_text(*connection, limit);  // or until it is refused
  co_return answer.ok() ? Status() : Status(answer.error());
}

Task<void> end(TaskGroup* tasks) {
  tasks->cancel();
  co_await tasks->join();
}

struct Outcome {
  int answers = 0;
  Status called;  ///< of one try
  std::optional<Result<transport::InFrame>> asked;
};

/// What callers find after strangers took so much processor time.
Outcome call_after(double seconds) {
  simulation::World world(7);
  simulation::Network network(world);
  Outcome out;
  world.run([&] {
    IoThread io("port");
    Strangers strangers(256);
    TaskGroup tasks(io.executor());
    auto own = network.make_transport(io.executor(), group_transport_options(nullptr));
    const auto listener = own->listen({});
    ASSERT_TRUE(listener.ok());
    ASSERT_TRUE(io.wait(shake_hands(&strangers, io.executor(), seconds)).ok());
    call_on(io.executor(), [&] {
      answer_callers(tasks, **listener, strangers,
                     [&](std::shared_ptr<transport::Connection> connection, Strangers::Place&,
                         const transport::InFrame&) { return count(connection, &out.answers); });
    });
    const transport::Endpoint place = (*listener)->endpoint();
    out.called = io.wait(call(own.get(), place));
    const TimePoint limit = centroid::now() + 10min;
    out.asked = io.wait(ask_process(own.get(), place, GroupFrame::kWatch, "hello", limit, limit));
    io.wait(end(&tasks));
  });
  return out;
}

TEST(GroupCallersTest, AreRefusedWhileHandshakesTakeMoreThanTheirShareOfTheProcessor) {
  EXPECT_EQ(call_after(0.1).answers, 2);
  const Outcome refused = call_after(100);
  EXPECT_EQ(refused.answers, 0);
  ASSERT_FALSE(refused.called.ok());
  EXPECT_EQ(refused.called.error().code(), ErrorCode::kResourceExhausted);
}

TEST(GroupCallersTest, AskAgainWhereTheyAreRefusedAndCountTheProcessAsAlive) {
  const Outcome late = call_after(10);
  EXPECT_FALSE(late.called.ok());
  EXPECT_TRUE(late.asked->ok()) << late.asked->error().to_string();
  const Outcome refused = call_after(100);
  ASSERT_FALSE(refused.asked->ok());
  EXPECT_EQ(refused.asked->error().code(), ErrorCode::kDeadlineExceeded);
  EXPECT_FALSE(is_gone(refused.asked->error())) << refused.asked->error().to_string();
}

}  // namespace
}  // namespace centroid::client
