#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace centroid::server {

/// What happens to a round with NaN or infinity in a contribution.
enum class NonFinitePolicy : std::uint8_t { kHalt, kSkip, kPropagate };

/// When a round closes, N being the members present when it opened.
/// bsp       every remaining member has contributed
/// backup:B  N - B have; a member that left counts as one of the B
/// quorum:K  K have, and others that are expected soon had their time (grace)
/// asp       each contribution is a round of its own, made from whatever version its member had
/// ssp:S     likewise; a member more than S steps ahead of the slowest waits
/// source  backup: Chen et al. 2016, "Revisiting Distributed Synchronous SGD"; ssp: Ho et al. 2013,
///         "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server"
enum class PolicyKind : std::uint8_t { kBsp, kBackup, kQuorum, kAsp, kSsp };

/// What happens to a contribution whose round closed without it.
enum class LateRule : std::uint8_t {
  kDrop,   ///< it does not count; its sender is notified at once
  kCarry,  ///< it counts in the round that is open when it is complete
  kDamp,   ///< likewise, with its weight divided by (1 + rounds late) ^ power
};

struct RoundPolicy {
  PolicyKind kind = PolicyKind::kBsp;
  std::uint64_t count = 0;  ///< B, K or S
  /// quorum: others are awaited for at most this share of the time that the quorum took.
  double grace = 0.5;
  LateRule late = LateRule::kDrop;
  std::uint64_t max_late = 4;  ///< rounds; later ones are dropped
  double power = 0.5;          ///< kDamp
  NonFinitePolicy nonfinite = NonFinitePolicy::kHalt;
  /// The members sum their contributions among themselves: one that leaves before the end takes the
  /// others' sum along, so the attempt starts again.
  bool is_joint = false;

  /// A round may close without some of its members.
  bool is_elastic() const { return kind != PolicyKind::kBsp; }
  /// Others that are expected soon are awaited.
  bool has_grace() const { return kind == PolicyKind::kQuorum; }
  /// Every contribution is applied separately.
  bool applies_each() const { return kind == PolicyKind::kAsp || kind == PolicyKind::kSsp; }
};

/// Parse `policy` and `late`: "bsp", "backup:1", "quorum:3,grace=0.5", "asp:max=32,power=0.5",
/// "ssp:3"; "drop", "carry:max=4", "damp:power=0.5,max=4".
/// fails  invalid_argument: names the fault and the possible values.
Status parse_policy(std::string_view policy, std::string_view late, RoundPolicy& out);

}  // namespace centroid::server
