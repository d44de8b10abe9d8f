#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/udp.hpp>
#include <boost/asio/this_coro.hpp>

#include "transport/fork.h"
#include "transport/framed_connection.h"
#include "transport/listen_error.h"
#include "transport/stream_layer.h"
#include "transport/tcp_stream.h"

namespace centroid::transport {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;
using boost::system::error_code;

namespace {

// Buffer sizes must be known before the handshake of TCP: it fixes the window scale.
void set_buffers(auto& socket, const TransportOptions& options) {
  if (options.socket_buffer_bytes == 0) return;
  const auto bytes = static_cast<int>(std::min<std::size_t>(options.socket_buffer_bytes, 1u << 30));
  error_code ignored;
  socket.set_option(asio::socket_base::send_buffer_size(bytes), ignored);
  socket.set_option(asio::socket_base::receive_buffer_size(bytes), ignored);
}

std::unique_ptr<Connection> accepted_connection(tcp::socket socket, const tcp::endpoint& peer,
                                                const TransportOptions& options) {
  std::unique_ptr<ByteStream> stream = std::make_unique<TcpStream>(std::move(socket), peer);
  if (options.layer) stream = options.layer->accepted(std::move(stream));
  return std::make_unique<FramedConnection>(std::move(stream), options);
}

bool is_loopback(const tcp::acceptor& acceptor) {
  error_code ignored;
  return acceptor.local_endpoint(ignored).address().is_loopback();
}

class TcpListener final : public Listener {
 public:
  TcpListener(tcp::acceptor acceptor, Endpoint endpoint, TransportOptions options)
      : acceptor_(std::move(acceptor)),
        endpoint_(std::move(endpoint)),
        options_(std::move(options)),
        is_loopback_(is_loopback(acceptor_)),
        fork_closed_(acceptor_.native_handle()) {}

  Task<Result<std::unique_ptr<Connection>>> accept() override {
    co_await asio::this_coro::throw_if_cancelled(false);
    while (true) {
      const asio::cancellation_state state = co_await asio::this_coro::cancellation_state;
      if (state.cancelled() != asio::cancellation_type::none || !acceptor_.is_open()) {
        co_return Error(ErrorCode::kCancelled, "accept on " + endpoint_.to_string() + ": stopped");
      }
      tcp::endpoint peer;
      auto [error, socket] = co_await acceptor_.async_accept(peer, kAwait);
      if (!error) {
        if (!is_loopback_ && peer.address().is_loopback())
          set_congestion_control(socket.native_handle(), options_.congestion_control, true);
        co_return accepted_connection(std::move(socket), peer, options_);
      }
      // The peer cancelled before we accepted it, or we stop: the loop's condition decides.
      if (error == asio::error::connection_aborted || error == asio::error::operation_aborted)
        continue;
      const bool is_full = error == asio::error::no_descriptors ||
                           error == asio::error::no_memory ||
                           error == asio::error::no_buffer_space ||
                           error == boost::system::errc::too_many_files_open_in_system;
      co_return Error(is_full ? ErrorCode::kResourceExhausted : ErrorCode::kInternal,
                      "accept on " + endpoint_.to_string() + ": " + error.message());
    }
  }
  Endpoint endpoint() const override { return endpoint_; }
  void close() noexcept override {
    error_code ignored;
    fork_closed_.release();
    acceptor_.close(ignored);
  }

