#include "tests/support/faulty_transport.h"

#include <algorithm>

#include <boost/asio/this_coro.hpp>

#include "transport/framed_connection.h"

namespace centroid::transport {

namespace asio = boost::asio;
using Action = FaultPlan::Action;

namespace {

/// Counts an operation; returns the plan's action if it is the planned one.
Action next_action(const FaultPlan& plan) {
  return (*plan.operations)++ == plan.at_operation ? plan.action : Action::kNone;
}

Error injected(const FaultPlan& plan, ErrorCode code, std::string_view what) {
  return {code, std::string(what) + " (fault planned at operation " +
                    std::to_string(plan.at_operation) + ")"};
}

class FaultyConnection final : public Connection {
 public:
  FaultyConnection(std::unique_ptr<Connection> inner, FaultPlan plan)
      : inner_(std::move(inner)), plan_(std::move(plan)) {}

  Task<Result<InFrame>> read_header() override {
    const Action action = next_action(plan_);
    CENTROID_CO_TRY(co_await before(action));
    Result<InFrame> frame = co_await inner_->read_header();
    CENTROID_CO_TRY(after_read(action, frame.ok()));
    co_return frame;
  }
  Task<Status> read_payload(MutableBytes into) override {
    const Action action = next_action(plan_);
    CENTROID_CO_TRY(co_await before(action));
    Status status = co_await inner_->read_payload(into);
    if (action == Action::kCorrupt && !into.empty()) into.front() ^= std::byte{1};
    CENTROID_CO_TRY(after_read(action, status.ok()));
    co_return status;
  }
  Task<Result<Bytes>> read_piece(MutableBytes scratch) override {
    const Action action = next_action(plan_);
    CENTROID_CO_TRY(co_await before(action));
    Result<Bytes> piece = co_await inner_->read_piece(scratch);
    CENTROID_CO_TRY(after_read(action, piece.ok()));
    co_return piece;
  }
  Task<Status> skip_payload() override {
    const Action action = next_action(plan_);
    CENTROID_CO_TRY(co_await before(action));
    Status status = co_await inner_->skip_payload();
    CENTROID_CO_TRY(after_read(action, status.ok()));
    co_return status;
  }
  Task<Status> write(const OutFrame& frame) override {
    const Action action = next_action(plan_);
    CENTROID_CO_TRY(co_await before(action));
    if (action == Action::kCorrupt || action == Action::kTruncate) {
      Status status = co_await damage(action, frame);
      co_return status;
    }
    Status status = co_await inner_->write(frame);
    if (action == Action::kCut)
      inner_->close(injected(plan_, ErrorCode::kUnavailable, "connection cut"));
    co_return status;
  }
  Task<Result<bool>> flush() override { return inner_->flush(); }
  void close(Error cause) noexcept override { inner_->close(std::move(cause)); }
  void close_with(const OutFrame& last, Error cause) noexcept override {
    inner_->close_with(last, std::move(cause));
  }
  void set_budget(std::shared_ptr<ByteBudget> budget) override {
    inner_->set_budget(std::move(budget));
  }
  void set_limits(const FrameLimits& limits) override { inner_->set_limits(limits); }
  FrameLimits limits() const override { return inner_->limits(); }
  std::string peer() const override { return inner_->peer(); }
  TimePoint last_received() const override { return inner_->last_received(); }
  TrafficCounters traffic() const override { return inner_->traffic(); }
  std::optional<double> peer_certificate_end() const override {
    return inner_->peer_certificate_end();
  }
  void count_handshake(std::shared_ptr<double> seconds) override {
    inner_->count_handshake(std::move(seconds));
  }
  Executor executor() const override { return inner_->executor(); }

