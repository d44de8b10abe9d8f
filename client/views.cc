#include <array>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <functional>
#include <thread>

#include "client/online.h"

/// Commands that only read: status, workers, rounds, waits, tables, config.
namespace centroid::client {

namespace {

using Rows = std::vector<std::vector<std::string>>;

Colour colour_of(const std::string& state) {
  if (state == "training" || state == "active" || state == "committed" || state == "finished")
    return Colour::kGood;
  if (state == "halted" || state == "dead" || state == "fenced" || state == "aborted")
    return Colour::kBad;
  return Colour::kWarning;
}

std::string percent(double share) {
  if (!(share >= 0)) return "-";
  char text[16];
  std::snprintf(text, sizeof text, "%.2f %%", 100 * share);
  return text;
}

bool is_gone(const Json& worker) {
  const std::string state = text_of(worker, "state");
  return state == "left" || state == "dead" || state == "fenced";
}

std::string workers_table(const Json& workers, bool with_departed) {
  Rows rows;
  for (const Json& worker : workers) {
    if (!with_departed && is_gone(worker)) continue;
    const std::string state = text_of(worker, "state");
    const double rank = number_of(worker, "rank");
    rows.push_back({text_of(worker, "member"), text_of(worker, "name"), state,
                    rank < 0 ? "-" : text_of(worker, "rank"), text_of(worker, "rounds"),
                    text_of(worker, "samples"), duration_text(number_of(worker, "step_seconds")),
                    duration_text(number_of(worker, "wait_seconds")),
                    size_text(number_of(worker, "bytes_in")),
                    size_text(number_of(worker, "bytes_out")), text_of(worker, "address"),
                    text_of(worker, "reason")});
  }
  return table({"member", "name", "state", "rank", "rounds", "samples", "last step", "waited", "in",
                "out", "address", "reason"},
               rows);
}

/// Time of a round by stage, on average over all rounds of each worker.
std::string stages_table(const Json& workers, bool with_departed) {
  static constexpr std::array kStages = {"compute",  "wait",   "encode", "send",
                                         "exchange", "decode", "apply",  "receive"};
  std::vector<std::string> titles = {"member", "name", "state", "rounds"};
  titles.insert(titles.end(), kStages.begin(), kStages.end());
  Rows rows;
  for (const Json& worker : workers) {
    if (!with_departed && is_gone(worker)) continue;
    const double rounds = number_of(worker, "rounds");
    std::vector<std::string> row = {text_of(worker, "member"), text_of(worker, "name"),
                                    text_of(worker, "state"), text_of(worker, "rounds")};
    for (const std::string stage : kStages) {
      const double spent = number_of(worker, (stage + "_seconds").c_str());
      row.push_back(rounds > 0 && spent > 0 ? duration_text(spent / rounds) : "-");
    }
    rows.push_back(std::move(row));
  }
  return table(titles, rows);
}

/// Age of a time.
std::string age_text(double unix_seconds) {
  if (std::isnan(unix_seconds)) return "-";
  const double now = static_cast<double>(std::time(nullptr));
  return duration_text(std::max(0.0, now - unix_seconds)) + " ago";
}

std::string servers_table(const Json& answer) {
  Rows rows;
  for (const Json& server : answer["servers"])
    rows.push_back({text_of(server, "name"), text_of(server, "state"), text_of(server, "chunks"),
                    size_text(number_of(server, "bytes")), text_of(server, "moves"),
                    text_of(server, "buckets"), text_of(server, "bucket_moves"),
                    text_of(server, "rows"), size_text(number_of(server, "row_bytes")),
                    size_text(number_of(server, "memory_bytes")),
                    duration_text(number_of(server, "merge_seconds")), text_of(server, "endpoint"),
                    text_of(server, "api"), age_text(number_of(server, "seen_unix_seconds"))});
  const std::string text =
      table({"name", "state", "chunks", "bytes", "moves", "buckets", "bucket moves", "rows",
             "memory of rows", "memory", "merge", "endpoint", "api", "seen"},
            rows);
  const double balance = number_of(answer, "balance");
  if (std::isnan(balance)) return text;
  return text + "balance " + number_text(balance) + ": bytes of the fullest over the mean\n";
}

std::string waits_table(const Json& waits) {
  Rows rows;
  for (const Json& wait : waits)
    rows.push_back({text_of(wait, "waiter"), text_of(wait, "waits_for"), text_of(wait, "what"),
                    duration_text(number_of(wait, "seconds"))});
  return rows.empty() ? "no waits\n" : table({"waiter", "waits for", "what", "since"}, rows);
}

std::string status_text(const Style& style, const Json& cluster, const Json& workers,
                        const Json& waits) {
  const auto number = [&](const char* name) { return number_of(cluster, name); };
  const auto text = [&](const char* name) { return cleaned(text_of(cluster, name)); };
  const std::string state = text("state"), reason = text("state_reason");
  std::string out = "run        " + text("run_id");
  for (const auto& [word, name] : {std::pair("", "exchange"),
                                   {"policy ", "policy"},
                                   {"", "optimizer"},
                                   {"", "model"}})  // unknown until workers have joined
    if (!text(name).empty()) out += std::string(", ") + word + text(name);
  out += "\n";
  const bool repeats_state = reason.starts_with(state + " ");  // "paused by an operator at ..."
  out += "state      " + paint(style, colour_of(state), state) +
         (reason.empty()  ? ""
          : repeats_state ? reason.substr(state.size())
                          : ": " + reason) +
         "\n";
  if (const std::string role = text("role"); role != "alone" && !role.empty()) {
    const bool leads = role == "leader";
    out += "role       " + paint(style, leads ? Colour::kGood : Colour::kWarning, role) +
           (text("term") == "0" ? "" : ", term " + text("term"));
    if (!leads)
      out += text("leader").empty() ? "; no leader is known"
                                    : "; the leader is " + text("leader") + ", --server " +
                                          text("leader_api") + " queries it";
    out += "\n";
  }
  const bool has_goal = text("epochs") != "0";  // in epochs
  out += "progress   " + (number("progress") > 0 ? percent(number("progress")) + ", " : "") +
         "epoch " + text("epoch") + (has_goal ? " of " + text("epochs") : "") + ", round " +
         text("round") + ", version " + text("version") + "\n";
  out += "learning   loss " + number_text(number("loss")) + ", train accuracy " +
         percent(number("train_accuracy")) + ", held-out accuracy " +
         percent(number("test_accuracy")) + "\n";
  out += "speed      " + number_text(number("samples_per_second")) + " samples/s, " +
         text("world") + (text("world") == "1" ? " worker" : " workers") + " in generation " +
         text("generation") + "\n";
  out += "trouble    " + text("aborted_attempts") + " attempts repeated, " +
         text("lost_contributions") + " contributions lost, " + text("skipped_rounds") +
         " rounds skipped\n\n";
  return out + workers_table(workers, false) + "\n" + waits_table(waits);
}

/// One snapshot of the cluster; in JSON one object with all three.
Result<std::string> status_once(const Session& session) {
  CENTROID_ASSIGN(const Json cluster, get_json(session, "/v1/cluster"));
  CENTROID_ASSIGN(const Json workers, get_list(session, "/v1/workers", "workers"));
  CENTROID_ASSIGN(const Json waits, get_list(session, "/v1/waits", "waits"));
  if (!session.style.is_json) return status_text(session.style, cluster, workers, waits);
  Json all;
  all["cluster"] = cluster;
  all["workers"] = workers;
  all["waits"] = waits;
  return line_of(all);
}

/// Print a list with all its pages, as JSON or as a table.
int show_list(const Session& session, const std::string& path, const char* name,
              const std::function<std::string(const Json&)>& as_table) {
  auto got = get_all_pages(session, path, name);
  if (!got.ok()) return complain(got.error());
  const Json all = std::move(*got);
  return print(session, all, session.style.is_json ? "" : as_table(all));
}

/// Print an answer, as JSON or as a table.
int show(const Session& session, const std::string& path,
         const std::function<std::string(const Json&)>& as_table) {
  const auto answer = get_json(session, path);
  if (!answer.ok()) return complain(answer.error());
  return print(session, *answer, session.style.is_json ? "" : as_table(*answer));
}

std::string names(const Json& list) {
  std::string out;
  for (const Json& name : list) out += (out.empty() ? "" : " ") + name.get<std::string>();
  return out.empty() ? "-" : out;
}

std::string rounds_table(const Json& answer) {
  Rows rows;
  for (const Json& round : answer["rounds"]) {
    const std::string outcome = text_of(round, "outcome");
    rows.push_back({text_of(round, "round"), text_of(round, "attempt"),
                    outcome.empty() ? text_of(round, "state") : outcome, text_of(round, "version"),
                    text_of(round, "samples"),
                    outcome == "committed" ? number_text(number_of(round, "loss")) : "-",
                    duration_text(number_of(round, "seconds")), names(round["contributors"]),
                    names(round["missing"])});
  }
  return table({"round", "attempt", "outcome", "version", "samples", "loss", "time", "contributed",
                "missing"},
               rows);
}

/// A line for an epoch, and below it one for each worker.
std::string epochs_table(const Json& answer) {
  Rows rows;
  const auto seconds = [](const Json& of, const char* field) {
    return duration_text(number_of(of, field));
  };
  const auto percent = [](double part) {
    char text[16];
    (void)std::snprintf(text, sizeof text, "%.1f%%", 100 * part);
    return std::string(text);
  };
  for (const Json& epoch : answer["epochs"]) {
    const double took = number_of(epoch, "seconds"), samples = number_of(epoch, "samples");
    rows.push_back({text_of(epoch, "epoch"), text_of(epoch, "state"), text_of(epoch, "samples"),
                    percent(number_of(epoch, "trained")), number_text(number_of(epoch, "loss")),
                    percent(number_of(epoch, "accuracy")), seconds(epoch, "seconds"),
                    took > 0 ? number_text(samples / took) : "-", ""});
    for (const Json& worker : epoch["workers"])
      rows.push_back({"", "  " + text_of(worker, "name"), text_of(worker, "samples"),
                      percent(number_of(worker, "share")), number_text(number_of(worker, "loss")),
                      percent(number_of(worker, "accuracy")), seconds(worker, "compute_seconds"),
                      number_text(number_of(worker, "samples_per_second")),
                      text_of(worker, "devices")});
  }
  return table(
      {"epoch", "of", "samples", "share", "loss", "accuracy", "time", "samples/s", "devices"},
      rows);
}

std::string rows_of(const Json& part) { return text_of(part, "rows"); }

std::string tables_table(const Json& answer) {
  Rows rows;
  for (const Json& one : answer["tables"])
    rows.push_back({text_of(one, "name"), text_of(one, "rows"), text_of(one, "waiting"),
                    size_text(number_of(one, "bytes")),
                    number_of(one, "max_bytes") == 0 ? "-" : size_text(number_of(one, "max_bytes")),
                    text_of(one, "pulled"), text_of(one, "pushed"), text_of(one, "evicted"),
                    text_of(one, "expired"), parts_text(one, rows_of), text_of(one, "spec")});
  return rows.empty() ? "no tables\n"
                      : table({"table", "rows", "waiting", "memory", "bound", "pulled", "pushed",
                               "evicted", "expired", "rows on", "settings"},
                              rows);
}

std::string config_table(const Json& answer, const std::string& prefix) {
  Rows rows;
  for (const auto& [name, field] : answer.items())
    if (name.starts_with(prefix))
      rows.push_back({name, text_of(field, "value"), text_of(field, "unit"),
                      text_of(field, "origin"), field.value("live", false) ? "yes" : ""});
  return table({"setting", "value", "unit", "from", "live"}, rows);
}

/// As when the server restarts.
bool may_pass(const Error& error) {
  return error.code() == ErrorCode::kUnavailable || error.code() == ErrorCode::kDeadlineExceeded ||
         error.code() == ErrorCode::kInternal;
}

}  // namespace

int show_again(const Session& session, double every_seconds, std::uint64_t count,
               const std::function<Result<std::string>()>& make) {
  const bool is_redrawn = session.style.has_colour && every_seconds > 0;
  for (std::uint64_t shown = 0;;) {
    const auto text = make();
    if (text.ok()) {
      std::printf("%s%s", is_redrawn ? "\033[H\033[2J" : "", text->c_str());
      std::fflush(stdout);
      if (every_seconds <= 0 || ++shown == count) return kExitDone;
    } else if (shown == 0 || !may_pass(text.error())) {
      return complain(text.error());
    } else {
      std::fprintf(stderr, "centroidctl: %s; trying again\n", text.error().message().c_str());
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(every_seconds));
  }
}

namespace {

/// centroidctl status
void add_status(CLI::App& app, const std::shared_ptr<Session>& session, int& status) {
  CLI::App* const overview =
      app.add_subcommand("status", "Show the cluster, its workers and its waits.");
  const auto every = std::make_shared<double>(0);
  const auto count = std::make_shared<std::uint64_t>(0);
  overview->add_option("--watch", *every, "show it again every so many seconds, until Ctrl-C")
      ->expected(0, 1)
      ->default_str("1")
      ->check(CLI::Range(0.1, 3600.0));
  overview->add_option("--count", *count, "with --watch: end after so many times");
  overview->callback([=, &status] {
    const bool is_watching = overview->count("--watch") > 0;
    const double seconds = is_watching && *every == 0 ? 1 : *every;
    status = show_again(*session, seconds, *count, [&] { return status_once(*session); });
  });
}

/// centroidctl workers
void add_workers(CLI::App& app, const std::shared_ptr<Session>& session, int& status) {
  CLI::App* const workers = app.add_subcommand("workers", "Every worker with what it has done.");
  const auto with_departed = std::make_shared<bool>(false);
  workers->add_flag("--all", *with_departed, "those that left or died too");
  const auto with_stages = std::make_shared<bool>(false);
  workers->add_flag("--stages", *with_stages,
                    "where the time of a round goes, on average over all rounds of each; stages "
                    "overlap: encode, send, exchange and receive (the server reads) run beside "
                    "compute and wait, decode is part of apply or exchange");
  workers->callback([=, &status] {
    if (!workers->get_subcommands().empty()) return;
    status = show_list(*session, "/v1/workers", "workers", [&](const Json& a) {
      return *with_stages ? stages_table(a["workers"], *with_departed)
                          : workers_table(a["workers"], *with_departed);
    });
  });
}

/// centroidctl servers
void add_servers(CLI::App& app, const std::shared_ptr<Session>& session, int& status) {
  CLI::App* const servers =
      app.add_subcommand("servers", "List the servers of the model and the contents of each.");
  servers->callback([=, &status] {
    if (!servers->get_subcommands().empty()) return;
    status = show_list(*session, "/v1/servers", "servers", servers_table);
  });
}

/// centroidctl rounds, epochs
void add_newest(CLI::App& app, const std::shared_ptr<Session>& session, int& status,
                const std::string& name, const std::string& help, std::uint64_t how_many,
                std::string (*to_table)(const Json&)) {
  CLI::App* const newest = app.add_subcommand(name, help);
  const auto limit = std::make_shared<std::uint64_t>(how_many);
  newest->add_option("-n,--limit", *limit, "how many")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  newest->callback([=, &status] {
    status = show(*session, "/v1/" + name + "?limit=" + std::to_string(*limit), to_table);
  });
}

/// centroidctl waits
void add_waits(CLI::App& app, const std::shared_ptr<Session>& session, int& status) {
  CLI::App* const waits =
      app.add_subcommand("waits", "List the waits: who waits, for whom, for what, and how long.");
  waits->callback([=, &status] {
    status = show_list(*session, "/v1/waits", "waits",
                       [](const Json& answer) { return waits_table(answer["waits"]); });
  });
}

/// centroidctl tables
void add_tables(CLI::App& app, const std::shared_ptr<Session>& session, int& status) {
  CLI::App* const tables =
      app.add_subcommand("tables", "Tables of sparse rows: memory, and what was done with them.");
  tables->callback(
      [=, &status] { status = show_list(*session, "/v1/tables", "tables", tables_table); });
}

/// centroidctl config, and config get
void add_config(CLI::App& app, const std::shared_ptr<Session>& session, int& status) {
  CLI::App* const config = app.add_subcommand(
      "config", "List the effective settings of the server and the source of each.");
  const auto prefix = std::make_shared<std::string>();
  config->add_option("PREFIX", *prefix, "only settings with this prefix, e.g. checkpoint.");
  CLI::App* const got = config->add_subcommand("get", "The same.");
  got->add_option("PREFIX", *prefix, "only settings with this prefix");
  config->callback([=, &status] {
    const auto chosen = config->get_subcommands();
    if (!chosen.empty() && chosen.front() != got) return;
    status = show(*session, "/v1/config",
                  [&](const Json& answer) { return config_table(answer, *prefix); });
  });
}

}  // namespace

void add_views(CLI::App& app, std::shared_ptr<Session> session, int& status) {
  add_status(app, session, status);
  add_workers(app, session, status);
  add_servers(app, session, status);
  add_newest(app, session, status, "rounds", "The newest rounds, newest first.", 20, rounds_table);
  add_newest(app, session, status, "epochs",
             "The newest epochs, newest first, and what each worker did in them.", 5, epochs_table);
  add_waits(app, session, status);
  add_tables(app, session, status);
  add_config(app, session, status);
}

}  // namespace centroid::client
