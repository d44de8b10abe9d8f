#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/checkpoint/journal_reader.h"

namespace centroid::server {

/// The leader's journal on its way into the store, round by round. Of rounds that were made with
/// several servers it has the leader's chunks; the others are recalled from the journals of their
/// servers, which may have to be waited for. So a round is replayed whole, and replay ends at one
/// version: that of the last round that the leader's journal has as committed.
struct Replay {
  /// Of the optimizer's steps. It may change between two rounds, and each segment has its own.
  struct Rate {
    double learning_rate = 0;
    std::string schedule;
    bool operator==(const Rate&) const = default;
  };
  explicit Replay(const std::filesystem::path& folder) : reader(folder) {}

  journal::Reader reader;
  std::string terms;  ///< that its rounds must have been written with, from before it began
  Rate rate;          ///< of the present segment
  /// Why rounds of the present segment cannot be replayed; those that the checkpoint has may stand
  /// there.
  std::optional<Error> mismatch;
  journal::Route route;   ///< present; without servers: all chunks are in this journal
  std::vector<bool> has;  ///< by chunk: of the present attempt
  std::size_t count = 0;  ///< of them
  journal::Head present;  ///< of the last chunk
  /// A round's end has been read, and what other servers have of it is not all here.
  std::optional<journal::Reader::End> end;
  bool is_at_gap = false, is_cut = false;  ///< nothing behind can be replayed
  Round first;
  TimePoint begin;
  /// Whom it waits for, until a round has been replayed, and why; no name: nobody.
  std::string waits_for, why;
  std::set<std::string> given_up;  ///< servers that an operator goes on without

  bool is_mine(ChunkId chunk) const {
    return route.owners.empty() || route.owners[chunk.value] == 0;
  }
};

}  // namespace centroid::server
