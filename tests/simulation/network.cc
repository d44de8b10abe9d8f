#include "tests/simulation/network.h"

#include <algorithm>
#include <deque>
#include <optional>

#include <boost/asio/this_coro.hpp>

#include "transport/framed_connection.h"
#include "transport/waiter.h"

namespace centroid::simulation {

namespace asio = boost::asio;
using transport::Connection;
using transport::Endpoint;
using transport::Listener;
using transport::Moved;
using transport::Waiter;

namespace {

constexpr std::size_t kMostInFlight = 256 << 10;
constexpr auto kShortest = std::chrono::microseconds(40), kLongest = std::chrono::microseconds(600);
constexpr auto kSlow = std::chrono::milliseconds(40);  // a delay of one segment in 64

/// As the system words it.
std::string refused() {
  return boost::system::error_code(asio::error::connection_refused).message();
}

}  // namespace

/// Bytes from one process to another.
class Flow : public std::enable_shared_from_this<Flow> {
 public:
  Flow(Network& network, const Process& from, const Process& to)
      : network_(network), from_(from), to_(to) {}

  Moved try_read(MutableBytes into) {
    if (is_read_closed_) return {.bytes = 0, .error = asio::error::operation_aborted};
    std::size_t done = 0;
    while (done < into.size() && !segments_.empty() && has_arrived(segments_.front())) {
      Segment& first = segments_.front();
      const std::size_t n = std::min(into.size() - done, first.bytes.size() - first.read);
      std::copy_n(first.bytes.begin() + static_cast<std::ptrdiff_t>(first.read), n,
                  into.begin() + static_cast<std::ptrdiff_t>(done));
      done += n;
      first.read += n;
      in_flight_ -= n;
      if (first.read == first.bytes.size()) segments_.pop_front();
    }
    if (done != 0) {
      writer_.wake();
      return {.bytes = done, .error = {}};
    }
    if (is_reset_) return {.bytes = 0, .error = asio::error::connection_reset};
    if (is_write_closed_ && segments_.empty() && network_.world().time() >= end_arrives_)
      return {.bytes = 0, .error = asio::error::eof};
    return {.bytes = 0, .error = asio::error::would_block};
  }

  Moved try_write(std::span<const Bytes> parts) {
    if (is_write_closed_) return {.bytes = 0, .error = asio::error::operation_aborted};
    if (is_reset_) return {.bytes = 0, .error = asio::error::connection_reset};
    if (in_flight_ >= kMostInFlight) return {.bytes = 0, .error = asio::error::would_block};
    Segment segment;
    for (const Bytes part : parts) {
      const std::size_t room = kMostInFlight - in_flight_ - segment.bytes.size();
      const Bytes taken = part.first(std::min(part.size(), room));
      segment.bytes.insert(segment.bytes.end(), taken.begin(), taken.end());
      if (taken.size() < part.size()) break;
    }
    const std::size_t n = segment.bytes.size();
    if (is_lost_) return {.bytes = n, .error = {}};
    in_flight_ += n;
    last_arrives_ = std::max(last_arrives_, network_.world().time() + network_.draw_delay());
    segment.arrives = last_arrives_;
    segments_.push_back(std::move(segment));
    wake_reader_at(last_arrives_);
    return {.bytes = n, .error = {}};
  }

  Task<bool> readable() { return reader_.park(); }
  Task<bool> writable() { return writer_.park(); }

  void close_reads() {
    is_read_closed_ = is_reset_ = true;
    reader_.wake();
    writer_.wake();
  }
  void close_writes() {
    if (is_write_closed_) return;
    is_write_closed_ = true;
    writer_.wake();
    if (is_lost_) return;
    end_arrives_ = std::max(last_arrives_, network_.world().time() + network_.draw_delay());
    wake_reader_at(end_arrives_);
  }
  void reset() {
    is_reset_ = true;
    segments_.clear();
    in_flight_ = 0;
    reader_.wake();
    writer_.wake();
  }
  void lose(std::chrono::milliseconds stall_timeout) {
    is_lost_ = true;
    segments_.clear();
    in_flight_ = 0;
    end_arrives_ = TimePoint::max();
    writer_.wake();
    World& world = network_.world();
    world.schedule_in_world(world.time() + stall_timeout, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->reset();
    });
  }
  void look() { reader_.wake(); }

