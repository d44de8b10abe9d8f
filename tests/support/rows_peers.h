#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <gtest/gtest.h>

#include "common/async/io_thread.h"
#include "common/async/task_group.h"
#include "common/proto/rows.h"
#include "transport/session.h"

/// Peers of a server's tables, and relays between them.
namespace centroid::test {

/// A client session that sends arbitrary messages.
class RawClient final : public transport::FrameSink {
 public:
  explicit RawClient(transport::Endpoint server) : server_(std::move(server)) {
    const Status opened = thread_.wait(open(this));
    EXPECT_TRUE(opened.ok());
  }
  ~RawClient() override { thread_.wait(close(this)); }

  template <class M>
  Result<transport::Reply> ask(proto::RowsKind kind, const M& message,
                               std::vector<std::byte> payload = {}) {
    return thread_.wait(send(this, kind, proto::encode(message), std::move(payload)));
  }
  Result<transport::Reply> ask_empty(proto::RowsKind kind) {
    return thread_.wait(send(this, kind, {}, {}));
  }
  Result<transport::Reply> open_table(std::uint64_t client, const std::string& table) {
    proto::RowsOpen open;
    open.client = client;
    open.table = table;
    return ask(proto::RowsKind::kOpen, open);
  }
  Result<transport::Reply> push(std::uint64_t sequence, const std::vector<std::uint64_t>& keys,
                                const std::vector<float>& gradients, std::uint32_t table = 0,
                                std::uint64_t step = 0) {
    proto::RowsPush head;
    head.step = step;
    head.table = table;
    head.rows = static_cast<std::uint32_t>(keys.size());
    head.sequence = sequence;
    ByteWriter payload;
    for (const auto key : keys) payload.put(key);
    for (const auto g : gradients) payload.put(g);
    return ask(proto::RowsKind::kPush, head, payload.take());
  }

  Result<transport::Reply> pull(const std::vector<std::uint64_t>& keys, std::uint32_t table = 0) {
    proto::RowsPull head;
    head.table = table;
    head.rows = static_cast<std::uint32_t>(keys.size());
    ByteWriter payload;
    for (const auto key : keys) payload.put(key);
    return ask(proto::RowsKind::kPull, head, payload.take());
  }

 private:
  static TimePoint limit() { return std::chrono::steady_clock::now() + std::chrono::seconds(20); }
  static Task<Status> open(RawClient* self) {
    transport::Greeting greeting;
    greeting.role = "client";
    greeting.name = "raw";
    auto made =
        co_await transport::connect_session(*self->transport_, self->server_, greeting, limit());
    if (!made.ok()) co_return made.error();
    self->session_ = std::move(made).value();
    self->tasks_.spawn(read(self));
    co_return Status();
  }
  static Task<void> read(RawClient* self) { (void)co_await self->session_->run(*self); }
  static Task<Result<transport::Reply>> send(RawClient* self, proto::RowsKind kind,
                                             std::vector<std::byte> head,
                                             std::vector<std::byte> payload) {
    co_return co_await self->session_->request(static_cast<std::uint16_t>(kind), head, payload,
                                               limit());
  }
  static Task<void> close(RawClient* self) {
    if (self->session_) self->session_->close(Error(ErrorCode::kCancelled, "the test ends"));
    co_await self->tasks_.join();
    self->session_.reset();
  }
  Task<Status> on_frame(transport::Session&, transport::InFrame) override { co_return Status(); }

  transport::Endpoint server_;
  IoThread thread_{"raw"};
  std::unique_ptr<transport::Transport> transport_ = transport::make_tcp(thread_.executor());
  TaskGroup tasks_{thread_.executor()};
  std::unique_ptr<transport::Session> session_;
};

/// A relay between clients and a server that closes the first connection instead of forwarding the
/// server's frame number `cut_at` (HelloReply is 1).
class CuttingRelay {
 public:
  CuttingRelay(const transport::Endpoint& server, int cut_at)
      : server_(tcp::endpoint(boost::asio::ip::make_address(server.host), server.port)),
        cut_at_(cut_at),
        thread_([this] { run(); }) {}
  ~CuttingRelay() {
    is_ending_ = true;
    // Wakes accept.
    boost::asio::io_context context;
    tcp::socket last(context);
    boost::system::error_code ignored;
    last.connect(acceptor_.local_endpoint(), ignored);
    thread_.join();
  }
  transport::Endpoint endpoint() const {
    transport::Endpoint out;
    out.port = acceptor_.local_endpoint().port();
    return out;
  }
  int connections() const { return connections_; }

 private:
  using tcp = boost::asio::ip::tcp;

