#include <chrono>
#include <cmath>
#include <ctime>
#include <utility>
#include <vector>

#include "client/report.h"

/// doctor: the members of a cluster, the paths between them, and the server's machine.
namespace centroid::client {

namespace {

constexpr double kBehind = 3;  ///< a slow path has less than the median divided by this
constexpr std::size_t kMeasuredWorkers = 16, kMeasuredWays = 16, kShownWays = 5, kMostFailed = 3;
constexpr std::chrono::seconds kWaysTime{30};  ///< nothing new begins after that
constexpr double kCertificateSeconds = 14 * 86400;
constexpr double kLeastFree = 0.05;   ///< of the disk
constexpr double kCheckpoints = 3;    ///< checkpoints that should still fit
constexpr double kLeaseSeconds = 10;  ///< if the server does not report it

struct Way {
  std::string name;
  double trip = 0, slower = 0;
};

Way way_of(const Json& answer) {
  const std::string to = text_of(answer, "to_name");
  return {text_of(answer, "name") + (to.empty() ? "" : " -> " + to),
          number_of(answer, "median_seconds"),
          std::min(number_of(answer, "bytes_per_second_to"),
                   number_of(answer, "bytes_per_second_from"))};
}

std::string text_of_way(const Way& way) {
  return size_text(way.slower) + "/s, " + duration_text(way.trip) + " a round trip";
}

/// Ordered pairs: all, or with many workers each with its neighbours in the ring.
std::vector<std::pair<const Json*, const Json*>> pairs_of(const std::vector<const Json*>& workers) {
  std::vector<std::pair<const Json*, const Json*>> pairs;
  const std::size_t n = workers.size();
  const bool has_room = n * (n - 1) <= kMeasuredWays;
  for (std::size_t step = 1; step < (has_room ? n : 2); ++step)
    for (std::size_t i = 0; i < n && pairs.size() < kMeasuredWays; ++i)
      pairs.emplace_back(workers[i], workers[(i + step) % n]);
  return pairs;
}

double lease_of(const Session& session) {
  const auto config = get_json(session, "/v1/config");
  if (!config.ok() || !config->contains("lease")) return kLeaseSeconds;
  return number_of((*config)["lease"], "value") / 1000;
}

/// Two of its heartbeats are missing, as the server counts.
bool is_silent(const Json& worker, double lease) {
  const std::string state = text_of(worker, "state");
  const bool is_here = state == "active" || state == "syncing" || state == "draining";
  return is_here && number_of(worker, "silent_seconds") > lease / 2;
}

void report_silent(Report& report, const Json& worker, const Json& waits) {
  const std::string name = text_of(worker, "name");
  const bool is_awaited = std::ranges::any_of(waits, [&](const Json& wait) {
    return text_of(wait, "waits_for") == name && text_of(wait, "waiter").starts_with("round");
  });
  report.add(Verdict::kWarning, "worker " + name,
             "does not answer, silent for " + duration_text(number_of(worker, "silent_seconds")) +
                 (is_awaited ? "; a round waits for it" : ""),
             "check its process, its machine's memory and the network to it. It is removed after "
             "`lease`; `centroidctl workers evict " +
                 name + "` does so now, and refuses its name until `workers allow`");
}

/// Report a failed measurement of a worker that is silent or lost; false: it is neither.
bool report_unmeasured(Report& report, const Session& session, const Json& worker, double asked) {
  const auto now = get_json(session, "/v1/workers/" + text_of(worker, "member"));
  if (!now.ok()) return false;
  const std::string state = text_of(*now, "state");
  if (state == "dead" || state == "fenced") {
    report.add(Verdict::kWarning, "worker " + text_of(*now, "name"),
               "was lost while it was measured: " + text_of(*now, "reason"),
               "check its log and its machine");
    return true;
  }
  // It was called all that time, and did not answer.
  const double silent = number_of(*now, "silent_seconds");
  if (!(asked > kWaitSeconds && silent > asked - kWaitSeconds && silent > kWaitSeconds))
    return false;
  const auto waits = get_list(session, "/v1/waits", "waits");
  report_silent(report, *now, waits.ok() ? *waits : Json::array());
  return true;
}

/// It left since the list was made: no fault, and nothing to measure.
bool has_left(const Session& session, const Json& worker) {
  const auto now = get_json(session, "/v1/workers/" + text_of(worker, "member"));
  return now.ok() && text_of(*now, "state") != "active";
}

}  // namespace

std::set<std::string> check_members(Report& report, const Session& session, const Json& workers) {
  const double lease = lease_of(session);
  std::set<std::string> silent;
  std::vector<Way> ways;
  std::size_t left = 0, failed = 0;
  std::string last;
  for (const Json& worker : workers) {
    if (text_of(worker, "state") != "active") continue;
    if (is_silent(worker, lease)) continue;  // reported by check_silent
    if (ways.size() == kMeasuredWorkers) {
      ++left;
      continue;
    }
    const auto begin = std::chrono::steady_clock::now();
    const auto answer =
        send_json(session, "POST", "/v1/workers/" + text_of(worker, "member") + ":measure");
    const std::chrono::duration<double> asked = std::chrono::steady_clock::now() - begin;
    if (!answer.ok() && report_unmeasured(report, session, worker, asked.count())) {
      silent.insert(text_of(worker, "name"));
      continue;
    }
    if (!answer.ok() && has_left(session, worker)) continue;
    if (!answer.ok()) {
      const std::string why = answer.error().message();
      if (why != last)
        report.add(
            Verdict::kWarning, "members", text_of(worker, "name") + " was not measured: " + why,
            "check its log. Measuring needs a token of the role admin; --no-members skips it");
      last = why;
      if (++failed == kMostFailed) break;
      continue;
    }
    ways.push_back({text_of(worker, "name"), number_of(*answer, "median_seconds"),
                    std::min(number_of(*answer, "bytes_per_second_to"),
                             number_of(*answer, "bytes_per_second_from"))});
  }
  if (ways.empty()) return silent;
  std::ranges::sort(ways, {}, &Way::slower);
  const double median = ways[ways.size() / 2].slower;
  bool is_sound = true;
  for (const Way& way : ways) {
    const bool is_slow = way.slower < kSlowBytes || way.trip > kSlowTrip;
    const bool is_behind = way.slower * kBehind < median;
    if (!is_slow && !is_behind) continue;
    is_sound = false;
    report.add(Verdict::kWarning, "members",
               way.name + ": " + size_text(way.slower) + "/s between it and the server, " +
                   duration_text(way.trip) + " a round trip; the median is " + size_text(median) +
                   "/s",
               "check the network of its machine: the speed of its link, other traffic, Wi-Fi; a "
               "codec reduces the traffic (docs/how-to/slow-networks.md)");
  }
  const std::string more = left > 0 ? "; " + std::to_string(left) + " more were not measured" : "";
  if (is_sound)
    report.add(Verdict::kGood, "members",
               std::to_string(ways.size()) + " measured from the server: at least " +
                   size_text(ways.front().slower) + "/s (" + ways.front().name + ")" + more);
  return silent;
}

void check_silent(Report& report, const Session& session, const Json& workers, const Json& waits,
                  const std::set<std::string>& reported) {
  const double lease = lease_of(session);
  for (const Json& worker : workers)
    if (is_silent(worker, lease) && !reported.contains(text_of(worker, "name")))
      report_silent(report, worker, waits);
}

void check_ways(Report& report, const Session& session, const Json& cluster, const Json& workers,
                const std::set<std::string>& silent) {
  const std::string exchange = text_of(cluster, "exchange");
  std::vector<const Json*> active;
  for (const Json& worker : workers)
    if (text_of(worker, "state") == "active" && number_of(worker, "rank") >= 0 &&
        !silent.contains(text_of(worker, "name")))
      active.push_back(&worker);
  if (exchange.empty() || exchange == "star" || active.size() < 2) return;
  std::ranges::sort(active, {}, [](const Json* one) { return number_of(*one, "rank"); });
  const auto begin = std::chrono::steady_clock::now();
  const auto pairs = pairs_of(active);
  std::vector<Way> ways;
  std::size_t failed = 0, tried = 0;
  for (const auto& [from, to] : pairs) {
    if (std::chrono::steady_clock::now() - begin > kWaysTime) break;
    ++tried;
    Json body;
    body["to"] = (*to)["member"];
    const auto answer =
        send_json(session, "POST", "/v1/workers/" + text_of(*from, "member") + ":measure", body);
    if (answer.ok()) {
      ways.push_back(way_of(*answer));
      continue;
    }
    ++failed;
    report.add(Verdict::kWarning, "way", answer.error().message(),
               "open the port of peers (peer.listen) of that worker to all workers; a token of the "
               "role admin is needed to measure");
    if (failed == kShownWays) break;
  }
  if (ways.empty()) return;
  std::ranges::sort(ways, {}, &Way::slower);
  const double median = ways[ways.size() / 2].slower;
  for (std::size_t i = 0; i < std::min(ways.size(), kShownWays); ++i) {
    const Way& way = ways[i];
    const bool is_slow =
        way.slower < kSlowBytes || way.trip > kSlowTrip || way.slower * kBehind < median;
    report.add(is_slow ? Verdict::kWarning : Verdict::kGood, "way",
               way.name + ": " + text_of_way(way),
               is_slow ? "check the network between these two machines. A ring is as fast as its "
                         "slowest path: ring_by_bandwidth avoids it, a codec reduces the traffic"
                       : "");
  }
  report.add(Verdict::kGood, "ways",
             std::to_string(ways.size()) + " of " +
                 std::to_string(active.size() * (active.size() - 1)) +
                 " from worker to worker measured, the slowest " +
                 std::to_string(std::min(ways.size(), kShownWays)) + " shown; the median is " +
                 size_text(median) + "/s");
}

void check_programs(Report& report, const Json& members, const std::string& kind,
                    const std::string& version) {
  std::size_t compared = 0;
  double furthest = 0;
  bool is_sound = true;
  for (const Json& member : members) {
    const std::string theirs = text_of(member, "version"),
                      name = kind + " " + text_of(member, "name");
    const std::string state = text_of(member, "state");
    if (theirs.empty() || state == "dead" || state == "left" || state == "fenced") continue;
    ++compared;
    if (theirs != version) {
      is_sound = false;
      report.add(Verdict::kWarning, "version", name + " is " + theirs + ", the server " + version,
                 "take all programs from one release");
    }
    const double ahead = number_of(member, "clock_ahead_seconds");
    if (std::abs(ahead) > furthest) furthest = std::abs(ahead);
    if (!(std::abs(ahead) > kClockSeconds)) continue;
    is_sound = false;
    report.add(Verdict::kWarning, "clock",
               name + ": its clock is " + duration_text(std::abs(ahead)) +
                   (ahead > 0 ? " ahead of" : " behind") + " the server's",
               "set the clocks of both machines by NTP");
  }
  if (compared > 0 && is_sound)
    report.add(Verdict::kGood, kind == "worker" ? "members' programs" : "servers' programs",
               std::to_string(compared) + " of version " + version + ", clocks within " +
                   duration_text(furthest) + " of the server's");
}

void check_certificates(Report& report, const Json& members, const std::string& kind) {
  const auto now = static_cast<double>(std::time(nullptr));
  std::size_t compared = 0;
  double first = 0;
  bool is_sound = true;
  for (const Json& member : members) {
    const double end = number_of(member, "certificate_expires_unix_seconds");
    if (std::isnan(end)) continue;
    first = compared == 0 ? end : std::min(first, end);
    ++compared;
    if (end - now >= kCertificateSeconds) continue;
    is_sound = false;
    report.add(end < now ? Verdict::kBad : Verdict::kWarning, "certificate",
               kind + " " + text_of(member, "name") +
                   (end < now ? ": the one it joined with has expired; it cannot join again"
                              : ": the one it joined with is valid until " + time_text(end, "-")),
               "put a new one on its machine: it is shown with the next connection "
               "(docs/how-to/secure.md)");
  }
  if (compared > 0 && is_sound)
    report.add(Verdict::kGood, "certificate",
               std::to_string(compared) + " " + kind + (compared == 1 ? "" : "s") +
                   " with one, the first ends " + time_text(first, "-"));
}

void check_disks(Report& report, const Json& servers) {
  for (const Json& server : servers) {
    const double free = number_of(server, "disk_free_bytes"),
                 total = number_of(server, "disk_total_bytes"), round = number_of(server, "bytes"),
                 journal = number_of(server, "journal_bytes");
    if (std::isnan(free)) continue;
    const char* const advice =
        "free space on that machine, or checkpoint more often (`centroidctl config set "
        "checkpoint.every_rounds=...`): its journal then starts again";
    const Verdict verdict = free < round                                  ? Verdict::kBad
                            : free < journal || free < kLeastFree * total ? Verdict::kWarning
                                                                          : Verdict::kGood;
    report.add(verdict, "disk",
               "server " + text_of(server, "name") + ": " + size_text(free) + " of " +
                   size_text(total) + " free for its journal, which has " + size_text(journal) +
                   "; a round takes " + size_text(round),
               verdict == Verdict::kGood ? "" : advice);
  }
}

void check_host(Report& report, const Session& session, const Json& checkpoints) {
  const auto host = get_json(session, "/v1/host");
  if (!host.ok())
    return report.add(Verdict::kBad, "disk", host.error().message(),
                      "check that the disk of run_dir answers: `ls` in it on the server's machine");
  double largest = 0;
  for (const Json& one : checkpoints) {
    const double bytes = number_of(one, "bytes");
    if (bytes > largest) largest = bytes;
  }
  const double free = number_of(*host, "free_bytes"), total = number_of(*host, "total_bytes");
  if (free >= 0) {
    const std::string found = size_text(free) + " of " + size_text(total) + " free in " +
                              text_of(*host, "run_dir") +
                              (largest > 0 ? ", a checkpoint takes " + size_text(largest) : "");
    const char* const advice =
        "free space, retain fewer (`centroidctl config set checkpoint.keep=2`), or use a larger "
        "volume";
    if (free < largest)
      report.add(Verdict::kBad, "disk", found, advice);
    else if (free < kCheckpoints * largest || free < kLeastFree * total)
      report.add(Verdict::kWarning, "disk", found, advice);
    else
      report.add(Verdict::kGood, "disk", found);
  }
  for (const Json& one : (*host)["certificates"]) {
    const std::string file = text_of(one, "file"), problem = text_of(one, "problem");
    const double left =
        number_of(one, "expires_unix_seconds") - static_cast<double>(std::time(nullptr));
    const char* const advice =
        "put a new one in its place: it is read with the next connection (docs/how-to/secure.md)";
    if (!problem.empty())
      report.add(Verdict::kBad, "certificate", problem, advice);
    else if (left < 0)
      report.add(Verdict::kBad, "certificate", file + " has expired", advice);
    else
      report.add(left < kCertificateSeconds ? Verdict::kWarning : Verdict::kGood, "certificate",
                 file + " is valid until " + time_text(number_of(one, "expires_unix_seconds"), "-"),
                 left < kCertificateSeconds ? advice : "");
  }
}

}  // namespace centroid::client
