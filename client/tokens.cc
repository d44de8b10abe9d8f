#include <algorithm>
#include <cstdio>

#include "client/online.h"

/// tokens and audit: permissions, and who used them.
namespace centroid::client {

namespace {

int list_tokens(const Session& session) {
  const auto tokens = get_list(session, "/v1/tokens", "tokens");
  if (!tokens.ok()) return complain(tokens.error());
  std::vector<std::vector<std::string>> rows;
  for (const Json& one : *tokens)
    rows.push_back({text_of(one, "name"), text_of(one, "role"),
                    time_text(number_of(one, "created_unix_seconds"), "-"),
                    time_text(number_of(one, "expires_unix_seconds"), "never"),
                    text_of(one, "created_by")});
  return print(session, *tokens, table({"name", "role", "created", "expires", "by"}, rows));
}

/// Shard servers that do not have a change yet.
void warn_of_unaware(const Json& answer) {
  std::string names;
  for (const Json& one : answer.value("not_yet_on", Json::array()))
    names.append(names.empty() ? "" : ", ").append(one.get<std::string>());
  if (!names.empty())
    std::fprintf(stderr,
                 "not effective yet on %s, which did not answer; the leader sends it again: "
                 "`centroidctl servers --json`, has_tokens\n",
                 names.c_str());
}

int create_token(const Session& session, const std::string& name, const std::string& role,
                 double hours) {
  Json body;
  body["name"] = name;
  body["role"] = role;
  if (hours > 0) body["expires_seconds"] = hours * 3600;
  const auto answer = send_json(session, "POST", "/v1/tokens", body);
  if (!answer.ok()) return complain(answer.error());
  print(session, *answer, text_of(*answer, "secret"));
  warn_of_unaware(*answer);
  return kExitDone;
}

int revoke_token(const Session& session, const std::string& name) {
  const auto answer = send_json(session, "DELETE", "/v1/tokens/" + path_part(name));
  if (!answer.ok()) return complain(answer.error());
  print(session, *answer, name + " is revoked");
  warn_of_unaware(*answer);
  return kExitDone;
}

int show_audit(const Session& session, std::size_t limit) {
  const auto entries = get_list(session, "/v1/audit", "entries", limit);
  if (!entries.ok()) return complain(entries.error());
  const auto has_server = [](const Json& one) { return !text_of(one, "server").empty(); };
  const bool is_of_several = std::any_of(entries->begin(), entries->end(), has_server);
  std::vector<std::string> head{"when",   "caller", "role",   "from",
                                "method", "path",   "status", "outcome"};
  if (is_of_several) head.emplace_back("server");
  std::vector<std::vector<std::string>> rows;
  for (const Json& one : *entries) {
    rows.push_back({time_text(number_of(one, "unix_seconds"), "-"), text_of(one, "caller"),
                    text_of(one, "role"), text_of(one, "address"), text_of(one, "method"),
                    text_of(one, "path"), text_of(one, "status"), text_of(one, "outcome")});
    if (is_of_several) rows.back().push_back(text_of(one, "server"));
  }
  return print(session, *entries, table(std::move(head), rows));
}

}  // namespace

void add_tokens(CLI::App& app, std::shared_ptr<Session> session, int& status) {
  CLI::App* const tokens = app.add_subcommand("tokens", "Manage named tokens and their roles.");
  tokens->require_subcommand(1);
  tokens->add_subcommand("list", "Every token, without its secret.")->callback([=, &status] {
    status = list_tokens(*session);
  });
  CLI::App* const create =
      tokens->add_subcommand("create", "Make one; its secret is printed, this once.");
  const auto name = std::make_shared<std::string>(), role = std::make_shared<std::string>("viewer");
  const auto hours = std::make_shared<double>(0);
  create->add_option("NAME", *name, "what it is called in the audit log")->required();
  create->add_option("--role", *role, "viewer reads, worker joins too, admin may everything")
      ->check(CLI::IsMember({"viewer", "worker", "admin"}))
      ->capture_default_str();
  create->add_option("--hours", *hours, "how long it is valid; 0: until it is revoked")
      ->check(CLI::NonNegativeNumber);
  create->callback([=, &status] { status = create_token(*session, *name, *role, *hours); });
  CLI::App* const revoke = tokens->add_subcommand("revoke", "Revoke a token.");
  const auto revoked = std::make_shared<std::string>();
  revoke->add_option("NAME", *revoked, "its name")->required();
  revoke->callback([=, &status] { status = revoke_token(*session, *revoked); });

  CLI::App* const audit =
      app.add_subcommand("audit", "List the requested changes and their callers, newest first.");
  const auto limit = std::make_shared<std::size_t>(50);
  audit->add_option("-n,--limit", *limit, "how many")->capture_default_str();
  audit->callback([=, &status] { status = show_audit(*session, *limit); });
}

}  // namespace centroid::client
