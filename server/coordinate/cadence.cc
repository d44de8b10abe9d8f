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

namespace {

/// Of a member in the time in which the slowest makes `anchor` steps.
std::uint64_t steps_of(std::uint64_t anchor, double slow, double used) {
  const double wanted = std::round(static_cast<double>(anchor) * slow / used);
  return static_cast<std::uint64_t>(std::clamp(wanted, 1.0, 1e9));
}

}  // namespace

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

std::uint64_t Cadence::anchor() const {
  const std::uint64_t most = std::min(room_, held_at_.value_or(kNoLimit));
  return options_.tunes ? std::min(anchor_, most) : anchor_;
}

void Cadence::hold_growth(bool is_held) {
  if (!is_held)
    held_at_.reset();
  else if (!held_at_)
    held_at_ = anchor();
}

double Cadence::overhead() const {
  const double work = slowest() * static_cast<double>(anchor());
  return work > 0 ? exchange_.seconds() / work : 0;
}

void Cadence::exchanged(double seconds) {
  exchange_.observe(seconds);
  const double now = overhead(), target = options_.overhead;
  if (!options_.tunes || now == 0) return;
  const std::uint64_t present = anchor();
  if (now > target && !held_at_) {
    // What rounding alone adds must not make one more step of it.
    const double wanted = std::ceil(static_cast<double>(present) * now / target - 1e-9);
    const std::uint64_t most = std::max(std::min({options_.most, limit_, room_}), anchor_);
    anchor_ = static_cast<std::uint64_t>(
        std::clamp(wanted, static_cast<double>(anchor_), static_cast<double>(most)));
  } else if (now < target / 2 && present > least_) {
    anchor_ = present - 1;
  }
}

void Cadence::nudge_down(double factor) {
  const double wanted =
      std::ceil(static_cast<double>(anchor()) * std::clamp(factor, 0.1, 1.0) - 1e-9);
  anchor_ = std::clamp<std::uint64_t>(static_cast<std::uint64_t>(wanted), 1, anchor());
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

/// The most that the slowest can make when all come at the same time and share the data.
std::uint64_t Cadence::room_for(std::span<const MemberId> members, const RoundData& data,
                                double slow) const {
  const auto samples = [&](std::uint64_t anchor) {
    double sum = 0;
    for (std::size_t i = 0; i < data.batches.size(); ++i) {
      const double used = paces_.at(members[i]).used;
      if (used == 0) continue;  // it is tried first
      sum +=
          static_cast<double>(data.batches[i]) *
          static_cast<double>(std::min(steps_of(anchor, slow, used), anchor + options_.max_lead));
    }
    return sum;
  };
  std::uint64_t fits = 1, most = kNoLimit;
  while (fits < most) {
    const std::uint64_t middle = fits + (most - fits + 1) / 2;
    if (samples(middle) <= static_cast<double>(data.samples))
      fits = middle;
    else
      most = middle - 1;
  }
  return fits;
}

std::vector<std::uint64_t> Cadence::plan(std::span<const MemberId> members, const RoundData& data,
                                         std::span<const MemberId> begin) {
  double slow = 0;
  for (const MemberId member : members) paces_.try_emplace(member);
  for (auto& [member, pace] : paces_) {  // also of those that begin at another time
    const double seconds = pace.step.seconds();
    if (pace.used == 0 || std::abs(seconds - pace.used) > options_.dead_zone * pace.used)
      pace.used = seconds;
    slow = std::max(slow, pace.used);
  }
  room_ = data.batches.empty() ? kNoLimit : room_for(members, data, slow);
  const std::uint64_t slowest_makes = anchor();
  std::vector<std::uint64_t> steps;
  std::uint64_t least = slowest_makes;
  for (const MemberId member : members) {
    const double used = paces_[member].used;
    steps.push_back(used == 0 ? std::min(slowest_makes, kProbe)
                              : steps_of(slowest_makes, slow, used));
    least = std::min(least, steps.back());
  }
  for (std::size_t i = 0; i < members.size(); ++i) {
    Pace& pace = paces_[members[i]];
    const std::uint64_t lead = options_.max_lead, before = pace.steps;
    if (lead > 0 && before > 0 && pace.used > 0) {
      const std::uint64_t low = before > lead ? before - lead : 1;
      steps[i] = std::clamp(steps[i], low, before + lead);
    }
    if (pace.used > 0) steps[i] = std::min(steps[i], std::max(least, slowest_makes) + lead);
    if (begin.empty() || std::ranges::find(begin, members[i]) != begin.end())
      pace.steps = pace.used > 0 ? steps[i] : 0;
  }
  return steps;
}

}  // namespace centroid::server
