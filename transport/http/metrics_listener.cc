#include "transport/http/metrics_listener.h"

#include <algorithm>
#include <array>
#include <utility>

#include <boost/asio/post.hpp>

#include "common/async/io_thread.h"
#include "common/base/trace_report.h"
#include "transport/http/http_server.h"

namespace centroid::transport {

namespace {

/// At once, and one more each second: a trace blocks the recorder for a moment.
constexpr double kTraces = 4;
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

constexpr std::array<std::string_view, 5> kPaths = {"/metrics", "/livez", "/readyz", "/healthz",
                                                    "/v1/trace"};

/// Nothing from elsewhere, no inline script or style, in no frame.
constexpr const char* kViewPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

HttpResponse plain_text(unsigned status, std::string text) {
  HttpResponse response;
  response.status = status;
  response.content_type = "text/plain; charset=utf-8";
  response.body = std::move(text);
  return response;
}

}  // namespace

struct MetricsListener::Impl final : HttpService {
  Impl(MetricsOptions options_, metrics::Registry& registry_)
      : options(std::move(options_)), registry(registry_) {}

  Task<HttpResponse> answer(HttpRequest request) override { co_return respond(request); }
  HttpResponse refuse(unsigned status, const std::string& detail, const std::string&) override {
    return plain_text(status, detail + "\n");
  }
  HttpResponse respond(const HttpRequest& request);
  HttpResponse newest_trace(std::string_view query);
  bool has(std::string_view path) const;
  std::string known_paths() const;
  Task<void> stop();

  const MetricsOptions options;
  metrics::Registry& registry;
  const HttpLimits bounds = {.body_limit_bytes = 0, .max_connections = 16};
  IoThread io{"metrics", ThreadPriority::kLow};  // readers do not slow training
  const HttpMeters meters{.connections = metrics::budget(registry, "metrics_connections")};
  HttpServer server{io.executor(), *this, bounds, options.tls, "", meters};
  Allowance traces;
  Endpoint bound;
};

HttpResponse MetricsListener::Impl::newest_trace(std::string_view query) {
  if (!traces.take()) {
    HttpResponse response = plain_text(429, "traces: 4 at once, then one a second\n");
    response.fields.emplace_back("Retry-After", "1");
    return response;
  }
  const auto made = trace::export_as(trace::query_format(query), kTraceSeconds);
  if (!made) return plain_text(400, "format: expected json, csv or html\n");
  HttpResponse response = plain_text(200, made->text);
  response.content_type = made->content_type;
  response.fields.emplace_back("Content-Security-Policy", trace::kPagePolicy);
  return response;
}

bool MetricsListener::Impl::has(std::string_view path) const {
  return std::ranges::find(kPaths, path) != kPaths.end() ||
         std::ranges::find(options.views, path, &MetricsView::path) != options.views.end();
}

std::string MetricsListener::Impl::known_paths() const {
  std::string text;
  for (const std::string_view path : kPaths) text.append(text.empty() ? "" : ", ").append(path);
  for (const MetricsView& view : options.views) text.append(", ").append(view.path);
  return text;
}

HttpResponse MetricsListener::Impl::respond(const HttpRequest& request) {
  const std::string_view target = request.target;
  const std::string_view path = target.substr(0, target.find('?'));
  if (!has(path)) return plain_text(404, "not found; there are " + known_paths() + "\n");
  if (request.method != "GET" && request.method != "HEAD") {
    HttpResponse response = plain_text(405, "only GET and HEAD\n");
    response.fields.emplace_back("Allow", "GET, HEAD");
    return response;
  }
  if (path == "/metrics") {
    HttpResponse response = plain_text(200, registry.serialize());
    response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    return response;
  }
  for (const MetricsView& view : options.views)
    if (view.path == path) {
      HttpResponse response = plain_text(200, view.text());
      response.content_type = view.type;
      response.fields.emplace_back("Content-Security-Policy", kViewPolicy);
      return response;
    }
  if (path == "/v1/trace")
    return newest_trace(target.substr(std::min(path.size() + 1, target.size())));
  const auto& look = path == "/livez" ? options.is_live : options.is_ready;
  const Status found = path != "/healthz" && look ? look() : Status();
  return found.ok() ? plain_text(200, "ok\n") : plain_text(503, found.error().message() + "\n");
}

Task<void> MetricsListener::Impl::stop() {
  co_await server.close(Duration::zero());
  server.drop();
  co_await server.join();
}

MetricsListener::MetricsListener(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

MetricsListener::~MetricsListener() { impl_->io.wait(impl_->stop()); }

Result<std::unique_ptr<MetricsListener>> MetricsListener::start(MetricsOptions options,
                                                                metrics::Registry& registry) {
  auto impl = std::make_unique<Impl>(std::move(options), registry);
  auto bound = impl->server.listen(impl->options.endpoint);
  if (!bound.ok()) return std::move(bound).error().with_context("--metrics.listen");
  impl->bound = std::move(bound).value();
  boost::asio::post(impl->io.context(), [&server = impl->server] { server.start(); });
  return std::unique_ptr<MetricsListener>(new MetricsListener(std::move(impl)));
}

Endpoint MetricsListener::endpoint() const { return impl_->bound; }

}  // namespace centroid::transport
