#include <charconv>

#include <nlohmann/json.hpp>

#include "server/api/console.h"
#include "server/api/problem.h"
#include "server/api/routes.h"
#include "server/api/target.h"

namespace centroid::server {

namespace {

/// Does the path fit the route? What stands for {id} goes to `id`. A plain {id} has no ':', which
/// begins a verb.
bool fits(std::string_view path, const std::vector<std::string>& segments, std::string& id) {
  std::size_t at = 0;
  if (path == "/") return segments.empty();
  for (path.remove_prefix(1);; ++at) {
    const auto slash = path.find('/');
    const std::string_view wanted = path.substr(0, slash);
    if (at == segments.size()) return false;
    std::string_view given = segments[at];
    if (wanted.starts_with("{id}")) {
      const std::string_view verb = wanted.substr(4);
      if (!given.ends_with(verb)) return false;
      given.remove_suffix(verb.size());
      if (given.empty() || given.find(':') != std::string_view::npos) return false;
      id = given;
    } else if (given != wanted) {
      return false;
    }
    if (slash == std::string_view::npos) return at + 1 == segments.size();
    path.remove_prefix(slash + 1);
  }
}

template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Error bad(std::string message) { return Error(ErrorCode::kInvalidArgument, std::move(message)); }

Status read_query(const Target& target, Call& call) {
  call.limit = kDefaultRounds;
  bool has_limit = false;
  for (const auto& [name, value] : target.query) {
    if (!call.route->has_limit || name != "limit")
      return bad("unknown query parameter '" + name + "'" +
                 (call.route->has_limit ? "; known: limit" : "; none is known here"));
    if (has_limit) return bad("query parameter 'limit' stands twice");
    has_limit = true;
    const auto limit = parse_number<std::size_t>(value);
    if (!limit || *limit < 1 || *limit > kMaxRounds)
      return bad("query parameter 'limit': expected 1.." + std::to_string(kMaxRounds) + ", got '" +
                 value + "'");
    call.limit = *limit;
  }
  return {};
}

/// No route takes members in its body; an empty body or an empty JSON object is right.
std::optional<HttpResponse> check_body(const HttpRequest& request, std::string_view instance) {
  const auto refuse = [instance](unsigned status, std::string_view detail) {
    return make_problem(status, ErrorCode::kInvalidArgument, detail, instance);
  };
  if (request.body.empty()) return std::nullopt;
  if (request.method != "POST") return refuse(400, request.method + " takes no body");
  if (request.field("content-encoding") != nullptr)
    return refuse(415, "expected a body without content encoding");
  const std::string* type = request.field("content-type");
  std::string media = type == nullptr ? "" : to_lower(type->substr(0, type->find(';')));
  while (media.ends_with(' ') || media.ends_with('\t')) media.pop_back();
  if (media != "application/json") {
    auto response =
        refuse(415, "expected no body or Content-Type application/json, got '" + media + "'");
    response.fields.emplace_back("Accept-Post", "application/json");
    return response;
  }
  const auto json = nlohmann::json::parse(request.body, nullptr, false);
  if (json.is_discarded()) return refuse(400, "the body is not JSON");
  if (!json.is_object())
    return refuse(400, "expected a JSON object, got " + std::string(json.type_name()));
  if (!json.empty()) return refuse(400, "unknown field '" + json.begin().key() + "' in the body");
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
  const Route* route = nullptr;  ///< of the wanted method, else any of the path
  bool has_method = false;
  std::string allow;
  std::string id;
};

Match find_route(const Target& target, std::string_view method) {
  Match match;
  for (const Route& route : routes()) {
    std::string id;
    if (target.path == "*" || !fits(route.path, target.segments, id)) continue;
    match.allow += std::string(route.method) + (route.method == "GET" ? ", HEAD, " : ", ");
    const bool is_it = route.method == method;
    if (is_it || match.route == nullptr) match.route = &route;
    match.has_method = match.has_method || is_it;
    match.id = std::move(id);
  }
  match.allow += "OPTIONS";
  return match;
}

}  // namespace

Admission admit(const AccessPolicy& policy, const HttpRequest& request) {
  Admission out;
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
  if (match.route == nullptr || match.route->access == Access::kToken)
    out.response = check_token(policy, request, path);
  out.route = match.route;
  if (out.response) return out;

  if (target->path == "*" && request.method == "OPTIONS") {
    out.response = options_response("GET, HEAD, POST, OPTIONS");
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
  call.instance = path;
  if (const Status status = read_query(*target, call); !status.ok()) {
    out.response = make_problem(status.error(), path);
    return out;
  }
  out.response = check_body(request, path);
  if (out.response) return out;
  if (!match.id.empty()) {
    const auto member = parse_number<std::uint64_t>(match.id);
    if (!member) {
      out.response =
          make_problem(bad("id: expected a member number, got '" + match.id + "'"), path);
      return out;
    }
    call.member = *member;
  }
  out.call = std::move(call);
  return out;
}

}  // namespace centroid::server
