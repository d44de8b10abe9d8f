#pragma once

#include <cstdint>

#include "common/base/scalars.h"

namespace centroid::server {

/// Sums over contributions, of a round or of an epoch: a worker may have several in one, each
/// counts with its samples.
struct Tally {
  double loss_sum = 0;        ///< over samples
  std::uint64_t samples = 0;  ///< judged: of a language model the tokens it predicted
  std::uint64_t correct = 0, steps = 0;
  Scalars scalars{};  ///< that training programs have named

  void add(const Tally& more) {
    loss_sum += more.loss_sum;
    samples += more.samples;
    correct += more.correct;
    steps += more.steps;
    scalars.add(more.scalars);
  }
  /// 0 without samples.
  double loss() const { return samples > 0 ? loss_sum / static_cast<double>(samples) : 0; }
  double accuracy() const {
    return samples > 0 ? static_cast<double>(correct) / static_cast<double>(samples) : 0;
  }
};

}  // namespace centroid::server
