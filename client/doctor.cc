#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <iomanip>
#include <map>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "client/report.h"
#include "common/base/version.h"

/// doctor: finds faults of a cluster and suggests repairs.
namespace centroid::client {

namespace {

constexpr double kStillSeconds = 60;
constexpr double kCheckpointAgeSeconds = 7200;
constexpr double kStraggler = 2;  ///< times the median
constexpr double kLongRound = 4;  ///< times the usual one
constexpr double kTokenSeconds = 7 * 86400;
constexpr double kStandbySeconds = 15,
                 kStandbyLeases = 4;  ///< a standby reports to etcd every etcd.lease
constexpr std::chrono::milliseconds kNetworkTime{600};

/// Seconds since 1970 of an HTTP date; NaN when it is none.
double unix_seconds(const std::string& date) {
  std::tm parts{};
  std::istringstream in(date);
  in >> std::get_time(&parts, "%a, %d %b %Y %H:%M:%S");
  return in ? static_cast<double>(timegm(&parts)) : std::nan("");
}

void check_clock(Report& report, const Answer& answer) {
  const std::string* const date = answer.field("date");
  const double apart =
      unix_seconds(date == nullptr ? "" : *date) - static_cast<double>(std::time(nullptr));
  const std::string found = number_text(apart) + " s between this machine and the server";
  if (std::isnan(apart))
    report.add(Verdict::kWarning, "clock", "the server sent no date");
  else if (std::abs(apart) > kClockSeconds)
    report.add(Verdict::kWarning, "clock", found, "set both clocks by NTP");
  else
    report.add(Verdict::kGood, "clock", found);
}

void check_version(Report& report, const Json& version) {
  const std::string theirs = text_of(version, "version");
  const std::string found = "server " + theirs + ", centroidctl " + kVersion;
  if (theirs == kVersion)
    report.add(Verdict::kGood, "version", found);
  else
    report.add(Verdict::kWarning, "version", found, "take all programs from one release");
}

/// Credentials that the server requires and that are missing: an attempt without them would fail,
/// and be logged as a stranger's.
struct Lack {
  std::string what, advice;
};

bool has_secret(const Session& session, const std::string& setting) {
  const auto config = get_json(session, "/v1/config");
  return config.ok() && config->contains(setting) && !text_of((*config)[setting], "value").empty();
}

Lack lack_of(const Session& session, const Access& access) {
  if (!access.tls && has_tls(session))
    return {"it is TLS", "pass the authority of its certificate with --tls.authority"};
  if (access.token.empty() && has_secret(session, "token"))
    return {"workers show a token", "pass the workers' token with --worker-token-file"};
  return {};
}

/// A port of workers, and the network path to it: a round moves the model once each way for each
/// worker, so a path that takes longer than a round delays training.
void check_data_port(Report& report, const Session& session, const std::string& name,
                     const std::string& where, double model_bytes, const Access& access,
                     const Lack& lack) {
  const auto data = transport::Endpoint::parse(where);
  if (!data.ok())
    return report.add(Verdict::kWarning, name, "'" + where + "' is no address",
                      "set `advertise` of that server to HOST:PORT as workers reach it");
  if (const Status open = knock(*data, session.remote.timeout); !open.ok())
    return report.add(Verdict::kWarning, name, open.error().message(),
                      "open " + where + " to the workers; run this again on one of their machines");
  report.add(Verdict::kGood, name, where + " is open from here");
  const std::string network_name = name == "data port" ? "network" : name + " network";
  if (!lack.what.empty())
    return report.add(Verdict::kWarning, network_name, "not measured: " + lack.what, lack.advice);
  const auto network = measure(where, access, kNetworkTime, transport::kMaxEchoBytes);
  if (!network.ok())
    return report.add(Verdict::kWarning, network_name, "not measured: " + network.error().message(),
                      "pass the workers' token with --worker-token-file, and with TLS their "
                      "certificate with --tls.certificate and --tls.key");
  const double slower = std::min(network->bytes_per_second_out, network->bytes_per_second_in);
  const std::string found = duration_text(network->median_seconds) + " a round trip, " +
                            size_text(network->bytes_per_second_out) + "/s to it, " +
                            size_text(network->bytes_per_second_in) +
                            "/s from it; the model takes " + duration_text(model_bytes / slower);
  const bool is_slow = slower < kSlowBytes || network->median_seconds > kSlowTrip;
  report.add(is_slow ? Verdict::kWarning : Verdict::kGood, network_name, found,
             is_slow ? "compare with `centroidctl bench` between other machines; a codec or local "
                       "steps need less of it"
                     : "");
}

/// The oldest plausible report of a standby to etcd, in seconds.
double max_standby_age(const Session& session) {
  const auto config = get_json(session, "/v1/config");
  if (!config.ok() || !config->contains("etcd.lease")) return kStandbySeconds;
  const double lease = number_of((*config)["etcd.lease"], "value") / 1000;
  return lease > 0 ? std::max(kStandbySeconds, kStandbyLeases * lease) : kStandbySeconds;
}

/// The servers of the model, except the one that answers REST.
void check_servers(Report& report, const Session& session, const Json& servers,
                   const Access& access, const Lack& lack) {
  for (const Json& server : servers) {
    const std::string state = text_of(server, "state"), name = "server " + text_of(server, "name");
    if (state == "leader") continue;
    if (state == "standby") {
      const double ago =
          static_cast<double>(std::time(nullptr)) - number_of(server, "seen_unix_seconds");
      const bool is_late = !(ago < max_standby_age(session));
      report.add(is_late ? Verdict::kWarning : Verdict::kGood, name,
                 "standby; last report to etcd " + duration_text(std::max(0.0, ago)) + " ago",
                 is_late
                     ? "check its log and its network to etcd (docs/how-to/high-availability.md)"
                     : "");
      continue;
    }
    if (state == "joining" || state == "draining")
      report.add(Verdict::kWarning, name,
                 state + ", " + text_of(server, "moves") + " chunks are still to move",
                 "wait; `centroidctl servers` shows how far it is");
    check_data_port(report, session, name, text_of(server, "endpoint"), number_of(server, "bytes"),
                    access, lack);
  }
}

/// Tokens that expire soon, and one that too many have.
void check_tokens(Report& report, const Session& session, bool has_shards) {
  if (has_shards && has_secret(session, "token") && !has_secret(session, "servers_token"))
    report.add(Verdict::kWarning, "servers' token",
               "none: any holder of the workers' token may join as a shard server",
               "set servers_token_file on all servers");
  const auto tokens = get_list(session, "/v1/tokens", "tokens");
  if (!tokens.ok()) return;  // the caller's role may not list them
  const double now = static_cast<double>(std::time(nullptr));
  for (const Json& token : *tokens) {
    const double left = number_of(token, "expires_unix_seconds") - now;
    if (!(left < kTokenSeconds)) continue;
    const std::string name = text_of(token, "name");
    report.add(Verdict::kWarning, "token " + name,
               left < 0 ? "has expired" : "expires in " + duration_text(left),
               "centroidctl tokens revoke " + name + ", then tokens create " + name);
  }
}

/// The requested and the present number of workers.
void check_scale(Report& report, const Session& session, const Json& workers) {
  const auto scale = get_json(session, "/v1/scale");
  if (!scale.ok() || !scale->contains("hint") || (*scale)["hint"].is_null()) return;
  const Json& hint = (*scale)["hint"];
  const auto hinted = static_cast<long>(number_of(hint, "workers"));
  long present = 0;
  for (const Json& worker : workers)
    if (const std::string state = text_of(worker, "state");
        state == "active" || state == "syncing" || state == "joining")
      ++present;
  const std::string why = cleaned(text_of(hint, "why"));
  const std::string found = std::to_string(present) + " workers, " + std::to_string(hinted) +
                            " are requested" + (why.empty() ? "" : " (" + why + ")");
  if (present == hinted)
    report.add(Verdict::kGood, "scale", found);
  else
    report.add(Verdict::kWarning, "scale", found,
               present < hinted ? "start " + std::to_string(hinted - present) +
                                      " more, or centroidctl scale clear"
                                : "centroidctl workers drain, or centroidctl scale clear");
}

/// One worker that computes much longer than the others delays all of them.
void check_speed(Report& report, const Json& workers) {
  std::vector<std::pair<double, std::string>> times;
  for (const Json& worker : workers)
    if (text_of(worker, "state") == "active" && number_of(worker, "step_seconds") > 0)
      times.emplace_back(number_of(worker, "step_seconds"), text_of(worker, "name"));
  if (times.size() < 2) return;
  std::sort(times.begin(), times.end());
  const double median = times[times.size() / 2].first;
  const auto& [slowest, name] = times.back();
  if (slowest > kStraggler * median)
    report.add(Verdict::kWarning, "speed",
               name + " takes " + duration_text(slowest) + " for a step, the median is " +
                   duration_text(median),
               "check what else runs on its machine; policies backup and ssp wait less "
               "(docs/how-to/stragglers.md)");
  else
    report.add(Verdict::kGood, "speed",
               "the slowest step took " + duration_text(slowest) + ", the median is " +
                   duration_text(median));
}

void check_job(Report& report, const Json& cluster) {
  const std::string state = text_of(cluster, "state"), why = text_of(cluster, "state_reason");
  const std::string found = state + (why.empty() ? "" : ": " + why);
  const std::string role = text_of(cluster, "role");
  if (role == "standby")
    report.add(Verdict::kWarning, "role", "this server is a standby",
               "the leader is at " + text_of(cluster, "leader_api") + ": query it with --server");
  if (role == "held")
    report.add(Verdict::kBad, "role", "this leader may not act: " + why,
               "check etcd and the network to it");
  if (state == "halted")
    report.add(Verdict::kBad, "job", found,
               "correct what the reason names, then centroidctl job resume "
               "(docs/how-to/runbooks.md#centroidjobhalted)");
  else if (state == "paused" || state == "stopped")
    report.add(Verdict::kWarning, "job", found, "centroidctl job resume");
  else if (state == "waiting")
    report.add(Verdict::kWarning, "job", found, "start the missing workers");
  else
    report.add(Verdict::kGood, "job", found);
}

/// Usual time of a round, in seconds; infinite before the first one has ended.
double usual_round(const Session& session) {
  const auto rounds = get_list(session, "/v1/rounds?limit=16", "rounds", 16);
  std::vector<double> times;
  if (rounds.ok())
    for (const Json& round : *rounds)
      if (text_of(round, "state") == "closed") times.push_back(number_of(round, "seconds"));
  if (times.empty()) return INFINITY;
  std::ranges::sort(times);
  return times[times.size() / 2];
}

/// The parties that rounds wait for. Waits are usual if a round takes seconds.
void check_waits(Report& report, const Session& session, const Json& waits) {
  bool is_any = false;
  const double usual = usual_round(session);
  for (const Json& wait : waits) {
    const double seconds = number_of(wait, "seconds");
    if (!(seconds > kWaitSeconds) || !text_of(wait, "waiter").starts_with("round")) continue;
    is_any = true;
    const std::string awaited = text_of(wait, "waits_for");
    const bool is_long = seconds > kStillSeconds || seconds > kLongRound * usual;
    report.add(is_long ? Verdict::kWarning : Verdict::kGood, "waits",
               text_of(wait, "waiter") + " waits for " + awaited + ", " + text_of(wait, "what") +
                   ", " + duration_text(seconds),
               is_long ? "check the log of " + awaited + "; restart it if it hangs" : "");
  }
  if (!is_any) report.add(Verdict::kGood, "waits", "no round waits long");
}

/// A worker that has returned or left in order since its loss is not lost any more.
void check_workers(Report& report, const Json& workers) {
  std::map<std::string, const Json*> newest;
  for (const Json& worker : workers) {
    const Json*& one = newest[text_of(worker, "name")];
    if (one == nullptr || number_of(*one, "member") < number_of(worker, "member")) one = &worker;
  }
  std::size_t present = 0, dead = 0;
  std::string last;
  for (const auto& [name, worker] : newest) {
    const std::string state = text_of(*worker, "state");
    if (state == "dead" || state == "fenced") {
      ++dead;
      last = name + ": " + text_of(*worker, "reason");
    } else if (state != "left") {
      ++present;
    }
  }
  const std::string found = std::to_string(present) + " present, " + std::to_string(dead) + " lost";
  if (dead == 0)
    report.add(Verdict::kGood, "workers", found);
  else
    report.add(Verdict::kWarning, "workers", found + "; " + last, "centroidctl workers --all");
}

void check_checkpoints(Report& report, const Json& cluster, const Json& checkpoints) {
  double newest = 0;
  for (const Json& one : checkpoints) {  // newest first
    if (text_of(one, "problem").empty())
      newest = std::max(newest, number_of(one, "created_unix_seconds"));
    else
      report.add(Verdict::kBad, "checkpoint",
                 text_of(one, "path") + " is damaged: " + text_of(one, "problem"),
                 newest > 0 ? "check the disk; a newer one is not damaged"
                            : "check the disk; a resume would use an older one: centroidctl "
                              "checkpoints make writes a new one");
  }
  const double age = std::max(0.0, static_cast<double>(std::time(nullptr)) - newest);
  const bool is_training = text_of(cluster, "state") == "training";
  if (newest == 0 && is_training)
    report.add(Verdict::kWarning, "checkpoint", "there is none yet",
               "set checkpoint.every_rounds, or centroidctl checkpoints make");
  else if (newest > 0 && is_training && age > kCheckpointAgeSeconds)
    report.add(Verdict::kWarning, "checkpoint", "the newest is " + duration_text(age) + " old",
               "centroidctl checkpoints make");
  else if (newest > 0)
    report.add(Verdict::kGood, "checkpoint", "the newest is " + duration_text(age) + " old");
}

/// The cost of a crash of the server, while prevention is cheap.
void check_durability(Report& report, const Session& session) {
  const auto config = get_json(session, "/v1/config");
  if (!config.ok() || !config->contains("journal.mode")) return;
  const auto value_of = [&](const char* setting) {
    return config->contains(setting) ? number_of((*config)[setting], "value") : 0.0;
  };
  if (text_of((*config)["journal.mode"], "value") == "on")
    return report.add(Verdict::kGood, "durability", "a journal records every round");
  for (const char* const setting :
       {"checkpoint.every_rounds", "checkpoint.every_epochs", "checkpoint.interval"})
    if (value_of(setting) > 0)
      return report.add(
          Verdict::kGood, "durability",
          std::string("checkpoints are written while the job runs (") + setting + ")");
  report.add(
      Verdict::kWarning, "durability",
      "no journal, and checkpoints at the end only: if the server is killed, all since the "
      "newest checkpoint is lost",
      "centroidctl config set checkpoint.every_rounds=N, or start the server with --journal.mode "
      "on");
}

int examine(const Session& session, const WorkerOptions& worker_options, bool leaves_members) {
  Report report(session.style);
  const auto alive = ask(session.remote, "GET", "/healthz");
  if (!alive.ok()) {
    report.add(Verdict::kBad, "REST", alive.error().message(),
               "is the server running, is --server right, is the port open?");
    return report.finish() == kExitDone ? kExitDone : kExitUnreachable;
  }
  report.add(Verdict::kGood, "REST", session.remote.origin.to_string() + " answers");
  check_clock(report, *alive);
  const auto version = get_json(session, "/version");
  if (!version.ok()) {
    report.add(Verdict::kBad, "token", version.error().message(),
               "pass the server's api.token with --token-file");
    return report.finish();
  }
  report.add(Verdict::kGood, "token", session.token.empty() ? "none is needed" : "is the server's");
  check_version(report, *version);
  const auto cluster = get_json(session, "/v1/cluster"),
             workers = get_list(session, "/v1/workers", "workers"),
             checkpoints = get_list(session, "/v1/checkpoints", "checkpoints"),
             servers = get_list(session, "/v1/servers", "servers");
  for (const auto* answer : {&cluster, &workers, &checkpoints, &servers})
    if (!answer->ok()) {
      report.add(Verdict::kBad, "REST", answer->error().message(), "see the server's log");
      return report.finish();
    }
  const auto access = open_access(worker_options);
  if (!access.ok()) return complain(access.error());
  check_tokens(report, session, servers->size() > 1);
  const Lack lack = lack_of(session, *access);
  const double model_bytes = sizeof(float) * number_of(*cluster, "parameters");
  const auto where = data_endpoint(session, *cluster);
  if (where.ok())
    check_data_port(report, session, "data port", *where, model_bytes, *access, lack);
  else
    report.add(Verdict::kWarning, "data port", where.error().message());
  check_servers(report, session, *servers, *access, lack);
  const std::string theirs = text_of(*version, "version");
  check_programs(report, *workers, "worker", theirs);
  check_programs(report, *servers, "server", theirs);
  check_certificates(report, *workers, "worker");
  check_certificates(report, *servers, "server");
  check_disks(report, *servers);
  check_host(report, session, *checkpoints);
  std::set<std::string> reported;
  if (!leaves_members) {
    reported = check_members(report, session, *workers);
    check_ways(report, session, *cluster, *workers, reported);
  }
  // The checks took seconds; workers may be lost by now.
  const auto cluster_now = get_json(session, "/v1/cluster"),
             workers_now = get_list(session, "/v1/workers", "workers"),
             waits = get_list(session, "/v1/waits", "waits");
  for (const auto* answer : {&cluster_now, &workers_now, &waits})
    if (!answer->ok()) {
      report.add(Verdict::kBad, "REST", answer->error().message(), "see the server's log");
      return report.finish();
    }
  check_job(report, *cluster_now);
  check_waits(report, session, *waits);
  check_silent(report, session, *workers_now, *waits, reported);
  check_workers(report, *workers_now);
  check_speed(report, *workers_now);
  check_scale(report, session, *workers_now);
  check_checkpoints(report, *cluster_now, *checkpoints);
  check_durability(report, session);
  return report.finish();
}

}  // namespace

void add_doctor(CLI::App& app, std::shared_ptr<Session> session, int& status) {
  CLI::App* const doctor = app.add_subcommand(
      "doctor",
      "Find faults and suggest repairs. Checks ports, clocks, tokens, versions, certificates, disk "
      "space, the network to the servers, between the server and each worker and between workers, "
      "the job, waits, workers, their speed and number, checkpoints, and the cost of a crash.");
  const auto worker_options = add_worker_options(*doctor);
  const auto leaves_members = std::make_shared<bool>(false);
  doctor->add_flag(
      "--no-members", *leaves_members,
      "measure neither from the server to each worker nor from worker to worker, 0.3 s each");
  doctor->callback([=, &status] { status = examine(*session, *worker_options, *leaves_members); });
}

}  // namespace centroid::client
