#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "common/codec/codec.h"
#include "common/codec/error_feedback.h"
#include "common/tensor/chunk_plan.h"
#include "worker/exchange/cluster_exchange.h"
#include "worker/exchange/exchange_counters.h"
#include "worker/exchange/feedback_keeper.h"
#include "worker/exchange/peer_reducer.h"

namespace centroid::worker {

/// What becomes of error feedback when a round is over, or its end is never heard of: what was sent
/// is in the sum, is to be sent again in a later round, or never was. Where gradients are added
/// among the workers the peers have it. Of the link's thread.
class LinkFeedback {
 public:
  /// `options`, `memory` and `counters` outlive it.
  LinkFeedback(const ClusterOptions& options, const ExchangeMemory& memory,
               ExchangeCounters& counters)
      : options_(options), memory_(memory), counters_(counters) {}

  /// After the first join: what `spec`, the contributions' codec, leaves out, and its state on the
  /// disk. fails: the codec cannot be made, or the folder
  Status open(const proto::JoinReply& terms, const CodecSpec& spec, const ChunkPlan& plan);
  /// Of contributions to the server; nullptr: the codec leaves nothing out, or the peers have it.
  ErrorFeedback* own() const { return own_.get(); }
  /// nullptr: nothing is kept on the disk.
  FeedbackKeeper* keeper() const { return keeper_.get(); }
  bool is_any() const { return own_ || (peers_ != nullptr && peers_->has_feedback()); }

  /// A round is to be computed, `again` where it was open already.
  /// fails  as open
  Status round_opened(const proto::RoundOpen& open, bool again, bool among_peers);
  void round_over(RoundEnd how, Round round);
  /// When the round is over: write the state after it where that is wanted.
  void keep_closed(RoundEnd how, Round round);
  /// The connection broke when the round's contribution was sent whole: whether it counts is for
  /// the server to say.
  void leave_open(Round round) { unsettled_ = round; }
  /// The server says which round of this worker it counted last.
  void settle(Round counted);
  /// Count the norm of what is left to send.
  void measure_residual();
  /// fails  failed_precondition: gradients are still being added
  Status save();
  /// The worker goes. Writes files.
  void leave();

 private:
  Status make_own();
  ErrorFeedback* at_rest();
  void end(RoundEnd how);
  void resolve_broken(Round counted);
  void resolve_promised(Round counted);

  const ClusterOptions& options_;
  const ExchangeMemory& memory_;
  ExchangeCounters& counters_;
  PeerReducer* peers_ = nullptr;  // that rounds may be added among
  bool among_peers_ = false;      // the open round, or the last one
  bool is_wanted_ = false, passes_nonfinite_ = false;
  std::optional<ChunkPlan> plan_;
  std::unique_ptr<ErrorFeedback> own_;      // what the codec leaves out, when it is to be kept
  std::unique_ptr<FeedbackKeeper> keeper_;  // with state_dir
  Generation generation_;
  std::optional<Round> promised_;   // told to count, and not known to have counted
  std::optional<Round> unsettled_;  // sent whole before the connection broke; feedback is open
};

}  // namespace centroid::worker
