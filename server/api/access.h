#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/api/http.h"
#include "server/tokens/token_store.h"

namespace centroid::server {

/// The caller: the name of the token, not the token.
struct Caller {
  std::string name;
  Role role = Role::kAnyone;
};

/// Access rules. Pure; applied before a request is routed.
struct AccessPolicy {
  std::string token;                   ///< may do everything; empty: no token is required
  std::string viewer_token;            ///< may read; empty: there is none
  bool is_loopback = true;             ///< then the Host field is checked
  std::string host = "127.0.0.1";      ///< bound address or name, accepted in Host
  const TokenStore* tokens = nullptr;  ///< named ones; may be missing
};

/// Compare in time that depends on the length of `expected` only.
bool is_same_secret(std::string_view expected, std::string_view given);

/// Host without port and brackets, lower case; empty when malformed.
std::string host_name(std::string_view host_and_port);

/// 400 or 421 for a Host that is missing, duplicate or, on loopback, foreign (DNS rebinding); 403
/// for an unsafe method sent by a page of another origin. `authority` is that of an absolute
/// target, or empty.
std::optional<HttpResponse> check_origin(const AccessPolicy& policy, const HttpRequest& request,
                                         std::string_view authority, std::string_view instance);

/// The owner of the request's token; a problem (401) without a token or with an unknown one.
/// source  RFC 6750, sections 2.1 and 3
struct Identity {
  Caller caller;
  std::optional<HttpResponse> problem;
};
Identity identify(const AccessPolicy& policy, const HttpRequest& request,
                  std::string_view instance);

/// 403 if the caller's role is below `needed`.
std::optional<HttpResponse> check_role(const Caller& caller, Role needed,
                                       std::string_view instance);

}  // namespace centroid::server
