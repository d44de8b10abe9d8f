#include "server/aggregate/round_machine.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

namespace centroid::server {

namespace {

Duration duration(double s) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(s));
}

}  // namespace

void RoundMachine::open(Round round, std::uint32_t attempt, const std::vector<MemberId>& members,
                        const std::vector<MemberId>& others, TimePoint now) {
  CENTROID_CHECK(!members.empty() || has_late());
  for (const MemberId member : members) add_member(member);
  for (const MemberId member : others) add_member(member);
  round_ = round;
  attempt_ = attempt;
  open_ = true;
  opened_ = now;
  quorum_at_.reset();
  others_ = others;
  present_ = members.size() + others.size();
  seats_.clear();
  places_.clear();
  seated_ = possible_ = done_ = weighed_ = nonfinite_ = 0;
  for (const MemberId member : members) add_seat(member);
}

bool RoundMachine::admit(MemberId member) {
  if (!open_ || !may_begin(member) || std::erase(others_, member) == 0) return false;
  add_seat(member);
  return true;
}

void RoundMachine::add_seat(MemberId member) {
  places_.emplace(member, seats_.size());
  seats_.push_back(Seat{.member = member, .contribution = {}});
  ++seated_;
  ++possible_;
}

void RoundMachine::set_done(Seat& seat, Contribution contribution) {
  seat.done = true;
  seat.contribution = std::move(contribution);
  ++done_;
  if (!seat.present) ++possible_;
  if (seat.contribution.weight > 0) ++weighed_;
  if (seat.contribution.nonfinite && !seat.contribution.has_sum()) ++nonfinite_;
}

void RoundMachine::set_absent(Seat& seat) {
  if (!std::exchange(seat.present, false)) return;
  --seated_;
  if (!seat.done) --possible_;
}

const RoundMachine::Seat* RoundMachine::seat(MemberId member) const {
  const auto found = places_.find(member);
  return found == places_.end() ? nullptr : &seats_[found->second];
}

RoundMachine::Seat* RoundMachine::seat(MemberId member) {
  return const_cast<Seat*>(std::as_const(*this).seat(member));
}

bool RoundMachine::is_missing(MemberId member) const {
  const Seat* const s = seat(member);
  return open_ && s != nullptr && s->present && !s->done;
}

bool RoundMachine::expects(MemberId member) const {
  return is_missing(member) && !awaited_ready(member);
}

Result<RoundDecision> RoundMachine::contribute(MemberId member, Contribution contribution,
                                               TimePoint now) {
  Seat* const s = seat(member);
  if (!open_ || s == nullptr || !s->present)
    return Error(ErrorCode::kAborted, "round " + to_string(round_) +
                                          " is closed or was opened without member " +
                                          to_string(member));
  if (s->done)
    return Error(ErrorCode::kAborted, "member " + to_string(member) +
                                          " has already contributed to round " + to_string(round_));
  if (const auto earlier = awaited_ready(member))
    return Error(ErrorCode::kAborted, "member " + to_string(member) +
                                          " has not sent Ready for round " + to_string(*earlier));
  set_done(*s, std::move(contribution));
  if (const auto own = steps_.find(member); own != steps_.end()) ++own->second;
  observe(member, now - opened_);
  return decide(now);
}

RoundDecision RoundMachine::gone(MemberId member, Progress progress, TimePoint now) {
  debts_.erase(member);
  paces_.erase(member);
  steps_.erase(member);
  Seat* const s = seat(member);
  const bool was_other = std::erase(others_, member) > 0;
  const bool was_missing = s != nullptr && s->present && !s->done;
  if (s != nullptr) set_absent(*s);
  if (!open_ || (!was_other && !was_missing)) return {};
  const bool anybody = !others_.empty() || seated_ > 0 || (done_ > 0 && !policy_.is_joint);
  if (!anybody) {
    open_ = false;
    return {.action = RoundAction::kDeserted,
            .contributors = {},
            .late = {},
            .text = "every member of the round has left",
            .culprit = {}};
  }
  if (policy_.is_joint)
    return retry("member " + to_string(member) + " was lost before the sum was complete");
  if (progress == Progress::kPart)
    return retry("member " + to_string(member) + " was lost in the middle of its contribution");
  return decide(now);
}

