#include "server/service/scale.h"

#include <algorithm>
#include <cmath>

namespace centroid::server {

namespace {

constexpr std::uint64_t kRoundsNeeded = 3;
constexpr double kStraggles = 1.5;

std::string percent(double share) { return std::to_string(std::lround(100 * share)) + " %"; }

/// Samples a second of m workers in units of one worker's that never waits.
double speed(double workers, double compute, double overhead) {
  return workers * compute / (compute + overhead);
}

}  // namespace

ScaleAdvice advise_scale(const ScaleQuestion& question) {
  ScaleAdvice out;
  out.workers = question.workers.size();
  out.useful_workers = out.workers;
  out.round_seconds = question.round_seconds;
  out.limited_by = "nothing_known";
  out.speedup = 1;
  std::vector<double> seconds;
  const ScaleQuestion::Worker* slowest = nullptr;
  for (const auto& worker : question.workers) {
    seconds.push_back(worker.compute_seconds);
    if (slowest == nullptr || worker.compute_seconds > slowest->compute_seconds) slowest = &worker;
  }
  if (slowest == nullptr || question.rounds < kRoundsNeeded || !(question.round_seconds > 0) ||
      !(slowest->compute_seconds > 0)) {
    out.advice = "nothing is known yet: it takes " + std::to_string(kRoundsNeeded) +
                 " rounds with the workers that are here now";
    return out;
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  const bool straggles = seconds.size() >= 3 && slowest->compute_seconds > kStraggles * median;
  const auto now = static_cast<double>(out.workers);
  const double compute = std::min(slowest->compute_seconds, question.round_seconds);
  out.compute_seconds = compute;
  out.overhead_seconds = question.round_seconds - compute;
  out.efficiency = compute / question.round_seconds;
  const auto most = static_cast<double>(std::max<std::uint64_t>(question.max_workers, 1));
  const double wanted = 1 / question.efficiency - 1;
  double useful = most;
  if (question.adds_at_server && out.overhead_seconds > 0)
    useful = std::clamp(std::floor(now * compute / out.overhead_seconds * wanted), 1.0, most);
  else if (!question.adds_at_server && out.efficiency < question.efficiency)
    useful = std::max(1.0, now);
  out.useful_workers = static_cast<std::uint64_t>(useful);
  const double overhead_then =
      question.adds_at_server ? out.overhead_seconds * useful / now : out.overhead_seconds;
  out.speedup = speed(useful, compute, overhead_then) / speed(now, compute, out.overhead_seconds);
  const std::string present = "workers compute in " + percent(out.efficiency) + " of a round; ";
  if (straggles) {
    out.limited_by = "straggler";
    out.straggler = slowest->name;
    out.advice = present + "the others wait for " + slowest->name + ", which computes " +
                 std::to_string(slowest->compute_seconds / median).substr(0, 4) +
                 " times as long as the median: replace it, give it a smaller --batch, or take "
                 "policy backup or quorum, before adding workers";
  } else if (useful > now) {
    out.limited_by = "workers";
    out.advice = present + "up to " + std::to_string(out.useful_workers) +
                 " workers would keep that at " + percent(question.efficiency) + " or more";
  } else {
    out.limited_by = "exchange";
    out.advice = present +
                 "more workers would wait rather than help: larger --batch, local_steps, a codec "
                 "or more servers make the exchange cheaper";
  }
  return out;
}

}  // namespace centroid::server