 private:
  struct Segment {
    TimePoint arrives;
    std::vector<std::byte> bytes;
    std::size_t read = 0;
  };
  bool has_arrived(const Segment& segment) const {
    return network_.world().time() >= std::max(segment.arrives, network_.blocked_until(from_, to_));
  }
  void wake_reader_at(TimePoint when) {
    const TimePoint at = std::max(when, network_.blocked_until(from_, to_));
    network_.world().schedule_in_world(at, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->look();
    });
  }

  Network& network_;
  const Process &from_, &to_;
  std::deque<Segment> segments_;
  std::size_t in_flight_ = 0;
  TimePoint last_arrives_{}, end_arrives_{};
  bool is_read_closed_ = false, is_write_closed_ = false, is_reset_ = false, is_lost_ = false;
  Waiter reader_, writer_;
};

class Network::Backlog {
 public:
  std::deque<Half> halves;
  bool is_closed = false;
  Waiter arrived;
};

namespace {

class Stream final : public transport::ByteStream {
 public:
  Stream(Executor executor, Network::Half half)
      : executor_(std::move(executor)), half_(std::move(half)) {}
  ~Stream() override { close(); }

  Moved try_read(MutableBytes into) override { return half_.in->try_read(into); }
  Moved try_write(std::span<const Bytes> parts) override { return half_.out->try_write(parts); }
  Task<Moved> read_some(MutableBytes into) override {
    Moved moved = half_.in->try_read(into);
    while (moved.is_blocked()) {
      if (!co_await half_.in->readable()) moved.error = asio::error::operation_aborted;
      if (moved.is_blocked()) moved = half_.in->try_read(into);
    }
    co_return moved;
  }
  Task<Moved> write_some(std::span<const Bytes> parts) override {
    Moved moved = half_.out->try_write(parts);
    while (moved.is_blocked()) {
      if (!co_await half_.out->writable()) moved.error = asio::error::operation_aborted;
      if (moved.is_blocked()) moved = half_.out->try_write(parts);
    }
    co_return moved;
  }
  void close() noexcept override {
    half_.out->close_writes();
    half_.in->close_reads();
  }
  std::string peer() const override { return half_.peer; }
  Executor executor() const override { return executor_; }

 private:
  const Executor executor_;
  const Network::Half half_;
};

class SimulatedListener final : public Listener {
 public:
  SimulatedListener(Executor executor, Network& network, Endpoint endpoint,
                    std::shared_ptr<Network::Backlog> backlog, transport::TransportOptions options)
      : executor_(std::move(executor)),
        network_(network),
        endpoint_(std::move(endpoint)),
        backlog_(std::move(backlog)),
        options_(std::move(options)) {}
  ~SimulatedListener() override { close(); }

  Task<Result<std::unique_ptr<Connection>>> accept() override {
    co_await asio::this_coro::throw_if_cancelled(false);
    for (;;) {
      if (!backlog_->halves.empty()) {
        auto stream = std::make_unique<Stream>(executor_, std::move(backlog_->halves.front()));
        backlog_->halves.pop_front();
        std::unique_ptr<Connection> made =
            std::make_unique<transport::FramedConnection>(std::move(stream), options_);
        co_return made;
      }
      const asio::cancellation_state state = co_await asio::this_coro::cancellation_state;
      const bool is_over =
          backlog_->is_closed || state.cancelled() != asio::cancellation_type::none;
      if (is_over || !co_await backlog_->arrived.park())
        co_return Error(ErrorCode::kCancelled, "accept on " + endpoint_.to_string() + ": stopped");
    }
  }
  Endpoint endpoint() const override { return endpoint_; }
  void close() noexcept override {
    if (std::exchange(backlog_->is_closed, true)) return;
    network_.close(endpoint_, *backlog_);
    for (const auto& half : backlog_->halves) {
      half.in->close_reads();
      half.out->close_writes();
    }
    backlog_->halves.clear();
    backlog_->arrived.wake();
  }

 private:
  const Executor executor_;
  Network& network_;
  const Endpoint endpoint_;
  const std::shared_ptr<Network::Backlog> backlog_;
  const transport::TransportOptions options_;
};

class SimulatedTransport final : public transport::Transport {
 public:
  SimulatedTransport(Executor executor, Network& network, transport::TransportOptions options)
      : executor_(std::move(executor)), network_(network), options_(std::move(options)) {}

  Task<Result<std::unique_ptr<Connection>>> connect(Endpoint endpoint, Deadline deadline) override {
    const std::string where = "connect to " + endpoint.to_string();
    const TimePoint arrives = now() + network_.draw_delay();
    co_await sleep_until(std::min(arrives, deadline));
    if (arrives >= deadline)
      co_return Error(ErrorCode::kDeadlineExceeded, where + ": no answer in time");
    std::unique_ptr<Network::Half> half = network_.connect(endpoint, options_.stall_timeout);
    if (!half) co_return Error(ErrorCode::kUnavailable, where + ": " + refused());
    auto stream = std::make_unique<Stream>(executor_, std::move(*half));
    std::unique_ptr<Connection> made =
        std::make_unique<transport::FramedConnection>(std::move(stream), options_);
    co_return made;
  }

  Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint) override {
    Endpoint real = endpoint;
    CENTROID_ASSIGN(auto backlog, network_.listen(real));
    std::unique_ptr<Listener> made = std::make_unique<SimulatedListener>(
        executor_, network_, std::move(real), std::move(backlog), options_);
    return made;
  }

