#pragma once

#include <string>

#include "common/base/metrics.h"
#include "common/base/trace.h"

namespace centroid::trace {

/// One stage of one program: a histogram, `centroid_<program>_stage_seconds`, and spans in the
/// trace.
class StageProbe {
 public:
  StageProbe() = default;
  StageProbe(metrics::Registry& registry, const std::string& program, Stage stage)
      : histogram_(registry.histogram("centroid_" + program + "_stage_seconds",
                                      "Time in one stage of the gradient path.",
                                      metrics::latency_bounds(), {{"stage", to_string(stage)}})),
        stage_(stage) {}

  /// Record a span from `begin` to `end`; returns its seconds.
  double ended(const Lane& lane, TimePoint begin, TimePoint end, std::uint64_t round) const {
    const double seconds = std::chrono::duration<double>(end - begin).count();
    histogram_.observe(seconds);
    lane.span(stage_, begin, end, round);
    return seconds;
  }
  /// Record work in separate pieces, which is no span.
  void took(double seconds) const { histogram_.observe(seconds); }

 private:
  metrics::Histogram histogram_;
  Stage stage_ = Stage::kCompute;
};

}  // namespace centroid::trace
