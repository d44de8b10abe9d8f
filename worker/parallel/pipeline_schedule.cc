#include "worker/parallel/pipeline_schedule.h"

#include <algorithm>
#include <optional>
#include <string>

#include "common/tensor/text.h"

namespace centroid::parallel {
namespace {

using Kind = Action::Kind;

Error bad_schedule(const std::string& why) {
  return Error(ErrorCode::kInvalidArgument, "pipeline schedule: " + why);
}

std::string name_of(const Action& action) {
  const std::string kind = action.kind == Kind::kForward ? "forward" : "backward";
  return kind + " of micro-batch " + std::to_string(action.micro_batch);
}

/// The ends of actions, by stage, kind and micro-batch.
class Ends {
 public:
  Ends(std::size_t stages, std::size_t micro_batches)
      : micro_batches_(micro_batches), ends_(stages * 2 * micro_batches) {}
  std::optional<std::uint64_t>& at(std::size_t stage, Kind kind, std::uint32_t micro_batch) {
    return ends_[(stage * 2 + (kind == Kind::kForward ? 0 : 1)) * micro_batches_ + micro_batch];
  }

 private:
  std::size_t micro_batches_;
  std::vector<std::optional<std::uint64_t>> ends_;
};

Status check_actions(std::span<const Actions> stages, std::span<const StageCost> costs) {
  if (stages.empty()) return bad_schedule("there are no stages");
  if (costs.size() != stages.size())
    return bad_schedule(std::to_string(costs.size()) + " costs for " +
                        std::to_string(stages.size()) + " stages");
  const std::size_t micro_batches = stages[0].size() / 2;
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const std::string name = "stage " + std::to_string(stage);
    if (stages[stage].size() != micro_batches * 2)
      return bad_schedule(name + " has " + std::to_string(stages[stage].size()) + " actions, not " +
                          std::to_string(micro_batches * 2));
    std::vector<bool> seen(micro_batches * 2);
    for (const Action& action : stages[stage]) {
      if (action.micro_batch >= micro_batches)
        return bad_schedule(name + " has the " + name_of(action) + " of " +
                            std::to_string(micro_batches));
      auto is_seen = seen[action.micro_batch * 2 + (action.kind == Kind::kForward ? 0 : 1)];
      if (is_seen) return bad_schedule(name + " has the " + name_of(action) + " twice");
      is_seen = true;
    }
  }
  return {};
}

/// When the input of an action is there; nullopt: not yet known.
std::optional<std::uint64_t> input_of(Ends& ends, std::size_t stage, std::size_t stages,
                                      const Action& action, std::uint64_t transfer) {
  if (action.kind == Kind::kForward) {
    if (stage == 0) return 0;
    const auto before = ends.at(stage - 1, Kind::kForward, action.micro_batch);
    return before ? std::optional(*before + transfer) : std::nullopt;
  }
  const auto own = ends.at(stage, Kind::kForward, action.micro_batch);
  if (!own || stage + 1 == stages) return own;
  const auto after = ends.at(stage + 1, Kind::kBackward, action.micro_batch);
  return after ? std::optional(std::max(*own, *after + transfer)) : std::nullopt;
}

}  // namespace

Result<Schedule> parse_schedule(std::string_view text) {
  if (text == "gpipe") return Schedule::kGPipe;
  if (text == "1f1b") return Schedule::kOneForwardOneBack;
  return bad_schedule(printable(text) + " is neither gpipe nor 1f1b");
}

std::string_view to_string(Schedule schedule) {
  return schedule == Schedule::kGPipe ? "gpipe" : "1f1b";
}

Result<std::vector<Actions>> make_schedule(Schedule schedule, std::uint32_t stages,
                                           std::uint32_t micro_batches) {
  if (stages == 0) return bad_schedule("there are no stages");
  if (micro_batches < stages)
    return bad_schedule(std::to_string(micro_batches) + " micro-batches for " +
                        std::to_string(stages) + " stages; use at least as many as stages");
  std::vector<Actions> out(stages);
  for (std::uint32_t stage = 0; stage < stages; ++stage) {
    // Forwards before the first backward: until micro-batch 0 is back from the last stage.
    const std::uint32_t ahead = schedule == Schedule::kGPipe ? micro_batches : stages - stage;
    Actions& actions = out[stage];
    for (std::uint32_t i = 0; i < ahead; ++i) actions.push_back({Kind::kForward, i});
    for (std::uint32_t i = 0; i < micro_batches; ++i) {
      actions.push_back({Kind::kBackward, i});
      if (ahead + i < micro_batches) actions.push_back({Kind::kForward, ahead + i});
    }
  }
  return out;
}

std::uint32_t most_activations(std::span<const Action> actions) {
  std::uint32_t held = 0, most = 0;
  for (const Action& action : actions) {
    if (action.kind == Kind::kForward)
      most = std::max(most, ++held);
    else if (held > 0)
      --held;
  }
  return most;
}

Bubble least_bubble(std::uint32_t stages, std::uint32_t micro_batches) {
  const double waits = static_cast<double>(stages) - 1, works = micro_batches;
  return {waits / works, waits / (works + waits)};
}

Bubble Timeline::bubble() const {
  if (useful == 0) return {};
  const auto waits = static_cast<double>(idle), works = static_cast<double>(useful);
  return {waits / works, waits / (works + waits)};
}

Result<Timeline> evaluate(std::span<const Actions> stages, std::span<const StageCost> costs,
                          std::uint64_t transfer) {
  CENTROID_TRY(check_actions(stages, costs));
  Timeline out;
  out.spans.resize(stages.size());
  Ends ends(stages.size(), stages[0].size() / 2);
  std::size_t left = stages.size() * stages[0].size();
  for (bool has_moved = true; left > 0 && has_moved;) {
    has_moved = false;
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
      auto& spans = out.spans[stage];
      while (spans.size() < stages[stage].size()) {
        const Action& action = stages[stage][spans.size()];
        const auto input = input_of(ends, stage, stages.size(), action, transfer);
        if (!input) break;
        const std::uint64_t begin = std::max(*input, spans.empty() ? 0 : spans.back().end);
        const std::uint64_t cost =
            action.kind == Kind::kForward ? costs[stage].forward : costs[stage].backward;
        spans.push_back({begin, begin + cost});
        ends.at(stage, action.kind, action.micro_batch) = begin + cost;
        out.length = std::max(out.length, begin + cost);
        out.useful += cost;
        --left;
        has_moved = true;
      }
    }
  }
  for (std::size_t stage = 0; left > 0 && stage < stages.size(); ++stage) {
    if (out.spans[stage].size() == stages[stage].size()) continue;
    return Error(ErrorCode::kFailedPrecondition,
                 "pipeline schedule: stage " + std::to_string(stage) +
                     " waits for ever for the input of the " +
                     name_of(stages[stage][out.spans[stage].size()]));
  }
  out.idle = out.length * stages.size() - out.useful;
  return out;
}

}  // namespace centroid::parallel
