#pragma once

#include <cstdint>

#include "common/base/clock.h"

namespace centroid::server {

/// What this process has counted of the job since it began. Going back to another version of the
/// job takes nothing of it back.
struct JobTotals {
  std::uint64_t samples = 0;
  std::uint64_t clipped = 0, skipped = 0, aborted = 0;  ///< rounds
  std::uint64_t late_dropped = 0, late_carried = 0, lost_contributions = 0;
  double samples_per_second = 0;  ///< smoothed
  double loss = 0;                ///< of the last round
  double train_accuracy = 0;      ///< of the last epoch
  double gradient_norm = -1;      ///< of the last mean that might be clipped; -1: none
  // events of committed rounds
  TimePoint round_published;            ///< when one was last published
  std::uint64_t rounds_unreported = 0;  ///< rounds committed since then
};

}  // namespace centroid::server
