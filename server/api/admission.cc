#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string>

#include <nlohmann/json.hpp>

#include "server/api/console.h"
#include "server/api/problem.h"
#include "server/api/routes.h"
#include "server/api/target.h"

namespace centroid::server {

namespace {

using Values = std::vector<std::pair<std::string_view, std::string>>;

/// Whether the path fits the route. The parts for "{...}" are added to `values`. A number has no
/// ':', which begins a verb.
bool fits(std::string_view path, const std::vector<std::string>& segments, Values& values) {
  std::size_t at = 0;
  if (path == "/") return segments.empty();
  for (path.remove_prefix(1);; ++at) {
    const auto slash = path.find('/');
    const std::string_view pattern = path.substr(0, slash);
    if (at == segments.size()) return false;
    std::string_view given = segments[at];
    if (pattern.starts_with('{')) {
      const auto end = pattern.find('}');
      const std::string_view name = pattern.substr(1, end - 1), verb = pattern.substr(end + 1);
      if (!given.ends_with(verb)) return false;
      given.remove_suffix(verb.size());
      if (given.empty() || (name == "id" && given.find(':') != std::string_view::npos))
        return false;
      values.emplace_back(name, given);
    } else if (given != pattern) {
      return false;
    }
    if (slash == std::string_view::npos) return at + 1 == segments.size();
    path.remove_prefix(slash + 1);
  }
}

Error bad(std::string message) { return Error(ErrorCode::kInvalidArgument, std::move(message)); }

/// "; expected one of: a b c", or that none is expected.
std::string known_of(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names)
    text.append(text.empty() ? "; expected one of: " : " ").append(name);
  return text.empty() ? "; expected none" : text;
}

Status read_query(const Target& target, Call& call) {
  const Route& route = *call.route;
  call.limit = route.limit;
  for (const auto& [name, value] : target.query) {
    const Parameter* const declared = route.find_query(name);
    if (declared == nullptr) {
      std::vector<std::string> names;
      for (const Parameter& one : route.parameters)
        if (one.in == "query") names.push_back(one.name);
      return bad("unknown query parameter '" + name + "'" + known_of(names));
    }
    if (call.parameter(name) != nullptr) return bad("query parameter '" + name + "' appears twice");
    Json given = value;
    if (declared->schema["type"] != "string")
      if (Json number = Json::parse(value, nullptr, false); number.is_number()) given = number;
    CENTROID_TRY(check_value("query parameter '" + name + "'", given, declared->schema));
    call.query.emplace_back(name, value);
    if (name == "limit") call.limit = given.get<std::size_t>();
  }
  return {};
}

/// Faults of a body that show only while it is parsed.
struct BodyFaults {
  /// Printing or copying a value recurses: nested brackets would overflow the stack.
  static constexpr std::size_t kMaxDepth = 16;

  /// False: parse no further.
  bool see(std::size_t depth, nlohmann::json::parse_event_t event, const nlohmann::json& value) {
    is_deep = is_deep || depth > kMaxDepth;
    if (is_deep) return false;
    if (event == nlohmann::json::parse_event_t::object_start) names[depth + 1].clear();
    if (event != nlohmann::json::parse_event_t::key) return true;
    const bool is_new = names[depth].insert(value.get_ref<const std::string&>()).second;
    if (!is_new && !twice) twice = value.get<std::string>();
    return true;
  }

