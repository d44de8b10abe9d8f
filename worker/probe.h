#pragma once

#include <cstdint>

#include "common/base/metrics.h"
#include "worker/exchange/exchange.h"

namespace centroid::worker {

/// The training loop's metrics; the exchange has its own. Handles are looked up once. Called by the
/// loop's thread.
class Probe {
 public:
  explicit Probe(metrics::Registry& registry);
  void round_ended(const Share& share, const StepStats& stats, const RoundReport& report);
  /// Called at an average of local steps.
  void diverged(double cosine, double shift);
  /// Bytes since the start.
  void traffic(const ExchangeTraffic& total);
  void evaluated(double accuracy, double loss) const;

 private:
  metrics::Registry& registry_;
  bool is_placed_ = false, has_version_ = false;  ///< series are added with their first value
  metrics::Counter committed_, skipped_, lost_, late_, samples_, bytes_in_, bytes_out_;
  metrics::Gauge loss_, accuracy_, test_loss_, version_, rank_, world_, residual_, idle_,
      exchange_seconds_, divergence_, gradient_norm_, learning_rate_, cosine_, shift_;
  metrics::Histogram compute_seconds_, round_seconds_;
  ExchangeTraffic is_reported_;
};

}  // namespace centroid::worker
