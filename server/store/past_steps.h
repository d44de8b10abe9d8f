#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/checkpoint/journal_reader.h"
#include "server/store/parameter_store.h"

namespace centroid::server {

/// A complete and sound round of the leader's journal, except its parts on other servers.
struct PastRound {
  /// Of the optimizer's steps; each segment has its own.
  struct Rate {
    double learning_rate = 0;
    std::string schedule;
    bool operator==(const Rate&) const = default;
  };
  bool counts() const { return head.kind == journal::Kind::kCommit; }

  journal::Head head;  ///< of its end
  journal::Commit commit;
  journal::Form form = journal::Form::kNone;
  Rate rate;
  std::shared_ptr<const journal::Segment> segment;
  /// By chunk: the position of its numbers in the segment's file, or one of these two.
  std::vector<std::uint64_t> at;
  static constexpr std::uint64_t kNotChanged = 0, kInSpare = ~std::uint64_t{0};
  /// Chunks on other servers, and the servers.
  std::vector<Chunk> elsewhere;
  std::shared_ptr<const journal::Route> route;
};

/// A repeated step of a committed round.
struct PastStep {
  const PastRound* round = nullptr;
  rules::Step rule;
  float gradient_factor = 1;  ///< norm clipping
};

/// Repeat the steps of committed rounds, in their order. Elements are independent, so a block of
/// them takes all the steps while it is in the cache: parameters and slots pass through memory once
/// for all rounds. Several threads share the blocks.
///
/// bits    as round by round (tests/unit/past_steps_test.cc)
/// thread  blocking I/O; `meanwhile` runs on the caller's thread. Nothing else may use the store
///         before it returns, or before `commit_in_place` for each step
/// fails   as file::read_at
Status step_again(ParameterStore& store, std::span<const PastStep> steps,
                  const std::function<void()>& meanwhile);
/// Squares of the means, by step and chunk, as in ModelShard::squares.
Result<std::vector<std::vector<double>>> squares_again(const ParameterStore& store,
                                                       std::span<const PastStep> steps);
/// The round's numbers as in the journal, into the spare plane.
Status load_spare(ParameterStore& store, const PastRound& round);

}  // namespace centroid::server
