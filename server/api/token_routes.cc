#include <cmath>

#include "common/base/log.h"
#include "server/api/audit_log.h"
#include "server/api/handlers.h"
#include "server/api/reply.h"
#include "server/api/when_free.h"
#include "server/tokens/token_store.h"

namespace centroid::server {

namespace {

Json to_json_object(const TokenInfo& info) {
  Json out;
  out["name"] = info.name;
  out["role"] = to_string(info.role);
  out["created_by"] = info.created_by;
  out["created_unix_seconds"] = info.created_unix_seconds;
  out["expires_unix_seconds"] =
      info.expires_unix_seconds == 0 ? Json() : Json(info.expires_unix_seconds);
  return out;
}

Json to_json_object(const AuditEntry& entry) {
  Json out;
  out["number"] = entry.number;
  out["unix_seconds"] = entry.unix_seconds;
  out["who"] = entry.who;
  out["role"] = entry.role;
  out["address"] = entry.address;
  out["method"] = entry.method;
  out["path"] = entry.path;
  out["body"] = entry.body;
  out["request_id"] = entry.request_id;
  out["status"] = entry.status;
  out["outcome"] = entry.outcome;
  out["server"] = entry.server;
  return out;
}

constexpr double kLongest = 10 * 365 * 86400.0;

}  // namespace

Reply get_tokens(Services services, Call call) {
  CENTROID_CO_ASSIGN(const auto cursor, cursor_of(call));
  const std::vector<TokenInfo> all = services.tokens.list();
  const std::size_t begin = cursor ? std::min<std::size_t>(cursor->first, all.size()) : 0;
  const std::size_t end = std::min(all.size(), begin + call.limit);
  Json list = Json::array();
  for (std::size_t i = begin; i < end; ++i) list.push_back(to_json_object(all[i]));
  Json out;
  out["tokens"] = std::move(list);
  out["next"] = end < all.size() ? Json(next_link(call, std::to_string(end))) : Json();
  co_return json_response(out);
}

Reply post_token(Services services, Call call) {
  const Body body(call);
  CENTROID_CO_ASSIGN(const std::string name, body.text("name"));
  CENTROID_CO_ASSIGN(const std::string role_text, body.text("role"));
  CENTROID_CO_ASSIGN(const double seconds, body.number("expires_seconds", 0, 0, kLongest));
  const auto role = parse_role(role_text);
  if (!role)
    co_return Error(ErrorCode::kInvalidArgument,
                    "role: expected viewer, worker or admin, got '" + role_text + "'");
  const auto lifetime = std::chrono::seconds(static_cast<std::int64_t>(std::ceil(seconds)));
  std::function<Result<TokenStore::Created>()> create =
      [&tokens = services.tokens, name, role = *role, lifetime, by = call.caller.name] {
        return tokens.create(name, role, lifetime, by);
      };
  auto created = co_await when_free(services.blocking, std::move(create));
  if (!created->ok()) co_return created->error();
  const auto unaware = co_await services.control.share_tokens();
  Json out = to_json_object((*created)->info);
  out["secret"] = (*created)->secret;
  out["not_yet_on"] = unaware;
  co_return json_response(out, 201);
}

Reply delete_token(Services services, Call call) {
  const std::string name = call.value("name");
  std::function<Status()> revoke = [&tokens = services.tokens, name] {
    return tokens.revoke(name);
  };
  const auto revoked = co_await when_free(services.blocking, std::move(revoke));
  CENTROID_CO_TRY(*revoked);
  const auto unaware = co_await services.control.share_tokens();
  Json out;
  out["action"] = "revoke";
  out["name"] = name;
  out["not_yet_on"] = unaware;
  co_return json_response(out);
}

Reply get_audit(Services services, Call call) {
  // Who writes a line holds its mutex while the disk does.
  auto read = [&audit = services.audit] {
    if (const Status seen = audit.refresh(); !seen.ok())
      log::error("audit.not_followed", {{"error", seen.error()}});
    return audit.newest_first();
  };
  const std::vector<AuditEntry> entries = co_await run_on(services.blocking, std::move(read));
  const auto key = [](const AuditEntry& entry) { return ListKey(entry.number, 0); };
  const auto shown = [](const AuditEntry& entry) { return to_json_object(entry); };
  co_return list_page(call, "entries", entries, key, true, shown);
}

}  // namespace centroid::server