 private:
  tcp::acceptor acceptor_;
  const Endpoint endpoint_;
  const TransportOptions options_;
  const bool is_loopback_;
  ForkClosed fork_closed_;
};

/// One connection attempt: what its deadline must stop.
struct Attempt {
  explicit Attempt(const Executor& executor)
      : resolver(executor), socket(executor), timer(executor) {}
  tcp::resolver resolver;
  tcp::socket socket;
  Timer timer;
  bool is_late = false;
};

/// Of a host, which is an address or a name.
Task<Result<std::vector<tcp::endpoint>>> addresses_of(tcp::resolver* resolver, Endpoint there) {
  error_code error;
  std::vector<tcp::endpoint> found;
  if (const auto address = asio::ip::make_address(there.host, error); !error) {
    found.emplace_back(address, there.port);
    co_return found;
  }
  const std::string port = std::to_string(there.port);
  const auto [why, results] = co_await resolver->async_resolve(there.host, port, kAwait);
  if (why == asio::error::operation_aborted) co_return Error(ErrorCode::kCancelled, "cancelled");
  if (why) co_return Error(ErrorCode::kUnavailable, "cannot resolve the name: " + why.message());
  for (const auto& result : results) found.push_back(result.endpoint());
  co_return found;
}

}  // namespace

Task<Result<std::unique_ptr<ByteStream>>> connect_stream(Executor executor, Endpoint there,
                                                         const TransportOptions& options,
                                                         Deadline deadline) {
  co_await asio::this_coro::throw_if_cancelled(false);
  if (centroid::now() >= deadline)
    co_return Error(ErrorCode::kDeadlineExceeded, "the deadline has passed");
  const auto attempt = std::make_shared<Attempt>(executor);
  attempt->timer.expires_at(deadline);
  attempt->timer.async_wait([attempt](const error_code& error) {
    if (error) return;
    attempt->is_late = true;
    attempt->resolver.cancel();
    error_code ignored;
    attempt->socket.close(ignored);
  });
  const auto found = co_await addresses_of(&attempt->resolver, there);
  const std::vector<tcp::endpoint> none;
  error_code error;
  bool is_stopping = false;
  for (const tcp::endpoint& one : found.ok() ? *found : none) {
    const asio::cancellation_state state = co_await asio::this_coro::cancellation_state;
    is_stopping = state.cancelled() != asio::cancellation_type::none;
    if (is_stopping || attempt->is_late) break;
    error_code ignored;
    attempt->socket.close(ignored);
    attempt->socket.open(one.protocol(), error);
    if (error) continue;
    set_buffers(attempt->socket, options);
    const auto [why] = co_await attempt->socket.async_connect(one, kAwait);
    error = why;
    if (!error) break;
  }
  attempt->timer.cancel();
  if (attempt->is_late)
    co_return Error(ErrorCode::kDeadlineExceeded, "no answer before the deadline");
  if (!found.ok()) co_return found.error();
  if (is_stopping || error == asio::error::operation_aborted)
    co_return Error(ErrorCode::kCancelled, "cancelled");
  if (error) co_return Error(ErrorCode::kUnavailable, error.message());
  const tcp::endpoint peer = attempt->socket.remote_endpoint(error);
  // Before the connection is there, TCP_USER_TIMEOUT would end a connect with a later deadline.
  set_options(attempt->socket.native_handle(), options, peer.address().is_loopback());
  std::unique_ptr<ByteStream> stream =
      std::make_unique<TcpStream>(std::move(attempt->socket), peer);
  if (options.layer) stream = options.layer->connected(std::move(stream), there);
  co_return std::move(stream);
}

Result<tcp::acceptor> open_acceptor(Executor executor, const Endpoint& endpoint,
                                    const TransportOptions& options) {
  error_code error;
  const auto failed = [&](std::string_view doing) {
    return listen_error(endpoint.to_string(), endpoint.port, doing, error);
  };
  tcp::endpoint local;
  if (const auto address = asio::ip::make_address(endpoint.host, error); !error) {
    local = tcp::endpoint(address, endpoint.port);
  } else {
    tcp::resolver resolver(executor);
    const auto found = resolver.resolve(endpoint.host, std::to_string(endpoint.port), error);
    if (error || found.empty()) return failed("cannot resolve the name");
    local = found.begin()->endpoint();
  }
  tcp::acceptor acceptor(executor);
  acceptor.open(local.protocol(), error);
  if (error) return failed("cannot open a socket");
  acceptor.set_option(asio::socket_base::reuse_address(true), error);
  set_buffers(acceptor, options);
  set_options(acceptor.native_handle(), options, local.address().is_loopback());
  acceptor.bind(local, error);
  if (error) return failed("cannot bind");
  acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) return failed("cannot listen");
  return acceptor;
}

namespace {

class TcpTransport final : public Transport {
 public:
  TcpTransport(Executor executor, TransportOptions options)
      : executor_(std::move(executor)), options_(std::move(options)) {}

  Task<Result<std::unique_ptr<Connection>>> connect(Endpoint endpoint, Deadline deadline) override {
    auto stream = co_await connect_stream(executor_, endpoint, options_, deadline);
    if (!stream.ok()) co_return stream.error().with_context("connect to " + endpoint.to_string());
    std::unique_ptr<Connection> made =
        std::make_unique<FramedConnection>(std::move(stream).value(), options_);
    co_return std::move(made);
  }

  Task<Result<std::vector<Endpoint>>> resolve(Endpoint endpoint) override {
    co_await asio::this_coro::throw_if_cancelled(false);
    tcp::resolver resolver(executor_);
    const auto found = co_await addresses_of(&resolver, endpoint);
    if (!found.ok()) co_return found.error().with_context("resolve " + endpoint.host);
    std::vector<Endpoint> out;
    for (const tcp::endpoint& one : *found) {
      endpoint.host = one.address().to_string();
      out.push_back(endpoint);
    }
    co_return out;
  }

  Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint) override {
    CENTROID_ASSIGN(tcp::acceptor acceptor, open_acceptor(executor_, endpoint, options_));
    Endpoint real = endpoint;
    error_code ignored;
    real.port = acceptor.local_endpoint(ignored).port();
    std::unique_ptr<Listener> made =
        std::make_unique<TcpListener>(std::move(acceptor), std::move(real), options_);
    return made;
  }

 private:
  const Executor executor_;
  const TransportOptions options_;
};

}  // namespace

Result<std::string> local_address_towards(const Endpoint& there) {
  asio::io_context context;
  error_code error;
  const auto failed = [&](std::string_view what) {
    return Error(ErrorCode::kUnavailable, "address towards " + there.to_string() + ": " +
                                              std::string(what) + ": " + error.message());
  };
  asio::ip::udp::resolver resolver(context);
  const auto found = resolver.resolve(there.host, std::to_string(there.port), error);
  if (error || found.empty()) return failed("cannot resolve");
  asio::ip::udp::socket socket(context);
  socket.open(found.begin()->endpoint().protocol(), error);
  if (!error) socket.connect(found.begin()->endpoint(), error);  // only chooses the route
  if (error) return failed("no route");
  const auto local = socket.local_endpoint(error);
  if (error) return failed("no address");
  return local.address().to_string();
}

std::unique_ptr<Transport> make_tcp(Executor executor, TransportOptions options) {
  return std::make_unique<TcpTransport>(std::move(executor), std::move(options));
}

}  // namespace centroid::transport