 private:
  const Executor executor_;
  Network& network_;
  const transport::TransportOptions options_;
};

}  // namespace

std::unique_ptr<transport::Transport> Network::make_transport(Executor executor,
                                                              transport::TransportOptions options) {
  return std::make_unique<SimulatedTransport>(std::move(executor), *this, std::move(options));
}

Result<std::shared_ptr<Network::Backlog>> Network::listen(Endpoint& endpoint) {
  if (endpoint.port == 0) endpoint.port = next_port_++;
  auto& [process, present] = listeners_[endpoint.to_string()];
  if (!present.expired())
    return Error(ErrorCode::kAlreadyExists,
                 "listen on " + endpoint.to_string() + ": the port is in use");
  auto backlog = std::make_shared<Backlog>();
  process = &world_.process();
  present = backlog;
  return backlog;
}

void Network::close(const Endpoint& endpoint, const Backlog& backlog) {
  const auto found = listeners_.find(endpoint.to_string());
  if (found != listeners_.end() && found->second.second.lock().get() == &backlog)
    listeners_.erase(found);
}

std::unique_ptr<Network::Half> Network::connect(const Endpoint& endpoint,
                                                std::chrono::milliseconds stall_timeout) {
  const Process& from = world_.process();
  const auto found = listeners_.find(endpoint.to_string());
  if (found == listeners_.end() || from.is_killed) return nullptr;
  const auto& [to, weak] = found->second;
  const auto backlog = weak.lock();
  if (!backlog || backlog->is_closed || to->is_killed) return nullptr;
  // A handshake's packets do not get through either; the peer would call it a timeout.
  if (blocked_until(from, *to) > world_.time()) return nullptr;
  auto there = std::make_shared<Flow>(*this, from, *to);
  auto back = std::make_shared<Flow>(*this, *to, from);
  std::erase_if(connections_,
                [](const Connection& c) { return c.there.expired() && c.back.expired(); });
  connections_.push_back({&from, to, there, back, stall_timeout});
  backlog->halves.push_back(
      {.in = there, .out = back, .peer = from.name + ":" + std::to_string(++clients_)});
  backlog->arrived.wake();
  return std::make_unique<Half>(Half{.in = back, .out = there, .peer = endpoint.to_string()});
}

Duration Network::draw_delay() {
  CounterRng& random = world_.random_numbers();
  if (random.below(64) == 0)
    return std::chrono::microseconds(random.below(kSlow / std::chrono::microseconds(1)));
  return kShortest + std::chrono::microseconds(random.below((kLongest - kShortest).count()));
}

TimePoint Network::blocked_until(const Process& a, const Process& b) const {
  const auto found = blocked_.find(std::minmax(a.name, b.name));
  return found == blocked_.end() ? TimePoint::min() : found->second;
}

/// Connections between the two, or of `a` with anybody.
template <class F>
void Network::for_each(const Process& a, const Process* b, F act) {
  for (const Connection& connection : connections_) {
    const bool fits = b == nullptr ? connection.a == &a || connection.b == &a
                                   : pair_of(*connection.a, *connection.b) == pair_of(a, *b);
    if (!fits) continue;
    if (const auto flow = connection.there.lock()) act(*flow, connection.stall_timeout);
    if (const auto flow = connection.back.lock()) act(*flow, connection.stall_timeout);
  }
}

void Network::cut(const Process& a, const Process& b) {
  for_each(a, &b, [](Flow& flow, auto) { flow.reset(); });
}

void Network::partition(const Process& a, const Process& b, Duration time) {
  const TimePoint until = world_.time() + time;
  TimePoint& blocked = blocked_[std::minmax(a.name, b.name)];
  blocked = std::max(blocked, until);
  world_.schedule_in_world(
      until, [this, &a, &b] { for_each(a, &b, [](Flow& flow, auto) { flow.look(); }); });
}

void Network::lose_silently(const Process& a, const Process& b) {
  for_each(a, &b, [](Flow& flow, auto stall_timeout) { flow.lose(stall_timeout); });
}

void Network::remove(const Process& process, bool silently) {
  std::erase_if(listeners_, [&](const auto& entry) { return entry.second.first == &process; });
  for_each(process, nullptr, [&](Flow& flow, auto stall_timeout) {
    silently ? flow.lose(stall_timeout) : flow.reset();
  });
}

}  // namespace centroid::simulation
