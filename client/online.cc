#include "client/online.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <limits>

#include "common/base/rights.h"

namespace centroid::client {

namespace {

/// The first line of a file with a secret, for the flag `flag`.
Result<std::string> read_token(const char* flag, const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::kInvalidArgument, std::string(flag) + " " + path + why);
  };
  errno = 0;
  std::ifstream file(path);
  std::string token;
  if (!std::getline(file, token) && !file.eof()) {
    const int failed = errno;
    const std::string whose = failed == EACCES ? " (" + rights_text(path) + ")" : "";
    return refuse(std::string(" cannot be read: ") + std::strerror(failed) + whose);
  }
  while (!token.empty() && (token.back() == '\r' || token.back() == ' ')) token.pop_back();
  if (token.empty()) return refuse(" is empty: its first line must be the token");
  return token;
}

}  // namespace

Status Session::open() {
  CENTROID_ASSIGN(const std::string path, remote.set_address(address));
  if (!path.empty() && path != "/")
    return Error(ErrorCode::kInvalidArgument,
                 "--server " + address + ": expected no path after the port");
  if (!token_file.empty()) {
    CENTROID_ASSIGN(token, read_token("--token-file", token_file));
  }
  remote.token = token;
  remote.authority = authority;
  remote.server_name = server_name;
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
  if (!answer.is_success())
    return Error(answer.status == 404   ? ErrorCode::kNotFound
                 : answer.status >= 500 ? ErrorCode::kInternal
                                        : ErrorCode::kFailedPrecondition,
                 explain(answer));
  Json value = Json::parse(answer.body, nullptr, false);
  if (value.is_discarded())
    return Error(ErrorCode::kDataLoss,
                 session.remote.origin.to_string() + " answered with something that is no JSON");
  return value;
}

}  // namespace

Result<Json> get_json(const Session& session, const std::string& path) {
  CENTROID_ASSIGN(const Answer answer, ask(session.remote, "GET", path));
  return take_apart(session, answer);
}

Result<Json> get_list(const Session& session, std::string path, const char* name,
                      std::size_t most) {
  Json all = Json::array();
  while (!path.empty() && all.size() < most) {
    CENTROID_ASSIGN(const Json page, get_json(session, path));
    const auto list = page.find(name);
    if (list == page.end() || !list->is_array())
      return Error(ErrorCode::kDataLoss, session.remote.origin.to_string() + path +
                                             " answered without the list '" + name + "'");
    for (const Json& one : *list)
      if (all.size() < most) all.push_back(one);
    path = text_of(page, "next");
  }
  return all;
}

Result<Json> get_all_pages(const Session& session, const std::string& path, const char* name) {
  CENTROID_ASSIGN(Json all, get_json(session, path));
  if (!all.contains(name) || !all[name].is_array())
    return Error(ErrorCode::kDataLoss, session.remote.origin.to_string() + path +
                                           " answered without the list '" + name + "'");
  CENTROID_ASSIGN(Json more, get_list(session, text_of(all, "next"), name));
  for (Json& one : more) all[name].push_back(std::move(one));
  all["next"] = nullptr;
  return all;
}

std::string parts_text(const Json& object, std::string (*amount)(const Json& part)) {
  constexpr std::size_t kShown = 3;
  const auto parts = object.find("servers");
  if (parts == object.end() || parts->empty()) return "-";
  if (parts->size() == 1) return text_of((*parts)[0], "name");
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, parts->size()); ++i)
    text += (i > 0 ? ", " : "") + text_of((*parts)[i], "name") + " " + amount((*parts)[i]);
  if (parts->size() > kShown) text += " and " + std::to_string(parts->size() - kShown) + " more";
  return text;
}

std::string path_part(const std::string& name) {
  std::string out;
  for (const char c : name) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                          (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_' || c == '~';
    char text[4] = {c, 0, 0, 0};
    if (!is_plain)
      std::snprintf(text, sizeof text, "%%%02X",
                    static_cast<unsigned>(static_cast<unsigned char>(c)));
    out += text;
  }
  return out;
}

