#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/async/pulse.h"
#include "common/async/task.h"
#include "common/base/metrics.h"
#include "server/api/call.h"
#include "server/api/view.h"

namespace centroid::server {

class AuditLog;
class EventFeed;

/// What of the machine concerns an operator.
struct HostFiles {
  std::string run_dir;                    ///< empty: none
  std::vector<std::string> certificates;  ///< PEM files that the server shows
};

/// What handlers work on.
struct Services {
  ControlPlane& control;
  metrics::Registry& registry;
  EventFeed& feed;
  TokenStore& tokens;
  AuditLog& audit;
  Executor blocking;  ///< where files may be waited for
  bool& is_tracing;   ///< a trace is being written
  Pulse& pulse;
  const HostFiles& files;
};

enum class Span : std::uint8_t { kQuick, kCheckpoint };  ///< which deadline holds

using Handler = Task<Result<HttpResponse>> (*)(Services services, Call call);

/// One method of one path. In a path, "{id}" is a number, any other "{...}" a name; "{id}:verb"
/// acts on it.
struct Route {
  std::string_view method;
  std::string_view path;
  Handler handler = nullptr;
  Role role = Role::kViewer;    ///< the least that may call it
  std::string_view query = {};  ///< known parameters, separated by spaces
  std::string_view body = {};   ///< known fields of a JSON body, separated by spaces
  Span span = Span::kQuick;
  std::size_t limit = 0;  ///< ?limit= when it is not given; 0: takes none
};

/// Every route, in the order of docs/reference/rest.md.
const std::vector<Route>& routes();

inline constexpr std::size_t kDefaultRounds = 50, kDefaultEpochs = 10;
inline constexpr std::size_t kMaxLimit = 1000;

/// Whether a word is one of those that are separated by spaces.
bool is_one_of(std::string_view words, std::string_view word);

/// What is known of a request before anything runs: its answer, or the call that will give it.
struct Admission {
  const Route* route = nullptr;  ///< null: no such path
  Caller caller;                 ///< when it is known who calls
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
