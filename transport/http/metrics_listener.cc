#include "transport/http/metrics_listener.h"

#include <algorithm>
#include <array>
#include <list>
#include <utility>

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>

#include "common/async/io_thread.h"
#include "common/async/task_group.h"
#include "common/base/trace_report.h"
#include "transport/http/request_head.h"
#include "transport/listen_error.h"
#include "transport/tls/maybe_tls.h"

namespace centroid::transport {

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using Tcp = asio::ip::tcp;
using Request = http::request<http::empty_body>;
using Response = http::response<http::string_body>;
using Stream = MaybeTls<beast::tcp_stream>;

constexpr std::size_t kMaxConnections = 16;
constexpr std::uint32_t kMaxHeaderBytes = 8 * 1024;
constexpr std::chrono::seconds kIdleTime{30};  ///< then a scrape connects anew
constexpr std::chrono::seconds kSlow{1};  ///< that a request takes which others need not wait for
/// At once, and one more each second: a trace holds up the recorder for a moment.
constexpr double kTraces = 4;
constexpr std::chrono::seconds kMessageTime{10};
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr double kTraceSeconds = 10;

class Allowance {
 public:
  bool take() {
    const TimePoint now = centroid::now();
    left_ = std::min(kTraces, left_ + std::chrono::duration<double>(now - at_).count());
    at_ = now;
    if (left_ < 1) return false;
    left_ -= 1;
    return true;
  }

 private:
  double left_ = kTraces;
  TimePoint at_ = centroid::now();
};

struct Peer {
  Peer(Tcp::socket socket, SslPointer end) : stream(std::move(socket), std::move(end)) {}
  Stream stream;
  TimePoint since = centroid::now();  ///< that it came, or had its last answer
  bool has_asked = false;
  bool is_answered = false;  ///< at this moment
  bool is_dropped = false;
};

constexpr std::array<std::string_view, 5> kPaths = {"/metrics", "/livez", "/readyz", "/healthz",
                                                    "/v1/trace"};

std::string known_paths() {
  std::string text;
  for (const std::string_view path : kPaths) text.append(text.empty() ? "" : ", ").append(path);
  return text;
}

Response plain_text() {
  Response response;
  response.set(http::field::content_type, "text/plain; charset=utf-8");
  response.set(http::field::cache_control, "no-store");
  response.set("X-Content-Type-Options", "nosniff");
  return response;
}

Response refusal(const std::string& fault) {
  Response response = plain_text();
  response.result(http::status::bad_request);
  response.body() = fault + "\n";
  response.keep_alive(false);
  response.prepare_payload();
  return response;
}

Response answer(const Request& request, const metrics::Registry& registry,
                const MetricsOptions& options, Allowance& traces) {
  Response response = plain_text();
  response.version(request.version());
  const std::string_view target(request.target().data(), request.target().size());
  const std::string_view path = target.substr(0, target.find('?'));
  if (std::ranges::find(kPaths, path) == kPaths.end()) {
    response.result(http::status::not_found);
    response.body() = "not found; there are " + known_paths() + "\n";
  } else if (request.method() != http::verb::get && request.method() != http::verb::head) {
    response.result(http::status::method_not_allowed);
    response.set(http::field::allow, "GET, HEAD");
    response.body() = "only GET and HEAD\n";
  } else if (path == "/metrics") {
    response.set(http::field::content_type, "text/plain; version=0.0.4; charset=utf-8");
    response.body() = registry.serialize();
  } else if (path == "/v1/trace" && !traces.take()) {
    response.result(http::status::too_many_requests);
    response.set(http::field::retry_after, "1");
    response.body() = "traces: 4 at once, then one a second\n";
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
    const auto& look = path == "/livez" ? options.is_live : options.is_ready;
    const Status found = path != "/healthz" && look ? look() : Status();
    if (!found.ok()) response.result(http::status::service_unavailable);
    response.body() = found.ok() ? "ok\n" : found.error().message() + "\n";
  }
  response.keep_alive(request.keep_alive());
  response.prepare_payload();
  if (request.method() == http::verb::head) response.body().clear();
  return response;
}

}  // namespace

struct MetricsListener::Impl {
  Impl(MetricsOptions options_, const metrics::Registry& registry_)
      : options(std::move(options_)), registry(registry_) {}
  Status listen(const Endpoint& endpoint);
  Task<void> accept_loop();
  bool make_room();
  Task<void> serve(std::list<Peer>::iterator at);
  Task<void> serve_requests(Peer& peer);
  Task<void> stop();

  MetricsOptions options;
  const metrics::Registry& registry;
  IoThread io{"metrics"};
  Tcp::acceptor acceptor{io.context()};
  TaskGroup group{io.executor()};
  std::list<Peer> peers;  ///< in the order they came
  Allowance traces;
  Endpoint bound;
  bool is_stopping = false;
};

