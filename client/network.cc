#include "client/network.h"

#include <csignal>
#include <cstdio>

#include <boost/asio/signal_set.hpp>

#include "common/async/io_thread.h"
#include "common/async/task_group.h"

namespace centroid::client {

namespace {

constexpr std::chrono::seconds kConnectTime{10};

/// Answers Echo, refuses everything else.
struct EchoSink final : transport::FrameSink {
  Task<Status> on_frame(transport::Session& session, transport::InFrame frame) override {
    if (frame.header.kind != transport::kEcho)
      co_return Error(ErrorCode::kInvalidArgument,
                      "this is `centroidctl bench --listen`: it answers Echo only");
    co_return co_await transport::answer_echo(session, frame);
  }
};

transport::Greeting greeting_of(const std::string& role, const std::string& token) {
  transport::Greeting greeting;
  greeting.role = role;
  greeting.name = "centroidctl bench";
  greeting.token = token;
  return greeting;
}

std::unique_ptr<transport::Transport> transport_of(const Executor& executor, const Access& access) {
  transport::TransportOptions options;
  options.layer = access.tls;
  return transport::make_tcp(executor, options);
}

Task<Result<transport::EchoReport>> measure_there(Executor executor, transport::Endpoint there,
                                                  const Access& access,
                                                  std::chrono::milliseconds time,
                                                  std::uint32_t bytes) {
  const auto transport = transport_of(executor, access);
  const auto greeting = greeting_of("client", access.token);
  const TimePoint deadline = std::chrono::steady_clock::now() + kConnectTime;
  co_return co_await transport::measure_way(*transport, there, greeting, deadline, time, bytes);
}

Task<void> serve_one(std::unique_ptr<transport::Connection> connection, std::string token) {
  const auto greeting = greeting_of("server", token);
  const TimePoint deadline = std::chrono::steady_clock::now() + kConnectTime;
  auto accepted = co_await transport::Session::accept(std::move(connection), greeting, deadline);
  if (!accepted.ok()) {
    std::fprintf(stderr, "centroidctl: refused: %s\n", accepted.error().message().c_str());
    co_return;
  }
  const auto session = std::move(accepted).value();
  EchoSink sink;
  (void)co_await session->run(sink);
}

Task<void> accept_all(transport::Listener* listener, TaskGroup* tasks, std::string token) {
  for (;;) {
    auto connection = co_await listener->accept();
    if (!connection.ok()) co_return;
    tasks->spawn(serve_one(std::move(connection).value(), token));
  }
}

Task<void> wait_for_signal() {
  boost::asio::signal_set signals(co_await boost::asio::this_coro::executor, SIGINT, SIGTERM);
  (void)co_await signals.async_wait(kAwait);
}

Task<Status> serve(Executor executor, transport::Endpoint here, const Access& access) {
  const auto transport = transport_of(executor, access);
  auto listener = transport->listen(here);
  if (!listener.ok()) co_return listener.error().with_context("--listen");
  std::printf("listening on %s; Ctrl-C ends\n", (*listener)->endpoint().to_string().c_str());
  std::fflush(stdout);
  TaskGroup tasks(executor);
  tasks.spawn(accept_all(listener->get(), &tasks, access.token));
  co_await wait_for_signal();
  (*listener)->close();
  tasks.cancel();
  co_await tasks.join();
  co_return Status();
}

}  // namespace

Result<transport::EchoReport> measure(const std::string& where, const Access& access,
                                      std::chrono::milliseconds time, std::uint32_t bytes) {
  CENTROID_ASSIGN(const auto there, transport::Endpoint::parse(where));
  IoThread thread("bench");
  return thread.wait(measure_there(thread.executor(), there, access, time, bytes));
}

Status serve_echo(const std::string& where, const Access& access) {
  CENTROID_ASSIGN(const auto here, transport::Endpoint::parse(where));
  IoThread thread("bench");
  return thread.wait(serve(thread.executor(), here, access));
}

}  // namespace centroid::client
