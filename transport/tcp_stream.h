#pragma once

#include <boost/asio/ip/tcp.hpp>

#include "transport/byte_stream.h"
#include "transport/fork.h"
#include "transport/transport.h"

namespace centroid::transport {

// These ignore what the system refuses.
/// Set what `options` say of a socket that is connected, or will listen. Sockets that a listener
/// accepts have its options.
void set_options(int socket, const TransportOptions& options, bool is_loopback);
/// `requested` as TransportOptions::congestion_control.
void set_congestion_control(int socket, const std::string& requested, bool is_loopback);

/// A connected socket as ByteStream.
class TcpStream final : public ByteStream {
 public:
  TcpStream(boost::asio::ip::tcp::socket socket, const boost::asio::ip::tcp::endpoint& peer);

  Moved try_read(MutableBytes into) override;
  Moved try_write(std::span<const Bytes> parts) override;
  Task<Moved> read_some(MutableBytes into) override;
  Task<Moved> write_some(std::span<const Bytes> parts) override;
  void end() noexcept override;
  void close() noexcept override;
  std::string peer() const override { return peer_; }
  Executor executor() const override { return executor_; }

 private:
  const Executor executor_;
  boost::asio::ip::tcp::socket socket_;
  ForkClosed fork_closed_;
  std::string peer_;
  bool is_drained_ = false;  ///< the last read was short: the next waits without a try of its own
};

/// A socket that listens at `endpoint`.
/// fails  already_exists (the port is in use), invalid_argument
Result<boost::asio::ip::tcp::acceptor> open_acceptor(Executor executor, const Endpoint& endpoint,
                                                     const TransportOptions& options);

/// Connect to `there`; the stream has the layer of `options`, which outlive the call.
///
/// fails  unavailable, deadline_exceeded, cancelled; the message does not name `there`
Task<Result<std::unique_ptr<ByteStream>>> connect_stream(Executor executor, Endpoint there,
                                                         const TransportOptions& options,
                                                         Deadline deadline);

/// "127.0.0.1:40312", IPv6 in brackets.
std::string to_string(const boost::asio::ip::tcp::endpoint& endpoint);

}  // namespace centroid::transport
