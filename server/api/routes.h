#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/api/route.h"

namespace centroid::server {

// Each in the file of its name.
std::vector<Route> server_routes();
std::vector<Route> config_routes();
std::vector<Route> cluster_routes();
std::vector<Route> worker_routes();
std::vector<Route> event_routes();
std::vector<Route> parameter_routes();
std::vector<Route> checkpoint_routes();
std::vector<Route> table_routes();
std::vector<Route> job_routes();
std::vector<Route> token_routes();

const std::vector<Family>& families();
/// Those of all families.
const std::vector<Route>& routes();

/// The OpenAPI 3.1 document of all routes and views.
const std::string& openapi_document();

/// The result of checking a request before anything runs: its answer, or the call that will produce
/// it.
struct CheckedRequest {
  const Route* route = nullptr;  ///< null: no such path
  Caller caller;                 ///< if the caller is known
  std::optional<HttpResponse> response;
  std::optional<Call> call;
};

/// Check host, token, path, method, query and body, in this order.
///
/// thread  any; pure
/// fails   as a problem response: 400, 401, 403, 404, 405, 415, 421
CheckedRequest admit(const AccessPolicy& policy, const HttpRequest& request);

/// Run an admitted call. Errors and exceptions become problems; the deadline is the caller's.
Task<HttpResponse> run_call(Services services, Call call);

}  // namespace centroid::server
