#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <iomanip>
#include <sstream>
#include <utility>
#include <vector>

#include "client/network.h"
#include "client/online.h"
#include "common/base/version.h"

/// doctor: what is wrong with a cluster, and what to do about it.
namespace centroid::client {

namespace {

constexpr double kClockSeconds = 5;  ///< between two machines; more confuses logs and graphs
constexpr double kStillSeconds = 60;
constexpr double kCheckpointAgeSeconds = 7200;
constexpr double kSlowBytes = 10e6, kSlowTrip = 0.05;
constexpr double kStraggler = 2;  ///< times the median
constexpr std::chrono::milliseconds kNetworkTime{600};

enum class Verdict { kGood, kWarning, kBad };

class Report {
 public:
  explicit Report(const Style& style) : style_(style) {}
  void add(Verdict verdict, const std::string& what, const std::string& found,
           const std::string& advice = {}) {
    if (verdict == Verdict::kBad) is_bad_ = true;
    static constexpr const char* kWords[] = {"ok", "warning", "BAD"};
    static constexpr Colour kColours[] = {Colour::kGood, Colour::kWarning, Colour::kBad};
    const auto at = static_cast<std::size_t>(verdict);
    if (style_.is_json) {
      Json one;
      one["check"] = what;
      one["verdict"] = at == 0 ? "ok" : at == 1 ? "warning" : "bad";
      one["found"] = found;
      one["do"] = advice;
      all_.push_back(std::move(one));
      return;
    }
    std::string word = kWords[at];
    word.resize(8, ' ');
    std::string name = what;
    name.resize(std::max<std::size_t>(12, name.size() + 1), ' ');
    std::printf("%s%s%s\n", paint(style_, kColours[at], word).c_str(), name.c_str(), found.c_str());
    if (!advice.empty()) std::printf("%20s-> %s\n", "", advice.c_str());
  }
  int finish() const {
    if (style_.is_json) std::printf("%s\n", all_.dump().c_str());
    return is_bad_ ? kExitFailed : kExitDone;
  }

