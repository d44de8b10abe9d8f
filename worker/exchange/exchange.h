#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/base/scalars.h"

namespace centroid::worker {

/// This worker's part of one round.
struct Share {
  Generation generation;
  Round round;
  Rank rank;
  std::uint32_t world = 1;
  Version version;  ///< of the parameters now in memory
  std::uint64_t epoch = 0;
  std::uint64_t seed = 0;  ///< of the data order
  /// Positions in the epoch's permutation; those behind its end are of the next epoch's.
  std::uint64_t begin = 0, end = 0;
  bool evaluate = false;  ///< evaluate on held-out data first, and report
  // docs/how-to/diloco.md
  bool is_local = false;       ///< local steps on the share; the contribution is what they changed
  std::uint32_t fragment = 0;  ///< whose turn it is
  std::uint32_t overlap = 0;   ///< local steps that are made after the contribution
  std::uint64_t steps_before = 0;  ///< local steps of all workers before this round
  double inner_rate = -1;  ///< learning rate of local steps, before the schedule; -1: the worker's
  std::uint64_t samples() const { return end - begin; }
};

/// There is no next round.
struct Finished {
  enum class Reason : std::uint8_t {
    kFinished,
    kStopped,
    kDrained,
    kHalted
  } reason = Reason::kFinished;
  bool evaluate = false;
  Version version;
  std::string text;
};

/// What a server that wants local steps says of them, once.
struct LocalTerms {
  std::string run_id;
  std::uint64_t checkpoint_rounds = 0;  ///< the server saves after every so many; 0: at the end
  std::uint32_t fragments = 1;
};

/// Norms of parameters, and of the gradients of rounds of one gradient, are looked at in every one
/// of so many, from the first on.
inline constexpr std::uint64_t kNormRounds = 16;

/// What the loop measured in one step.
struct StepStats {
  std::uint64_t samples = 0, correct = 0;
  double loss_sum = 0;
  double compute_seconds = 0;
  std::uint64_t tokens = 0;  ///< over which the contribution is the mean; its weight by tokens
  // in the round before; a divergence is of local steps
  double exchange_seconds = 0;  ///< all but computing; 0: not measured
  double divergence = -1;       ///< |own - new| / |new| of the parameters; -1: not measured
  /// Of the mean gradient of the worker's devices, weighted by samples, before clipping; with local
  /// steps of the last one before the contribution. -1: not looked at
  double gradient_norm = -1;
  double parameter_norm = -1;  ///< Euclidean, when last looked at; -1: not since the last time
  double learning_rate = -1;   ///< of the last local step; -1: none was made
  Scalars scalars{};           ///< what a training program has named
  /// Steps that follow: of the norms the last one counts, if it was looked at.
  void add(const StepStats& more) {
    samples += more.samples;
    correct += more.correct;
    loss_sum += more.loss_sum;
    compute_seconds += more.compute_seconds;
    if (!(more.gradient_norm < 0)) gradient_norm = more.gradient_norm;
    if (!(more.learning_rate < 0)) learning_rate = more.learning_rate;
  }
  /// Means over samples; 0 without any.
  double loss() const { return samples > 0 ? loss_sum / static_cast<double>(samples) : 0; }
  double accuracy() const {
    return samples > 0 ? static_cast<double>(correct) / static_cast<double>(samples) : 0;
  }
};

struct RoundReport {
  enum class Outcome : std::uint8_t {
    kCommitted,
    kSkipped,
    kLost,
    kLate
  } outcome = Outcome::kCommitted;  ///< lost: the cluster moved on without us; late: it
                                    ///< does not wait, but takes us along again
  Version version;
  double wait_seconds = 0;  ///< blocked in finish()
  std::string reason;
};

struct Evaluation {
  Version version;
  std::uint64_t samples = 0, correct = 0;
  double loss_sum = 0;
};

/// What codecs did to contributions (out) and results (in), since the beginning.
struct CodecTotals {
  std::string codec = "f32", codec_down = "f32";
  std::uint64_t raw_out = 0, encoded_out = 0, raw_in = 0, encoded_in = 0;  ///< bytes
  std::uint64_t chunks = 0, dense_chunks = 0;  ///< sent; of top-k's those sent whole
  double encode_seconds = 0, decode_seconds = 0;
  double residual_norm = 0;  ///< of what error feedback has left to send, when last looked at
};

struct ExchangeTraffic {
  std::uint64_t bytes_in = 0, bytes_out = 0;
  CodecTotals codecs;
};

/// What the training loop sees of the cluster. One thread calls next, begin, finish in turn;
/// `ready` may come from device threads between begin and finish, once per tensor. Parameters and
/// gradients live in the replica group's memory: the exchange reads gradients of ready tensors
/// until `finish` returns, and writes parameters only inside `next` and `finish`.
class Exchange {
 public:
  virtual ~Exchange() = default;
  /// Wait for the next round or the end. Errors are final (refused, gave up after the join
  /// timeout).
  virtual Result<std::variant<Share, Finished>> next() = 0;
  virtual void begin(const Share& share) = 0;
  virtual void ready(TensorId tensor) = 0;
  /// The contribution is complete: `finish` may come later, and the loop may train meanwhile, on
  /// other memory than that of gradients and parameters.
  virtual void complete(const StepStats&) {}
  /// Wait for the round's end; `stats` of a contribution that was not completed before.
  virtual Result<RoundReport> finish(const StepStats& stats) = 0;
  virtual void report(const Evaluation& evaluation) = 0;
  /// Say goodbye; best effort, at most a few seconds.
  virtual void leave(const std::string& reason) = 0;
  /// From any thread or a signal-driven one: the present or next `next` returns Finished{kStopped}.
  virtual void request_stop(const std::string& why) = 0;
  /// The same, and a `finish` that waits or comes returns a lost round; `leave` is to follow.
  virtual void abandon(const std::string& why) { request_stop(why); }
  virtual ExchangeTraffic traffic() const = 0;
  /// Of the optimizer's slots and its step, where this worker applies it: the same on all workers
  /// of a job. 0: the server applies it. After `leave`.
  virtual std::uint64_t optimizer_fingerprint() const { return 0; }
};

}  // namespace centroid::worker
