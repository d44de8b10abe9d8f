#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/coordinate/returned_shares.h"
#include "server/coordinate/tally.h"

namespace centroid::server {

/// What a member told with one contribution, and of which part of the data.
struct ReportedShare {
  DataPart part;
  std::string worker;
  std::uint64_t devices = 0;
  double compute_seconds = 0;  ///< forward and backward of the samples in `tally`
  Tally tally;
};

/// Of one epoch: the sums of its contributions, over all members and of each.
struct EpochTally {
  struct Member {
    Tally tally;
    std::uint64_t devices = 0, contributions = 0;
    double compute_seconds = 0;
    /// Samples in a second of its computing; 0: that is not known.
    double samples_per_second() const {
      return compute_seconds > 0 ? static_cast<double>(tally.samples) / compute_seconds : 0;
    }
  };
  std::uint64_t epoch = 0;    ///< from 0
  std::uint64_t trained = 0;  ///< of its samples, in contributions that counted
  double start_unix_seconds = 0, ended_unix_seconds = 0;
  Tally all;
  std::map<std::string, Member> members;  ///< by name
  /// Its part of the samples of all.
  double share_of(const Member& member) const {
    return all.samples > 0
               ? static_cast<double>(member.tally.samples) / static_cast<double>(all.samples)
               : 0;
  }
};

/// Contributions by epoch and member: each counts in the epoch to which its samples belong,
/// whenever it comes. Pure.
///
/// split   of a share that reaches over the end of an epoch each epoch gets the part of the numbers
///         that it has of the samples, for a worker tells one sum; numbers that programs name go
///         whole to the epoch in which the share begins
/// bound   epochs that are over are kept while they name no more than kNames members in all, at
///         least kLeast and at most kMost of them
class EpochTallies {
 public:
  static constexpr std::size_t kNames = 16384, kLeast = 16, kMost = 1024;
  /// Positions from `epoch_samples` on are of the next epoch. `begun`: of its round.
  void add(const ReportedShare& told, std::uint64_t epoch_samples, double start_unix_seconds);
  /// The next epoch that is over: the oldest with numbers, if nothing before `oldest` is under way.
  const EpochTally* end(std::uint64_t oldest, double unix_seconds);
  /// The job goes back: what has not ended is trained again.
  void drop_open() { open_.clear(); }
  bool has_open() const { return !open_.empty(); }

  /// Newest first.
  const std::deque<EpochTally>& ended() const { return ended_; }
  const std::map<std::uint64_t, EpochTally>& open() const { return open_; }

 private:
  std::map<std::uint64_t, EpochTally> open_;
  std::deque<EpochTally> ended_;
};

}  // namespace centroid::server