  bool is_deep = false;
  std::optional<std::string> twice;                        ///< the name of two fields of one object
  std::array<std::set<std::string>, kMaxDepth + 2> names;  ///< of the open object, by depth
};

/// An empty body, or a JSON object with fields of the route.
std::optional<HttpResponse> check_body(const Route& route, const HttpRequest& request,
                                       std::string_view instance) {
  const auto refuse = [instance](unsigned status, std::string_view detail) {
    return make_problem(status, ErrorCode::kInvalidArgument, detail, instance);
  };
  if (request.body.empty()) return std::nullopt;
  const bool is_patch = request.method == "PATCH";
  if (request.method != "POST" && !is_patch) return refuse(400, request.method + " takes no body");
  if (request.field("content-encoding") != nullptr)
    return refuse(415, "expected a body without content encoding");
  const std::string* type = request.field("content-type");
  std::string media = type == nullptr ? "" : to_lower(type->substr(0, type->find(';')));
  while (media.ends_with(' ') || media.ends_with('\t')) media.pop_back();
  if (media != "application/json") {
    auto response =
        refuse(415, "expected no body or Content-Type application/json, got '" + media + "'");
    response.fields.emplace_back(is_patch ? "Accept-Patch" : "Accept-Post", "application/json");
    return response;
  }
  BodyFaults faults;
  const auto watch = [&faults](int depth, nlohmann::json::parse_event_t event,
                               const nlohmann::json& value) {
    return faults.see(static_cast<std::size_t>(depth), event, value);
  };
  const auto json = nlohmann::json::parse(request.body, watch, false);
  if (faults.is_deep) return refuse(400, "the body is nested more than 16 deep");
  if (json.is_discarded()) return refuse(400, "the body is not JSON");
  if (faults.twice) return refuse(400, "field '" + *faults.twice + "' appears twice in the body");
  if (!json.is_object())
    return refuse(400, "expected a JSON object, got " + std::string(json.type_name()));
  Json declared = Json::object();
  if (!route.body.name.empty()) {
    if (route.body.json["additionalProperties"] == true) return std::nullopt;
    declared = route.body.json["properties"];
  }
  for (const auto& [name, value] : json.items())
    if (!declared.contains(name)) {
      std::vector<std::string> names;
      for (const auto& [one, schema] : declared.items()) names.push_back(one);
      return refuse(400, "unknown field '" + name + "' in the body" + known_of(names));
    }
  return std::nullopt;
}

HttpResponse options_response(std::string allow) {
  HttpResponse response;
  response.status = 204;
  response.content_type.clear();
  response.fields.emplace_back("Allow", std::move(allow));
  return response;
}

struct Match {
  const Route* route = nullptr;  ///< of the requested method, else any of the path
  bool has_method = false;
  std::string allow;
  Values values;
};

Match find_route(const Target& target, std::string_view method) {
  Match match;
  for (const Route& route : routes()) {
    Values values;
    if (target.path == "*" || !fits(route.path, target.segments, values)) continue;
    match.allow += std::string(route.method) + (route.method == "GET" ? ", HEAD, " : ", ");
    const bool is_it = route.method == method;
    if (is_it || match.route == nullptr) {
      match.route = &route;
      match.values = std::move(values);
    }
    match.has_method = match.has_method || is_it;
  }
  match.allow += "OPTIONS";
  return match;
}

/// The client's own X-Request-Id if it is fit for a log.
std::string request_id(const HttpRequest& request) {
  constexpr std::size_t kLongest = 64;
  const std::string* const sent = request.field("x-request-id");
  const auto is_right = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  const bool is_usable = sent != nullptr && !sent->empty() && sent->size() <= kLongest &&
                         std::all_of(sent->begin(), sent->end(), is_right);
  return is_usable ? *sent : std::string();
}

}  // namespace

CheckedRequest admit(const AccessPolicy& policy, const HttpRequest& request) {
  CheckedRequest out;
  const auto target = Target::parse(request.target);
  const std::string path = request.target.substr(0, request.target.find('?'));
  if (!target.ok()) {
    out.response = make_problem(target.error(), path);
    return out;
  }
  out.response = check_origin(policy, request, target->authority, path);
  if (out.response) return out;

  out.response = console_file(request, target->path);
  if (out.response) return out;

  const bool is_head = request.method == "HEAD";
  Match match = find_route(*target, is_head ? "GET" : std::string_view(request.method));
  const Role needed =
      match.route == nullptr || !match.has_method ? Role::kViewer : match.route->role;
  const bool is_open = match.route != nullptr && match.route->role == Role::kAnyone;
  Identity identity;
  if (!is_open) {
    identity = identify(policy, request, path);
    out.response = std::move(identity.problem);
    out.caller = identity.caller;
    if (!out.response) out.response = check_role(identity.caller, needed, path);
  }
  out.route = match.route;
  if (out.response) return out;

  if (target->path == "*" && request.method == "OPTIONS") {
    out.response = options_response("GET, HEAD, POST, PATCH, DELETE, OPTIONS");
  } else if (match.route == nullptr) {
    out.response =
        make_problem(404, ErrorCode::kNotFound, "no such path; / lists what there is", path);
  } else if (request.method == "OPTIONS") {
    out.response = options_response(match.allow);
  } else if (!match.has_method) {
    const std::string detail =
        "method " + request.method + " is not for this path; allowed: " + match.allow;
    out.response = make_problem(405, ErrorCode::kUnimplemented, detail, path);
    out.response->fields.emplace_back("Allow", match.allow);
  }
  if (out.response) return out;

  Call call;
  call.route = match.route;
  call.caller = std::move(identity.caller);
  call.instance = path;
  call.request_id = request_id(request);
  call.values = std::move(match.values);
  if (const Status status = read_query(*target, call); !status.ok()) {
    out.response = make_problem(status.error(), path);
    return out;
  }
  out.response = check_body(*match.route, request, path);
  if (out.response) return out;
  const std::string& id = call.value("id");
  if (!id.empty() && !parse_number<std::uint64_t>(id)) {
    out.response = make_problem(bad("id: expected a number, got '" + id + "'"), path);
    return out;
  }
  call.request = request;
  out.call = std::move(call);
  return out;
}

}  // namespace centroid::server
