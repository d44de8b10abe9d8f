#include "server/aggregate/round_machine.h"

#include <algorithm>

namespace centroid::server {

void RoundMachine::open(Round round, std::uint32_t attempt, const std::vector<MemberId>& members) {
  CENTROID_CHECK(!members.empty());
  round_ = round;
  attempt_ = attempt;
  open_ = true;
  seats_.clear();
  for (const MemberId member : members)
    seats_.push_back(Seat{.member = member, .contribution = {}});
}

RoundMachine::Seat* RoundMachine::seat(MemberId member) {
  const auto it =
      std::find_if(seats_.begin(), seats_.end(), [&](const Seat& s) { return s.member == member; });
  return it == seats_.end() ? nullptr : &*it;
}

bool RoundMachine::expects(MemberId member) const {
  return open_ && std::any_of(seats_.begin(), seats_.end(), [&](const Seat& s) {
           return s.member == member && s.present && !s.done;
         });
}

Result<RoundDecision> RoundMachine::contribute(MemberId member, Contribution contribution) {
  Seat* const s = seat(member);
  if (!open_ || s == nullptr || !s->present)
    return Error(ErrorCode::kAborted, "round " + to_string(round_) +
                                          " is closed or was opened without member " +
                                          to_string(member));
  if (s->done)
    return Error(ErrorCode::kAborted, "member " + to_string(member) +
                                          " has already contributed to round " + to_string(round_));
  s->done = true;
  s->contribution = std::move(contribution);
  return decide();
}

RoundDecision RoundMachine::gone(MemberId member, Progress progress) {
  Seat* const s = seat(member);
  if (!open_ || s == nullptr || !s->present || s->done) return {};
  s->present = false;
  const bool anybody = std::any_of(seats_.begin(), seats_.end(), [this](const Seat& other) {
    return other.present || (other.done && !policy_.is_joint);
  });
  if (!anybody) {
    open_ = false;
    return {.action = RoundAction::kDeserted,
            .contributors = {},
            .text = "every member of the round is gone",
            .culprit = {}};
  }
  if (policy_.is_joint)
    return retry("member " + to_string(member) + " was lost before the sum was complete");
  if (progress == Progress::kPart)
    return retry("member " + to_string(member) + " was lost in the middle of its contribution");
  return decide();
}

RoundDecision RoundMachine::failed(MemberId member, std::string why) {
  if (!policy_.is_joint || !expects(member)) return {};
  return retry(std::move(why));
}

RoundDecision RoundMachine::retry(std::string why) {
  open_ = false;
  return {.action = RoundAction::kRetry, .contributors = {}, .text = std::move(why), .culprit = {}};
}

RoundDecision RoundMachine::decide() {
  RoundDecision decision;
  const Seat* nonfinite = nullptr;
  bool complete = true;
  for (const Seat& s : seats_) {
    if (!s.done) {
      complete = complete && !s.present;
      continue;
    }
    if (s.contribution.nonfinite && nonfinite == nullptr) nonfinite = &s;
    if (s.contribution.weight > 0) {
      decision.contributors.push_back(s.member);
      decision.total_weight += s.contribution.weight;
    }
  }
  const bool refuses = nonfinite != nullptr && policy_.nonfinite != NonFinitePolicy::kPropagate;
  if (refuses && policy_.nonfinite == NonFinitePolicy::kHalt) {
    decision.action = RoundAction::kHalt;
  } else if (!complete) {
    decision = {};
  } else if (refuses || decision.total_weight == 0) {
    decision.action = RoundAction::kSkip;
    decision.text = refuses ? "" : "no member had samples";
  } else {
    decision.action = RoundAction::kMerge;
  }
  if (refuses && decision.action != RoundAction::kWait) {
    decision.culprit = nonfinite->member;
    decision.text = "the gradient of tensor " + nonfinite->contribution.nonfinite_tensor +
                    " is not finite in round " + to_string(round_);
  }
  if (decision.action != RoundAction::kWait) open_ = false;
  return decision;
}

std::vector<MemberId> RoundMachine::missing() const {
  std::vector<MemberId> out;
  if (open_)
    for (const Seat& s : seats_)
      if (s.present && !s.done) out.push_back(s.member);
  return out;
}

std::vector<MemberId> RoundMachine::contributed() const {
  std::vector<MemberId> out;
  for (const Seat& s : seats_)
    if (s.done) out.push_back(s.member);
  return out;
}

}  // namespace centroid::server
