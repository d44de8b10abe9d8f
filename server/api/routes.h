#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/async/task.h"
#include "common/base/metrics.h"
#include "server/api/access.h"
#include "server/api/http.h"
#include "server/api/view.h"

namespace centroid::server {

struct Route;

/// An admitted request: which route, with which arguments.
struct Call {
  const Route* route = nullptr;
  std::uint64_t member = 0;  ///< of {id}
  std::size_t limit = 0;     ///< of ?limit=
  std::string instance;      ///< the path as sent, for problems
};

/// What handlers work on.
struct Services {
  ControlPlane& control;
  metrics::Registry& registry;
};

enum class Access : std::uint8_t { kPublic, kToken };
enum class Span : std::uint8_t { kQuick, kCheckpoint };  ///< which deadline holds

/// One method of one path. In a path, "{id}" is a member's number; "{id}:verb" acts on it.
struct Route {
  std::string_view method;
  std::string_view path;
  Task<Result<HttpResponse>> (*handler)(Services services, Call call);
  Access access = Access::kToken;
  Span span = Span::kQuick;
  bool has_limit = false;  ///< takes ?limit=
};

/// Every route, in the order of docs/rest.md.
const std::vector<Route>& routes();

inline constexpr std::size_t kDefaultRounds = 50;
inline constexpr std::size_t kMaxRounds = 1000;

/// What is known of a request before anything runs: its answer, or the call that will give it.
struct Admission {
  const Route* route = nullptr;  ///< null: no such path
  std::optional<HttpResponse> response;
  std::optional<Call> call;
};

/// Decide host, token, path, method, query and body, in this order.
///
/// thread  any; pure
/// fails   as a problem response: 400, 401, 403, 404, 405, 415, 421
Admission admit(const AccessPolicy& policy, const HttpRequest& request);

/// Run an admitted call. Errors and exceptions become problems; the deadline is the caller's.
Task<HttpResponse> run_call(Services services, Call call);

}  // namespace centroid::server