 private:
  Style style_;
  Json all_ = Json::array();
  bool is_bad_ = false;
};

/// Seconds since 1970 of an HTTP date; NaN when it is none.
double unix_seconds(const std::string& date) {
  std::tm parts{};
  std::istringstream in(date);
  in >> std::get_time(&parts, "%a, %d %b %Y %H:%M:%S");
  return in ? static_cast<double>(timegm(&parts)) : std::nan("");
}

void check_clock(Report& report, const Answer& answer) {
  const double apart = unix_seconds(answer.date) - static_cast<double>(std::time(nullptr));
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

/// The port of workers, and what the way there gives: one round of training moves the model once
/// each way for each worker, so a way on which that takes longer than a round holds training up.
void check_data_port(Report& report, const Session& session, const Json& cluster,
                     const std::string& token) {
  const auto where = data_endpoint(session, cluster);
  if (!where.ok()) return report.add(Verdict::kWarning, "data port", where.error().message());
  Remote data;
  if (!data.set_address(*where).ok()) return;
  if (const Status open = knock(data.host, data.port, session.remote.timeout); !open.ok())
    return report.add(
        Verdict::kWarning, "data port", open.error().message(),
        "open " + *where + " to the workers; run this again on one of their machines");
  report.add(Verdict::kGood, "data port", *where + " is open from here");
  const auto network = measure(*where, token, kNetworkTime, transport::kMaxEchoBytes);
  if (!network.ok())
    return report.add(Verdict::kWarning, "network", "not measured: " + network.error().message(),
                      "give the workers' token with --worker-token-file");
  const double slower = std::min(network->bytes_per_second_out, network->bytes_per_second_in);
  const double model_seconds = sizeof(float) * number_of(cluster, "parameters") / slower;
  const std::string found = duration_text(network->median_seconds) + " a round trip, " +
                            size_text(network->bytes_per_second_out) + "/s to the server, " +
                            size_text(network->bytes_per_second_in) +
                            "/s from it; the model takes " + duration_text(model_seconds);
  const bool is_slow = slower < kSlowBytes || network->median_seconds > kSlowTrip;
  report.add(is_slow ? Verdict::kWarning : Verdict::kGood, "network", found,
             is_slow ? "compare with `centroidctl bench` between other machines; a codec or local "
                       "steps need less of it"
                     : "");
}

/// One worker that computes much longer than the others holds all of them up.
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
               "look what else runs on its machine; policies backup and ssp wait less "
               "(docs/policies.md)");
  else
    report.add(Verdict::kGood, "speed",
               "the slowest step took " + duration_text(slowest) + ", the median is " +
                   duration_text(median));
}

void check_job(Report& report, const Json& cluster) {
  const std::string state = text_of(cluster, "state"), why = text_of(cluster, "state_reason");
  const std::string found = state + (why.empty() ? "" : ": " + why);
  if (state == "halted")
    report.add(Verdict::kBad, "job", found, "correct what the reason names, start with --resume");
  else if (state == "paused")
    report.add(Verdict::kWarning, "job", found, "centroidctl job resume");
  else if (state == "waiting")
    report.add(Verdict::kWarning, "job", found, "start the missing workers");
  else
    report.add(Verdict::kGood, "job", found);
}

void check_waits(Report& report, const Json& waits) {
  bool is_still = false;
  for (const Json& wait : waits)
    if (number_of(wait, "seconds") > kStillSeconds && text_of(wait, "who").starts_with("round")) {
      is_still = true;
      report.add(Verdict::kWarning, "waits",
                 text_of(wait, "who") + " waits for " + text_of(wait, "for_whom") + ", " +
                     text_of(wait, "what") + ", " + duration_text(number_of(wait, "seconds")),
                 "look at the log of " + text_of(wait, "for_whom") + "; restart it if it hangs");
    }
  if (!is_still) report.add(Verdict::kGood, "waits", "no round waits long");
}

void check_workers(Report& report, const Json& workers) {
  std::size_t present = 0, dead = 0;
  std::string last;
  for (const Json& worker : workers) {
    const std::string state = text_of(worker, "state");
    if (state == "dead" || state == "fenced") {
      ++dead;
      last = text_of(worker, "name") + ": " + text_of(worker, "reason");
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
  for (const Json& one : checkpoints) {
    if (!text_of(one, "problem").empty())
      report.add(Verdict::kBad, "checkpoint", text_of(one, "path") + ": " + text_of(one, "problem"),
                 "look at the disk; the next older one would be taken");
    else
      newest = std::max(newest, number_of(one, "created_unix_seconds"));
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

int examine(const Session& session, const std::string& token_file) {
  Report report(session.style);
  const auto alive = ask(session.remote, "GET", "/healthz");
  if (!alive.ok()) {
    report.add(Verdict::kBad, "REST", alive.error().message(),
               "is the server running, is --server right, is the port open?");
    return report.finish() == kExitDone ? kExitDone : kExitUnreachable;
  }
  report.add(Verdict::kGood, "REST", session.remote.to_string() + " answers");
  check_clock(report, *alive);
  const auto version = get_json(session, "/version");
  if (!version.ok()) {
    report.add(Verdict::kBad, "token", version.error().message(),
               "give the server's api.token with --token-file");
    return report.finish();
  }
  report.add(Verdict::kGood, "token", session.token.empty() ? "none is needed" : "is the server's");
  check_version(report, *version);
  const auto cluster = get_json(session, "/v1/cluster"), workers = get_json(session, "/v1/workers"),
             waits = get_json(session, "/v1/waits"),
             checkpoints = get_json(session, "/v1/checkpoints");
  for (const auto* answer : {&cluster, &workers, &waits, &checkpoints})
    if (!answer->ok()) {
      report.add(Verdict::kBad, "REST", answer->error().message(), "see the server's log");
      return report.finish();
    }
  const auto worker_token = read_worker_token(token_file);
  if (!worker_token.ok()) return complain(worker_token.error());
  check_data_port(report, session, *cluster, *worker_token);
  check_job(report, *cluster);
  check_waits(report, (*waits)["waits"]);
  check_workers(report, (*workers)["workers"]);
  check_speed(report, (*workers)["workers"]);
  check_checkpoints(report, *cluster, (*checkpoints)["checkpoints"]);
  return report.finish();
}

}  // namespace

void add_doctor(CLI::App& app, std::shared_ptr<Session> session, int& status) {
  CLI::App* const doctor = app.add_subcommand(
      "doctor",
      "Look for what is wrong, and say what to mend: ports, clock, tokens, version, network, job, "
      "waits, workers, their speed, checkpoints.");
  const auto token_file = std::make_shared<std::string>();
  doctor
      ->add_option("--worker-token-file", *token_file,
                   "file with the token of workers, to measure the network with")
      ->envname("CENTROIDCTL_WORKER_TOKEN_FILE");
  doctor->callback([=, &status] { status = examine(*session, *token_file); });
}

}  // namespace centroid::client
