#include "tests/support/in_process_transport.h"

#include <deque>
#include <map>
#include <mutex>

#include <boost/asio/this_coro.hpp>

#include "tests/support/in_process_pipe.h"
#include "transport/framed_connection.h"

namespace centroid::transport {

namespace asio = boost::asio;

namespace {

/// One end of two pipes.
class PipeStream final : public ByteStream {
 public:
  PipeStream(Executor executor, std::shared_ptr<Pipe> in, std::shared_ptr<Pipe> out,
             std::string peer)
      : executor_(std::move(executor)),
        in_(std::move(in)),
        out_(std::move(out)),
        peer_(std::move(peer)) {}
  ~PipeStream() override { close(); }

  Moved try_read(MutableBytes into) override { return in_->try_read(into); }
  Moved try_write(std::span<const Bytes> parts) override { return out_->try_write(parts); }
  Task<Moved> read_some(MutableBytes into) override {
    Moved moved = in_->try_read(into);
    while (moved.is_blocked()) {
      if (!co_await in_->readable()) moved.error = asio::error::operation_aborted;
      if (moved.is_blocked()) moved = in_->try_read(into);
    }
    co_return moved;
  }
  Task<Moved> write_some(std::span<const Bytes> parts) override {
    Moved moved = out_->try_write(parts);
    while (moved.is_blocked()) {
      if (!co_await out_->writable()) moved.error = asio::error::operation_aborted;
      if (moved.is_blocked()) moved = out_->try_write(parts);
    }
    co_return moved;
  }
  void close() noexcept override {
    in_->end_reads();
    out_->end_writes();
  }
  std::string peer() const override { return peer_; }
  Executor executor() const override { return executor_; }

 private:
  const Executor executor_;
  const std::shared_ptr<Pipe> in_, out_;
  const std::string peer_;
};

/// A connection that waits to be accepted: the accepting side's half.
struct Half {
  std::shared_ptr<Pipe> in, out;
  std::string peer;
};

// The default backlog of a socket in Linux (net.core.somaxconn).
constexpr std::size_t kBacklog = 4096;

}  // namespace

class InProcessHub {
 public:
  /// Calls of `accept` on one listener: halves that wait, or a coroutine that waits for one.
  struct Backlog {
    std::mutex mutex;
    std::deque<Half> halves;
    std::deque<Parking*> accepting;
    bool is_closed = false;

    ~Backlog() { close(); }
    bool add(Half half) {
      const std::lock_guard lock(mutex);
      if (is_closed || halves.size() >= kBacklog) return false;
      halves.push_back(std::move(half));
      wake_one(true);
      return true;
    }
    void close() noexcept {
      const std::lock_guard lock(mutex);
      is_closed = true;
      for (Half& half : halves) {
        half.in->end_reads();
        half.out->end_writes();
      }
      halves.clear();
      while (!accepting.empty()) wake_one(false);
    }
    void wake_one(bool value) {
      if (accepting.empty()) return;
      Parking* const first = accepting.front();
      accepting.pop_front();
      first->resume(value);
    }
  };

  Result<std::shared_ptr<Backlog>> listen(Endpoint& endpoint) {
    const std::lock_guard lock(mutex_);
    if (endpoint.port == 0) {
      do {
        next_port_ = next_port_ == 65535 ? kFirstPort : static_cast<std::uint16_t>(next_port_ + 1);
        endpoint.port = next_port_;
      } while (listeners_.contains(endpoint.to_string()));
    }
    auto backlog = std::make_shared<Backlog>();
    if (!listeners_.emplace(endpoint.to_string(), backlog).second) {
      return Error(ErrorCode::kAlreadyExists,
                   "listen on " + endpoint.to_string() + ": the port is in use");
    }
    return backlog;
  }
  std::shared_ptr<Backlog> find(const Endpoint& endpoint) {
    const std::lock_guard lock(mutex_);
    const auto it = listeners_.find(endpoint.to_string());
    return it == listeners_.end() ? nullptr : it->second;
  }
  void remove(const Endpoint& endpoint) {
    const std::lock_guard lock(mutex_);
    listeners_.erase(endpoint.to_string());
  }
  std::string name_client() {
    const std::lock_guard lock(mutex_);
    return "inprocess:" + std::to_string(++clients_);
  }

 private:
  static constexpr std::uint16_t kFirstPort = 49152;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Backlog>> listeners_;
  std::uint16_t next_port_ = kFirstPort - 1;
  std::uint64_t clients_ = 0;
};

namespace {

class InProcessListener final : public Listener {
 public:
  InProcessListener(Executor executor, std::shared_ptr<InProcessHub> hub, Endpoint endpoint,
                    std::shared_ptr<InProcessHub::Backlog> backlog, TransportOptions options)
      : executor_(std::move(executor)),
        hub_(std::move(hub)),
        endpoint_(std::move(endpoint)),
        backlog_(std::move(backlog)),
        options_(std::move(options)) {}
  ~InProcessListener() override { close(); }

