#include "server/api/routes.h"

#include <exception>

#include <boost/asio/error.hpp>
#include <boost/system/system_error.hpp>

#include "common/base/log.h"
#include "common/base/version.h"
#include "server/api/openapi.h"
#include "server/api/problem.h"
#include "server/api/reply.h"

namespace centroid::server {

namespace {

Error unexplained() {
  return Error(ErrorCode::kInternal, "the server failed to answer; its log has the reason");
}

struct Index {
  std::string name = "centroid-server", version = kVersion;
  Json links = Json::object();
  friend View<Index> describe(const Index*) {
    using V = Index;
    return {"Index",
            "Where things are.",
            {{"name", &V::name, "Program.", one_of({"centroid-server"})},
             {"version", &V::version, "Its version."},
             {"links",
              &V::links,
              "Path by name.",
              {{"type", "object"}, {"additionalProperties", {{"type", "string"}}}}}}};
  }
};

Reply get_index(Services, Call) {
  Index index;
  for (const Route& route : routes()) {
    if (route.method != "GET" || route.path == "/" ||
        route.path.find('{') != std::string_view::npos)
      continue;
    index.links[std::string(route.path.substr(route.path.rfind('/') + 1))] = route.path;
  }
  co_return view_response(index);
}

Reply get_openapi(Services, Call) {
  HttpResponse response;
  response.text = openapi_document();
  co_return response;
}

/// Routes generated from all others.
std::vector<Route> index_routes() {
  return {
      {.path = "/",
       .id = "get_index",
       .handler = get_index,
       .summary = "Links to the other paths",
       .description = "A browser (`Accept: text/html`) gets the console, without a token.",
       .answer = answer<Index>("Links to the other paths.")},
      {.path = "/openapi.json",
       .id = "get_openapi",
       .handler = get_openapi,
       .summary = "This document",
       .answer = {.text = "OpenAPI 3.1."}},
  };
}

std::vector<Route> joined(std::vector<Route> routes, const std::vector<Route>& more) {
  routes.insert(routes.end(), more.begin(), more.end());
  return routes;
}

std::vector<Family> make_families() {
  std::vector<Family> families = {
      {"server", "The process.", joined(joined(index_routes(), server_routes()), config_routes())},
      {"cluster", "The state of the cluster.", cluster_routes()},
      {"workers", "Its workers.", worker_routes()},
      {"events", "What happened.", event_routes()},
      {"parameters", "What is trained.", parameter_routes()},
      {"checkpoints", "What is on disk.", checkpoint_routes()},
      {"tables", "Tables of sparse rows.", table_routes()},
      {"job", "The job's course.", job_routes()},
      {"access", "Tokens and the audit log.", token_routes()},
  };
  for (Family& family : families)
    for (Route& route : family.routes) {
      route.tag = family.tag;
      if (route.limit == 0) continue;
      route.parameters.push_back(
          query<std::size_t>("limit", "At most so many.", between(1, kMaxLimit), route.limit));
      route.parameters.push_back(query<std::string>(
          "cursor", "Position of the page: follow `next` of the previous page."));
    }
  return families;
}

}  // namespace

const std::vector<Family>& families() {
  static const std::vector<Family> kFamilies = make_families();
  return kFamilies;
}

const std::vector<Route>& routes() {
  static const std::vector<Route> kRoutes = [] {
    std::vector<Route> all;
    for (const Family& family : families()) all = joined(std::move(all), family.routes);
    return all;
  }();
  return kRoutes;
}

const std::string& openapi_document() {
  static const std::string kDocument = make_openapi(families());
  return kDocument;
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
    // Asio unwinds a cancelled coroutine this way: by the deadline or by the server's stop.
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
