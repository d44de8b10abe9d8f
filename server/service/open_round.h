#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/aggregate/round_machine.h"
#include "server/coordinate/drift.h"
#include "server/service/attempt.h"
#include "server/service/job_types.h"
#include "server/state/job_state.h"

namespace centroid::server {

/// The round that is open, or was last: its attempt, who has contributed what, and what waits for a
/// later round. Replaced as a whole when the job goes to another version than the next one.
struct OpenRound {
  explicit OpenRound(RoundPolicy policy) : machine(policy) {}

  std::shared_ptr<Attempt> attempt;
  RoundMachine machine;
  std::optional<RoundDecision> decision;
  std::size_t complete_chunks = 0;
  std::size_t excluded = 0;   ///< contributions that are not finite, of the F that may be false
  std::set<MemberId> absent;  ///< left out or lost before the attempt, in this round
  std::size_t members = 0;    ///< of the round, with absent ones
  std::optional<ChunkId> overflow;  ///< a chunk whose sum, or result, is not finite
  bool has_large_sum = false;       ///< or one of which that is not known
  bool is_spoilt = false;           ///< for good: the state has part of a round with one
  double chunk_weight = 0;
  std::vector<double> squares;  ///< by chunk, of the mean where it may be clipped
  std::uint64_t samples = 0;    ///< that its shares have
  Tally tally;
  std::vector<ReportedShare> shares;   ///< what `tally` is the sum of
  std::vector<ReplicaPrint> replicas;  ///< of the version that the attempt begins with
  TimePoint opened, looked_at;         ///< looked_at: for who is silent, last

  // policies that close a round without some members
  std::vector<std::unique_ptr<StagedContribution>> staged;  ///< by rank of the attempt
  std::deque<StagedPart> late_staged;                       ///< in the machine's order
  std::vector<StagedPart> parts;                            ///< of the round being merged

  /// Contributions that are left out for they are not finite, or were lost or late: with a robust
  /// aggregate they are of the F that may be false.
  std::size_t missing() const { return excluded + absent.size() + machine.lost(); }

  // peer-to-peer exchange
  bool among_peers = false;  ///< the attempt, and the next one until it is chosen anew
  std::string exchange_why;  ///< exchange auto: of that choice
  std::uint64_t exchange_failures = 0;
  TimePoint exchange_failed;                 ///< the first of them
  std::map<MemberId, std::uint64_t> blamed;  ///< by members that failed, in this round
  std::set<MemberId> failed;                 ///< who could not complete this attempt
};

/// Its name in waits, with the fragment whose turn it is, where there are several. `of`: of this
/// attempt's round.
std::string present_round(const JobState& job, const Attempt* of = nullptr);

}  // namespace centroid::server
