#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <set>
#include <string>

#include "client/online.h"

namespace centroid::client {

/// Result of a check.
enum class Verdict { kGood, kWarning, kBad };

/// Findings with advice: printed one by one, or as one JSON array at the end.
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
    std::printf("%s%s%s\n", paint(style_, kColours[at], word).c_str(), cleaned(name).c_str(),
                cleaned(found).c_str());
    if (!advice.empty()) std::printf("%20s-> %s\n", "", cleaned(advice).c_str());
  }
  int finish() const {
    if (style_.is_json) std::printf("%s", line_of(all_).c_str());
    return is_bad_ ? kExitFailed : kExitDone;
  }

 private:
  Style style_;
  Json all_ = Json::array();
  bool is_bad_ = false;
};

/// Limits of a slow path: bytes a second, and seconds of a round trip.
inline constexpr double kSlowBytes = 10e6, kSlowTrip = 0.05;
/// Shorter waits are not reported.
inline constexpr double kWaitSeconds = 2;
inline constexpr double kClockSeconds = 5;  ///< between two machines; more confuses logs and graphs

// doctor_members.cc
// The path between the server and each worker, measured by the server during training. Returns the
// workers that did not answer or were lost meanwhile.
std::set<std::string> check_members(Report& report, const Session& session, const Json& workers);
/// The paths from worker to worker, if their exchange uses them: the slowest as a table. Without
/// those in `silent`.
void check_ways(Report& report, const Session& session, const Json& cluster, const Json& workers,
                const std::set<std::string>& silent);
/// Workers without their last two heartbeats; `reported` were named before.
void check_silent(Report& report, const Session& session, const Json& workers, const Json& waits,
                  const std::set<std::string>& reported);
/// Clocks and versions of workers and shard servers, by their reports to the server.
void check_programs(Report& report, const Json& members, const std::string& kind,
                    const std::string& version);
/// Expiry of the certificates that workers and shard servers have shown.
void check_certificates(Report& report, const Json& members, const std::string& kind);
/// Space on the disks of shard servers, for their journals.
void check_disks(Report& report, const Json& servers);
/// Space on the server's disk, and expiry of its certificates.
void check_host(Report& report, const Session& session, const Json& checkpoints);

}  // namespace centroid::client
