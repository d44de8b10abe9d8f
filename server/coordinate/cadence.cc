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

void Cadence::hint(MemberId member, double pace) {
  paces_[member].hint = std::isfinite(pace) && pace > 0 ? pace : 0;
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

void Cadence::pause_growth(bool is_held) {
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
  } else if (now < target / 2 && present > least_ && room_ >= anchor_) {
    anchor_ = present - 1;  // where there is data for no more it is as short as that
  }
}

/// Steps of the slowest, as far as the lead has let it come.
std::uint64_t Cadence::made() const {
  std::uint64_t least = anchor();
  if (options_.max_lead == 0 || options_.max_lead >= kNoLimit) return least;
  for (const auto& [member, pace] : paces_)
    if (pace.steps > 0) least = std::min(least, pace.steps);
  return least;
}

/// To which the lead lets the steps of one who makes `made` come down.
std::uint64_t Cadence::least_after(std::uint64_t made) const {
  const std::uint64_t lead = options_.max_lead;
  return lead > 0 && made > lead ? made - lead : 1;
}

void Cadence::nudge_down(double factor) {
  const std::uint64_t present = made();
  const double wanted =
      std::ceil(static_cast<double>(present) * std::clamp(factor, 0.1, 1.0) - 1e-9);
  anchor_ =
      std::clamp<std::uint64_t>(static_cast<std::uint64_t>(wanted), least_after(present), present);
  least_ = std::min(least_, anchor_);
}

void Cadence::limit(std::uint64_t most) {
  limit_ = std::max<std::uint64_t>(most, 1);
  if (anchor_ <= limit_) return;
  anchor_ = std::min(anchor_, std::max(limit_, least_after(made())));
  least_ = std::min(least_, anchor_);
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

/// What the plan counts with of each member's pace. Returns that of the slowest.
double Cadence::use_paces() {
  // Hints are in a unit of their own: what it is, those say who have been measured, too.
  double sum = 0;
  std::size_t both = 0, measured = 0;
  for (const auto& [member, pace] : paces_) {
    if (!pace.step.is_known()) continue;
    ++measured;
    if (pace.hint > 0) sum += pace.step.seconds() / pace.hint, ++both;
  }
  const double unit = both > 0 ? sum / static_cast<double>(both) : measured > 0 ? 0 : 1;
  double slow = 0;
  for (auto& [member, pace] : paces_) {
    if (pace.is_hinted || (pace.used == 0 && pace.hint > 0)) {
      pace.used = pace.hint * unit;
      pace.is_hinted = pace.used > 0;
    }
    const double seconds = pace.step.seconds();
    const bool is_other = std::abs(seconds - pace.used) > options_.dead_zone * pace.used;
    if (seconds > 0 && (pace.used == 0 || is_other)) {
      pace.used = seconds;
      pace.is_hinted = false;
    }
    slow = std::max(slow, pace.used);
  }
  return slow;
}

std::vector<std::uint64_t> Cadence::plan(std::span<const MemberId> members, const RoundData& data,
                                         std::span<const MemberId> begin) {
  for (const MemberId member : members) paces_.try_emplace(member);
  const double slow = use_paces();  // also of those that begin at another time
  room_ = data.batches.empty() ? kNoLimit : room_for(members, data, slow);
  std::vector<std::uint64_t> steps;
  for (const MemberId member : members) {
    const double used = paces_[member].used;
    steps.push_back(used == 0 ? 0 : steps_of(anchor(), slow, used));
  }
  steps = plan_given(members, std::move(steps), begin);
  for (std::uint64_t& one : steps)
    if (one == 0) one = std::min(anchor(), kProbe);
  return steps;
}

/// Who is tried has 0, and is in nobody's way.
std::vector<std::uint64_t> Cadence::plan_given(std::span<const MemberId> members,
                                               std::vector<std::uint64_t> steps,
                                               std::span<const MemberId> begin) {
  const std::uint64_t lead = options_.max_lead;
  std::uint64_t newcomers = kNoLimit;  // begin where the slowest is
  for (const MemberId member : members)
    if (const std::uint64_t before = paces_[member].steps; before > 0)
      newcomers = std::min(newcomers, before);
  std::uint64_t fewest = kNoLimit;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (steps[i] == 0) continue;
    std::uint64_t before = paces_[members[i]].steps;
    if (before == 0 && newcomers < kNoLimit) before = newcomers;
    if (lead > 0 && before > 0) steps[i] = std::clamp(steps[i], least_after(before), before + lead);
    fewest = std::min(fewest, steps[i]);
  }
  for (std::size_t i = 0; i < members.size(); ++i) {
    steps[i] = std::min(steps[i], fewest + lead);
    if (begin.empty() || std::ranges::find(begin, members[i]) != begin.end())
      paces_[members[i]].steps = steps[i];
  }
  return steps;
}

}  // namespace centroid::server
