#include "server/coordinate/cadence.h"

#include <algorithm>
#include <cmath>

namespace centroid::server {

void SmoothedTime::observe(double seconds) {
  if (!std::isfinite(seconds) || seconds <= 0) return;
  if (!is_known()) {
    seconds_ = seconds;
    return;
  }
  const double error = std::abs(seconds - seconds_) / seconds_;
  seconds_ += std::clamp(error, 0.1, 0.8) * (seconds - seconds_);
}

Cadence::Cadence(Options options) : options_(options) {
  options_.initial = std::max<std::uint64_t>(options_.initial, 1);
  options_.most = std::max(options_.most, options_.initial);
  options_.overhead = std::clamp(options_.overhead, 0.01, 0.5);
  anchor_ = least_ = options_.initial;
}

void Cadence::worked(MemberId member, double steps, double compute_seconds) {
  if (!std::isfinite(steps) || steps <= 0) return;
  paces_[member].step.observe(compute_seconds / steps);
}

void Cadence::hint(MemberId member, double seconds_per_step) {
  Pace& pace = paces_[member];
  if (!pace.step.is_known()) pace.step.observe(seconds_per_step);
}

void Cadence::gone(MemberId member) { paces_.erase(member); }

bool Cadence::is_known(MemberId member) const { return seconds_per_step(member) > 0; }

double Cadence::seconds_per_step(MemberId member) const {
  const auto pace = paces_.find(member);
  return pace == paces_.end() ? 0 : pace->second.step.seconds();
}

double Cadence::slowest() const {
  double most = 0;
  for (const auto& [member, pace] : paces_) most = std::max(most, pace.step.seconds());
  return most;
}

double Cadence::overhead() const {
  const double work = slowest() * static_cast<double>(anchor_);
  return work > 0 ? exchange_.seconds() / work : 0;
}

void Cadence::exchanged(double seconds) {
  exchange_.observe(seconds);
  const double now = overhead(), target = options_.overhead;
  if (!options_.tunes || now == 0) return;
  if (now > target && !is_held_) {
    // What rounding alone adds must not make one more step of it.
    const double wanted = std::ceil(static_cast<double>(anchor_) * now / target - 1e-9);
    anchor_ = static_cast<std::uint64_t>(
        std::clamp(wanted, static_cast<double>(anchor_),
                   std::max(static_cast<double>(std::min({options_.most, limit_, room_})),
                            static_cast<double>(anchor_))));
  } else if (now < target / 2 && anchor_ > least_) {
    --anchor_;
  }
}

void Cadence::nudge_down(double factor) {
  const double wanted =
      std::ceil(static_cast<double>(anchor_) * std::clamp(factor, 0.1, 1.0) - 1e-9);
  anchor_ = std::clamp<std::uint64_t>(static_cast<std::uint64_t>(wanted), 1, anchor_);
  least_ = std::min(least_, anchor_);
  for (auto& [member, pace] : paces_) pace.steps = 0;  // no limit on this change
}

void Cadence::limit(std::uint64_t most) {
  limit_ = std::max<std::uint64_t>(most, 1);
  if (anchor_ <= limit_) return;
  anchor_ = limit_;
  least_ = std::min(least_, anchor_);
  for (auto& [member, pace] : paces_) pace.steps = 0;  // no limit on this change
}

std::vector<std::uint64_t> Cadence::plan(std::span<const MemberId> members,
                                         std::span<const std::uint64_t> most) {
  double slow = 0;
  for (const MemberId member : members) paces_.try_emplace(member);
  for (auto& [member, pace] : paces_) {  // also of those that begin at another time
    const double seconds = pace.step.seconds();
    if (pace.used == 0 || std::abs(seconds - pace.used) > options_.dead_zone * pace.used)
      pace.used = seconds;
    slow = std::max(slow, pace.used);
  }
  room_ = kNoLimit;
  for (std::size_t i = 0; i < most.size() && slow > 0; ++i) {
    const double used = paces_[members[i]].used;
    if (used == 0) continue;  // it is tried first
    const double room = std::floor(static_cast<double>(most[i]) * used / slow);
    room_ = std::min(room_, static_cast<std::uint64_t>(std::clamp(room, 1.0, 1e6)));
  }
  if (options_.tunes) anchor_ = std::min(anchor_, room_);
  std::vector<std::uint64_t> steps;
  std::uint64_t least = anchor_;
  for (const MemberId member : members) {
    const double used = paces_[member].used;
    const double wanted = std::round(static_cast<double>(anchor_) * slow / used);
    steps.push_back(used == 0 ? std::min(anchor_, kProbe)
                              : static_cast<std::uint64_t>(std::clamp(wanted, 1.0, 1e9)));
    least = std::min(least, steps.back());
  }
  for (std::size_t i = 0; i < members.size(); ++i) {
    Pace& pace = paces_[members[i]];
    const std::uint64_t lead = options_.max_lead, before = pace.steps;
    if (lead > 0 && before > 0 && pace.used > 0) {
      const std::uint64_t low = before > lead ? before - lead : 1;
      steps[i] = std::clamp(steps[i], low, before + lead);
    }
    if (pace.used > 0) steps[i] = std::min(steps[i], std::max(least, anchor_) + lead);
    pace.steps = pace.used > 0 ? steps[i] : 0;
  }
  return steps;
}

}  // namespace centroid::server