RoundDecision RoundMachine::tick(TimePoint now) {
  return open_ && policy_.is_elastic() ? decide(now) : RoundDecision();
}

RoundDecision RoundMachine::failed(MemberId member, std::string why) {
  if (!policy_.is_joint || !expects(member)) return {};
  return retry(std::move(why));
}

RoundDecision RoundMachine::timed_out(const std::vector<MemberId>& silent, Progress progress,
                                      TimePoint now) {
  const auto is_silent = [&](const Seat& s) {
    return s.present && !s.done && std::ranges::find(silent, s.member) != silent.end();
  };
  const auto lost = std::ranges::find_if(seats_, is_silent);
  const bool anybody = std::ranges::any_of(
      seats_, [&](const Seat& s) { return (s.present || s.done) && !is_silent(s); });
  if (!open_ || lost == seats_.end() || !anybody) return {};
  // It cannot be requested again.
  const bool would_lose =
      std::ranges::any_of(seats_, [](const Seat& s) { return s.done && !s.present; });
  if (!would_lose || progress == Progress::kPart)
    return retry("member " + to_string(lost->member) + " has not contributed in time");
  for (Seat& s : seats_)
    if (is_silent(s)) set_absent(s);
  return decide(now);
}

RoundDecision RoundMachine::retry(std::string why) {
  open_ = false;
  return {.action = RoundAction::kRetry,
          .contributors = {},
          .late = {},
          .text = std::move(why),
          .culprit = {}};
}

/// Contributions that have arrived or may still arrive.
std::size_t RoundMachine::possible() const { return others_.size() + possible_; }

std::size_t RoundMachine::needed() const {
  const std::size_t alive = possible();
  std::size_t requested = alive;
  if (policy_.kind == PolicyKind::kBackup)
    requested = present_ > policy_.count ? present_ - policy_.count : 1;
  if (policy_.kind == PolicyKind::kQuorum) requested = policy_.count;
  if (policy_.applies_each()) requested = 1;
  return std::min(requested, alive);
}

/// Enough have contributed, and no other is worth waiting for.
bool RoundMachine::closes(TimePoint now) const {
  if (done_ == possible()) return true;
  // With asp and ssp a contribution that is not finite is a round of its own, which is skipped.
  const bool refuses = nonfinite_ > 0 && policy_.nonfinite == NonFinitePolicy::kSkip;
  if (policy_.applies_each()) return weighed_ > 0 || refuses || !late_.empty();
  // Empty shares alone are no round: a member with samples is still working.
  if (!policy_.is_elastic() || done_ < needed() || weighed_ == 0) return false;
  return !policy_.has_grace() || now >= grace_end();
}

/// A quorum waits for members whose past contributions predict an early arrival, at most `grace` of
/// the time that the quorum took. A member without a past gets all of that; members that are still
/// at an earlier round are not awaited.
TimePoint RoundMachine::grace_end() const {
  const TimePoint at = quorum_at_.value_or(opened_);
  const double took = seconds(at - opened_), limit = took * (1 + policy_.grace);
  double last = took;
  for (const Seat& s : seats_) {
    if (!s.present || s.done || awaited_ready(s.member)) continue;
    const auto pace = paces_.find(s.member);
    if (pace == paces_.end())
      last = limit;
    else if (pace->second.mean <= limit)
      last = std::max(last, std::min(limit, pace->second.mean + 2 * pace->second.deviation));
  }
  return std::max(at, opened_ + duration(last));
}

std::optional<TimePoint> RoundMachine::deadline() const {
  if (!open_ || !policy_.has_grace() || !quorum_at_) return std::nullopt;
  const TimePoint end = grace_end();
  return closes(end) ? std::optional(end) : std::nullopt;
}