Result<Json> send_json(const Session& session, const std::string& method, const std::string& path,
                       const Json& body) {
  CENTROID_ASSIGN(const Answer answer,
                  ask(session.remote, method, path, body.is_null() ? std::string() : body.dump()));
  return take_apart(session, answer);
}

std::string line_of(const Json& value) {
  return value.dump(-1, ' ', true, Json::error_handler_t::replace) + "\n";
}

int print(const Session& session, const Json& answer, const std::string& text) {
  const std::string out = session.style.is_json ? line_of(answer) : text;
  std::printf("%s%s", out.c_str(), out.empty() || out.ends_with('\n') ? "" : "\n");
  return kExitDone;
}

int complain(const Error& error) {
  const bool is_unreachable =
      error.code() == ErrorCode::kUnavailable || error.code() == ErrorCode::kDeadlineExceeded;
  const bool is_refused = error.message().find("onnection refused") != std::string::npos;
  std::fprintf(stderr, "centroidctl: %s%s\n", error.message().c_str(),
               is_refused ? " (is that the server? --server URL, or CENTROIDCTL_SERVER)" : "");
  return is_unreachable                                ? kExitUnreachable
         : error.code() == ErrorCode::kInvalidArgument ? kExitUsage
                                                       : kExitFailed;
}

std::string time_text(double unix_seconds, const char* otherwise) {
  if (!(unix_seconds > 0)) return otherwise;
  const auto seconds = static_cast<std::time_t>(unix_seconds);
  std::tm local{};
  char text[40] = "";
  if (localtime_r(&seconds, &local) != nullptr)
    std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local);
  return text;
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
  CENTROID_ASSIGN(auto data, transport::Endpoint::parse(text_of(cluster, "data_endpoint")));
  if (data.host == "0.0.0.0" || data.host == "::") data.host = session.remote.origin.endpoint.host;
  return data.to_string();
}

std::shared_ptr<WorkerOptions> add_worker_options(CLI::App& command) {
  const auto options = std::make_shared<WorkerOptions>();
  command
      .add_option("--worker-token-file", options->token_file,
                  "file with the token of workers, where the server has one")
      ->envname("CENTROIDCTL_WORKER_TOKEN_FILE");
  command
      .add_option("--tls.authority", options->tls.authority,
                  "data connections use TLS: PEM file of the authority of the other side's "
                  "certificate, or system")
      ->envname("CENTROIDCTL_TLS_AUTHORITY");
  command
      .add_option("--tls.certificate", options->tls.certificate,
                  "PEM file with the certificate to show, such as a worker's")
      ->envname("CENTROIDCTL_TLS_CERTIFICATE");
  command.add_option("--tls.key", options->tls.key, "PEM file with its key")
      ->envname("CENTROIDCTL_TLS_KEY");
  command.add_option("--tls.server-name", options->tls.server_name,
                     "name that the server's certificate must have; default: the host");
  return options;
}

Result<Access> open_access(WorkerOptions options, bool is_accepting) {
  Access access;
  if (!options.token_file.empty()) {
    CENTROID_ASSIGN(access.token, read_token("--worker-token-file", options.token_file));
  }
  const bool is_plain = options.tls.authority.empty() && options.tls.certificate.empty();
  if (is_plain) return access;
  if (!is_accepting && options.tls.authority.empty())
    return Error(ErrorCode::kInvalidArgument,
                 "--tls.certificate needs --tls.authority too: a client shows its certificate only "
                 "to a server that it verifies");
  options.tls.is_server = is_accepting;
  CENTROID_ASSIGN(access.tls, transport::make_tls(std::move(options.tls)));
  return access;
}

bool has_tls(const Session& session) {
  const auto config = get_json(session, "/v1/config");
  if (!config.ok()) return false;
  const auto setting = config->find("tls.certificate");
  return setting != config->end() && setting->is_object() && !text_of(*setting, "value").empty();
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
                 "https: PEM file of the authority of the server's certificate, or system")
      ->envname("CENTROIDCTL_AUTHORITY")
      ->capture_default_str();
  app.add_option("--server-name", session->server_name,
                 "https: name that the server's certificate must have; default: the host of "
                 "--server. A port-forward needs another name")
      ->envname("CENTROIDCTL_SERVER_NAME");
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
