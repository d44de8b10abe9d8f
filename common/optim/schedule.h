#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace centroid {

/// Factor of the learning rate by step. A step is a committed round, so a resumed job continues its
/// schedule.
///
/// text      "name" or "name:field=value,field=value"; t = 1, 2, .. is the number of the step
/// warm-up   the first `warmup` steps: t / warmup; then, with e = t - 1 - warmup:
///
/// name      factor                                          fields (* must be given)
/// constant  1                                               warmup
/// step      max(floor, factor^(e / every, whole))           every*, factor 0.1, floor 0, warmup
/// linear    1 - (1 - floor) x                               rounds*, floor 0, warmup
/// cosine    floor + (1 - floor) (1 + cos(pi x)) / 2         rounds*, floor 0, warmup
/// onecycle  two half cosines: start to 1 over the first     rounds*, rise 0.3, start 0.04,
///           `rise` of the rounds, then 1 to floor           floor 4e-6
///
/// x = min(1, e / (rounds - warmup)); after `rounds` the last value stays.
/// source    PyTorch 2, torch.optim.lr_scheduler: StepLR, CosineAnnealingLR, OneCycleLR (Smith and
///           Topin 2019) with the same defaults
struct LearningRateSchedule {
  enum class Kind : std::uint8_t { kConstant, kStep, kLinear, kCosine, kOneCycle };
  Kind kind = Kind::kConstant;
  std::uint64_t rounds = 0;  ///< length, warm-up included
  std::uint64_t warmup = 0;
  std::uint64_t every = 0;
  double step_factor = 0.1;
  double floor = 0;
  double rise = 0.3;
  double start = 0.04;
  bool operator==(const LearningRateSchedule&) const = default;

  /// fails invalid_argument: names the wrong field and its valid values.
  static Result<LearningRateSchedule> parse(std::string_view text);
  /// `step` counts from 1.
  double factor(std::uint64_t step) const;
};

}  // namespace centroid