/// Late contributions that the open round counts.
std::size_t RoundMachine::late_now() const {
  return policy_.applies_each() ? std::min<std::size_t>(1, late_.size()) : late_.size();
}

RoundDecision RoundMachine::decide(TimePoint now) {
  if (!quorum_at_ && policy_.is_elastic() && done_ >= needed()) quorum_at_ = now;
  const bool is_complete = closes(now);
  const bool halts = nonfinite_ > 0 && policy_.nonfinite == NonFinitePolicy::kHalt;
  if (!is_complete && !halts && !refused_late_) return {};  // the usual case, at no cost
  RoundDecision decision;
  const Seat* nonfinite = nullptr;
  for (const Seat& s : seats_) {
    if (!s.done) continue;
    const bool is_own = s.contribution.nonfinite && !s.contribution.has_sum();
    if (is_own && (nonfinite == nullptr || nonfinite->contribution.has_sum())) nonfinite = &s;
    if (s.contribution.has_sum() && nonfinite == nullptr) nonfinite = &s;
    if (s.contribution.weight > 0) {
      decision.contributors.push_back(s.member);
      decision.total_weight += s.contribution.weight;
    }
  }
  const std::size_t late = late_now();
  for (std::size_t i = 0; i < late; ++i) decision.total_weight += late_[i].share;
  const bool refuses = nonfinite != nullptr && policy_.nonfinite != NonFinitePolicy::kPropagate;
  if (refuses && policy_.nonfinite == NonFinitePolicy::kHalt && (halts || is_complete)) {
    decision.action = RoundAction::kHalt;
  } else if (!is_complete) {
    decision = {};
  } else if (refuses || decision.total_weight == 0) {
    decision.action = RoundAction::kSkip;
    decision.text = refuses ? "" : "no member had samples";
  } else {
    decision.action = RoundAction::kMerge;
    decision.late.assign(late_.begin(), late_.begin() + static_cast<std::ptrdiff_t>(late));
  }
  if (refuses && decision.action != RoundAction::kWait && nonfinite->contribution.has_sum()) {
    blame_largest(decision);
    decision.text = "the sum or result of tensor " + nonfinite->contribution.nonfinite_tensor +
                    " is not finite in round " + to_string(round_) +
                    ", though every contribution is" + decision.text;
  } else if (refuses && decision.action != RoundAction::kWait) {
    decision.culprit = nonfinite->member;
    decision.text = "the gradient of tensor " + nonfinite->contribution.nonfinite_tensor +
                    " is not finite in round " + to_string(round_);
  }
  if (refused_late_) {
    decision = {};
    decision.action = RoundAction::kHalt;
    decision.culprit = refused_late_->member;
    decision.text = "the gradient of tensor " + refused_late_->tensor + " is not finite in round " +
                    to_string(refused_late_->round) + ", after that round closed";
  }
  if (decision.action != RoundAction::kWait) close(decision.late.size());
  return decision;
}

/// The largest contribution to a sum that is not finite, if every norm is known.
void RoundMachine::blame_largest(RoundDecision& decision) const {
  decision.text.clear();
  const Seat* largest = nullptr;
  for (const Seat& s : seats_) {
    if (!s.done || s.contribution.weight <= 0) continue;
    if (s.contribution.norm < 0) return;
    if (largest == nullptr || s.contribution.norm > largest->contribution.norm) largest = &s;
  }
  if (largest == nullptr) return;
  char norm[32];
  std::snprintf(norm, sizeof norm, "%.3g", largest->contribution.norm);
  decision.culprit = largest->member;
  decision.text = "; the largest has norm " + std::string(norm);
}

/// `late`: number of waiting late contributions that it counts; after a skip they wait for the next
/// round.
void RoundMachine::close(std::size_t late) {
  open_ = false;
  late_.erase(late_.begin(), late_.begin() + static_cast<std::ptrdiff_t>(late));
  if (!policy_.is_elastic()) return;
  for (const Seat& s : seats_)
    if (s.present && !s.done) debts_.emplace(s.member, Debt{round_, opened_});
}