  void run() {
    for (;;) {
      tcp::socket client = acceptor_.accept();
      if (is_ending_) return;
      ++connections_;
      tcp::socket server(context_);
      server.connect(server_);
      std::thread up([&] { copy_bytes(client, server); });
      copy_frames(server, client, connections_ == 1 ? cut_at_ : 0);
      boost::system::error_code ignored;
      client.shutdown(tcp::socket::shutdown_both, ignored);
      server.shutdown(tcp::socket::shutdown_both, ignored);
      up.join();
    }
  }
  static void copy_bytes(tcp::socket& from, tcp::socket& to) {
    std::vector<std::byte> buffer(64 << 10);
    boost::system::error_code failed;
    while (!failed) {
      const std::size_t n = from.read_some(boost::asio::buffer(buffer), failed);
      if (!failed) boost::asio::write(to, boost::asio::buffer(buffer.data(), n), failed);
    }
    to.shutdown(tcp::socket::shutdown_both, failed);
  }
  static void copy_frames(tcp::socket& from, tcp::socket& to, int cut_at) {
    boost::system::error_code failed;
    for (int frame = 1;; ++frame) {
      std::vector<std::byte> bytes(transport::kFrameHeaderBytes);
      boost::asio::read(from, boost::asio::buffer(bytes), failed);
      if (failed) return;
      const auto header = transport::decode_header(bytes, transport::FrameLimits{});
      if (!header.ok() || frame == cut_at) return;
      bytes.resize(bytes.size() + header->head_bytes + header->payload_bytes);
      const auto rest = boost::asio::buffer(bytes) + transport::kFrameHeaderBytes;
      boost::asio::read(from, rest, failed);
      if (!failed) boost::asio::write(to, boost::asio::buffer(bytes), failed);
      if (failed) return;
    }
  }

  boost::asio::io_context context_;
  tcp::acceptor acceptor_{context_, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0)};
  const tcp::endpoint server_;
  const int cut_at_;
  std::atomic<bool> is_ending_{false};
  std::atomic<int> connections_{0};
  std::thread thread_;
};

/// Forwards bytes to a server, or to the next one.
class SwitchingRelay {
 public:
  explicit SwitchingRelay(const transport::Endpoint& server) {
    to(server);
    thread_ = std::thread([this] { run(); });
  }
  ~SwitchingRelay() {
    cut();
    is_ending_ = true;
    boost::asio::io_context context;
    tcp::socket last(context);
    boost::system::error_code ignored;
    last.connect(acceptor_.local_endpoint(), ignored);
    thread_.join();
    for (std::thread& passing : passing_) passing.join();
  }
  transport::Endpoint endpoint() const {
    transport::Endpoint out;
    out.port = acceptor_.local_endpoint().port();
    return out;
  }
  /// Close all connections; until `to`, new ones are closed at once.
  void cut() {
    const std::lock_guard lock(mutex_);
    server_.reset();
    boost::system::error_code ignored;
    for (const auto& socket : sockets_) socket->shutdown(tcp::socket::shutdown_both, ignored);
  }
  /// From now on the servers' answers are dropped.
  void mute() { *is_mute_ = true; }
  void to(const transport::Endpoint& server) {
    const std::lock_guard lock(mutex_);
    server_ = tcp::endpoint(boost::asio::ip::make_address(server.host), server.port);
  }

 private:
  using tcp = boost::asio::ip::tcp;

  void run() {
    for (;;) {
      const auto client = std::make_shared<tcp::socket>(acceptor_.accept());
      if (is_ending_) return;
      const std::lock_guard lock(mutex_);
      if (!server_) continue;
      const auto server = std::make_shared<tcp::socket>(context_);
      server->connect(*server_);
      sockets_.push_back(client);
      sockets_.push_back(server);
      passing_.emplace_back([client, server] { copy(*client, *server, nullptr); });
      passing_.emplace_back(
          [client, server, mute = is_mute_] { copy(*server, *client, mute.get()); });
    }
  }
  static void copy(tcp::socket& from, tcp::socket& to, const std::atomic<bool>* is_mute) {
    std::vector<std::byte> buffer(64 << 10);
    boost::system::error_code failed;
    while (!failed) {
      const std::size_t n = from.read_some(boost::asio::buffer(buffer), failed);
      if (!failed && (is_mute == nullptr || !*is_mute))
        boost::asio::write(to, boost::asio::buffer(buffer.data(), n), failed);
    }
    to.shutdown(tcp::socket::shutdown_both, failed);
    from.shutdown(tcp::socket::shutdown_both, failed);
  }

  boost::asio::io_context context_;
  tcp::acceptor acceptor_{context_, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0)};
  std::mutex mutex_;
  std::optional<tcp::endpoint> server_;
  std::vector<std::shared_ptr<tcp::socket>> sockets_;
  std::vector<std::thread> passing_;
  const std::shared_ptr<std::atomic<bool>> is_mute_ = std::make_shared<std::atomic<bool>>(false);
  std::atomic<bool> is_ending_{false};
  std::thread thread_;
};

}  // namespace centroid::test