  Task<Result<std::unique_ptr<Connection>>> accept() override {
    co_await asio::this_coro::throw_if_cancelled(false);
    while (true) {
      if (auto half = take()) {
        auto stream = std::make_unique<PipeStream>(executor_, std::move(half->in),
                                                   std::move(half->out), std::move(half->peer));
        std::unique_ptr<Connection> made =
            std::make_unique<FramedConnection>(std::move(stream), options_);
        co_return made;
      }
      const asio::cancellation_state state = co_await asio::this_coro::cancellation_state;
      const bool is_stopping = state.cancelled() != asio::cancellation_type::none;
      if (is_stopping || !co_await arrived()) {
        co_return Error(ErrorCode::kCancelled, "accept on " + endpoint_.to_string() + ": stopped");
      }
    }
  }
  Endpoint endpoint() const override { return endpoint_; }
  void close() noexcept override {
    if (!hub_) return;
    hub_->remove(endpoint_);
    backlog_->close();
    hub_.reset();
  }

 private:
  std::optional<Half> take() {
    const std::lock_guard lock(backlog_->mutex);
    if (backlog_->halves.empty()) return std::nullopt;
    std::optional<Half> half(std::move(backlog_->halves.front()));
    backlog_->halves.pop_front();
    return half;
  }
  /// Wait for a connection; false when closed or cancelled.
  Task<bool> arrived() {
    Parking place;
    auto park = [backlog = backlog_.get(), &place](auto handler) {
      auto slot = asio::get_associated_cancellation_slot(handler);
      if (slot.is_connected()) {
        slot.assign([backlog, &place](asio::cancellation_type) {
          const std::lock_guard lock(backlog->mutex);
          if (std::erase(backlog->accepting, &place) != 0) place.resume(false);
        });
      }
      const std::lock_guard lock(backlog->mutex);
      place.put(std::move(handler));
      if (backlog->is_closed) return place.resume(false);
      if (!backlog->halves.empty()) return place.resume(true);
      backlog->accepting.push_back(&place);
    };
    co_return co_await asio::async_initiate<const Parking::Token, void(bool)>(park,
                                                                              asio::use_awaitable);
  }

  const Executor executor_;
  std::shared_ptr<InProcessHub> hub_;
  const Endpoint endpoint_;
  const std::shared_ptr<InProcessHub::Backlog> backlog_;
  const TransportOptions options_;
};

class InProcessTransport final : public Transport {
 public:
  InProcessTransport(Executor executor, std::shared_ptr<InProcessHub> hub, TransportOptions options)
      : executor_(std::move(executor)), hub_(std::move(hub)), options_(std::move(options)) {}

  Task<Result<std::unique_ptr<Connection>>> connect(Endpoint endpoint, Deadline deadline) override {
    const std::string where = "connect to " + endpoint.to_string();
    if (centroid::now() >= deadline) {
      co_return Error(ErrorCode::kDeadlineExceeded, where + ": the deadline has passed");
    }
    const auto backlog = hub_->find(endpoint);
    auto there = std::make_shared<Pipe>();
    auto back = std::make_shared<Pipe>();
    Half half;
    half.in = there;
    half.out = back;
    half.peer = hub_->name_client();
    if (!backlog || !backlog->add(std::move(half))) {
      co_return Error(ErrorCode::kUnavailable, where + ": refused, no listener");
    }
    auto stream = std::make_unique<PipeStream>(executor_, std::move(back), std::move(there),
                                               endpoint.to_string());
    std::unique_ptr<Connection> made =
        std::make_unique<FramedConnection>(std::move(stream), options_);
    co_return made;
  }

  Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint) override {
    if (endpoint.host.empty())
      return Error(ErrorCode::kInvalidArgument, "listen: the host is empty");
    Endpoint real = endpoint;
    CENTROID_ASSIGN(auto backlog, hub_->listen(real));
    std::unique_ptr<Listener> made = std::make_unique<InProcessListener>(
        executor_, hub_, std::move(real), std::move(backlog), options_);
    return made;
  }

 private:
  const Executor executor_;
  const std::shared_ptr<InProcessHub> hub_;
  const TransportOptions options_;
};

}  // namespace

std::shared_ptr<InProcessHub> make_inprocess_hub() { return std::make_shared<InProcessHub>(); }

std::unique_ptr<Transport> make_inprocess(Executor executor, std::shared_ptr<InProcessHub> hub,
                                          TransportOptions options) {
  return std::make_unique<InProcessTransport>(std::move(executor), std::move(hub),
                                              std::move(options));
}

}  // namespace centroid::transport
