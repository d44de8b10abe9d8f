#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/checkpoint/journal_reader.h"
#include "server/service/round_journal.h"
#include "server/store/past_steps.h"

namespace centroid::server {

/// Reads the rounds of the leader's journal that a checkpoint has not, and checks that they can be
/// replayed here. Blocking I/O; one thread at a time. It reads ahead of the job, whose round and
/// step it looks at in the beginning only.
class PastRounds {
 public:
  /// They must have been written as `journal` would write them.
  PastRounds(std::unique_ptr<journal::Reader> reader, const JobState& job,
             const RoundJournal& journal, std::string folder);

  /// The next one; none: nothing behind can be replayed.
  Result<std::optional<PastRound>> next();
  bool is_over() const { return is_over_; }
  /// Later rounds are there, but not those between.
  bool is_at_gap() const { return is_at_gap_; }
  journal::Form form() const { return form_; }
  /// Of the newest round.
  std::size_t servers() const { return route_->servers.size(); }
  const journal::Reader& reader() const { return *reader_; }

 private:
  Status check(const journal::Base& base);
  Result<bool> take_chunk(const journal::Head& head);
  Result<PastRound> take_end(journal::Reader::End end);
  bool is_mine(ChunkId chunk) const {
    return route_->owners.empty() || route_->owners[chunk.value] == 0;
  }
  const FragmentPlan::Fragment& fragment() const {
    return job_.shard->fragments()[job_.shard->fragments().turn(step_)];
  }

  const std::unique_ptr<journal::Reader> reader_;
  const JobState& job_;
  const ChunkPlan& plan_;
  const journal::Form form_;
  const std::string terms_, folder_;
  Round next_;
  std::uint64_t step_;    ///< before that round
  PastRound::Rate rate_;  ///< of the present segment
  /// Why rounds of the present segment cannot be replayed; those that the checkpoint has may stand
  /// there.
  std::optional<Error> mismatch_;
  std::shared_ptr<const journal::Route> route_;  ///< present; without servers: all chunks are here
  std::vector<std::uint64_t> at_;                ///< by chunk: of the present attempt
  std::size_t count_ = 0;                        ///< of them
  journal::Head present_;                        ///< of the last chunk
  bool is_at_gap_ = false, is_over_ = false;
};

}  // namespace centroid::server
