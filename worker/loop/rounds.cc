#include "worker/loop/rounds.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

namespace centroid::worker {

namespace {

Error state_error(const std::string& message) {
  return Error(ErrorCode::kFailedPrecondition, message);
}

}  // namespace

Rounds::Rounds(Manifest manifest, std::uint64_t samples, std::span<float> params)
    : manifest_(std::move(manifest)), samples_(samples), params_(params) {}

Result<std::span<const float>> Rounds::begin_local(
    const LocalTerms& terms, const ChunkPlan& plan,
    const std::function<Buffer(std::size_t bytes)>& allocate) {
  const std::size_t bytes = params_.size_bytes();
  try {
    CENTROID_TRY(planes_.open(plan, terms.fragments, params_, allocate(bytes)));
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kResourceExhausted,
                 "no memory for local steps: own parameters and contribution of " +
                     std::to_string(bytes) + " bytes each");
  }
  is_local_ = true;
  return planes_.contribution();
}

void Rounds::move_params(std::span<float> params) {
  params_ = params;
  planes_.move_params(params);
}

Error Rounds::fail(Error error) {
  failed_ = std::move(error);
  leave(failed_->message());
  return *failed_;
}

Result<std::variant<Share, Finished>> Rounds::next() {
  if (failed_) return *failed_;
  if (ended_) return std::variant<Share, Finished>(*ended_);
  if (is_left_) return state_error("this worker has left the cluster");
  if (share_)
    return state_error("round " + std::to_string(share_->round.value) +
                       " is not finished: finish comes before the next one");
  auto next = exchange_->next();
  if (!next.ok()) return fail(std::move(next).error());
  if (const auto* finished = std::get_if<Finished>(&next.value())) {
    ended_ = *finished;
    return next;
  }
  const Share& share = std::get<Share>(next.value());
  if (share.end < share.begin || share.samples() > samples_)
    return Error(ErrorCode::kInternal, "the share ends at " + std::to_string(share.end) + " of " +
                                           std::to_string(samples_) + " samples");
  // A cluster that went back, or went on without this worker, has other parameters.
  if (after_ && share.round.value != after_->value + 1) begins_anew_ = true;
  share_ = share;
  return next;
}

Status Rounds::begin() {
  const Share& share = *share_;
  began_ = centroid::now();
  computed_ = 0;
  is_contributed_ = false;
  is_ready_.assign(manifest_.size(), false);
  after_.reset();
  if (share.is_local) {
    // What came late is in the cluster's parameters only now.
    if (const auto late = std::exchange(late_, std::nullopt))
      divergence_ = planes_.divergence(*late);
    if (share.overlap > 0)
      if (const Status kept = planes_.keep_sent(); !kept.ok()) return fail(kept.error());
    if (std::exchange(begins_anew_, false)) planes_.restart();
  }
  exchange_->begin(share);
  return {};
}

Status Rounds::ready(TensorId tensor) {
  if (!share_) return state_error("no round is open: next comes before ready");
  if (tensor.value >= manifest_.size())
    return Error(ErrorCode::kInvalidArgument, "tensor " + std::to_string(tensor.value) + " of " +
                                                  std::to_string(manifest_.size()));
  if (share_->is_local)
    return state_error("the server wants local steps: train the parameters in place, then finish");
  if (is_contributed_ || is_ready_[tensor.value])
    return state_error("tensor " + manifest_[tensor.value].name + " was given already");
  is_ready_[tensor.value] = true;
  exchange_->ready(tensor);
  return {};
}

/// All gradients are there; an empty share may leave them out.
Status Rounds::give_gradients() {
  for (std::uint32_t i = 0; i < manifest_.size(); ++i) {
    if (is_ready_[i]) continue;
    if (share_->samples() > 0)
      return Error(ErrorCode::kInvalidArgument,
                   "tensor " + manifest_[i].name + " has no gradient in this round");
    exchange_->ready(TensorId(i));
  }
  return {};
}

void Rounds::give_change() {
  planes_.contribute(*share_);
  if (share_->samples() == 0) return;
  const auto tensors = planes_.tensors(*share_);
  for (auto tensor = tensors.rbegin(); tensor != tensors.rend(); ++tensor)
    exchange_->ready(*tensor);
}

Status Rounds::contribute(const StepStats& stats) {
  if (!share_) return state_error("no round is open: next comes before contribute");
  if (is_contributed_) return state_error("this round has had its contribution");
  if (share_->is_local)
    give_change();
  else
    CENTROID_TRY(give_gradients());
  untold_.add(stats);
  StepStats told = std::exchange(untold_, {});
  told.tokens = stats.tokens;
  told.scalars = stats.scalars;
  told.parameter_norm = stats.parameter_norm;
  told.exchange_seconds = exchange_seconds_;
  told.divergence = divergence_.ratio;
  exchange_->complete(told);
  is_contributed_ = true;
  computed_ += stats.compute_seconds;
  return {};
}

Result<RoundReport> Rounds::finish(const StepStats& stats) {
  if (!share_) return state_error("no round is open: next comes before finish");
  if (!is_contributed_) {
    CENTROID_TRY(contribute(stats));
  } else {
    untold_.add(stats);
    computed_ += stats.compute_seconds;
  }
  auto report = exchange_->finish({});
  const Share share = *std::exchange(share_, std::nullopt);
  if (!report.ok()) return fail(std::move(report).error());
  if (share.is_local) merge(share, *report);
  const std::chrono::duration<double> took = centroid::now() - began_;
  // A program that does not say how long it computed has said nothing of the exchange.
  exchange_seconds_ = computed_ > 0 ? std::max(took.count() - computed_, 0.0) : 0;
  return report;
}

/// Own parameters after the round.
void Rounds::merge(const Share& share, const RoundReport& report) {
  divergence_ = {};
  if (report.outcome == RoundReport::Outcome::kCommitted) {
    divergence_ = planes_.divergence(share);
    planes_.merge(share);
    begins_anew_ = !planes_.keeps_sent();
    after_ = share.round;
    return;
  }
  if (report.outcome == RoundReport::Outcome::kLate && !planes_.keeps_sent()) late_ = share;
  begins_anew_ = true;
  untold_ = {};
}

void Rounds::report(const Evaluation& evaluation) {
  if (!is_left_) exchange_->report(evaluation);
}

void Rounds::leave(const std::string& why) {
  if (exchange_ == nullptr || std::exchange(is_left_, true)) return;
  share_.reset();
  exchange_->leave(why);
}

LocalKeeper::State Rounds::state() const {
  LocalKeeper::State state;
  state.params = begins_anew_ ? params_ : planes_.own();
  state.untold = untold_;
  return state;
}

LocalKeeper::Found Rounds::resume(LocalKeeper& keeper, LocalKeeper::State& state) {
  state.params = planes_.own();
  const auto found = keeper.resume(share_->round, state);
  if (found == LocalKeeper::Found::kNothing) return found;
  const bool is_exact = found == LocalKeeper::Found::kExact;
  if (is_exact) untold_ = state.untold;
  begins_anew_ = !is_exact;
  return found;
}

}  // namespace centroid::worker
