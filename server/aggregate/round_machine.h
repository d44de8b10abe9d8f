#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/result.h"
#include "server/aggregate/round_policy.h"

namespace centroid::server {

/// One worker's summary of its contribution.
struct Contribution {
  double weight = 0;
  bool nonfinite = false;
  std::string nonfinite_tensor;
};

/// How much of a member's contribution had been summed when it went.
enum class Progress : std::uint8_t { kNothing, kPart };

enum class RoundAction : std::uint8_t {
  kWait,      ///< somebody is missing
  kMerge,     ///< apply the sum of `contributors` and `late`
  kSkip,      ///< close without effect
  kHalt,      ///< stop the job; `text` says why
  kRetry,     ///< the sum holds a part of a lost contribution, or cannot be made: start the attempt
              ///< again with those who are left
  kDeserted,  ///< nobody is left
};

/// A contribution to an earlier round that counts in this one.
struct LateContribution {
  MemberId member;
  Round round;        ///< the one it was made for
  double weight = 0;  ///< with which it is added, after damping; a float
  double share = 0;  ///< its part of the total: as `weight`; with asp, which damps steps, the whole
};

struct RoundDecision {
  RoundAction action = RoundAction::kWait;
  double total_weight = 0;
  std::vector<MemberId> contributors;  ///< in rank order
  std::vector<LateContribution> late;  ///< in the order in which they came
  std::string text;
  MemberId culprit;  ///< of a halt or a skip: the first whose contribution is not finite
};

/// When a round closes and how. Pure: time comes with the events; all policies are settings of it.
///
/// life    open -> (contribute | late | gone | tick)* -> one decision other than kWait -> closed; a
///         closed round takes no contribution
/// counts  a contribution counts wholly or not at all, and at most once
/// late    a member whose round closed without it owes that contribution until it comes (`late`) or
///         is given up (`caught_up`); until then it contributes to no later round
/// each    (asp, ssp) a contribution closes the round it comes in, also a late one; late ones that
///         come while no round is open take a round each, opened without members
class RoundMachine {
 public:
  explicit RoundMachine(RoundPolicy policy) : policy_(policy) {}

  /// Other settings of the same kind of policy, from the next `open` on. Not while a round is open.
  void set_policy(RoundPolicy policy) { policy_ = policy; }

  /// Begin an attempt. `members` in rank order, empty only for what `has_late` says; then `tick` is
  /// to follow. `others`: who is present and has no seat yet, for it is still busy with an earlier
  /// round or may not begin.
  void open(Round round, std::uint32_t attempt, const std::vector<MemberId>& members,
            const std::vector<MemberId>& others = {}, TimePoint now = {});
  /// One of the others takes a seat in the open round, behind those there are. False: it cannot.
  bool admit(MemberId member);
  /// fails aborted: no open round, not a member of it, contributed already, or still owes an
  /// earlier one.
  Result<RoundDecision> contribute(MemberId member, Contribution contribution, TimePoint now = {});
  /// A member went. What it had contributed completely still counts.
  RoundDecision gone(MemberId member, Progress progress, TimePoint now = {});
  /// Time has passed; to be called at `deadline`.
  RoundDecision tick(TimePoint now);
  /// When the round closes though nobody does anything more.
  std::optional<TimePoint> deadline() const;
  /// Joint rounds: the attempt cannot be completed, though nobody has gone. kRetry; kWait when the
  /// round is not open or `member` is not of it.
  RoundDecision failed(MemberId member, std::string why);

  /// The missing members `silent` have had their time, and have not gone. kRetry: repeat the
  /// attempt without them. A member that contributed and then went cannot send again: where there
  /// is one, and the sum holds no part of `silent` (`progress`), the round goes on and `silent`
  /// lose their seats. Nothing happens when nobody would be left.
  RoundDecision timed_out(const std::vector<MemberId>& silent, Progress progress,
                          TimePoint now = {});

