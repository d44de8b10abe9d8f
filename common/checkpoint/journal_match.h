#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/checkpoint/journal_reader.h"

namespace centroid::journal {

/// A journal that was read to its end, every checksum compared, and what of it the journals of
/// other servers are compared with.
struct Contents {
  std::filesystem::path folder;
  Report report;
  std::string damage;  ///< as `verify` fails; what stands before it is below. Empty: it is sound
  struct Ended {
    Round round;
    std::uint32_t attempt = 0;
    std::uint64_t optimizer_step = 0;
    bool is_commit = false;
    std::uint32_t has = 0, wanted = 0;  ///< chunks of the attempt, and how many it says there are
    std::size_t base = 0, route = 0;    ///< of `bases` and `routes`
  };
  std::vector<Base> bases;        ///< of its segments
  std::vector<Route> routes{{}};  ///< the first says nothing
  std::vector<Ended> ended;

  bool is_leader() const { return !bases.empty() && server().empty(); }
  /// The shard server whose parts these are; empty: none, or not known.
  std::string server() const;
  /// One of its segments is of this run.
  bool has_run(const std::string& run_id) const;
};
Contents read_contents(const std::filesystem::path& folder);

/// Whether what a leader has committed is in the journals of the servers on which it lay.
struct Match {
  std::uint64_t rounds = 0;  ///< committed, that had parts elsewhere
  Round first, last;         ///< of them
  /// As far as it could be looked at.
  std::vector<std::string> sound;
  /// Servers that have parts of these rounds, and whose journal of that run is not among those
  /// given.
  std::vector<std::string> absent;
  /// A resume would be refused, or wait for ever; one line for each journal.
  std::vector<std::string> problems;
};
/// Of the rounds behind `over`, which are in a checkpoint.
Match match(const Contents& leader, const std::vector<Contents>& others, Round over);

}  // namespace centroid::journal
