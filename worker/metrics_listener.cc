#include "worker/metrics_listener.h"

#include <algorithm>
#include <list>
#include <utility>

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>

#include "common/async/io_thread.h"
#include "common/async/task_group.h"
#include "common/base/trace_report.h"
#include "transport/tls/maybe_tls.h"

namespace centroid::worker {

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using Tcp = asio::ip::tcp;
using Request = http::request<http::empty_body>;
using Response = http::response<http::string_body>;
using Stream = transport::MaybeTls<beast::tcp_stream>;

constexpr std::size_t kMaxConnections = 16;
constexpr std::uint32_t kMaxHeaderBytes = 8 * 1024;
constexpr std::chrono::seconds kIdleTime{120};  ///< between two scrapes
constexpr std::chrono::seconds kMessageTime{10};
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr double kTraceSeconds = 10;

Response answer(const Request& request, const metrics::Registry& registry) {
  Response response;
  response.version(request.version());
  response.set(http::field::content_type, "text/plain; charset=utf-8");
  response.set(http::field::cache_control, "no-store");
  response.set("X-Content-Type-Options", "nosniff");
  const std::string_view target(request.target().data(), request.target().size());
  const std::string_view path = target.substr(0, target.find('?'));
  if (path != "/metrics" && path != "/healthz" && path != "/v1/trace") {
    response.result(http::status::not_found);
    response.body() = "not found; there are /metrics, /healthz and /v1/trace\n";
  } else if (request.method() != http::verb::get && request.method() != http::verb::head) {
    response.result(http::status::method_not_allowed);
    response.set(http::field::allow, "GET, HEAD");
    response.body() = "only GET and HEAD\n";
  } else if (path == "/metrics") {
    response.set(http::field::content_type, "text/plain; version=0.0.4; charset=utf-8");
    response.body() = registry.serialize();
  } else if (path == "/v1/trace") {
    const auto made = trace::export_as(
        trace::query_format(target.substr(std::min(path.size() + 1, target.size()))),
        kTraceSeconds);
    if (made) {
      response.set(http::field::content_type, made->content_type);
      response.set("Content-Security-Policy", trace::kPagePolicy);
      response.body() = made->text;
    } else {
      response.result(http::status::bad_request);
      response.body() = "format: expected json, csv or html\n";
    }
  } else {
    response.body() = "ok\n";
  }
  response.keep_alive(request.keep_alive());
  response.prepare_payload();
  if (request.method() == http::verb::head) response.body().clear();
  return response;
}

}  // namespace

struct MetricsListener::Impl {
  Impl(const metrics::Registry& registry_, std::optional<transport::TlsFiles> tls_)
      : registry(registry_), tls(std::move(tls_)) {}
  Status listen(const transport::Endpoint& endpoint);
  Task<void> accept_loop();
  Task<void> serve(std::list<Stream>::iterator at);
  Task<void> serve_requests(Stream& stream);
  Task<void> stop();

  const metrics::Registry& registry;
  std::optional<transport::TlsFiles> tls;
  IoThread io{"metrics"};
  Tcp::acceptor acceptor{io.context()};
  TaskGroup group{io.executor()};
  std::list<Stream> streams;
  transport::Endpoint bound;
  bool is_stopping = false;
};

Status MetricsListener::Impl::listen(const transport::Endpoint& endpoint) {
  boost::system::error_code ec;
  const std::string wanted = "metrics.listen " + endpoint.to_string();
  Tcp::resolver resolver(io.context());
  const auto found = resolver.resolve(endpoint.host, std::to_string(endpoint.port),
                                      Tcp::resolver::passive | Tcp::resolver::numeric_service, ec);
  if (ec || found.empty())
    return Error(ErrorCode::kInvalidArgument, wanted + ": host is not known: " + ec.message());
  const Tcp::endpoint local = found.begin()->endpoint();
  acceptor.open(local.protocol(), ec);
  if (!ec) acceptor.set_option(Tcp::acceptor::reuse_address(true), ec);
  if (!ec) acceptor.bind(local, ec);
  if (!ec) acceptor.listen(asio::socket_base::max_listen_connections, ec);
  if (ec == asio::error::address_in_use)
    return Error(ErrorCode::kAlreadyExists,
                 wanted + ": the port is in use; choose another, or 0 for a free one");
  if (ec) return Error(ErrorCode::kInvalidArgument, wanted + ": cannot listen: " + ec.message());
  bound.host = local.address().to_string();
  bound.port = acceptor.local_endpoint(ec).port();
  return {};
}

Task<void> MetricsListener::Impl::accept_loop() {
  while (!is_stopping) {
    auto [ec, socket] = co_await acceptor.async_accept(kAwait);
    if (is_stopping) co_return;
    if (ec) {  // out of descriptors or memory: others must end first
      if (!co_await sleep_until(std::chrono::steady_clock::now() + kAcceptPause)) co_return;
    } else if (streams.size() < kMaxConnections) {
      transport::SslPointer end = tls ? tls->accepting_end() : nullptr;
      const auto at = streams.emplace(streams.end(), std::move(socket), std::move(end));
      group.spawn(serve(at));
    }
  }
}

Task<void> MetricsListener::Impl::serve(std::list<Stream>::iterator at) {
  co_await serve_requests(*at);
  streams.erase(at);
}

Task<void> MetricsListener::Impl::serve_requests(Stream& stream) {
  if (stream.is_secure()) {
    stream.lower().expires_after(kMessageTime);
    const auto [failed] = co_await stream.async_handshake(kAwait);
    if (failed || is_stopping) co_return;
  }
  beast::flat_buffer buffer(2 * kMaxHeaderBytes);
  for (bool keep_alive = true; keep_alive && !is_stopping;) {
    http::request_parser<http::empty_body> parser;
    parser.header_limit(kMaxHeaderBytes);
    stream.lower().expires_after(buffer.size() > 0 ? kMessageTime : kIdleTime);
    const auto [read_failed, read] = co_await http::async_read(stream, buffer, parser, kAwait);
    if (read_failed || is_stopping) co_return;
    const Response response = answer(parser.get(), registry);
    keep_alive = response.keep_alive();
    stream.lower().expires_after(kMessageTime);
    const auto [write_failed, written] = co_await http::async_write(stream, response, kAwait);
    if (write_failed) co_return;
  }
}

Task<void> MetricsListener::Impl::stop() {
  is_stopping = true;
  boost::system::error_code ec;
  acceptor.close(ec);
  for (Stream& stream : streams) stream.lower().close();
  group.cancel();
  co_await group.join();
}

MetricsListener::MetricsListener(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

MetricsListener::~MetricsListener() { impl_->io.wait(impl_->stop()); }

Result<std::unique_ptr<MetricsListener>> MetricsListener::start(
    const transport::Endpoint& endpoint, const metrics::Registry& registry,
    std::optional<transport::TlsFiles> tls) {
  auto impl = std::make_unique<Impl>(registry, std::move(tls));
  CENTROID_TRY(impl->listen(endpoint));
  Impl& started = *impl;
  asio::post(started.io.context(), [&started] { started.group.spawn(started.accept_loop()); });
  return std::unique_ptr<MetricsListener>(new MetricsListener(std::move(impl)));
}

transport::Endpoint MetricsListener::endpoint() const { return impl_->bound; }

}  // namespace centroid::worker