  /// The contribution that `member` owes is complete. The weight with which it counts in the open
  /// round, or in the next one when none is open; 0: it does not count (`late` rule, too late, not
  /// finite, no samples).
  /// fails aborted: it does not owe this round's.
  Result<double> late(MemberId member, Round round, const Contribution& contribution,
                      TimePoint now = {});
  /// `member` is not behind any more, and nothing of what it owed comes.
  void caught_up(MemberId member, TimePoint now = {});
  /// As caught_up, of a member that never began the round it owes: nothing is learned of its pace.
  void forgive(MemberId member) { debts_.erase(member); }
  /// The round whose contribution the member owes.
  std::optional<Round> owed(MemberId member) const;
  /// Late contributions have come that no round has counted yet.
  bool has_late() const { return !late_.empty() || refused_late_; }
  /// How many of them there are.
  std::size_t late_waiting() const { return late_.size(); }
  /// ssp: it is not so far ahead that it has to wait. True with other policies.
  bool may_begin(MemberId member) const;
  /// Steps that the member is ahead of the slowest member, and who that is.
  std::uint64_t steps_ahead(MemberId member) const;
  MemberId slowest() const;
  /// A late contribution to `round` would still count in the round that is open, or the next.
  bool may_come_late(Round round) const;

  bool is_open() const { return open_; }
  Round round() const { return round_; }
  std::uint32_t attempt() const { return attempt_; }
  /// It may contribute to the open round.
  bool expects(MemberId member) const;
  /// It has a seat in the open round and has not contributed.
  bool is_missing(MemberId member) const;
  /// It has contributed to the round that is open, or was last.
  bool has_contributed(MemberId member) const {
    const Seat* const s = seat(member);
    return s != nullptr && s->done;
  }
  bool has_contributions() const { return done_ > 0; }
  std::vector<MemberId> missing() const;
  std::vector<MemberId> contributed() const;
  /// Contributions with which the open round may close.
  std::size_t needed() const;

 private:
  struct Seat {
    MemberId member;
    bool present = true;
    bool done = false;
    Contribution contribution;
  };
  struct Debt {
    Round round;
    TimePoint opened;
  };
  /// How long after the opening a member's contributions come, in seconds.
  struct Pace {
    double mean = 0, deviation = 0;
  };
  RoundDecision decide(TimePoint now);
  std::size_t possible() const;
  bool closes(TimePoint now) const;
  void close(std::size_t late);
  RoundDecision retry(std::string why);
  void meet(MemberId member);
  std::size_t late_now() const;
  Seat* seat(MemberId member);
  const Seat* seat(MemberId member) const;
  void add_seat(MemberId member);
  void set_done(Seat& seat, Contribution contribution);
  void set_absent(Seat& seat);
  void observe(MemberId member, Duration delay);
  TimePoint grace_end() const;

  RoundPolicy policy_;
  Round round_;
  std::uint32_t attempt_ = 0;
  bool open_ = false;
  std::vector<Seat> seats_;                           // in rank order
  std::unordered_map<MemberId, std::size_t> places_;  // of members in seats_
  // Counts of seats: what a contribution changes must not cost a look at all others.
  std::size_t seated_ = 0;    // present
  std::size_t possible_ = 0;  // present or done
  std::size_t done_ = 0;
  std::size_t weighed_ = 0;    // done, with a weight above 0
  std::size_t nonfinite_ = 0;  // done, with a number that is not finite
  std::vector<MemberId> others_;
  std::size_t present_ = 0;  // when the round opened
  TimePoint opened_;
  std::optional<TimePoint> quorum_at_;  // when enough had contributed
  std::vector<LateContribution> late_;  // for the open or the next round
  struct Refused {
    MemberId member;
    Round round;
    std::string tensor;
  };
  std::optional<Refused> refused_late_;      // not finite, and the policy is to halt
  std::map<MemberId, std::uint64_t> steps_;  // made, by members that are present; ssp
  std::map<MemberId, Debt> debts_;
  std::map<MemberId, Pace> paces_;
};

}  // namespace centroid::server
