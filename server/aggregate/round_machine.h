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
  /// Of workers that sum among themselves, with `nonfinite`: theirs is finite, with this norm, and
  /// the sum is not. -1: theirs is not.
  double norm = -1;
  bool has_sum() const { return nonfinite && norm >= 0; }
};

/// How much of a member's contribution had been summed when it left.
enum class Progress : std::uint8_t { kNothing, kPart };

enum class RoundAction : std::uint8_t {
  kWait,   ///< a contribution is missing
  kMerge,  ///< apply the sum of `contributors` and `late`
  kSkip,   ///< close without effect
  kHalt,   ///< stop the job; `text` is the reason
  kRetry,  ///< the sum contains a part of a lost contribution, or cannot be made: start the attempt
           ///< again with the remaining members
  kDeserted,  ///< nobody is left
};

/// A contribution to an earlier round that counts in this one.
struct LateContribution {
  MemberId member;
  Round round;        ///< for which it was made
  double weight = 0;  ///< its weight in the sum, after damping; a float
  double share = 0;   ///< its part of the total: as `weight`; with asp, which damps steps, undamped
};

struct RoundDecision {
  RoundAction action = RoundAction::kWait;
  double total_weight = 0;
  std::vector<MemberId> contributors;  ///< in rank order
  std::vector<LateContribution> late;  ///< in the order of arrival
  std::string text;
  /// Of a halt or a skip: the first whose contribution is not finite, or the largest in a sum that
  /// is not; none: unknown.
  MemberId culprit;
};

/// When and how a round closes. Pure: time comes with the events; all policies are settings of it.
///
/// life    open -> (contribute | late | gone | tick)* -> one decision other than kWait -> closed; a
///         closed round accepts no contribution
/// counts  a contribution counts completely or not at all, and at most once
/// late    a member whose round closed without it owes that contribution until it arrives (`late`)
///         or is cancelled (`caught_up`); until then it contributes to no later round
/// each    (asp, ssp) a contribution closes the round in which it arrives, also a late one; late
///         ones that arrive between rounds take a round each, opened without members
class RoundMachine {
 public:
  explicit RoundMachine(RoundPolicy policy) : policy_(policy) {}

  /// Other settings of the same kind of policy, from the next `open` on. Not while a round is open.
  void set_policy(RoundPolicy policy) { policy_ = policy; }

  /// Begin an attempt. `members` in rank order, empty only for waiting late contributions
  /// (`has_late`); then call `tick`. `others`: present members without a seat, which are still busy
  /// with an earlier round or may not begin.
  void open(Round round, std::uint32_t attempt, const std::vector<MemberId>& members,
            const std::vector<MemberId>& others = {}, TimePoint now = {});
  /// Give one of the others a seat in the open round, after the present ones. False: impossible.
  bool admit(MemberId member);
  /// fails aborted: no open round, not a member of it, contributed already, or still owes an
  /// earlier one.
  Result<RoundDecision> contribute(MemberId member, Contribution contribution, TimePoint now = {});
  /// A member left. A complete contribution of it still counts.
  RoundDecision gone(MemberId member, Progress progress, TimePoint now = {});
  /// Time has passed; call it at `deadline`.
  RoundDecision tick(TimePoint now);
  /// When the round closes without further events.
  std::optional<TimePoint> deadline() const;
  /// Joint rounds: the attempt cannot be completed, although all members are present. kRetry; kWait
  /// if the round is not open or `member` is not in it.
  RoundDecision failed(MemberId member, std::string why);

  /// The missing members `silent` have exceeded their time and are still present. kRetry: repeat
  /// the attempt without them. A member that contributed and left cannot send again: if there is
  /// one, and the sum contains no part of `silent` (`progress`), the round continues and `silent`
  /// lose their seats. No effect if no member would remain.
  RoundDecision timed_out(const std::vector<MemberId>& silent, Progress progress,
                          TimePoint now = {});

  /// The contribution that `member` owes is complete. Returns its weight in the open round, or in
  /// the next one between rounds; 0: it does not count (`late` rule, too late, not finite, no
  /// samples).
  /// fails aborted: it does not owe this round's.
  Result<double> late(MemberId member, Round round, const Contribution& contribution,
                      TimePoint now = {});
  /// `member` is not behind any more, and what it owed does not arrive.
  void caught_up(MemberId member, TimePoint now = {});
  /// As caught_up, for a member that never began the round it owes: its pace stays unchanged.
  void forgive(MemberId member) { debts_.erase(member); }
  /// The round of the contribution that the member owes.
  std::optional<Round> awaited_ready(MemberId member) const;
  /// There are late contributions that no round has counted yet.
  bool has_late() const { return !late_.empty() || refused_late_; }
  /// Their number.
  std::size_t late_waiting() const { return late_.size(); }
  /// ssp: it is not too far ahead. True with other policies.
  bool may_begin(MemberId member) const;
  /// Steps that the member is ahead of the slowest member, and the slowest member.
  std::uint64_t steps_ahead(MemberId member) const;
  MemberId slowest() const;
  /// A late contribution to `round` would still count in the open round, or the next.
  bool may_count_late(Round round) const;

  bool is_open() const { return open_; }
  Round round() const { return round_; }
  std::uint32_t attempt() const { return attempt_; }
  /// It may contribute to the open round.
  bool expects(MemberId member) const;
  /// It has a seat in the open round and has not contributed.
  bool is_missing(MemberId member) const;
  /// Number of members of this attempt that are not awaited any more and have not contributed.
  std::size_t lost() const;
  /// It has contributed to the open or last round.
  bool has_contributed(MemberId member) const {
    const Seat* const s = seat(member);
    return s != nullptr && s->done;
  }
  bool has_contributions() const { return done_ > 0; }
  std::vector<MemberId> missing() const;
  std::vector<MemberId> contributed() const;
  /// Contributions with which the open or last round may close.
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
  /// Arrival of a member's contributions after the opening, in seconds.
  struct Pace {
    double mean = 0, deviation = 0;
  };
  RoundDecision decide(TimePoint now);
  std::size_t possible() const;
  bool closes(TimePoint now) const;
  void close(std::size_t late);
  void blame_largest(RoundDecision& decision) const;
  RoundDecision retry(std::string why);
  void add_member(MemberId member);
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
  // Counts of seats: the effect of a contribution must not cost a scan of all others.
  std::size_t seated_ = 0;    // present
  std::size_t possible_ = 0;  // present or done
  std::size_t done_ = 0;
  std::size_t weighed_ = 0;    // done, with a weight above 0
  std::size_t nonfinite_ = 0;  // done, with a number of their own that is not finite
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
  std::optional<Refused> refused_late_;      // not finite, with a policy of halting
  std::map<MemberId, std::uint64_t> steps_;  // contributions of present members; ssp
  std::map<MemberId, Debt> debts_;
  std::map<MemberId, Pace> paces_;
};

}  // namespace centroid::server
