#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/result.h"

namespace centroid::server {

/// What happens to a round with NaN or infinity in a contribution.
enum class NonFinitePolicy : std::uint8_t { kHalt, kSkip, kPropagate };

/// When a round closes. `bsp`: when everybody still present has contributed.
enum class PolicyKind : std::uint8_t { kBsp };

struct RoundPolicy {
  PolicyKind kind = PolicyKind::kBsp;
  NonFinitePolicy nonfinite = NonFinitePolicy::kHalt;
  /// The members add their contributions among themselves: who goes before the end takes the
  /// others' sum along, so the attempt starts again.
  bool is_joint = false;
};

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
  kMerge,     ///< apply the sum of `contributors`
  kSkip,      ///< close without effect
  kHalt,      ///< stop the job; `text` says why
  kRetry,     ///< the sum holds a part of a lost contribution, or cannot be made: start the attempt
              ///< again with those who are left
  kDeserted,  ///< nobody is left
};

struct RoundDecision {
  RoundAction action = RoundAction::kWait;
  double total_weight = 0;
  std::vector<MemberId> contributors;  ///< in rank order
  std::string text;
  MemberId culprit;  ///< of a halt or a skip: the first whose contribution is not finite
};

/// When a round closes and how. Pure: no clock, no I/O; all policies are settings of it.
///
/// life    open -> (contribute | gone)* -> one decision other than kWait -> closed; a closed round
/// takes nothing more counts  a contribution counts wholly or not at all, and once
class RoundMachine {
 public:
  explicit RoundMachine(RoundPolicy policy) : policy_(policy) {}

  /// Begin an attempt. `members` in rank order, not empty.
  void open(Round round, std::uint32_t attempt, const std::vector<MemberId>& members);
  /// fails aborted: no open round, not a member of it, or contributed already.
  Result<RoundDecision> contribute(MemberId member, Contribution contribution);
  /// A member went. What it had contributed completely still counts.
  RoundDecision gone(MemberId member, Progress progress);
  /// Joint rounds: the attempt cannot be completed, though nobody has gone. kRetry; kWait when the
  /// round is not open or `member` is not of it.
  RoundDecision failed(MemberId member, std::string why);

  bool is_open() const { return open_; }
  Round round() const { return round_; }
  std::uint32_t attempt() const { return attempt_; }
  bool expects(MemberId member) const;
  std::vector<MemberId> missing() const;
  std::vector<MemberId> contributed() const;

 private:
  struct Seat {
    MemberId member;
    bool present = true;
    bool done = false;
    Contribution contribution;
  };
  RoundDecision decide();
  RoundDecision retry(std::string why);
  Seat* seat(MemberId member);

  RoundPolicy policy_;
  Round round_;
  std::uint32_t attempt_ = 0;
  bool open_ = false;
  std::vector<Seat> seats_;  // in rank order
};

}  // namespace centroid::server
