#include <charconv>

#include "common/base/trace_report.h"
#include "common/base/version.h"
#include "server/api/handlers.h"
#include "server/api/openapi.h"
#include "server/api/reply.h"

namespace centroid::server {

namespace {
constexpr std::uint64_t kTraceSeconds = 10, kMaxTraceSeconds = 60;

/// Set while this lives.
class Flag {
 public:
  explicit Flag(bool& flag) : flag_(flag) { flag_ = true; }
  ~Flag() { flag_ = false; }
  Flag(const Flag&) = delete;
  Flag& operator=(const Flag&) = delete;

 private:
  bool& flag_;
};
}  // namespace

Reply get_livez(Services services, Call) {
  CENTROID_CO_TRY(services.pulse.look());
  Json out;
  out["status"] = "ok";
  co_return json_response(out);
}

Reply get_healthz(Services, Call) {
  Json out;
  out["status"] = "ok";
  co_return json_response(out);
}

Reply get_readyz(Services services, Call) {
  CENTROID_CO_TRY(co_await services.control.is_ready());
  Json out;
  out["status"] = "ready";
  co_return json_response(out);
}

Reply get_metrics(Services services, Call) {
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = services.registry.serialize();
  co_return response;
}

Reply get_trace(Services services, Call call) {
  std::uint64_t seconds = kTraceSeconds;
  if (const std::string* text = call.parameter("seconds")) {
    const auto [end, failed] = std::from_chars(text->data(), text->data() + text->size(), seconds);
    if (failed != std::errc() || end != text->data() + text->size() || seconds < 1 ||
        seconds > kMaxTraceSeconds)
      co_return Error(ErrorCode::kInvalidArgument, "query parameter 'seconds': expected 1.." +
                                                       std::to_string(kMaxTraceSeconds) +
                                                       ", got '" + *text + "'");
  }
  const std::string* const given = call.parameter("format");
  const std::string format = given != nullptr ? *given : "json";
  // Millions of characters: not on the thread that answers the others, and one at a time.
  if (services.is_tracing)
    co_return Error(ErrorCode::kResourceExhausted,
                    "another trace is being written: repeat in a second");
  const Flag flag(services.is_tracing);
  auto write = [seconds, format] { return trace::export_as(format, static_cast<double>(seconds)); };
  auto made = co_await run_on(services.blocking, std::move(write));
  if (!made)
    co_return Error(ErrorCode::kInvalidArgument,
                    "query parameter 'format': expected json, csv or html, got '" + format + "'");
  HttpResponse response;
  response.content_type = made->content_type;
  response.body = std::move(made->text);
  if (format == "html") response.fields.emplace_back("Content-Security-Policy", trace::kPagePolicy);
  co_return response;
}

Reply get_version(Services, Call) {
  Json out;
  out["name"] = "centroid-server";
  out["version"] = kVersion;
  out["api"] = "v1";
  co_return json_response(out);
}

Reply get_openapi(Services, Call) {
  HttpResponse response;
  response.text = openapi_document();
  co_return response;
}

}  // namespace centroid::server
