#pragma once

#include <functional>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "client/command.h"
#include "client/http.h"
#include "client/network.h"
#include "client/table.h"
#include "transport/tls/tls.h"

namespace centroid::client {

using Json = nlohmann::ordered_json;

/// Options of every subcommand that calls a server.
struct Session {
  std::string address = "http://127.0.0.1:8080", token, token_file, authority = "system",
              server_name, output = "table", no_color;
  double timeout_seconds = 15;
  bool without_colour = false;
  Remote remote;
  Style style;

  /// Turn options into `remote` and `style`.
  Status open();
};

/// GET and parse an answer. A problem document is returned as its error: not_found, internal (the
/// server's: 5xx), else failed_precondition.
Result<Json> get_json(const Session& session, const std::string& path);
/// The value in one line of ASCII: a foreign name cannot control the terminal.
std::string line_of(const Json& value);
/// As get_json, with all pages of the list `name` in it; `next` is null.
Result<Json> get_all_pages(const Session& session, const std::string& path, const char* name);
/// All pages of the list `name` from `path` on, as one array of at most `most` items.
Result<Json> get_list(const Session& session, std::string path, const char* name,
                      std::size_t most = 1'000'000);
/// Any method, with a JSON body unless it is null.
Result<Json> send_json(const Session& session, const std::string& method, const std::string& path,
                       const Json& body = Json());
/// A name as one part of a path: other than plain characters become %XX.
/// source  RFC 3986, section 2.3
std::string path_part(const std::string& name);
/// The problem document of an answer as one line.
std::string explain(const Answer& answer);

/// Print an answer as JSON, or the text. kExitDone.
int print(const Session& session, const Json& answer, const std::string& text);
/// Print an error to stderr. kExitUnreachable without an answer, else kExitFailed.
int complain(const Error& error);

/// Print the result of `make`; with `every_seconds` over 0 repeatedly, `count` times (0: until
/// Ctrl-C). A terminal is redrawn, another output receives one block after the other. Ends if the
/// first `make` fails; later failures of the server are retried.
int show_again(const Session& session, double every_seconds, std::uint64_t count,
               const std::function<Result<std::string>()>& make);

/// Where workers reach the server of this REST interface, "HOST:PORT"; a wildcard address becomes
/// REST's host.
Result<std::string> data_endpoint(const Session& session, const Json& cluster);
/// Options of a command that opens connections as workers do.
struct WorkerOptions {
  std::string token_file;
  transport::TlsOptions tls;
};
std::shared_ptr<WorkerOptions> add_worker_options(CLI::App& command);
/// fails  invalid_argument, not_found: a file
Result<Access> open_access(WorkerOptions options, bool is_accepting = false);
/// Whether the server's data connections use TLS; false if it does not report it.
bool has_tls(const Session& session);

/// Local time, or `otherwise` if there is none.
std::string time_text(double unix_seconds, const char* otherwise);
/// A field of an object as text ("" if absent or null), as a number (NaN), as a flag.
std::string text_of(const Json& object, const char* name);
double number_of(const Json& object, const char* name);
/// Its `servers` as a cell of a table: "leader 12, b 9"; at most three. A single one has no amount.
std::string parts_text(const Json& object, std::string (*amount)(const Json& part));

/// Options of the program itself: --server, --token-file, --output and so on.
std::shared_ptr<Session> add_session(CLI::App& app);
/// `checkpoints list|verify|export|merge`: of the server, or of folders without a server. `status`
/// becomes the program's exit status.
void add_checkpoints(CLI::App& app, std::shared_ptr<Session> session, int& status);
void add_views(CLI::App& app, std::shared_ptr<Session> session, int& status);
void add_actions(CLI::App& app, std::shared_ptr<Session> session, int& status);
void add_top(CLI::App& app, std::shared_ptr<Session> session, int& status);
void add_trace(CLI::App& app, std::shared_ptr<Session> session, int& status);
void add_bench(CLI::App& app, std::shared_ptr<Session> session, int& status);
void add_plan(CLI::App& app, std::shared_ptr<Session> session, int& status);
void add_doctor(CLI::App& app, std::shared_ptr<Session> session, int& status);
void add_events(CLI::App& app, std::shared_ptr<Session> session, int& status);
void add_tokens(CLI::App& app, std::shared_ptr<Session> session, int& status);
/// Generated from the options of `app`. Call last.
void add_completion(CLI::App& app, int& status);

}  // namespace centroid::client
