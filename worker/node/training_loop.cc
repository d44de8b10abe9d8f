#include "worker/node/training_loop.h"

#include <chrono>
#include <cmath>
#include <utility>

#include "common/base/log.h"
#include "common/base/random.h"
#include "common/checkpoint/fault_point.h"
#include "common/optim/norm.h"
#include "worker/node/local_steps.h"

namespace centroid::worker {

namespace {

Status evaluate(ReplicaGroup& group, const Dataset& test, Rounds& rounds, Version version,
                TrainingSummary& summary) {
  if (test.samples == 0) return {};
  CENTROID_ASSIGN(const auto result, group.evaluate(test, 0, test.samples));
  rounds.report({.version = version,
                 .samples = result.samples,
                 .correct = result.correct,
                 .loss_sum = result.loss_sum});
  summary.test_accuracy = static_cast<double>(result.correct) / static_cast<double>(result.samples);
  summary.test_loss = result.loss_sum / static_cast<double>(result.samples);
  return {};
}

/// One round with one gradient. `parameter_norm`: in: to send with this contribution; out: for the
/// next one, or -1.
Result<RoundReport> gradient_round(ReplicaGroup& group, const Dataset& data, Rounds& rounds,
                                   const Share& share, double& parameter_norm, StepStats& stats) {
  CENTROID_TRY(rounds.begin());
  const auto on_ready = [&](TensorId tensor) { CENTROID_CHECK(rounds.ready(tensor).ok()); };
  CENTROID_ASSIGN(const auto step, group.step(data, rounds.samples(), on_ready));
  group.expect(data, rounds.samples_ahead(group.load_ahead(share.samples())));
  stats = {.samples = step.samples,
           .correct = step.correct,
           .loss_sum = step.loss_sum,
           .compute_seconds = step.compute_seconds,
           // The gradient is the mean over all positions of the samples, also those after their
           // ends.
           .tokens = share.samples() * data.targets(),
           .parameter_norm = std::exchange(parameter_norm, -1)};
  CENTROID_TRY(rounds.contribute(stats));
  if (share.samples() > 0 && share.round.value % kNormRounds == 1) {  // rarely: others wait
    CENTROID_ASSIGN(stats.gradient_norm, group.gradient_norm());
    parameter_norm = std::sqrt(sum_of_squares(group.params().first(group.trained())));
  }
  return rounds.finish({});
}

void count(TrainingSummary& summary, const StepStats& stats, const RoundReport& report) {
  summary.rounds += 1;
  summary.skipped += report.outcome == RoundReport::Outcome::kSkipped ? 1 : 0;
  summary.lost += report.outcome == RoundReport::Outcome::kLost ? 1 : 0;
  summary.late += report.outcome == RoundReport::Outcome::kLate ? 1 : 0;
  summary.samples += stats.samples;
  summary.compute_seconds += stats.compute_seconds;
  summary.wait_seconds += report.wait_seconds;
  if (stats.samples > 0) {
    summary.last_loss = stats.loss();
    summary.last_accuracy = stats.accuracy();
  }
  if (stats.gradient_norm >= 0) summary.gradient_norm = stats.gradient_norm;
  if (report.outcome == RoundReport::Outcome::kCommitted) summary.version = report.version;
}

}  // namespace

Status train(ReplicaGroup& group, const DataSplit& data, Rounds& rounds, TrainingSummary& summary,
             const RoundObserver& observer, LocalSteps* local) {
  const auto started = centroid::now();
  const auto tally = [&] {
    summary.total_seconds = std::chrono::duration<double>(centroid::now() - started).count();
    summary.traffic = rounds.exchange().traffic();
  };
  double parameter_norm = -1;
  for (;;) {
    auto next = rounds.next();
    if (!next.ok()) {
      tally();
      return std::move(next).error();
    }
    if (const auto* finished = std::get_if<Finished>(&next.value())) {
      if (local) local->rest();
      if (finished->evaluate)
        CENTROID_TRY(evaluate(group, data.test, rounds, finished->version, summary));
      summary.end = finished->text;
      summary.is_halted = finished->reason == Finished::Reason::kHalted;
      rounds.leave(finished->text);
      summary.optimizer_fingerprint = rounds.exchange().optimizer_fingerprint();
      tally();
      if (summary.is_halted) return Error(ErrorCode::kFailedPrecondition, finished->text);
      return {};
    }
    const Share share = std::get<Share>(next.value());
    fault::point("worker.share_taken");
    if (share.evaluate) {
      if (share.is_local) local->rest();
      CENTROID_TRY(evaluate(group, data.test, rounds, share.version, summary));
    }
    group.use_noise(mix64(share.seed, share.epoch));
    StepStats stats;
    auto report = share.is_local
                      ? local->round(share, data.train, stats)
                      : gradient_round(group, data.train, rounds, share, parameter_norm, stats);
    if (!report.ok()) {
      tally();
      return std::move(report).error();
    }
    stats.exchange_seconds = rounds.exchange_seconds();
    stats.divergence = rounds.divergence().ratio;
    count(summary, stats, *report);
    if (share.is_local) summary.divergence = rounds.divergence();
    if (report->outcome == RoundReport::Outcome::kSkipped)
      log::warn("round.skipped", {{"round", share.round.value}, {"why", report->reason}});
    if (observer) observer(share, stats, *report, summary);
  }
}

}  // namespace centroid::worker
