#include "worker/loop/training_loop.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "common/base/random.h"
#include "common/checkpoint/fault_point.h"
#include "common/optim/norm.h"
#include "worker/loop/epoch_order.h"
#include "worker/loop/local_steps.h"

namespace centroid::worker {

namespace {

Status evaluate(ReplicaGroup& group, const Dataset& test, Exchange& exchange, Version version,
                TrainingSummary& summary) {
  if (test.samples == 0) return {};
  CENTROID_ASSIGN(const auto result, group.evaluate(test, 0, test.samples));
  exchange.report({.version = version,
                   .samples = result.samples,
                   .correct = result.correct,
                   .loss_sum = result.loss_sum});
  summary.test_accuracy = static_cast<double>(result.correct) / static_cast<double>(result.samples);
  summary.test_loss = result.loss_sum / static_cast<double>(result.samples);
  return {};
}

/// One round of one gradient. `next`: what the rounds after it may train on, to be loaded
/// meanwhile. `parameter_norm`: to be told with this contribution; then of the next one, or -1.
/// `exchange_seconds`: so too, of the round before, and then of this one.
Result<RoundReport> gradient_round(ReplicaGroup& group, const Dataset& data, const Share& share,
                                   std::span<const std::uint64_t> samples,
                                   const std::vector<std::span<const std::uint64_t>>& next,
                                   Exchange& exchange, double& parameter_norm,
                                   double& exchange_seconds, StepStats& stats) {
  const auto begin = centroid::now();
  exchange.begin(share);
  CENTROID_ASSIGN(const auto step,
                  group.step(data, samples, [&](TensorId tensor) { exchange.ready(tensor); }));
  group.expect(data, next);
  stats = {.samples = step.samples,
           .correct = step.correct,
           .loss_sum = step.loss_sum,
           .compute_seconds = step.compute_seconds,
           // The gradient is the mean over all places of the samples, also those behind their ends.
           .tokens = share.samples() * data.targets(),
           .exchange_seconds = exchange_seconds,
           .parameter_norm = std::exchange(parameter_norm, -1)};
  if (share.samples() > 0 && share.round.value % kNormRounds == 1) {
    exchange.complete(stats);  // the others need not wait for it
    CENTROID_ASSIGN(stats.gradient_norm, group.gradient_norm());
    parameter_norm = std::sqrt(sum_of_squares(group.params().first(group.trained())));
  }
  CENTROID_ASSIGN(auto report, exchange.finish(stats));
  const std::chrono::duration<double> took = centroid::now() - begin;
  exchange_seconds = std::max(took.count() - stats.compute_seconds, 0.0);
  stats.exchange_seconds = exchange_seconds;
  return report;
}

}  // namespace

Status train(ReplicaGroup& group, const DataSplit& data, Exchange& exchange,
             TrainingSummary& summary, const RoundObserver& observer, LocalSteps* local) {
  const auto started = centroid::now();
  const auto tally = [&] {
    summary.total_seconds = std::chrono::duration<double>(centroid::now() - started).count();
    summary.traffic = exchange.traffic();
  };
  EpochOrder order;
  double parameter_norm = -1, exchange_seconds = 0;
  for (;;) {
    auto next = exchange.next();
    if (!next.ok()) {
      tally();
      return std::move(next).error();
    }
    if (const auto* finished = std::get_if<Finished>(&next.value())) {
      if (local) local->rest();
      if (finished->evaluate)
        CENTROID_TRY(evaluate(group, data.test, exchange, finished->version, summary));
      summary.end = finished->text;
      summary.is_halted = finished->reason == Finished::Reason::kHalted;
      exchange.leave(finished->text);
      summary.optimizer_fingerprint = exchange.optimizer_fingerprint();
      tally();
      if (summary.is_halted) return Error(ErrorCode::kFailedPrecondition, finished->text);
      return {};
    }
    const Share share = std::get<Share>(next.value());
    fault::point("worker.share_taken");
    if (share.end < share.begin || share.samples() > data.train.samples)
      return Error(ErrorCode::kInternal, "the share ends at " + std::to_string(share.end) + " of " +
                                             std::to_string(data.train.samples) + " samples");
    if (share.evaluate) {
      if (share.is_local) local->rest();
      CENTROID_TRY(evaluate(group, data.test, exchange, share.version, summary));
    }
    StepStats stats;
    group.use_noise(mix64(share.seed, share.epoch));
    const auto samples = order.part(data.train.samples, share);
    auto report = share.is_local
                      ? local->round(share, data.train, samples, exchange, stats)
                      : gradient_round(group, data.train, share, samples,
                                       order.next(share, group.load_ahead(share.samples())),
                                       exchange, parameter_norm, exchange_seconds, stats);
    if (!report.ok()) {
      tally();
      return std::move(report).error();
    }
    summary.rounds += 1;
    summary.skipped += report->outcome == RoundReport::Outcome::kSkipped ? 1 : 0;
    summary.lost += report->outcome == RoundReport::Outcome::kLost ? 1 : 0;
    summary.late += report->outcome == RoundReport::Outcome::kLate ? 1 : 0;
    summary.samples += stats.samples;
    summary.compute_seconds += stats.compute_seconds;
    summary.wait_seconds += report->wait_seconds;
    if (stats.samples > 0) {
      summary.last_loss = stats.loss();
      summary.last_accuracy = stats.accuracy();
    }
    if (share.is_local) summary.divergence = local->divergence();
    if (stats.gradient_norm >= 0) summary.gradient_norm = stats.gradient_norm;
    if (report->outcome == RoundReport::Outcome::kCommitted) summary.version = report->version;
    if (report->outcome == RoundReport::Outcome::kSkipped)
      log::warn("round.skipped", {{"round", share.round.value}, {"why", report->reason}});
    if (observer) observer(share, stats, *report, summary);
  }
}

}  // namespace centroid::worker
