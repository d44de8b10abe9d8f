#include "worker/node/sharded_training.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <numeric>

#include "common/base/permutation.h"
#include "common/base/random.h"
#include "common/checkpoint/fault_point.h"
#include "transport/collective/collectives.h"
#include "worker/data/batch_loader.h"
#include "worker/node/group_memory.h"
#include "worker/node/replica_parts.h"
#include "worker/parallel/shard_layout.h"

namespace centroid::worker {

namespace {

/// What some rank wants.
struct Wishes {
  bool stop = false, pause = false, numbers = false;
};

class ShardedTraining {
 public:
  ShardedTraining(DividedReplica& replica, const collective::Group& group, const DataSplit& data,
                  const ShardedTrainingOptions& options, ShardedSummary& summary)
      : replica_(replica), group_(group), data_(data), options_(options), summary_(summary) {}

  bool is_done() const {
    return (options_.epochs > 0 && summary_.epochs >= options_.epochs) ||
           (options_.steps > 0 && summary_.steps >= options_.steps);
  }
  /// Returns the wishes of all ranks.
  Result<Wishes> step(const ShardedObserver& observer);
  Status evaluate();
  Status exchange_numbers(const ShardedObserver& observer);
  const StepTimes& times() const { return times_; }  ///< of the last step

 private:
  /// What ranks add up.
  enum Total : std::size_t { kLoss, kCorrect, kTargets, kStopping, kPausing, kAsking, kTotals };
  using Totals = std::array<double, kTotals>;
  static Totals totals_of(const StepResult& result) {
    return {result.loss_sum, static_cast<double>(result.correct),
            static_cast<double>(result.targets)};
  }
  bool is_idle() const { return replica_.data_rank() == replica_.data_world(); }
  collective::CallOptions call_options() const {
    collective::CallOptions options;
    if (is_idle()) options.timeout = kIdlePatience;
    return options;
  }
  Status add_up(Totals& totals) const {
    const collective::CallOptions options = call_options();
    return collective::all_reduce(group_, std::span<double>(totals), options);
  }
  /// This rank's part of some samples.
  std::span<const std::uint64_t> own(std::span<const std::uint64_t> samples) const {
    if (is_idle()) return {};
    const parallel::Range part =
        parallel::shard_of(samples.size(), replica_.data_world(), replica_.data_rank());
    return samples.subspan(part.begin, part.count);
  }
  Batch load(const Dataset& data, std::span<const std::uint64_t> samples);

