#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace centroid::parallel {

/// Order in which the stages of a pipeline compute the micro-batches of a step.
///
/// source  GPipe: Huang et al. 2019; 1F1B: Narayanan et al. 2019, "PipeDream" (with a flush after
///         each step, as in Narayanan et al. 2021, section 2.2)
enum class Schedule : std::uint8_t {
  kGPipe,              ///< all forwards, then all backwards; activations of all micro-batches
  kOneForwardOneBack,  ///< a backward as early as possible; activations of at most `stages`
};
/// "gpipe", "1f1b"
///
/// fails  invalid_argument
Result<Schedule> parse_schedule(std::string_view text);
std::string_view to_string(Schedule schedule);

/// One computation of a stage. A forward needs the forward of the stage before, a backward that of
/// the stage after, of the same micro-batch.
struct Action {
  enum class Kind : std::uint8_t { kForward, kBackward };
  Kind kind = Kind::kForward;
  std::uint32_t micro_batch = 0;
  bool operator==(const Action&) const = default;
};
using Actions = std::vector<Action>;

/// The actions of every stage, in order.
///
/// fails  invalid_argument: no stages, fewer micro-batches than stages
Result<std::vector<Actions>> make_schedule(Schedule schedule, std::uint32_t stages,
                                           std::uint32_t micro_batches);

/// The most micro-batches whose activations a stage has at once.
std::uint32_t most_activations(std::span<const Action> actions);

/// Time in which the stages wait, as a ratio: to the time in which they compute, and to both.
struct Bubble {
  double of_useful = 0;  ///< least for equal stages: (stages - 1) / micro_batches
  double of_total = 0;   ///< least: (stages - 1) / (micro_batches + stages - 1)
};
/// The least of any schedule without interleaving whose stages cost the same.
Bubble least_bubble(std::uint32_t stages, std::uint32_t micro_batches);

/// Duration of each action, in virtual time.
struct StageCost {
  std::uint64_t forward = 1, backward = 2;
};

/// When each action of a schedule runs.
struct Timeline {
  struct Span {
    std::uint64_t begin = 0, end = 0;
  };
  std::vector<std::vector<Span>> spans;  ///< by stage and action
  std::uint64_t length = 0;              ///< until the last stage ends
  std::uint64_t useful = 0;              ///< of all stages, computing
  std::uint64_t idle = 0;                ///< of all stages, waiting
  Bubble bubble() const;
};

/// Run a schedule in virtual time: an action begins when its stage is free and its input is there.
/// `transfer`: time of a message between two stages, which delays neither of them.
///
/// fails  invalid_argument: costs of another number of stages, an action twice, or missing;
///        failed_precondition: the stages wait for each other for ever; names one of them
Result<Timeline> evaluate(std::span<const Actions> stages, std::span<const StageCost> costs,
                          std::uint64_t transfer = 0);

}  // namespace centroid::parallel
