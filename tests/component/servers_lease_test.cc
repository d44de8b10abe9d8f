#include <future>
#include <memory>
#include <optional>

#include <boost/asio/post.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/async/io_thread.h"
#include "common/base/prometheus_registry.h"
#include "server/shard/shard_group.h"
#include "server/tables/rows_service.h"
#include "tests/support/passing_clock.h"
#include "tests/support/rows_peers.h"

/// Leases of shard servers and of clients of tables, under a clock that jumps.
namespace centroid::test {
namespace {

using namespace std::chrono_literals;
using server::ShardGroup;
using server::ShardSession;

constexpr std::chrono::milliseconds kLease = 80s, kTick = kLease / 8;

/// A leader, and one who has joined and says nothing: a shard server, or a client of tables.
class Leader final : public transport::FrameSink {
 public:
  explicit Leader(bool has_client = false) : has_client_(has_client) {
    post([this] {
      listener_ = transport_->listen(transport::Endpoint()).value();
      tasks_.spawn(serve(this));
    });
    silent_ = std::make_unique<RawClient>(listener_->endpoint());
    joined_.get_future().wait();
  }
  ~Leader() override {
    silent_.reset();
    thread_.wait(stop(this));
  }
  /// So many looks, a tick apart, the first after such a jump. Is the session still open?
  bool look(Duration jump, int ticks) {
    bool is_open = false;
    post([&] {
      clock_.advance(jump);
      for (int i = 0; i < ticks; ++i) {
        clock_.advance(kTick);
        group_.expire(kLease);
        rows_.tick();
      }
      is_open = !session_->is_closed();
    });
    return is_open;
  }
  /// A request that it does not answer.
  void ask() {
    post([this] { tasks_.spawn(ask_it(this)); });
    post([] {});  // it has begun
  }

 private:
  template <class F>
  void post(F work) {
    std::promise<void> done;
    boost::asio::post(thread_.executor(), [&] { work(), done.set_value(); });
    done.get_future().wait();
  }
  static Task<void> serve(Leader* self) {
    auto connection = co_await self->listener_->accept();
    if (!connection.ok()) co_return;
    transport::Greeting greeting;
    greeting.role = "server";
    greeting.name = "leader";
    const auto limit = std::chrono::steady_clock::now() + 20s;
    auto accepted =
        co_await transport::Session::accept(std::move(connection).value(), greeting, limit);
    if (!accepted.ok()) co_return;
    const auto session = std::move(accepted).value();
    self->session_ = session.get();
    if (self->has_client_) {
      const server::RowsSession client(self->rows_.sessions(), *session);
      self->joined_.set_value();
      (void)co_await session->run(*self);
      co_return;
    }
    proto::ServerJoin join;
    join.name = "b";
    join.endpoint = "127.0.0.1:1";
    self->shard_ = self->group_.join(*session, self->tasks_, join).value();
    self->joined_.set_value();
    const Error why = co_await session->run(*self);
    self->group_.left(self->shard_, why);
  }
  static Task<void> ask_it(Leader* self) {
    const auto shard = self->shard_;
    std::vector<std::byte> head;
    (void)co_await self->group_.ask(shard, proto::ServersKind::kStep, std::move(head));
  }
  static Task<void> stop(Leader* self) {
    self->listener_->close();
    self->tasks_.cancel();
    co_await self->tasks_.join();
    self->listener_.reset();
  }
  Task<Status> on_frame(transport::Session&, transport::InFrame) override { co_return Status(); }

  const bool has_client_;
  PassingClock clock_;
  metrics::PrometheusRegistry registry_;
  server::RowsService rows_{"emb:dim=2", kLease, clock_, registry_};
  IoThread thread_{"leader"};
  std::unique_ptr<transport::Transport> transport_ = transport::make_tcp(thread_.executor());
  std::unique_ptr<transport::Listener> listener_;
  TaskGroup tasks_{thread_.executor()};
  ShardGroup group_{thread_.executor(), clock_, kLease,
                    ShardGroup::Hooks{.changed = [] {},
                                      .reported = [](ShardSession&) {},
                                      .gone = [](const ShardSession&) {},
                                      .whole = [](const ShardSession&, const proto::Whole&) {},
                                      .refused = [](const ShardSession&, const proto::Refused&) {},
                                      .leaving = [](ShardSession&) {}}};
  std::shared_ptr<ShardSession> shard_;
  transport::Session* session_ = nullptr;
  std::promise<void> joined_;
  std::unique_ptr<RawClient> silent_;
};

TEST(ServersLease, ASilentServerIsClosedUnlessTheLeaderItselfStoodStill) {
  for (const bool has_client : {false, true}) {
    SCOPED_TRACE(has_client ? "client" : "server");
    Leader leader(has_client);
    EXPECT_TRUE(leader.look(0s, 7));
    EXPECT_TRUE(leader.look(10 * kLease, 8)) << "its heartbeats are read now";
    EXPECT_FALSE(leader.look(0s, 2)) << "a lease after the leader went on";
  }
}

TEST(ServersLease, WhatAServerHasBeenAskedForHasTheTimeThatTheLeaderWasAwake) {
  Leader leader;
  EXPECT_TRUE(leader.look(0s, 1));
  leader.ask();
  EXPECT_TRUE(leader.look(10 * kLease, 1)) << "its answer is read now";
  EXPECT_FALSE(leader.look(0s, 10));
}

}  // namespace
}  // namespace centroid::test
