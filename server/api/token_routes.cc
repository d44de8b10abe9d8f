#include <cmath>

#include "common/base/log.h"
#include "server/api/audit_log.h"
#include "server/api/reply.h"
#include "server/api/routes.h"
#include "server/api/when_free.h"
#include "server/tokens/token_store.h"

namespace centroid::server {

namespace {

struct Token {
  std::string name, role, created_by;
  double created_unix_seconds = 0;
  double expires_unix_seconds = 0;
  explicit Token(const TokenInfo& info)
      : name(info.name),
        role(to_string(info.role)),
        created_by(info.created_by),
        created_unix_seconds(info.created_unix_seconds),
        expires_unix_seconds(info.expires_unix_seconds) {}
  friend View<Token> describe(const Token*) {
    return {"Token", "A named token, without its secret.", fields<Token>()};
  }

  /// Of `V`, which is one.
  template <class V>
  static std::vector<Field<V>> fields() {
    return {{"name", &V::name, "Its name."},
            {"role", &V::role, "What it may.", one_of({"viewer", "worker", "admin"})},
            {"created_by", &V::created_by, "Name of the token that made it."},
            {"created_unix_seconds", &V::created_unix_seconds, "When."},
            {"expires_unix_seconds", null_if_zero(&V::expires_unix_seconds),
             "When it expires; null: when it is revoked."}};
  }
};

constexpr const char* kNotYetOn =
    "Shard servers that did not confirm within two seconds; the leader sends it again with their "
    "next report (`has_tokens` of GET /v1/servers).";

struct CreatedToken : Token {
  using Token::Token;
  std::string secret;
  std::vector<std::string> not_yet_on;
  friend View<CreatedToken> describe(const CreatedToken*) {
    using V = CreatedToken;
    return {
        "CreatedToken",
        "A named token with its secret, which is shown this once.",
        fields<V>(),
        {{"secret", &V::secret, "What to send as `Authorization: Bearer`, or a worker's `token`."},
         {"not_yet_on", &V::not_yet_on, kNotYetOn}}};
  }
};

struct TokenAction {
  std::string action = "revoke", name;
  std::vector<std::string> not_yet_on;
  friend View<TokenAction> describe(const TokenAction*) {
    using V = TokenAction;
    return {"TokenAction",
            "What was done with a token.",
            {{"action", &V::action, "It is deleted.", one_of({"revoke"})},
             {"name", &V::name, "Its name."},
             {"not_yet_on", &V::not_yet_on, kNotYetOn}}};
  }
};

struct NewToken {
  std::string name, role;
  double expires_seconds = 0;
  friend View<NewToken> describe(const NewToken*) {
    using V = NewToken;
    return {"NewToken",
            "What a token is to be.",
            {{"name",
              &V::name,
              "Letters, digits, '.', '-' and '_'.",
              {{"minLength", 1}, {"maxLength", 64}}},
             {"role", &V::role,
              "viewer reads; worker reads and joins the cluster; admin may everything.",
              one_of({"viewer", "worker", "admin"})},
             optional("expires_seconds", &V::expires_seconds,
                      "How long it is valid; 0 or absent: until it is revoked.",
                      between(0, 315360000))}};
  }
};

Reply list_tokens(Services services, Call call) {
  std::vector<Token> tokens;
  for (const TokenInfo& info : services.tokens.list()) tokens.emplace_back(info);
  co_return list_page(call, tokens, position_in(tokens));
}

Reply create_token(Services services, Call call) {
  CENTROID_CO_ASSIGN(const NewToken asked, body_of<NewToken>(call));
  const Role role = *parse_role(asked.role);
  const auto lifetime =
      std::chrono::seconds(static_cast<std::int64_t>(std::ceil(asked.expires_seconds)));
  std::function<Result<TokenStore::Created>()> create =
      [&tokens = services.tokens, name = asked.name, role, lifetime, by = call.caller.name] {
        return tokens.create(name, role, lifetime, by);
      };
  CENTROID_CO_ASSIGN(const auto created, co_await when_free(services.blocking, std::move(create)));
  CreatedToken token(created.info);
  token.secret = created.secret;
  token.not_yet_on = co_await services.control.share_tokens();
  co_return view_response(token, 201);
}

Reply revoke_token(Services services, Call call) {
  const std::string name = call.value("name");
  std::function<Status()> revoke = [&tokens = services.tokens, name] {
    return tokens.revoke(name);
  };
  CENTROID_CO_TRY(co_await when_free(services.blocking, std::move(revoke)));
  TokenAction done;
  done.name = name;
  done.not_yet_on = co_await services.control.share_tokens();
  co_return view_response(done);
}

Reply list_audit(Services services, Call call) {
  // Writing a line holds its mutex during the disk operation.
  auto read = [&audit = services.audit] {
    if (const Status seen = audit.refresh(); !seen.ok())
      log::error("audit.read_failed", {{"error", seen.error()}});
    return audit.newest_first();
  };
  const std::vector<AuditEntry> entries = co_await run_on(services.blocking, std::move(read));
  const auto key = [](const AuditEntry& entry) { return ListKey(entry.number, 0); };
  co_return list_page(call, entries, key, true);
}

}  // namespace

std::vector<Route> token_routes() {
  return {
      {.path = "/v1/tokens",
       .id = "list_tokens",
       .handler = list_tokens,
       .role = Role::kAdmin,
       .summary = "Named tokens, without their secrets",
       .answer = page<Token>("tokens", "The tokens.", "TokenList",
                             "Tokens by name, those that have expired too."),
       .limit = 100},
      {.method = "POST",
       .path = "/v1/tokens",
       .id = "create_token",
       .handler = create_token,
       .summary = "Make a token",
       .description = "The secret is in this answer only.",
       .body = view_of<NewToken>(),
       .answer = answer<CreatedToken>("The token with its secret, which is shown this once.", 201)},
      {.method = "DELETE",
       .path = "/v1/tokens/{name}",
       .id = "revoke_token",
       .handler = revoke_token,
       .summary = "Revoke a token",
       .parameters = {path_part("name", "Name of the token.")},
       .answer = answer<TokenAction>("It is revoked.")},
      {.path = "/v1/audit",
       .id = "list_audit",
       .handler = list_audit,
       .role = Role::kAdmin,
       .summary = "The requested changes and their callers, newest first",
       .description =
           "The newest 1000 changes and refused requests each; the files audit.jsonl and "
           "audit-refused.jsonl in run_dir have more.",
       .answer =
           page<AuditEntry>("entries", "The newest 1000 changes and refused requests in pages.",
                            "AuditList", "Changes, newest first."),
       .limit = 100},
  };
}

}  // namespace centroid::server
