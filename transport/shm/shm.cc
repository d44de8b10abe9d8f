#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <random>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/this_coro.hpp>

#include "transport/fork.h"
#include "transport/framed_connection.h"
#include "transport/shm/stream.h"

namespace centroid::transport {

namespace asio = boost::asio;
using boost::system::error_code;
using shm::File;

namespace {

// Two ranks exchange 64 MiB: 1 MiB is as fast as more, and both directions stay in the cache.
constexpr std::uint64_t kCapacity = 1 << 20;

std::uint64_t capacity_of(const TransportOptions& options) {
  if (options.socket_buffer_bytes == 0) return kCapacity;
  return std::bit_ceil(std::clamp<std::uint64_t>(
      options.socket_buffer_bytes, shm::Memory::kLeastCapacity, shm::Memory::kMostCapacity));
}

std::unique_ptr<Connection> connection_on(std::unique_ptr<shm::Stream> stream,
                                          const TransportOptions& options) {
  return std::make_unique<FramedConnection>(std::move(stream), options);
}

/// A name without a file, which vanishes with its socket; visible in the same network namespace.
struct Address {
  explicit Address(const Endpoint& endpoint) {
    const std::string name = "centroid/" + endpoint.to_string();
    address.sun_family = AF_UNIX;
    const std::size_t n = std::min(name.size(), sizeof address.sun_path - 1);
    std::memcpy(address.sun_path + 1, name.data(), n);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + n);
    is_valid = endpoint.port != 0 && n == name.size();
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
  sockaddr_un address{};
  socklen_t size = 0;
  bool is_valid = false;
};

File make_socket() {
  return File(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

class ShmListener final : public Listener {
 public:
  ShmListener(Executor executor, File socket, Endpoint endpoint, TransportOptions options,
              PollSet* polls)
      : executor_(executor),
        socket_(executor, socket.release()),
        endpoint_(std::move(endpoint)),
        options_(std::move(options)),
        polls_(polls),
        fork_closed_(socket_.native_handle()) {}

  Task<Result<std::unique_ptr<Connection>>> accept() override {
    co_await asio::this_coro::throw_if_cancelled(false);
    while (true) {
      const asio::cancellation_state state = co_await asio::this_coro::cancellation_state;
      if (state.cancelled() != asio::cancellation_type::none || !socket_.is_open()) {
        co_return Error(ErrorCode::kCancelled, "accept on " + endpoint_.to_string() + ": stopped");
      }
      File socket(
          ::accept4(socket_.native_handle(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (socket)
        co_return connection_on(shm::Stream::answer(executor_, std::move(socket), polls_),
                                options_);
      const int why = errno;
      if (why == EAGAIN) {
        const auto [ignored] =
            co_await socket_.async_wait(asio::posix::stream_descriptor::wait_read, kAwait);
        (void)ignored;
        continue;
      }
      if (why == ECONNABORTED || why == EINTR) continue;
      const bool is_full = why == EMFILE || why == ENFILE || why == ENOMEM || why == ENOBUFS;
      co_return Error(is_full ? ErrorCode::kResourceExhausted : ErrorCode::kInternal,
                      "accept on " + endpoint_.to_string() + ": " + std::strerror(why));
    }
  }
  Endpoint endpoint() const override { return endpoint_; }
  void close() noexcept override {
    error_code ignored;
    fork_closed_.release();
    socket_.close(ignored);
  }

 private:
  const Executor executor_;
  asio::posix::stream_descriptor socket_;
  const Endpoint endpoint_;
  const TransportOptions options_;
  PollSet* const polls_;
  ForkClosed fork_closed_;
};

class ShmTransport final : public Transport {
 public:
  ShmTransport(Executor executor, TransportOptions options, PollSet* polls)
      : executor_(std::move(executor)), options_(std::move(options)), polls_(polls) {}

  Task<Result<std::unique_ptr<Connection>>> connect(Endpoint endpoint, Deadline deadline) override {
    const std::string doing = "connect to " + endpoint.to_string();
    if (centroid::now() >= deadline)
      co_return Error(ErrorCode::kDeadlineExceeded, doing + ": the deadline has passed");
    const Address address(endpoint);
    File socket = make_socket();
    if (!address.is_valid || !socket || ::connect(socket.get(), address.get(), address.size) != 0) {
      const char* const why = address.is_valid ? std::strerror(errno) : "not a name of a socket";
      co_return Error(ErrorCode::kUnavailable, doing + ": " + why);
    }
    auto stream = shm::Stream::call(executor_, std::move(socket), capacity_of(options_), polls_);
    if (!stream.ok()) co_return std::move(stream).error().with_context(doing);
    co_return connection_on(std::move(*stream), options_);
  }

  Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint) override {
    Endpoint real = endpoint;
    File socket = make_socket();
    Status bound = bind(socket, real);
    std::random_device random;
    for (int i = 0; endpoint.port == 0 && !bound.ok() && i < kTries; ++i) {
      real.port = static_cast<std::uint16_t>(1 + random() % 0xFFFF);
      bound = bind(socket, real);
    }
    CENTROID_TRY(bound);
    const std::string doing = "listen on " + real.to_string() + ": ";
    if (::listen(socket.get(), SOMAXCONN) != 0)
      return Error(ErrorCode::kInvalidArgument, doing + std::strerror(errno));
    std::unique_ptr<Listener> made = std::make_unique<ShmListener>(
        executor_, std::move(socket), std::move(real), options_, polls_);
    return made;
  }

 private:
  static constexpr int kTries = 100;

  static Status bind(const File& socket, const Endpoint& endpoint) {
    const std::string doing = "listen on " + endpoint.to_string() + ": ";
    const Address address(endpoint);
    if (!address.is_valid) return Error(ErrorCode::kInvalidArgument, doing + "not a name");
    if (::bind(socket.get(), address.get(), address.size) == 0) return {};
    if (errno == EADDRINUSE) return Error(ErrorCode::kAlreadyExists, doing + "the name is in use");
    return Error(ErrorCode::kInvalidArgument, doing + std::strerror(errno));
  }

  const Executor executor_;
  const TransportOptions options_;
  PollSet* const polls_;
};

}  // namespace

std::unique_ptr<Transport> make_shm(Executor executor, TransportOptions options, PollSet* polls) {
  return std::make_unique<ShmTransport>(std::move(executor), std::move(options), polls);
}

}  // namespace centroid::transport
