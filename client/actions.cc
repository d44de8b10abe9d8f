#include <algorithm>
#include <chrono>
#include <cstdio>

#include "client/online.h"
#include "common/base/nearest.h"

/// Commands that change something: workers drain, checkpoints make, job ...; and probe.
namespace centroid::client {

namespace {

/// POST, PATCH or DELETE; `summary` is the text after success.
int send(const Session& session, const std::string& method, const std::string& path,
         const Json& body, const std::string& summary) {
  const auto answer = send_json(session, method, path, body);
  if (!answer.ok()) return complain(answer.error());
  print(session, *answer, summary);
  if (!answer->value("saved", true))
    std::fprintf(stderr,
                 "centroidctl: the server could not write this to its disk yet. If the server is "
                 "killed now, the request is lost: repeat it\n");
  return kExitDone;
}

int act(const Session& session, const std::string& path, const std::string& summary) {
  return send(session, "POST", path, Json(), summary);
}

/// Member number of a worker by its name (the newest with that name), or by the number itself if no
/// worker has that name.
Result<std::string> member_of(const Session& session, const std::string& worker) {
  CENTROID_ASSIGN(const Json workers, get_list(session, "/v1/workers", "workers"));
  std::string named, numbered, other;
  std::vector<std::string> names;
  for (const Json& one : workers) {
    names.push_back(text_of(one, "name"));
    const std::string member = text_of(one, "member");
    if (text_of(one, "name") == worker &&
        (named.empty() || std::stoull(member) > std::stoull(named)))
      named = member;
    if (member == worker) {
      numbered = member;
      other = text_of(one, "name");
    }
  }
  if (!named.empty() && !numbered.empty() && other != worker)
    return Error(ErrorCode::kInvalidArgument,
                 "'" + worker + "' is the name of the worker with member number " + named +
                     ", and the member number of worker '" + other + "': use " + named + " or '" +
                     other + "'");
  if (named.empty()) named = numbered;
  if (named.empty())
    return Error(ErrorCode::kNotFound, "no worker has the name or member number '" + worker + "'" +
                                           did_you_mean(worker, names) +
                                           "; centroidctl workers --all lists them");
  return named;
}

int show_evictions(const Session& session) {
  const auto evictions = get_list(session, "/v1/evictions", "evictions");
  if (!evictions.ok()) return complain(evictions.error());
  std::vector<std::vector<std::string>> rows;
  for (const Json& one : *evictions)
    rows.push_back({text_of(one, "name"), time_text(number_of(one, "since_unix_seconds"), "-"),
                    time_text(number_of(one, "until_unix_seconds"), "until it is allowed"),
                    text_of(one, "why")});
  if (rows.empty()) return print(session, *evictions, "no name is refused");
  return print(session, *evictions, table({"name", "since", "until", "why"}, rows));
}

int drain(const Session& session, const std::string& worker) {
  const auto member = member_of(session, worker);
  if (!member.ok()) return complain(member.error());
  return act(session, "/v1/workers/" + *member + ":drain",
             worker + " finishes its round and leaves");
}

int make_checkpoint(Session session) {
  session.remote.timeout = std::max(session.remote.timeout, std::chrono::milliseconds(310'000));
  const auto answer = send_json(session, "POST", "/v1/checkpoints");
  if (!answer.ok()) return complain(answer.error());
  return print(session, *answer,
               text_of(*answer, "path") + "\nversion " + text_of(*answer, "version") + ", " +
                   size_text(number_of(*answer, "bytes")));
}

int evict(const Session& session, const std::string& worker, double seconds,
          const std::string& why) {
  const auto member = member_of(session, worker);
  if (!member.ok()) return complain(member.error());
  Json body = Json::object();
  if (seconds > 0) body["seconds"] = seconds;
  if (!why.empty()) body["why"] = why;
  return send(session, "POST", "/v1/workers/" + *member + ":evict", body,
              worker + " is no member any more" +
                  (seconds > 0 ? "" : "; `workers allow` permits its return"));
}

/// A value of `set`: numbers and switches as they are, everything else as text.
Json value_of(const std::string& text) {
  const Json value = Json::parse(text, nullptr, false);
  return value.is_number() || value.is_boolean() ? value : Json(text);
}

/// The server's error about a value, without the position in the request: there is none here.
Error without_place(const Error& error) {
  static constexpr std::string_view kPlace = "PATCH /v1/config:1: ";
  std::string message = error.message();
  for (auto at = message.find(kPlace); at != std::string::npos; at = message.find(kPlace, at))
    message.erase(at, kPlace.size());
  return Error(error.code(), std::move(message));
}

int set_config(const Session& session, const std::vector<std::string>& words) {
  Json body = Json::object();
  for (const std::string& word : words) {
    const auto equals = word.find('=');
    if (equals == std::string::npos || equals == 0) {
      std::fprintf(stderr, "centroidctl: '%s': expected NAME=VALUE\n", word.c_str());
      return kExitUsage;
    }
    body[word.substr(0, equals)] = value_of(word.substr(equals + 1));
  }
  const auto answer = send_json(session, "PATCH", "/v1/config", body);
  if (!answer.ok()) return complain(without_place(answer.error()));
  Json changed = Json::object();
  for (const auto& [name, ignored] : body.items())
    if (answer->contains(name)) changed[name] = (*answer)[name]["value"];
  std::string text;
  for (const auto& [name, value] : changed.items())
    text += name + " = " + text_of(changed, name.c_str()) + "\n";
  return print(session, changed, text);
}

int show_scale(const Session& session) {
  const auto answer = get_json(session, "/v1/scale");
  if (!answer.ok()) return complain(answer.error());
  std::string text = text_of(*answer, "advice");
  if (const auto hint = answer->find("hint"); hint != answer->end() && hint->is_object()) {
    const std::string why = cleaned(text_of(*hint, "why"));
    text += "\nwanted: " + text_of(*hint, "workers") + " workers" + (why.empty() ? "" : ": " + why);
  }
  return print(session, *answer, text);
}

int request_scale(const Session& session, std::uint64_t workers, const std::string& why) {
  Json body = Json::object();
  body["workers"] = workers;
  if (!why.empty()) body["why"] = why;
  return send(session, "POST", "/v1/scale", body,
              workers > 0 ? std::to_string(workers) + " workers are requested"
                          : "the requested number of workers is cleared");
}

std::string size_of(const Json& part) { return size_text(number_of(part, "bytes")); }

/// Its servers, one a line.
std::string holders_table(const Json& parameter) {
  std::vector<std::vector<std::string>> rows;
  const auto parts = parameter.find("servers");
  if (parts != parameter.end())
    for (const Json& part : *parts) rows.push_back({text_of(part, "name"), size_of(part)});
  return table({"server", "size"}, rows);
}

/// `name`: one tensor, with all its servers; empty: all tensors.
int show_parameters(const Session& session, const std::string& name) {
  auto answer = name.empty() ? get_all_pages(session, "/v1/parameters", "parameters")
                             : get_json(session, "/v1/parameters/" + path_part(name));
  if (!answer.ok()) return complain(answer.error());
  const Json list = name.empty() ? (*answer)["parameters"] : Json::array({*answer});
  std::vector<std::vector<std::string>> rows;
  for (const Json& one : list)
    rows.push_back({text_of(one, "name"), one["shape"].dump(), size_of(one),
                    number_text(number_of(one, "mean")), number_text(number_of(one, "deviation")),
                    number_text(number_of(one, "min")), number_text(number_of(one, "max")),
                    number_text(number_of(one, "norm")), text_of(one, "nonfinite"),
                    parts_text(one, size_of)});
  std::string text = "version " + text_of(*answer, "version") + "\n" +
                     table({"tensor", "shape", "size", "mean", "deviation", "min", "max", "norm",
                            "not finite", "servers"},
                           rows);
  if (!name.empty()) text += "\n" + holders_table(*answer);
  return print(session, *answer, text);
}

/// A container probes its own program at a loopback address, which is in no certificate, and its
/// image does not know whether REST is HTTPS: so there, and only there, either is accepted.
int probe(const Session& session, const std::string& url) {
  Remote remote = session.remote;
  const auto set = remote.set_address(url);
  if (!set.ok()) return complain(set.error());
  const std::string path = set->empty() ? "/" : *set;
  auto answer = ask(remote, "GET", path);
  if (!answer.ok() && !remote.origin.is_secure && remote.origin.endpoint.is_loopback() &&
      answer.error().code() != ErrorCode::kDeadlineExceeded) {
    remote.origin.is_secure = remote.is_unchecked = true;
    remote.token.clear();  // the other side has not proven to be the server
    auto secure = ask(remote, "GET", path);
    if (secure.ok()) answer = std::move(secure);
  }
  if (!answer.ok()) return complain(answer.error());
  if (answer->is_success()) return kExitDone;
  std::fprintf(stderr, "centroidctl: %s: %s\n", url.c_str(), explain(*answer).c_str());
  return kExitFailed;
}

/// centroidctl workers drain, evict, evictions, allow
void add_worker_actions(CLI::App& app, const std::shared_ptr<Session>& session, int& status) {
  CLI::App* const drained = app.get_subcommand("workers")->add_subcommand(
      "drain", "Let a worker finish its round and leave.");
  const auto worker = std::make_shared<std::string>();
  drained->add_option("WORKER", *worker, "its name or member number")->required();
  drained->callback([=, &status] { status = drain(*session, *worker); });

  CLI::App* const evicted = app.get_subcommand("workers")->add_subcommand(
      "evict", "End a worker's membership and refuse its name.");
  const auto seconds = std::make_shared<double>(0);
  const auto why = std::make_shared<std::string>(), victim = std::make_shared<std::string>();
  evicted->add_option("WORKER", *victim, "its name or member number")->required();
  evicted->add_option("--seconds", *seconds, "how long; 0: until it is allowed")
      ->check(CLI::NonNegativeNumber);
  evicted->add_option("--why", *why, "reason for the log, the events and the worker");
  evicted->callback([=, &status] { status = evict(*session, *victim, *seconds, *why); });
  app.get_subcommand("workers")
      ->add_subcommand("evictions", "Names that are refused, since when and until when.")
      ->callback([=, &status] { status = show_evictions(*session); });
  CLI::App* const allowed = app.get_subcommand("workers")->add_subcommand(
      "allow", "Permit the name of an evicted worker to join again.");
  const auto freed = std::make_shared<std::string>();
  allowed->add_option("NAME", *freed, "its name")->required();
  allowed->callback([=, &status] {
    status = send(*session, "DELETE", "/v1/evictions/" + path_part(*freed), Json(),
                  *freed + " may join again");
  });
}

/// centroidctl checkpoints restore, delete, make
void add_checkpoint_actions(CLI::App& app, const std::shared_ptr<Session>& session, int& status) {
  CLI::App* const restored =
      app.get_subcommand("checkpoints")
          ->add_subcommand(
              "restore",
              "Return the job to a checkpoint (docs/reference/rest.md has the consequences).");
  const auto version = std::make_shared<std::uint64_t>(0);
  const auto deletes = std::make_shared<bool>(false);
  restored->add_option("VERSION", *version, "its version")->required();
  restored->add_flag("--delete-newer", *deletes, "delete the newer checkpoints");
  restored->callback([=, &status] {
    Json body = Json::object();
    body["delete_newer"] = *deletes;
    const std::string number = std::to_string(*version);
    Session patient = *session;  // the server reads all of it, and waits for the workers to return
    patient.remote.timeout = std::max(patient.remote.timeout, std::chrono::milliseconds(310'000));
    status = send(patient, "POST", "/v1/checkpoints/" + number + ":restore", body,
                  "the job continues from version " + number);
  });
  CLI::App* const deleted =
      app.get_subcommand("checkpoints")->add_subcommand("delete", "Delete one.");
  const auto doomed = std::make_shared<std::uint64_t>(0);
  deleted->add_option("VERSION", *doomed, "its version")->required();
  deleted->callback([=, &status] {
    const std::string number = std::to_string(*doomed);
    status = send(*session, "DELETE", "/v1/checkpoints/" + number, Json(),
                  "version " + number + " is deleted");
  });

  CLI::App* const make = app.get_subcommand("checkpoints")
                             ->add_subcommand("make", "Have the server write one now, and wait.");
  make->callback([=, &status] { status = make_checkpoint(*session); });
}

/// centroidctl config set
void add_config_set(CLI::App& app, const std::shared_ptr<Session>& session, int& status) {
  CLI::App* const set = app.get_subcommand("config")->add_subcommand(
      "set", "Change settings that are live, all of them or none.");
  const auto words = std::make_shared<std::vector<std::string>>();
  set->add_option("NAME=VALUE", *words, "such as checkpoint.keep=5 lease=20s")->required();
  set->callback([=, &status] { status = set_config(*session, *words); });
}

/// centroidctl scale, and scale set, clear
void add_scale(CLI::App& app, const std::shared_ptr<Session>& session, int& status) {
  CLI::App* const scale = app.add_subcommand(
      "scale", "Show how many workers would help, what limits them, and how many are requested.");
  scale->callback([=, &status] {
    if (scale->get_subcommands().empty()) status = show_scale(*session);
  });
  CLI::App* const setter = scale->add_subcommand(
      "set", "Request a number of workers from the program that starts them.");
  const auto number = std::make_shared<std::uint64_t>(0);
  const auto reason = std::make_shared<std::string>();
  setter->add_option("WORKERS", *number, "so many")->required()->check(CLI::Range(1, 1'000'000));
  setter->add_option("--why", *reason, "reason, reported with the number");
  setter->callback([=, &status] { status = request_scale(*session, *number, *reason); });
  scale->add_subcommand("clear", "Clear the requested number.")->callback([=, &status] {
    status = request_scale(*session, 0, "");
  });
}

/// centroidctl parameters
void add_parameters(CLI::App& app, const std::shared_ptr<Session>& session, int& status) {
  CLI::App* const parameters = app.add_subcommand(
      "parameters", "List every tensor with statistics of its values and its servers.");
  const auto tensor = std::make_shared<std::string>();
  parameters->add_option("NAME", *tensor, "only this tensor, with its part on each server");
  parameters->callback([=, &status] { status = show_parameters(*session, *tensor); });
}

/// centroidctl servers drain
void add_server_drain(CLI::App& app, const std::shared_ptr<Session>& session, int& status) {
  CLI::App* const emptied = app.get_subcommand("servers")->add_subcommand(
      "drain", "Move the chunks of a shard server to the others; then it ends.");
  const auto server = std::make_shared<std::string>();
  emptied->add_option("NAME", *server, "what it is called")->required();
  emptied->callback([=, &status] {
    status = act(*session, "/v1/servers/" + path_part(*server) + ":drain",
                 *server + " leaves when its chunks have moved");
  });
}

/// centroidctl job pause, resume, stop
void add_job(CLI::App& app, const std::shared_ptr<Session>& session, int& status) {
  CLI::App* const job = app.add_subcommand("job", "Steers the job.");
  job->require_subcommand(1);
  const auto verb = [&](const char* name, const char* what, const char* summary) {
    CLI::App* const one = job->add_subcommand(name, what);
    one->callback([session, &status, name, summary] {
      status = act(*session, std::string("/v1/job:") + name, summary);
    });
  };
  verb("pause", "Open no new round.", "pauses after the open round; `job resume` continues");
  verb("resume", "Open rounds again, after a pause or a stop.", "continues");
  verb("stop", "Finish the round, write a checkpoint, end. A restarted server stays stopped.",
       "stops after the open round; `job resume` on the restarted server continues");
}

/// centroidctl probe
void add_probe(CLI::App& app, const std::shared_ptr<Session>& session, int& status) {
  CLI::App* const probed = app.add_subcommand(
      "probe",
      "Exit 0 when a GET of the URL is answered with 2xx; for health checks of containers. At a "
      "loopback address http:// is HTTPS where the server speaks that.");
  const auto url = std::make_shared<std::string>();
  probed->add_option("URL", *url, "http://HOST:PORT/PATH")->required();
  probed->callback([=, &status] { status = probe(*session, *url); });
}

}  // namespace

void add_actions(CLI::App& app, std::shared_ptr<Session> session, int& status) {
  add_worker_actions(app, session, status);
  add_checkpoint_actions(app, session, status);
  add_config_set(app, session, status);
  add_scale(app, session, status);
  add_parameters(app, session, status);
  add_server_drain(app, session, status);
  add_job(app, session, status);
  add_probe(app, session, status);
}

}  // namespace centroid::client
