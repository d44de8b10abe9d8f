#include "server/api/access.h"

#include <algorithm>
#include <utility>

#include "server/api/problem.h"

namespace centroid::server {

namespace {

/// source  RFC 9110, section 9.2.1
bool is_safe(const HttpRequest& request) {
  return request.method == "GET" || request.method == "HEAD" || request.method == "OPTIONS";
}

}  // namespace

bool is_same_secret(std::string_view expected, std::string_view given) {
  volatile unsigned difference = expected.size() == given.size() ? 0 : 1;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const unsigned char other = i < given.size() ? static_cast<unsigned char>(given[i]) : 0;
    difference = difference | (static_cast<unsigned char>(expected[i]) ^ other);
  }
  return difference == 0;
}

std::string host_name(std::string_view text) {
  std::string_view host;
  std::string_view rest;
  if (text.starts_with('[')) {
    const auto end = text.find(']');
    if (end == std::string_view::npos) return {};
    host = text.substr(1, end - 1);
    rest = text.substr(end + 1);
  } else {
    const auto colon = text.find(':');
    host = text.substr(0, colon);
    rest = colon == std::string_view::npos ? std::string_view() : text.substr(colon);
  }
  const bool has_port = !rest.empty();
  if (has_port && (rest[0] != ':' || rest.size() > 6)) return {};
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (has_port && !std::all_of(rest.begin() + 1, rest.end(), is_digit)) return {};
  return to_lower(host);
}

std::optional<HttpResponse> check_origin(const AccessPolicy& policy, const HttpRequest& request,
                                         std::string_view authority, std::string_view instance) {
  const std::string* sent = request.field("host");  // one at most: transport/http/http_exchange.cc
  std::string host(authority);
  if (host.empty() && sent != nullptr) host = *sent;
  if (policy.is_loopback && !host.empty()) {
    const std::string name = host_name(host);
    if (name != "localhost" && name != "127.0.0.1" && name != "::1" &&
        name != to_lower(policy.host))
      return make_problem(421, ErrorCode::kFailedPrecondition,
                          "this server listens on loopback and does not answer for host '" + host +
                              "'; use localhost or 127.0.0.1",
                          instance);
  }
  const std::string* origin = request.field("origin");
  if (origin == nullptr || is_safe(request)) return std::nullopt;
  const std::string own_host = to_lower(host);
  const std::string got = to_lower(*origin);
  if (got != "http://" + own_host && got != "https://" + own_host)
    return make_problem(403, ErrorCode::kFailedPrecondition,
                        "refused: the request comes from a page of origin '" + *origin + "'",
                        instance);
  return std::nullopt;
}

Identity identify(const AccessPolicy& policy, const HttpRequest& request,
                  std::string_view instance) {
  Identity out;
  constexpr std::string_view kScheme = "bearer ";
  const std::string* sent = request.field("authorization");
  const bool is_bearer =
      sent != nullptr && to_lower(std::string_view(*sent).substr(0, kScheme.size())) == kScheme;
  if (is_bearer) {
    std::string_view given = std::string_view(*sent).substr(kScheme.size());
    while (given.starts_with(' ')) given.remove_prefix(1);
    if (!policy.token.empty() && is_same_secret(policy.token, given))
      out.caller = {"api.token", Role::kAdmin};
    else if (!policy.viewer_token.empty() && is_same_secret(policy.viewer_token, given))
      out.caller = {"api.viewer_token", Role::kViewer};
    else if (policy.tokens != nullptr)
      if (const auto named = policy.tokens->find(given)) out.caller = {named->name, named->role};
    if (out.caller.role != Role::kAnyone) return out;
  }
  if (policy.token.empty()) {
    out.caller = {"local", Role::kAdmin};
    return out;
  }
  out.problem = make_problem(401, ErrorCode::kFailedPrecondition,
                             is_bearer ? "the bearer token is not the server's, or has expired"
                                       : "expected the field 'Authorization: Bearer <token>'",
                             instance);
  out.problem->fields.emplace_back("WWW-Authenticate",
                                   is_bearer ? "Bearer realm=\"centroid\", error=\"invalid_token\""
                                             : "Bearer realm=\"centroid\"");
  return out;
}

std::optional<HttpResponse> check_role(const Caller& caller, Role needed,
                                       std::string_view instance) {
  if (caller.role >= needed) return std::nullopt;
  return make_problem(403, ErrorCode::kFailedPrecondition,
                      "refused: this needs the role " + std::string(to_string(needed)) +
                          ", the token '" + caller.name + "' has " +
                          std::string(to_string(caller.role)) +
                          ": request one from an admin (centroidctl tokens create NAME --role " +
                          std::string(to_string(needed)) + ")",
                      instance);
}

}  // namespace centroid::server
