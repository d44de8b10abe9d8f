#include "server/api/routes.h"

#include <algorithm>
#include <exception>

#include <boost/asio/error.hpp>
#include <boost/system/system_error.hpp>
#include <nlohmann/json.hpp>

#include "common/base/log.h"
#include "common/base/version.h"
#include "server/api/openapi.h"
#include "server/api/problem.h"
#include "server/api/view_json.h"

namespace centroid::server {

namespace {

using Json = nlohmann::ordered_json;
using Reply = Task<Result<HttpResponse>>;

HttpResponse json_response(const Json& value, unsigned status = 200) {
  HttpResponse response;
  response.status = status;
  response.body = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return response;
}

template <class View>
HttpResponse list_response(const char* name, const std::vector<View>& views) {
  Json list = Json::array();
  for (const View& view : views) list.push_back(to_json_object(view));
  Json out;
  out[name] = std::move(list);
  return json_response(out);
}

/// 202: asked for, and done soon; the cluster's or worker's state tells when.
HttpResponse accepted(const char* action) {
  Json out;
  out["action"] = action;
  return json_response(out, 202);
}

Error unexplained() {
  return Error(ErrorCode::kInternal, "the server failed to answer; its log says why");
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

Reply get_healthz(Services, Call) {
  Json out;
  out["status"] = "ok";
  co_return json_response(out);
}

Reply get_readyz(Services services, Call) {
  const bool is_ready = co_await services.control.is_ready();
  if (!is_ready)
    co_return Error(ErrorCode::kUnavailable,
                    "not ready: the server is not initialised or takes no members now");
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

Reply get_version(Services, Call) {
  Json out;
  out["name"] = "centroid-server";
  out["version"] = kVersion;
  out["api"] = "v1";
  co_return json_response(out);
}

Reply get_openapi(Services, Call) {
  HttpResponse response;
  response.body = openapi_document();
  co_return response;
}

Reply get_cluster(Services services, Call) {
  const ClusterView view = co_await services.control.cluster();
  co_return json_response(to_json_object(view));
}

Reply get_workers(Services services, Call) {
  const auto views = co_await services.control.workers();
  co_return list_response("workers", views);
}

Reply get_worker(Services services, Call call) {
  const auto views = co_await services.control.workers();
  const auto is_wanted = [&call](const WorkerView& view) { return view.member == call.member; };
  const auto at = std::find_if(views.begin(), views.end(), is_wanted);
  if (at == views.end())
    co_return Error(ErrorCode::kNotFound,
                    "no worker with member number " + std::to_string(call.member));
  co_return json_response(to_json_object(*at));
}

Reply get_rounds(Services services, Call call) {
  const auto views = co_await services.control.rounds(call.limit);
  co_return list_response("rounds", views);
}

Reply get_waits(Services services, Call) {
  const auto views = co_await services.control.waits();
  co_return list_response("waits", views);
}

Reply get_config(Services services, Call) {
  HttpResponse response;
  response.body = services.control.config_json();
  co_return response;
}

Reply get_checkpoints(Services services, Call) {
  const auto views = co_await services.control.checkpoints();
  co_return list_response("checkpoints", views);
}

Reply post_checkpoint(Services services, Call) {
  CENTROID_CO_ASSIGN(const CheckpointView view, co_await services.control.make_checkpoint());
  co_return json_response(to_json_object(view), 201);
}

Reply post_drain(Services services, Call call) {
  CENTROID_CO_TRY(co_await services.control.drain(call.member));
  Json out;
  out["action"] = "drain";
  out["member"] = call.member;
  co_return json_response(out, 202);
}

Reply post_pause(Services services, Call) {
  CENTROID_CO_TRY(co_await services.control.pause());
  co_return accepted("pause");
}

Reply post_resume(Services services, Call) {
  CENTROID_CO_TRY(co_await services.control.resume());
  co_return accepted("resume");
}

Reply post_stop(Services services, Call) {
  CENTROID_CO_TRY(co_await services.control.stop());
  co_return accepted("stop");
}

}  // namespace

const std::vector<Route>& routes() {
  static const std::vector<Route> kRoutes = {
      {"GET", "/", get_index},
      {"GET", "/healthz", get_healthz, Access::kPublic},
      {"GET", "/readyz", get_readyz, Access::kPublic},
      {"GET", "/metrics", get_metrics},
      {"GET", "/version", get_version},
      {"GET", "/openapi.json", get_openapi},
      {"GET", "/v1/cluster", get_cluster},
      {"GET", "/v1/workers", get_workers},
      {"GET", "/v1/workers/{id}", get_worker},
      {"POST", "/v1/workers/{id}:drain", post_drain},
      {"GET", "/v1/rounds", get_rounds, Access::kToken, Span::kQuick, true},
      {"GET", "/v1/waits", get_waits},
      {"GET", "/v1/config", get_config},
      {"GET", "/v1/checkpoints", get_checkpoints},
      {"POST", "/v1/checkpoints", post_checkpoint, Access::kToken, Span::kCheckpoint},
      {"POST", "/v1/job:pause", post_pause},
      {"POST", "/v1/job:resume", post_resume},
      {"POST", "/v1/job:stop", post_stop},
  };
  return kRoutes;
}

Task<HttpResponse> run_call(Services services, Call call) {
  const std::string instance = call.instance;
  const Route& route = *call.route;
  std::optional<Error> error;
  try {
    auto result = co_await route.handler(services, std::move(call));
    if (route.method != "GET") {
      const std::string outcome = result.ok() ? "ok" : result.error().to_string();
      log::info("api.action_requested", {{"path", instance}, {"outcome", outcome}});
    }
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
