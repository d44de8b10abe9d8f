#include "common/base/log.h"
#include "worker/exchange/server_link.h"

/// What becomes of error feedback when a round is over, or its end is never heard of.
namespace centroid::worker {

namespace {
/// Rounds between looks at what error feedback has left to send: each is a pass over it.
constexpr std::uint64_t kResidualRounds = 16;
}  // namespace

/// What was sent is in the sum, is to be sent again in a later round, or never was.
void ServerLink::round_is_over(RoundEnd end) {
  end_feedback(end);
  if (feedback_ && end == RoundEnd::kPromised) promised_ = open_->round;
  if (feedback_ && open_->round.value % kResidualRounds == 1) look_at_residual();
  if (!keeper_ || end == RoundEnd::kUndone) return;  // what is in memory is what it was before
  if (keeper_->closed(open_->round)) (void)save_feedback();
}

void ServerLink::end_feedback(RoundEnd end) {
  if (options_.peers) options_.peers->round_over(end);
  if (!feedback_) return;
  if (end == RoundEnd::kCommitted) {
    feedback_->commit();
    if (promised_) feedback_->promise_kept();  // a round takes with it what came late before it
    promised_.reset();
  } else if (end == RoundEnd::kPromised) {
    feedback_->commit_promised();
  } else if (end == RoundEnd::kSkipped) {
    feedback_->take_back();
  } else {
    feedback_->undo();
  }
}

bool ServerLink::has_feedback() const {
  return feedback_ || (options_.peers && options_.peers->has_feedback());
}

/// The server knows, or nobody does: what was sent before the connection broke. Its round may be
/// open still, so what counts is a promise.
void ServerLink::settle(Round counted) {
  if (!unsettled_) return;
  const Round round = *std::exchange(unsettled_, std::nullopt);
  const bool is_counted = round == counted;
  end_feedback(is_counted ? RoundEnd::kPromised : RoundEnd::kUndone);
  if (feedback_ && is_counted) promised_ = round;
  log::info("contribution.settled", {{"round", round.value}, {"counted", is_counted}});
  if (keeper_ && is_counted && keeper_->closed(round)) (void)save_feedback();
}

/// A contribution that was to count: the server that was to count it may have gone before.
void ServerLink::settle_promised(Round counted) {
  if (!promised_ || counted == *promised_) return;
  const Round round = *std::exchange(promised_, std::nullopt);
  if (counted > round) return feedback_->promise_kept();
  feedback_->undo_promised();
  log::info("contribution.settled",
            {{"round", round.value}, {"counted", false}, {"promised", true}});
  if (keeper_) keeper_->undone(round);
}

/// Error feedback between rounds; nullptr while the peers' thread has it.
ErrorFeedback* ServerLink::feedback_at_rest() {
  return options_.peers ? options_.peers->feedback_at_rest() : feedback_.get();
}

void ServerLink::leave_feedback() {
  if (unsettled_ && keeper_) keeper_->broken();  // whether it counted is never heard
  settle(Round());
  if (!keeper_) return;
  if (const ErrorFeedback* feedback = feedback_at_rest()) keeper_->leave(*feedback);
}

void ServerLink::look_at_residual() {
  if (!feedback_) return;
  const double norm = feedback_->residual_norm();
  const std::lock_guard lock(traffic_mutex_);
  codecs_.residual_norm = norm;
}

}  // namespace centroid::worker
