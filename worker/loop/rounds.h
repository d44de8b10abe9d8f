#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/tensor/tensor.h"
#include "worker/exchange/exchange.h"
#include "worker/loop/epoch_order.h"
#include "worker/loop/local_keeper.h"
#include "worker/loop/local_planes.h"

namespace centroid::worker {

/// The rounds of one worker, one after the other, whoever computes: the models of centroid-worker
/// (worker/node) or a training program (client/trainer.h). In each round the worker contributes one
/// gradient or, where the server wants local steps, the change of its own parameters.
///
/// calls   next, begin, ready for each tensor of a gradient, contribute, finish, and again next
/// order   errors and the end are final: `next` returns them again
/// local   a worker that was left out of a round, lost the server, or skipped a round begins the
///         next one with the cluster's parameters
/// thread  one; `ready` from any, one call at a time; `begin_local` while `next` waits
class Rounds {
 public:
  /// `samples`: of the whole training data; `params`: the cluster's parameters.
  Rounds(Manifest manifest, std::uint64_t samples, std::span<float> params);
  /// Before the first call of `next`. The exchange lives until the last call.
  void connect(Exchange& exchange) { exchange_ = &exchange; }
  Exchange& exchange() { return *exchange_; }

  /// For ExchangeMemory::begin_local: memory of own parameters and of the contribution.
  /// fails  as FragmentPlan; resource_exhausted
  Result<std::span<const float>> begin_local(
      const LocalTerms& terms, const ChunkPlan& plan,
      const std::function<Buffer(std::size_t bytes)>& allocate);
  /// For ExchangeMemory::use_params.
  void move_params(std::span<float> params);

  /// Wait for the next round or the end.
  Result<std::variant<Share, Finished>> next();
  /// The round that `next` gave and `finish` has not ended.
  const std::optional<Share>& share() const { return share_; }
  bool is_contributed() const { return is_contributed_; }  ///< in this round
  /// The samples of the share; valid until the next call.
  std::span<const std::uint64_t> samples() { return order_.part(samples_, *share_); }
  /// EpochOrder::next
  std::vector<std::span<const std::uint64_t>> samples_ahead(std::uint64_t most) const {
    return order_.next(*share_, most);
  }
  /// Training of the round begins.
  Status begin();
  /// The gradient of this tensor is final.
  Status ready(TensorId tensor);
  /// Send the contribution: `stats` of the steps in it. Steps that follow count in the next round.
  Status contribute(const StepStats& stats);
  /// Wait for the round's end. `stats`: of the contribution, or of the steps since.
  Result<RoundReport> finish(const StepStats& stats);
  void report(const Evaluation& evaluation);
  /// The first call counts. Afterwards no round is open.
  void leave(const std::string& why);

  /// The cluster's parameters.
  std::span<float> params() const { return params_; }
  bool is_local() const { return is_local_; }
  /// The parameters of local steps.
  std::span<float> own() const { return planes_.own(); }
  /// Own parameters are the cluster's again.
  void restart() { planes_.restart(); }
  /// Steps after the contribution are possible in this round.
  /// fails  resource_exhausted
  Status keep_sent() { return planes_.keep_sent(); }
  /// Own parameters are those after this round, until the next one begins.
  const std::optional<Round>& after() const { return after_; }
  const Divergence& divergence() const { return divergence_; }   ///< of the last round
  double exchange_seconds() const { return exchange_seconds_; }  ///< so too
  /// The part of a state on disk that is here; the rest is the optimizer's.
  LocalKeeper::State state() const;
  /// Between `next` and `begin`: the state on disk that this round begins with, where there is one.
  LocalKeeper::Found resume(LocalKeeper& keeper, LocalKeeper::State& state);

 private:
  Error fail(Error error);
  Status give_gradients();
  void give_change();
  void merge(const Share& share, const RoundReport& report);

  const Manifest manifest_;
  const std::uint64_t samples_;
  std::span<float> params_;
  Exchange* exchange_ = nullptr;
  EpochOrder order_;
  LocalPlanes planes_;
  bool is_local_ = false;
  std::optional<Error> failed_;
  std::optional<Finished> ended_;
  bool is_left_ = false;

  std::optional<Share> share_;
  std::vector<bool> is_ready_;  // by tensor
  bool is_contributed_ = false;
  TimePoint began_;
  double computed_ = 0;  // seconds of this round

  bool begins_anew_ = true;  // own parameters are to be the cluster's
  std::optional<Round> after_;
  std::optional<Share> late_;  // of the round before, which closed without this worker
  StepStats untold_;           // of steps since the last contribution
  Divergence divergence_;
  double exchange_seconds_ = 0;
};

}  // namespace centroid::worker
