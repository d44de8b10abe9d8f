#include "worker/probe.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/base/trace.h"

namespace centroid::worker {

Probe::Probe(metrics::Registry& r) : registry_(r) {
  const auto rounds = [&](const char* outcome) {
    return r.counter("centroid_worker_rounds_total", "Rounds of this worker, by outcome.",
                     {{"outcome", outcome}});
  };
  committed_ = rounds("committed");
  skipped_ = rounds("skipped");
  lost_ = rounds("lost");
  late_ = rounds("late");
  samples_ = r.counter("centroid_worker_samples_total", "Samples this worker has computed.");
  const auto bytes = [&](const char* direction) {
    return r.counter("centroid_worker_traffic_bytes_total",
                     "Bytes on all connections, to the server and to other workers.",
                     {{"direction", direction}});
  };
  bytes_in_ = bytes("in");
  bytes_out_ = bytes("out");
  accuracy_ = r.gauge("centroid_worker_test_accuracy_ratio",
                      "Accuracy on held-out data, last evaluation here; -1: none yet.");
  test_loss_ = r.gauge("centroid_worker_test_loss_nats",
                       "Loss on held-out data, last evaluation here; -1: none yet.");
  world_ = r.gauge("centroid_worker_world_members", "Workers in the present generation.");
  idle_ = r.gauge("centroid_worker_idle_ratio",
                  "Fraction of the last round in which this worker did not compute.");
  exchange_seconds_ =
      r.gauge("centroid_worker_exchange_seconds", "Time of the last round without computing.");
  divergence_ = r.gauge("centroid_worker_divergence_ratio",
                        "Distance of its parameters from the mean at the last average, by its "
                        "norm; -1: none.");
  cosine_ = r.gauge("centroid_worker_divergence_cosine",
                    "Cosine between its parameters before and after the last average; NaN: none.");
  shift_ = r.gauge("centroid_worker_divergence_shift",
                   "Norm of its parameters before the last average less that after it; NaN: none.");
  cosine_.set(std::numeric_limits<double>::quiet_NaN());
  shift_.set(std::numeric_limits<double>::quiet_NaN());
  residual_ = r.gauge("centroid_worker_codec_residual_norm",
                      "Norm of what error feedback has left to send, when last looked at.");
  const auto& bounds = metrics::latency_bounds();
  compute_seconds_ =
      r.histogram("centroid_worker_stage_seconds", "Time in one stage of the gradient path.",
                  bounds, {{"stage", trace::to_string(trace::Stage::kCompute)}});
  round_seconds_ = r.histogram("centroid_worker_round_seconds",
                               "From the first sample of a share to its parameters.", bounds);
  gradient_norm_ = r.gauge("centroid_worker_gradient_norm",
                           "Norm of the mean gradient of its devices, before clipping, when last "
                           "looked at; -1: not yet.");
  learning_rate_ = r.gauge("centroid_worker_learning_rate",
                           "Learning rate of its last local step (local_steps above 1); -1: none "
                           "was made.");
  gradient_norm_.set(-1);
  learning_rate_.set(-1);
  accuracy_.set(-1);
  test_loss_.set(-1);
}

void Probe::round_ended(const Share& share, const StepStats& stats, const RoundReport& report) {
  if (!std::exchange(is_placed_, true)) {
    loss_ = registry_.gauge("centroid_worker_train_loss_nats",
                            "Mean loss of this worker's last share.");
    rank_ = registry_.gauge("centroid_worker_rank_number", "Rank in the present generation.");
  }
  const bool is_committed = report.outcome == RoundReport::Outcome::kCommitted;
  if (is_committed && !std::exchange(has_version_, true))
    version_ = registry_.gauge("centroid_worker_version_number",
                               "Version of the parameters that the last committed round gave.");
  switch (report.outcome) {
    case RoundReport::Outcome::kCommitted:
      committed_.add();
      break;
    case RoundReport::Outcome::kSkipped:
      skipped_.add();
      break;
    case RoundReport::Outcome::kLost:
      lost_.add();
      break;
    case RoundReport::Outcome::kLate:
      late_.add();
      break;
  }
  samples_.add(static_cast<double>(stats.samples));
  if (stats.samples > 0) loss_.set(stats.loss());
  compute_seconds_.observe(stats.compute_seconds);
  round_seconds_.observe(stats.compute_seconds + report.wait_seconds);
  const double beside = std::max(stats.exchange_seconds, report.wait_seconds);
  const double whole = stats.compute_seconds + beside;
  idle_.set(whole > 0 ? beside / whole : 0);
  exchange_seconds_.set(stats.exchange_seconds);
  if (stats.gradient_norm >= 0) gradient_norm_.set(stats.gradient_norm);
  if (stats.learning_rate >= 0) learning_rate_.set(stats.learning_rate);
  divergence_.set(stats.divergence);
  if (is_committed) version_.set(static_cast<double>(report.version.value));
  rank_.set(static_cast<double>(share.rank.value));
  world_.set(static_cast<double>(share.world));
}

void Probe::diverged(double cosine, double shift) {
  cosine_.set(cosine);
  shift_.set(shift);
}

void Probe::traffic(const ExchangeTraffic& total) {
  if (total.bytes_in > is_reported_.bytes_in)
    bytes_in_.add(static_cast<double>(total.bytes_in - is_reported_.bytes_in));
  if (total.bytes_out > is_reported_.bytes_out)
    bytes_out_.add(static_cast<double>(total.bytes_out - is_reported_.bytes_out));
  residual_.set(total.codecs.residual_norm);
  is_reported_ = total;
}

void Probe::evaluated(double accuracy, double loss) const {
  accuracy_.set(accuracy);
  test_loss_.set(loss);
}

}  // namespace centroid::worker