void RoundMachine::observe(MemberId member, Duration delay) {
  if (!policy_.has_grace()) return;
  // The smoothing of a round trip's time: RFC 6298.
  const double x = seconds(delay);
  const auto [it, is_new] = paces_.emplace(member, Pace{x, x / 2});
  if (is_new) return;
  Pace& pace = it->second;
  pace.deviation += (std::abs(x - pace.mean) - pace.deviation) / 4;
  pace.mean += (x - pace.mean) / 8;
}

std::optional<Round> RoundMachine::awaited_ready(MemberId member) const {
  const auto debt = debts_.find(member);
  if (debt == debts_.end()) return std::nullopt;
  return debt->second.round;
}

bool RoundMachine::may_count_late(Round round) const {
  const std::uint64_t into = open_ ? round_.value : round_.value + 1;
  return policy_.late != LateRule::kDrop && into - round.value <= policy_.max_late;
}

Result<double> RoundMachine::late(MemberId member, Round round, const Contribution& contribution,
                                  TimePoint now) {
  if (awaited_ready(member) != round)
    return Error(ErrorCode::kAborted,
                 "member " + to_string(member) + " owes nothing to round " + to_string(round));
  const bool is_awaited = may_count_late(round);
  caught_up(member, now);
  const bool is_refused =
      contribution.nonfinite && policy_.nonfinite != NonFinitePolicy::kPropagate;
  if (is_awaited && is_refused && policy_.nonfinite == NonFinitePolicy::kHalt && !refused_late_)
    refused_late_ = Refused{member, round, contribution.nonfinite_tensor};
  if (!is_awaited || is_refused || contribution.weight <= 0) return 0.0;
  double weight = contribution.weight;
  if (policy_.late == LateRule::kDamp) {
    const std::uint64_t into = open_ ? round_.value : round_.value + 1;
    weight /= std::pow(1.0 + static_cast<double>(into - round.value), policy_.power);
  }
  weight = static_cast<double>(static_cast<float>(weight));
  late_.push_back({member, round, weight, policy_.applies_each() ? contribution.weight : weight});
  return weight;
}

void RoundMachine::caught_up(MemberId member, TimePoint now) {
  const auto debt = debts_.find(member);
  if (debt == debts_.end()) return;
  observe(member, now - debt->second.opened);
  if (const auto own = steps_.find(member); own != steps_.end()) ++own->second;
  debts_.erase(debt);
}

/// A newcomer starts at the slowest member's position, so that none waits for it to catch up.
void RoundMachine::add_member(MemberId member) {
  if (policy_.kind != PolicyKind::kSsp || steps_.count(member) > 0) return;
  const std::uint64_t least = steps_.empty() ? 0 : steps_[slowest()];
  steps_.emplace(member, least);
}

MemberId RoundMachine::slowest() const {
  const auto least =
      std::min_element(steps_.begin(), steps_.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  return least == steps_.end() ? MemberId() : least->first;
}

std::uint64_t RoundMachine::steps_ahead(MemberId member) const {
  const auto own = steps_.find(member);
  return own == steps_.end() ? 0 : own->second - steps_.at(slowest());
}

bool RoundMachine::may_begin(MemberId member) const {
  return policy_.kind != PolicyKind::kSsp || steps_ahead(member) <= policy_.count;
}

std::vector<MemberId> RoundMachine::missing() const {
  std::vector<MemberId> out;
  if (open_)
    for (const Seat& s : seats_)
      if (s.present && !s.done) out.push_back(s.member);
  return out;
}

std::size_t RoundMachine::lost() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(seats_, [](const Seat& s) { return !s.present && !s.done; }));
}

std::vector<MemberId> RoundMachine::contributed() const {
  std::vector<MemberId> out;
  for (const Seat& s : seats_)
    if (s.done) out.push_back(s.member);
  return out;
}

}  // namespace centroid::server
