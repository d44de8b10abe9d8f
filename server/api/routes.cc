#include "server/api/routes.h"

#include <exception>

#include <boost/asio/error.hpp>
#include <boost/system/system_error.hpp>

#include "common/base/log.h"
#include "common/base/version.h"
#include "server/api/handlers.h"
#include "server/api/problem.h"
#include "server/api/reply.h"

namespace centroid::server {

namespace {

Error unexplained() {
  return Error(ErrorCode::kInternal, "the server failed to answer; its log says why");
}

constexpr Route get(std::string_view path, Handler handler, Role role = Role::kViewer) {
  return {.method = "GET", .path = path, .handler = handler, .role = role};
}

/// A list that comes in pages.
constexpr Route list(std::string_view path, Handler handler, std::size_t limit = kMaxLimit,
                     std::string_view query = "limit cursor") {
  return {.method = "GET", .path = path, .handler = handler, .query = query, .limit = limit};
}

constexpr Route admin_list(std::string_view path, Handler handler) {
  return {.method = "GET",
          .path = path,
          .handler = handler,
          .role = Role::kAdmin,
          .query = "limit cursor",
          .limit = 100};
}

constexpr Route remove(std::string_view path, Handler handler) {
  return {.method = "DELETE", .path = path, .handler = handler, .role = Role::kAdmin};
}

constexpr Route post(std::string_view path, Handler handler, std::string_view body = {},
                     Span span = Span::kQuick) {
  return {.method = "POST",
          .path = path,
          .handler = handler,
          .role = Role::kAdmin,
          .body = body,
          .span = span};
}

}  // namespace

const std::vector<Route>& routes() {
  static const std::vector<Route> kRoutes = {
      get("/", get_index),
      get("/livez", get_livez, Role::kAnyone),
      get("/healthz", get_healthz, Role::kAnyone),
      get("/readyz", get_readyz, Role::kAnyone),
      get("/metrics", get_metrics),
      get("/version", get_version),
      get("/openapi.json", get_openapi),
      get("/v1/host", get_host),
      get("/v1/cluster", get_cluster),
      list("/v1/workers", get_workers),
      get("/v1/workers/{id}", get_worker),
      post("/v1/workers/{id}:drain", post_drain),
      post("/v1/workers/{id}:evict", post_evict, "seconds why"),
      post("/v1/workers/{id}:measure", post_measure, "to"),
      list("/v1/evictions", get_evictions),
      remove("/v1/evictions/{name}", delete_eviction),
      list("/v1/servers", get_servers),
      post("/v1/servers/{name}:drain", post_drain_server),
      list("/v1/rounds", get_rounds, kDefaultRounds),
      list("/v1/epochs", get_epochs, kDefaultEpochs),
      {.method = "GET", .path = "/v1/curves", .handler = get_curves, .query = "after"},
      list("/v1/waits", get_waits),
      list("/v1/events", get_events, 100, "limit cursor since type"),
      {.method = "GET", .path = "/v1/trace", .handler = get_trace, .query = "seconds format"},
      {.method = "GET", .path = "/v1/scale", .handler = get_scale, .query = "efficiency"},
      post("/v1/scale", post_scale, "workers why"),
      list("/v1/parameters", get_parameters),
      get("/v1/parameters/{name}", get_parameter),
      get("/v1/model.svg", get_model_picture),
      get("/v1/config", get_config),
      {.method = "PATCH",
       .path = "/v1/config",
       .handler = patch_config,
       .role = Role::kAdmin,
       .body = "*"},
      list("/v1/checkpoints", get_checkpoints),
      post("/v1/checkpoints", post_checkpoint, {}, Span::kCheckpoint),
      remove("/v1/checkpoints/{id}", delete_checkpoint),
      post("/v1/checkpoints/{id}:verify", post_verify, {}, Span::kCheckpoint),
      post("/v1/checkpoints/{id}:restore", post_restore, "delete_newer", Span::kCheckpoint),
      list("/v1/checkpoints/{id}/files", get_checkpoint_files),
      get("/v1/checkpoints/{id}/files/{file}", get_checkpoint_file, Role::kWorker),
      list("/v1/tables", get_tables),
      get("/v1/tables/{name}", get_table),
      admin_list("/v1/tokens", get_tokens),
      {.method = "POST",
       .path = "/v1/tokens",
       .handler = post_token,
       .role = Role::kAdmin,
       .body = "name role expires_seconds"},
      remove("/v1/tokens/{name}", delete_token),
      admin_list("/v1/audit", get_audit),
      post("/v1/job:pause", post_pause),
      post("/v1/job:resume", post_resume),
      post("/v1/job:stop", post_stop),
  };
  return kRoutes;
}

Reply get_index(Services, Call) {
  Json links = Json::object();
  for (const Route& route : routes()) {
    if (route.method != "GET" || route.path == "/" ||
        route.path.find('{') != std::string_view::npos)
      continue;
    links[std::string(route.path.substr(route.path.rfind('/') + 1))] = route.path;
  }
  Json out;
  out["name"] = "centroid-server";
  out["version"] = kVersion;
  out["links"] = std::move(links);
  co_return json_response(out);
}

Task<HttpResponse> run_call(Services services, Call call) {
  const std::string instance = call.instance;
  const Route& route = *call.route;
  std::optional<Error> error;
  try {
    auto result = co_await route.handler(services, std::move(call));
    if (result.ok()) co_return std::move(result).value();
    error = std::move(result).error();
  } catch (const boost::system::system_error& failure) {
    // How Asio unwinds a coroutine that was cancelled: by the deadline or by the server's stop.
    const bool is_cancelled = failure.code() == boost::asio::error::operation_aborted;
    if (!is_cancelled) log::error("api.call_threw", {{"path", instance}, {"what", failure.what()}});
    error = is_cancelled ? Error(ErrorCode::kCancelled, "the call was cancelled") : unexplained();
  } catch (const std::exception& failure) {
    log::error("api.call_threw", {{"path", instance}, {"what", failure.what()}});
    error = unexplained();
  }
  co_return make_problem(*error, instance);
}

}  // namespace centroid::server
