#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/base/thread.h"
#include "common/checkpoint/checkpoint.h"
#include "common/codec/error_feedback.h"

namespace centroid::worker {

/// The folder of one worker of one run within `dir`, whatever their names.
std::filesystem::path state_folder(const std::filesystem::path& dir, const std::string& run_id,
                                   const std::string& worker);

/// A worker's error feedback on disk: residual and momentum as they were after a round, so that a
/// worker that is started again, or a cluster that goes back to a checkpoint, goes on with what was
/// left out.
///
/// when    after the rounds whose state the server saves (those it told at the join, and those it
///         tells with Keep), in the background, and at a clean leave
/// which   the state after round r is taken by who is asked for round r + 1. One that a leave wrote
///         is taken once also later: what was left out is still to be sent, for nothing of it was
///         since. Others are too old then: they hold what has been sent
/// files   DIR/<run>@<worker>/checkpoint-<round>: model.safetensors with tensors residual/NAME and
///         momentum/NAME, manifest.json with their checksums (common/checkpoint: temporary name,
///         fsync, rename); `left` names the round of a clean leave. The newest three stay
/// errors  are logged with their cause and never stop training: the residual then begins at zero,
///         or stays what it is in memory
/// thread  one at a time
class FeedbackKeeper {
 public:
  struct Identity {
    std::string run_id, worker;
    Manifest manifest;
    std::uint64_t every_rounds = 0;  ///< 0: only at a leave
  };
  /// fails: the folder cannot be made
  static Result<std::unique_ptr<FeedbackKeeper>> open(const std::filesystem::path& dir,
                                                      Identity identity);
  ~FeedbackKeeper();

  /// From now on called with what became of each `save`, by the thread that wrote.
  using Written = std::function<void(Round, const Status&)>;
  void tell(Written written) { tell_ = std::move(written); }
  /// Whether what is in memory is the state that round `next` begins with.
  bool is_before(Round next) const { return after_ && after_->value + 1 == next.value; }
  /// Round `next` is to be computed. Restores the state after the round before it, unless that is
  /// what is in memory. Reads files.
  void resume(Round next, ErrorFeedback& feedback);
  /// The round is over, committed or skipped; what is in memory is the state after it. True: `save`
  /// it.
  bool closed(Round round);
  /// The server saves the state after `round`. True: `save` ours; false: it has been saved, or
  /// nothing has been left out yet.
  /// fails  failed_precondition: what is in memory is another state
  Result<bool> is_wanted(Round round) const;
  /// `tell` is still to hear of the newest save, or has just heard.
  bool is_writing() const { return writing_.joinable(); }
  void save(const ErrorFeedback& feedback);
  /// What the round had left is not in memory any more: states on disk that have it are removed.
  void undone(Round round);
  /// A round broke off: what is in memory belongs to no round.
  void broken() { after_.reset(); }
  /// The worker goes. Writes files.
  void leave(const ErrorFeedback& feedback);

 private:
  FeedbackKeeper(CheckpointDirectory directory, Identity identity)
      : directory_(std::move(directory)), identity_(std::move(identity)) {}
  Manifest manifest_of(bool has_momentum) const;
  void wait_for_write();
  std::optional<CheckpointEntry> find(Round wanted, std::string& why) const;
  Status restore(const CheckpointEntry& entry, ErrorFeedback& feedback) const;
  void forget_after(Round round);
  std::filesystem::path left_file() const { return directory_.root() / "left"; }

  CheckpointDirectory directory_;
  Identity identity_;
  std::optional<Round> after_;  // the round after which memory is
  std::optional<Round> saved_;
  bool is_used_ = false;  // rounds have been closed in this process
  Written tell_;
  Thread writing_;
};

}  // namespace centroid::worker
