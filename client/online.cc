#include "client/online.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>

namespace centroid::client {

Status Session::open() {
  CENTROID_ASSIGN(const std::string path, remote.set_address(address));
  if (!path.empty() && path != "/")
    return Error(ErrorCode::kInvalidArgument,
                 "--server " + address + ": expected no path behind the port");
  if (!token_file.empty()) {
    std::ifstream file(token_file);
    if (!std::getline(file, token))
      return Error(ErrorCode::kInvalidArgument, "--token-file " + token_file + " cannot be read");
    while (!token.empty() && (token.back() == '\r' || token.back() == ' ')) token.pop_back();
  }
  remote.token = token;
  remote.authority = authority;
  remote.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(1000 * timeout_seconds));
  style.is_json = output == "json";
  style.has_colour = !style.is_json && !without_colour && no_color.empty() && ::isatty(1) == 1;
  return {};
}

std::string explain(const Answer& answer) {
  const Json problem = Json::parse(answer.body, nullptr, false);
  std::string detail = problem.is_object() ? text_of(problem, "detail") : std::string();
  if (detail.empty()) detail = "status " + std::to_string(answer.status);
  if (answer.status == 401) detail += " (--token-file FILE, or CENTROIDCTL_TOKEN_FILE)";
  return detail;
}

namespace {

Result<Json> take_apart(const Session& session, const Answer& answer) {
  if (!answer.is_good())
    return Error(answer.status == 404 ? ErrorCode::kNotFound : ErrorCode::kFailedPrecondition,
                 explain(answer));
  Json value = Json::parse(answer.body, nullptr, false);
  if (value.is_discarded())
    return Error(ErrorCode::kDataLoss,
                 session.remote.to_string() + " answered with something that is no JSON");
  return value;
}

}  // namespace

Result<Json> get_json(const Session& session, const std::string& path) {
  CENTROID_ASSIGN(const Answer answer, ask(session.remote, "GET", path));
  return take_apart(session, answer);
}

Result<Json> post_json(const Session& session, const std::string& path) {
  CENTROID_ASSIGN(const Answer answer, ask(session.remote, "POST", path));
  return take_apart(session, answer);
}

Result<Json> send_json(const Session& session, const std::string& method, const std::string& path,
                       const Json& body) {
  CENTROID_ASSIGN(const Answer answer,
                  ask(session.remote, method, path, body.is_null() ? std::string() : body.dump()));
  return take_apart(session, answer);
}

int complain(const Error& error) {
  std::fprintf(stderr, "centroidctl: %s\n", error.message().c_str());
  const bool is_unreachable =
      error.code() == ErrorCode::kUnavailable || error.code() == ErrorCode::kDeadlineExceeded;
  return is_unreachable                                ? kExitUnreachable
         : error.code() == ErrorCode::kInvalidArgument ? kExitUsage
                                                       : kExitFailed;
}

std::string text_of(const Json& object, const char* name) {
  const auto at = object.find(name);
  if (at == object.end() || at->is_null()) return {};
  return at->is_string() ? at->get<std::string>() : at->dump();
}

double number_of(const Json& object, const char* name) {
  const auto at = object.find(name);
  const bool is_number = at != object.end() && at->is_number();
  return is_number ? at->get<double>() : std::numeric_limits<double>::quiet_NaN();
}

Result<std::string> data_endpoint(const Session& session, const Json& cluster) {
  Remote data;
  const auto parsed = data.set_address(text_of(cluster, "data_endpoint"));
  if (!parsed.ok()) return parsed.error();
  if (data.host == "0.0.0.0" || data.host == "::") data.host = session.remote.host;
  return data.host + ":" + data.port;
}

Result<std::string> read_worker_token(const std::string& file) {
  std::string token;
  if (file.empty()) return token;
  std::ifstream in(file);
  if (!std::getline(in, token))
    return Error(ErrorCode::kInvalidArgument, "--worker-token-file " + file + " cannot be read");
  while (!token.empty() && (token.back() == '\r' || token.back() == ' ')) token.pop_back();
  return token;
}

std::shared_ptr<Session> add_session(CLI::App& app) {
  const auto session = std::make_shared<Session>();
  app.add_option("--server", session->address,
                 "REST interface of the server, http://HOST:PORT or https://HOST:PORT")
      ->envname("CENTROIDCTL_SERVER")
      ->capture_default_str();
  app.add_option("--token-file", session->token_file, "file with the token of REST")
      ->envname("CENTROIDCTL_TOKEN_FILE");
  app.add_option("--authority", session->authority,
                 "https: PEM file of who signs the server's certificate, or system")
      ->envname("CENTROIDCTL_AUTHORITY")
      ->capture_default_str();
  app.add_option("--output", session->output, "form of answers")
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str();
  app.add_option("--timeout", session->timeout_seconds, "seconds to wait for one answer")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  app.add_flag("--no-color", session->without_colour,
               "no colours; there are none anyhow when the output is no terminal");
  app.add_option("--no-color-variable", session->no_color)->envname("NO_COLOR")->group("");
  app.fallthrough();
  return session;
}

}  // namespace centroid::client