  DividedReplica& replica_;
  const collective::Group& group_;
  const DataSplit& data_;
  const ShardedTrainingOptions& options_;
  ShardedSummary& summary_;
  LoadedBatch loaded_;
  std::vector<std::uint64_t> order_;  ///< of the epoch's samples
  StepTimes times_;
};

Batch ShardedTraining::load(const Dataset& data, std::span<const std::uint64_t> samples) {
  loaded_.load(data, samples);
  Batch batch = rows_of(loaded_, data, {0, samples.size()});
  batch.noise = mix64(options_.seed, summary_.epochs);
  return batch;
}

Result<Wishes> ShardedTraining::step(const ShardedObserver& observer) {
  const auto begin = std::chrono::steady_clock::now();
  const double waited = replica_.costs().waiting();
  const std::uint64_t samples = data_.train.samples;
  if (order_.empty() || summary_.offset == 0)
    order_ = permutation(samples, options_.seed, summary_.epochs);
  const std::uint64_t count = next_samples(summary_, options_, samples, replica_.data_world());
  const Batch batch = load(data_.train, own(std::span(order_).subspan(summary_.offset, count)));
  CENTROID_ASSIGN(const ShardedStep done, replica_.step({&batch, 1}, count));
  fault::point("sharded.stepped");
  Totals totals = totals_of(done.result);
  totals[kStopping] = observer.is_stopping && observer.is_stopping() ? 1 : 0;
  totals[kPausing] = observer.has_newcomers && observer.has_newcomers() ? 1 : 0;
  totals[kAsking] = observer.wants_numbers && observer.wants_numbers() ? 1 : 0;
  const auto adding = std::chrono::steady_clock::now();
  CENTROID_TRY(add_up(totals));
  const std::chrono::duration<double> all = std::chrono::steady_clock::now() - begin,
                                      agreeing = std::chrono::steady_clock::now() - adding;
  times_ = {batch.samples, all.count(), replica_.costs().waiting() - waited, agreeing.count()};
  count_step(summary_, count, samples);
  summary_.loss = totals[kLoss] / totals[kTargets];
  summary_.accuracy = totals[kCorrect] / totals[kTargets];
  summary_.gradient_norm = done.report.gradient_norm.value_or(-1);
  summary_.is_halted = !std::isfinite(totals[kLoss]);
  if (summary_.is_halted)
    return Error(
        ErrorCode::kFailedPrecondition,
        "the loss of step " + std::to_string(summary_.steps) + " is not finite: lower --lr");
  const Wishes wishes{totals[kStopping] > 0, totals[kPausing] > 0, totals[kAsking] > 0};
  if (summary_.offset == 0 && !wishes.stop && !is_done())
    CENTROID_TRY(evaluate());  // else at the end
  return wishes;
}

Status ShardedTraining::exchange_numbers(const ShardedObserver& observer) {
  const RankNumbers own = observer.numbers ? observer.numbers() : RankNumbers();
  std::vector<RankNumbers> all(group_.world());
  const collective::ConstElements input(DType::kF64, std::as_bytes(std::span(&own, 1)));
  const collective::Elements output(DType::kF64, std::as_writable_bytes(std::span(all)));
  CENTROID_TRY(collective::all_gather(group_, input, output, call_options()));
  if (observer.has_numbers) observer.has_numbers(all);
  return {};
}

Status ShardedTraining::evaluate() {
  const Dataset& test = data_.test;
  if (test.samples == 0) return {};
  const std::uint64_t most = evaluate_samples(replica_.model()) * replica_.data_world();
  Totals sum{};
  std::vector<std::uint64_t> samples;
  for (std::uint64_t at = 0; at < test.samples; at += most) {
    samples.resize(std::min(most, test.samples - at));
    std::iota(samples.begin(), samples.end(), at);
    CENTROID_ASSIGN(const StepResult result, replica_.evaluate(load(test, own(samples))));
    const Totals part = totals_of(result);
    for (std::size_t i = 0; i < kTotals; ++i) sum[i] += part[i];
  }
  CENTROID_TRY(add_up(sum));
  summary_.test_loss = sum[kLoss] / sum[kTargets];
  summary_.test_accuracy = sum[kCorrect] / sum[kTargets];
  return {};
}

}  // namespace

std::uint64_t next_samples(const ShardedSummary& summary, const ShardedTrainingOptions& options,
                           std::uint64_t train_samples, std::uint32_t world) {
  return std::min(options.batch * world, train_samples - summary.offset);
}

void count_step(ShardedSummary& summary, std::uint64_t samples, std::uint64_t train_samples) {
  summary.steps += 1;
  summary.samples += samples;
  summary.offset += samples;
  if (summary.offset < train_samples) return;
  summary.offset = 0;
  summary.epochs += 1;
}

Status train_sharded(DividedReplica& replica, const collective::Group& group, const DataSplit& data,
                     const ShardedTrainingOptions& options, ShardedSummary& summary,
                     const ShardedObserver& observer) {
  CENTROID_TRY(check_fits(replica.model(), data.train));
  const auto begin = std::chrono::steady_clock::now();
  const double before = summary.seconds;
  ShardedTraining training(replica, group, data, options, summary);
  summary.end = "the goal is reached";
  summary.is_paused = summary.is_stopped = false;
  while (!training.is_done()) {
    CENTROID_ASSIGN(const Wishes wishes, training.step(observer));
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    summary.seconds = before + time.count();
    if (observer.stepped) observer.stepped(summary, training.times());
    if (wishes.numbers) CENTROID_TRY(training.exchange_numbers(observer));
    if (wishes.stop) {
      summary.end = "stopped";
      summary.is_stopped = true;
      break;
    }
    summary.is_paused = wishes.pause && !training.is_done();
    if (summary.is_paused) return {};
  }
  return training.evaluate();
}

}  // namespace centroid::worker