Status MetricsListener::Impl::listen(const Endpoint& endpoint) {
  boost::system::error_code ec;
  const auto failed = [&](std::string_view doing) {
    return listen_error(endpoint.to_string(), endpoint.port, doing, ec)
        .with_context("--metrics.listen");
  };
  Tcp::resolver resolver(io.context());
  const auto found = resolver.resolve(endpoint.host, std::to_string(endpoint.port),
                                      Tcp::resolver::passive | Tcp::resolver::numeric_service, ec);
  if (ec || found.empty()) return failed("host is not known");
  const Tcp::endpoint local = found.begin()->endpoint();
  acceptor.open(local.protocol(), ec);
  if (!ec) acceptor.set_option(Tcp::acceptor::reuse_address(true), ec);
  if (!ec) acceptor.bind(local, ec);
  if (!ec) acceptor.listen(asio::socket_base::max_listen_connections, ec);
  if (ec) return failed("cannot bind");
  bound.host = local.address().to_string();
  bound.port = acceptor.local_endpoint(ec).port();
  return {};
}

Task<void> MetricsListener::Impl::accept_loop() {
  while (!is_stopping) {
    auto [ec, socket] = co_await acceptor.async_accept(kAwait);
    if (is_stopping) co_return;
    if (ec) {  // out of descriptors or memory: others must end first
      if (!co_await sleep_until(centroid::now() + kAcceptPause)) co_return;
    } else if (peers.size() < kMaxConnections || make_room()) {
      SslPointer end = options.tls ? options.tls->accepting_end() : nullptr;
      const auto at = peers.emplace(peers.end(), std::move(socket), std::move(end));
      group.spawn(serve(at));
    }
  }
}

/// The newest that has asked nothing goes, else the one that has been silent for longest: nobody
/// shuts out the scraper, nor the probe for whose failure the process would be ended.
bool MetricsListener::Impl::make_room() {
  Peer* silent = nullptr;
  Peer* idle = nullptr;
  std::size_t live = 0;
  for (Peer& peer : peers) {
    if (peer.is_dropped) continue;
    ++live;
    if (!peer.has_asked) silent = &peer;
    const bool is_old = !peer.is_answered && centroid::now() - peer.since > kSlow;
    if (is_old && (idle == nullptr || peer.since < idle->since)) idle = &peer;
  }
  if (live < kMaxConnections) return true;
  Peer* const victim = silent != nullptr ? silent : idle;
  if (victim == nullptr) return false;
  victim->is_dropped = true;
  victim->stream.lower().close();
  return true;
}

Task<void> MetricsListener::Impl::serve(std::list<Peer>::iterator at) {
  co_await serve_requests(*at);
  peers.erase(at);
}

Task<void> MetricsListener::Impl::serve_requests(Peer& peer) {
  Stream& stream = peer.stream;
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
    HeadRead read = co_await read_head(stream, buffer, parser);
    if (!read.ec && !parser.is_done()) {
      const auto [body_ec, n] = co_await http::async_read(stream, buffer, parser, kAwait);
      read.ec = body_ec;
    }
    if ((read.ec && read.fault.empty()) || is_stopping || peer.is_dropped) co_return;
    peer.has_asked = peer.is_answered = true;
    const Response response =
        read.ec ? refusal(read.fault) : answer(parser.get(), registry, options, traces);
    keep_alive = response.keep_alive();
    stream.lower().expires_after(kMessageTime);
    const auto [write_failed, written] = co_await http::async_write(stream, response, kAwait);
    if (write_failed) co_return;
    peer.is_answered = false;
    peer.since = centroid::now();
  }
}

Task<void> MetricsListener::Impl::stop() {
  is_stopping = true;
  boost::system::error_code ec;
  acceptor.close(ec);
  for (Peer& peer : peers) peer.stream.lower().close();
  group.cancel();
  co_await group.join();
}

MetricsListener::MetricsListener(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

MetricsListener::~MetricsListener() { impl_->io.wait(impl_->stop()); }

Result<std::unique_ptr<MetricsListener>> MetricsListener::start(MetricsOptions options,
                                                                const metrics::Registry& registry) {
  auto impl = std::make_unique<Impl>(std::move(options), registry);
  const Endpoint endpoint = impl->options.endpoint;
  CENTROID_TRY(impl->listen(endpoint));
  Impl& started = *impl;
  asio::post(started.io.context(), [&started] { started.group.spawn(started.accept_loop()); });
  return std::unique_ptr<MetricsListener>(new MetricsListener(std::move(impl)));
}

Endpoint MetricsListener::endpoint() const { return impl_->bound; }

}  // namespace centroid::transport