 private:
  Error end(ErrorCode code, std::string_view what) {
    Error error = injected(plan_, code, peer() + ": " + std::string(what));
    inner_->close(error);
    return error;
  }
  Task<Status> before(Action action) {
    co_await asio::this_coro::throw_if_cancelled(false);
    if (action == Action::kFail) co_return end(ErrorCode::kUnavailable, "the call failed");
    if (action == Action::kDelay) co_await sleep_until(centroid::now() + plan_.delay);
    co_return Status();
  }
  Status after_read(Action action, bool is_ok) {
    if (!is_ok) return {};
    if (action == Action::kCorrupt)
      return end(ErrorCode::kDataLoss, "checksum of the bytes received differs");
    if (action == Action::kTruncate) {
      return end(ErrorCode::kUnavailable, "closed the connection in the middle of a frame");
    }
    if (action == Action::kCut)
      inner_->close(injected(plan_, ErrorCode::kUnavailable, "connection cut"));
    return {};
  }
  Task<Status> damage(Action action, const OutFrame& frame) {
    auto* const framed = dynamic_cast<FramedConnection*>(inner_.get());
    if (framed == nullptr) co_return end(ErrorCode::kUnavailable, "connection cut");
    const std::uint64_t size = kFrameHeaderBytes + frame.head.size() + frame.payload.size();
    Damage damage;
    if (action == Action::kCorrupt) {
      // The middle of the payload or, without one, of the head; a bare header breaks in itself.
      const std::uint64_t bytes = frame.payload.empty() ? frame.head.size() : frame.payload.size();
      damage.flip_byte = bytes == 0 ? size / 2 : size - bytes + bytes / 2;
    } else {
      damage.truncate_to = size / 2;
    }
    Status status = co_await framed->write_damaged(frame, damage);
    co_return status;
  }

  const std::unique_ptr<Connection> inner_;
  const FaultPlan plan_;
};

class FaultyListener final : public Listener {
 public:
  FaultyListener(std::unique_ptr<Listener> inner, FaultPlan plan)
      : inner_(std::move(inner)), plan_(std::move(plan)) {}
  Task<Result<std::unique_ptr<Connection>>> accept() override {
    CENTROID_CO_ASSIGN(auto connection, co_await inner_->accept());
    std::unique_ptr<Connection> made =
        std::make_unique<FaultyConnection>(std::move(connection), plan_);
    co_return made;
  }
  Endpoint endpoint() const override { return inner_->endpoint(); }
  void close() noexcept override { inner_->close(); }

 private:
  const std::unique_ptr<Listener> inner_;
  const FaultPlan plan_;
};

class FaultyTransport final : public Transport {
 public:
  FaultyTransport(std::unique_ptr<Transport> inner, FaultPlan plan)
      : inner_(std::move(inner)), plan_(std::move(plan)) {}

  Task<Result<std::unique_ptr<Connection>>> connect(Endpoint endpoint, Deadline deadline) override {
    co_await asio::this_coro::throw_if_cancelled(false);
    const Action action = next_action(plan_);
    const std::string where = "connect to " + endpoint.to_string();
    if (action == Action::kFail)
      co_return injected(plan_, ErrorCode::kUnavailable, where + ": the call failed");
    if (action == Action::kDelay) {
      const Deadline until = centroid::now() + plan_.delay;
      co_await sleep_until(std::min(until, deadline));
    }
    CENTROID_CO_ASSIGN(auto connection, co_await inner_->connect(endpoint, deadline));
    if (action == Action::kCut || action == Action::kTruncate) {
      connection->close(injected(plan_, ErrorCode::kUnavailable, where + ": connection cut"));
    }
    std::unique_ptr<Connection> made =
        std::make_unique<FaultyConnection>(std::move(connection), plan_);
    co_return made;
  }
  Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint) override {
    CENTROID_ASSIGN(auto listener, inner_->listen(endpoint));
    std::unique_ptr<Listener> made = std::make_unique<FaultyListener>(std::move(listener), plan_);
    return made;
  }

 private:
  const std::unique_ptr<Transport> inner_;
  const FaultPlan plan_;
};

}  // namespace

std::unique_ptr<Transport> make_faulty(std::unique_ptr<Transport> inner, FaultPlan plan) {
  return std::make_unique<FaultyTransport>(std::move(inner), std::move(plan));
}

}  // namespace centroid::transport
