#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/checkpoint/journal_reader.h"

namespace centroid::journal {

/// A journal that was read to its end with every checksum compared, and what is compared with the
/// journals of other servers.
struct Contents {
  std::filesystem::path folder;
  Report report;
  std::string damage;  ///< as `verify` fails; the rest is what precedes it. Empty: sound
  struct Ended {
    Round round;
    std::uint32_t attempt = 0;
    std::uint64_t optimizer_step = 0;
    bool is_commit = false;
    std::uint32_t has = 0, needed = 0;  ///< chunks of the attempt: present, and by its commit
    std::size_t base = 0, route = 0;    ///< of `bases` and `routes`
  };
  std::vector<Base> bases;        ///< of its segments
  std::vector<Route> routes{{}};  ///< the first is empty
  std::vector<Ended> ended;

  bool is_leader() const { return !bases.empty() && server().empty(); }
  /// The shard server of these parts; empty: none, or unknown.
  std::string server() const;
  /// One of its segments is of this run.
  bool has_run(const std::string& run_id) const;
};
Contents read_contents(const std::filesystem::path& folder);

/// Whether the servers' journals have their parts of what a leader has committed.
struct Match {
  std::uint64_t rounds = 0;  ///< committed rounds with parts elsewhere
  Round first, last;         ///< of them
  /// Servers whose readable journal is complete.
  std::vector<std::string> sound;
  /// Servers with parts of these rounds, whose journal of that run is not among the given ones.
  std::vector<std::string> absent;
  /// Reasons why a resume would be refused or wait forever; one line for each journal.
  std::vector<std::string> problems;
};
/// For the rounds after `over`, which are in a checkpoint.
Match match(const Contents& leader, const std::vector<Contents>& others, Round over);

}  // namespace centroid::journal
