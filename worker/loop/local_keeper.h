#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/checkpoint/checkpoint.h"
#include "worker/exchange/exchange.h"

namespace centroid::worker {

/// A worker's local training on disk: its own parameters, and the slots and steps of its own
/// optimizer, so that a job that goes on from a checkpoint goes on with the same bits.
///
/// when    after the rounds whose state the server saves (those it told at the join, and those it
///         tells with Keep), and at a clean leave
/// files   DIR/<run>@<worker>.local/checkpoint-<round> (common/checkpoint); the newest three stay
/// errors  are logged with their cause and never stop training
/// thread  one at a time; reads and writes files
class LocalKeeper {
 public:
  struct State {
    std::span<float> params;
    std::vector<std::span<float>> slots;
    std::vector<std::string> slot_names;
    std::string optimizer;
    std::uint64_t steps = 0;  ///< made by the optimizer
    StepStats untold;         ///< of steps that are in no contribution yet
  };
  /// The state as it is now: asked for when it is written.
  using Source = std::function<Result<State>()>;
  enum class Found : std::uint8_t { kNothing, kOlder, kExact };

  /// fails: the folder cannot be made
  static Result<std::unique_ptr<LocalKeeper>> open(const std::filesystem::path& dir,
                                                   const std::string& worker,
                                                   const LocalTerms& terms, Manifest manifest);
  /// Round `next` is to be trained. Fills the state as it was after the round before; else, in a
  /// process that has trained nothing, that of an earlier round (its parameters are then of no
  /// use). kNothing: the state is as it was, or its optimizer is not the one on disk.
  Found resume(Round next, State& state);
  /// The round is over, the state is the one after it.
  void closed(Round round, const Source& state);
  /// The server saves the state after `round`. fails: ours is another one; as `source` and files
  Status keep(Round round, const Source& state);
  /// A round broke off: the state belongs to no round.
  void broken() { after_.reset(); }
  void leave(const Source& state);

 private:
  LocalKeeper(CheckpointDirectory directory, std::string run_id, std::uint64_t every,
              Manifest manifest)
      : directory_(std::move(directory)),
        run_id_(std::move(run_id)),
        every_(every),
        manifest_(std::move(manifest)) {}
  Status save(Round round, const Source& source);
  Status write(Round round, const State& state);
  Status restore(const CheckpointEntry& entry, State& state) const;

  CheckpointDirectory directory_;
  std::string run_id_;
  std::uint64_t every_;
  Manifest manifest_;
  std::optional<Round> after_;  // the round after which memory is
  std::optional<Round> saved_;
  bool is_used_ = false;  // rounds have been closed in this process
};

}  // namespace centroid::worker
