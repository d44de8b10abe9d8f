#include "worker/exchange/link_feedback.h"

#include "common/base/log.h"

namespace centroid::worker {

Status LinkFeedback::open(const proto::JoinReply& terms, const CodecSpec& spec,
                          const ChunkPlan& plan) {
  if (!spec.feedback.enabled) return {};
  is_wanted_ = true;
  passes_nonfinite_ = terms.nonfinite == static_cast<std::uint8_t>(proto::NonFinite::kPropagate);
  plan_ = plan;
  if (terms.peer_timeout_ms > 0) peers_ = options_.peers.get();
  among_peers_ = peers_ != nullptr;
  if (!among_peers_) {
    CENTROID_TRY(make_own());
    const bool may_move = terms.local_steps <= 1 && !passes_nonfinite_;
    if (memory_.device_residual && may_move && plan.has_buffers()) {
      log::info("codec.moved_to_host", {{"why", "the model has buffers (running statistics)"}});
    } else if (memory_.device_residual && may_move) {
      auto residual = memory_.device_residual(options_.join.codec, plan);
      if (residual.ok())
        own_->use_device(std::move(residual).value());
      else
        log::info("codec.moved_to_host", {{"why", residual.error()}});
    }
  }
  if (options_.state_dir.empty()) return {};
  FeedbackKeeper::Identity identity;
  identity.run_id = terms.run_id;
  identity.worker = options_.join.name;
  identity.manifest = options_.join.manifest;
  identity.every_rounds = terms.checkpoint_rounds;
  CENTROID_ASSIGN(keeper_, FeedbackKeeper::open(options_.state_dir, std::move(identity)));
  return {};
}

/// Of contributions to the server.
Status LinkFeedback::make_own() {
  CENTROID_ASSIGN(own_, ErrorFeedback::make(options_.join.codec, *plan_));
  own_->pass_nonfinite(passes_nonfinite_);
  return {};
}

Status LinkFeedback::round_opened(const proto::RoundOpen& open, bool again, bool among_peers) {
  if (again && among_peers != among_peers_) end(RoundEnd::kUndone);
  among_peers_ = among_peers;
  if (is_wanted_ && !among_peers && !own_) CENTROID_TRY(make_own());
  if (keeper_ && !again && !keeper_->is_before(open.round)) {
    if (ErrorFeedback* feedback = at_rest()) keeper_->resume(open.round, *feedback);
  }
  if (own_ && !among_peers && generation_ != open.generation) {
    generation_ = open.generation;
    own_->begin_generation(open.world);
  }
  return {};
}

void LinkFeedback::round_over(RoundEnd how, Round round) {
  end(how);
  if (own_ && !among_peers_ && how == RoundEnd::kPromised) promised_ = round;
}

void LinkFeedback::keep_closed(RoundEnd how, Round round) {
  if (!keeper_ || how == RoundEnd::kUndone) return;  // what is in memory is what it was before
  if (keeper_->closed(round)) (void)save();
}

void LinkFeedback::end(RoundEnd how) {
  if (among_peers_) {
    if (peers_ != nullptr) peers_->round_over(how);
    return;
  }
  if (!own_) return;
  if (how == RoundEnd::kCommitted) {
    own_->commit();
    if (promised_) own_->confirm_promised();  // a round takes with it what came late before it
    promised_.reset();
  } else if (how == RoundEnd::kPromised) {
    own_->commit_promised();
  } else if (how == RoundEnd::kSkipped) {
    own_->take_back();
  } else {
    own_->undo();
  }
}

void LinkFeedback::settle(Round counted) {
  resolve_broken(counted);
  resolve_promised(counted);
}

/// The server knows, or nobody does: what was sent before the connection broke. Its round may be
/// open still, so what counts is a promise.
void LinkFeedback::resolve_broken(Round counted) {
  if (!unsettled_) return;
  const Round round = *std::exchange(unsettled_, std::nullopt);
  const bool is_counted = round == counted;
  end(is_counted ? RoundEnd::kPromised : RoundEnd::kUndone);
  if (own_ && !among_peers_ && is_counted) promised_ = round;
  log::info("contribution.resolved", {{"round", round.value}, {"counted", is_counted}});
  if (keeper_ && is_counted && keeper_->closed(round)) (void)save();
}

/// A contribution that was to count: the server that was to count it may have gone before.
void LinkFeedback::resolve_promised(Round counted) {
  if (!promised_ || counted == *promised_) return;
  const Round round = *std::exchange(promised_, std::nullopt);
  if (counted > round) return own_->confirm_promised();
  own_->undo_promised();
  log::info("contribution.resolved",
            {{"round", round.value}, {"counted", false}, {"promised", true}});
  if (keeper_) keeper_->undone(round);
}

/// Error feedback between rounds; nullptr while the peers' thread has it.
ErrorFeedback* LinkFeedback::at_rest() {
  return among_peers_ && peers_ != nullptr ? peers_->feedback_at_rest() : own_.get();
}

void LinkFeedback::measure_residual() {
  if (!own_) return;
  const double norm = own_->residual_norm();
  counters_.update([&](CodecTotals& totals) { totals.residual_norm = norm; });
}

Status LinkFeedback::save() {
  const ErrorFeedback* const feedback = at_rest();
  if (feedback == nullptr) {
    const Error busy(ErrorCode::kFailedPrecondition, "gradients are still being added");
    log::warn("feedback.save_failed", {{"why", busy}});
    return busy;
  }
  keeper_->save(*feedback);
  return {};
}

void LinkFeedback::leave() {
  if (unsettled_ && keeper_) keeper_->broken();  // whether it counted is never heard
  resolve_broken(Round());
  if (!keeper_) return;
  if (const ErrorFeedback* feedback = at_rest()) keeper_->leave(*feedback);
}

}  // namespace centroid::worker
