#include "worker/node/local_steps.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "common/base/log.h"
#include "common/optim/norm.h"

namespace centroid::worker {

Result<std::unique_ptr<LocalSteps>> LocalSteps::make(ReplicaGroup& group, Rounds& rounds,
                                                     Options options) {
  CENTROID_CHECK(options.batch > 0);
  LearningRateSchedule schedule;
  OptimizerConfig config = options.optimizer;
  if (options.schedules_by_cluster) {
    CENTROID_ASSIGN(schedule, LearningRateSchedule::parse(config.schedule));
    config.schedule = "constant";
  }
  CENTROID_ASSIGN(auto optimizer, make_optimizer(config));
  return std::unique_ptr<LocalSteps>(
      new LocalSteps(group, rounds, std::move(options), std::move(optimizer), schedule));
}

Result<std::span<const float>> LocalSteps::begin(const LocalTerms& terms, const ChunkPlan& plan) {
  const std::size_t bytes = rounds_.params().size_bytes();
  const auto allocate = [this](std::size_t wanted) { return group_.host_memory(wanted); };
  CENTROID_ASSIGN(const auto contribution, rounds_.begin_local(terms, plan, allocate));
  resident_ = options_.on_gpu ? group_.resident() : nullptr;
  try {
    slots_.resize(optimizer_->slots());
    if (resident_ == nullptr || !options_.state_dir.empty())
      for (auto& slot : slots_) slot.resize(rounds_.params().size());
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kResourceExhausted,
                 "no memory for local steps: " + std::to_string(optimizer_->slots()) +
                     " slots of the optimizer of " + std::to_string(bytes) + " bytes each");
  }
  if (resident_ != nullptr) {
    CENTROID_TRY(resident_->reserve(slots_.size()));
    log::info("local.moved_to_gpu", {{"optimizer", optimizer_->config().name},
                                     {"slots", slots_.size()},
                                     {"slot_bytes", bytes}});
  }
  if (!options_.state_dir.empty()) {
    CENTROID_ASSIGN(keeper_,
                    LocalKeeper::open(options_.state_dir, options_.worker, terms, plan.manifest()));
  }
  return contribution;
}

void LocalSteps::use_params(std::span<float> params) {
  rounds_.move_params(params);
  if (is_resting_) group_.use_params(params);
}

void LocalSteps::rest() {
  is_resting_ = true;
  group_.use_params(rounds_.params());
}

LocalKeeper::State LocalSteps::state() {
  LocalKeeper::State state = rounds_.state();
  for (auto& slot : slots_) state.slots.emplace_back(slot);
  state.slot_names = optimizer_->slot_names();
  state.optimizer = optimizer_->config().name;
  state.steps = steps_;
  return state;
}

/// Copy the slots to the host.
Status LocalSteps::fetch_slots() {
  for (std::size_t k = 0; resident_ != nullptr && k < slots_.size(); ++k) {
    try {
      slots_[k].resize(rounds_.params().size());
    } catch (const std::bad_alloc&) {
      return Error(ErrorCode::kResourceExhausted,
                   "no memory on the host for a slot of the optimizer: " +
                       std::to_string(rounds_.params().size_bytes()) + " bytes");
    }
    CENTROID_TRY(resident_->store_slot(k, slots_[k]));
  }
  return {};
}

LocalKeeper::Source LocalSteps::source() {
  return [this]() -> Result<LocalKeeper::State> {
    CENTROID_TRY(fetch_slots());
    return state();
  };
}

/// Begin the round: load own parameters and the optimizer's state.
Status LocalSteps::take_up(const Share& share) {
  if (keeper_) {
    LocalKeeper::State found = state();
    if (rounds_.resume(*keeper_, found) != LocalKeeper::Found::kNothing) {
      steps_ = found.steps;
      for (std::size_t k = 0; resident_ != nullptr && k < slots_.size(); ++k)
        CENTROID_TRY(resident_->load_slot(k, slots_[k]));
    }
  }
  CENTROID_TRY(rounds_.begin());
  is_resting_ = false;
  group_.use_params(rounds_.own());
  return resident_ != nullptr && share.samples() > 0 ? resident_->load(rounds_.own()) : Status();
}

/// The learning rate of the next step.
void LocalSteps::set_rate() {
  const double factor = 1 + (static_cast<double>(world_) - 1) * options_.scale_ratio;
  optimizer_->set_rate_factor(factor * schedule_.factor(++cluster_steps_));
}

/// The next steps, queued together.
Result<GroupStep> LocalSteps::advance(const Dataset& data,
                                      std::span<const std::span<const std::uint64_t>> batches) {
  const double bound = optimizer_->config().clip_norm;
  std::vector<OptimizerStep> steps;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    set_rate();
    steps.push_back({optimizer_->at(steps_ + i + 1), bound});
  }
  CENTROID_ASSIGN(const auto made, resident_->advance(data, batches, steps));
  steps_ += batches.size();
  return made;
}

/// Gradient and inner step on one batch.
Result<GroupStep> LocalSteps::step(const Dataset& data, std::span<const std::uint64_t> batch) {
  set_rate();
  const double bound = optimizer_->config().clip_norm;
  const std::uint64_t number = steps_ + 1;
  CENTROID_ASSIGN(const auto made, group_.step(data, batch, [](TensorId) {}));
  const std::size_t trained = group_.trained();
  const std::span<float> gradient = group_.gradients().first(trained);
  if (bound > 0) {
    gradient_norm_ = std::sqrt(sum_of_squares(gradient));
    const float factor = clip_factor(gradient_norm_, bound);
    if (factor != 1)
      for (float& g : gradient) g *= factor;
  }
  std::vector<std::span<float>> slots;
  for (auto& slot : slots_) slots.push_back(std::span(slot).first(trained));
  const std::span<float> own = rounds_.own().first(trained),
                         buffers = rounds_.own().subspan(trained);
  optimizer_->step(number, own, gradient, slots, own);
  step_buffer(buffers, group_.gradients().subspan(trained), buffers);
  steps_ = number;
  return made;
}

/// Steps [begin, end) of the `of` steps of the share.
Status LocalSteps::train(const Dataset& data, std::span<const std::uint64_t> samples, Range steps,
                         std::uint64_t of, StepStats& stats) {
  const auto begin = centroid::now();
  std::vector<std::span<const std::uint64_t>> batches;
  for (std::uint64_t i = steps.begin; i < steps.end; ++i) {
    const Range range = part_of(samples.size(), of, i);
    batches.push_back(samples.subspan(range.begin, range.size()));
  }
  group_.expect(data, batches);
  const std::size_t at_a_time = resident_ != nullptr ? kQueuedSteps : 1;
  for (std::size_t at = 0; at < batches.size(); at += at_a_time) {
    const auto next = std::span(batches).subspan(at, std::min(at_a_time, batches.size() - at));
    auto made = resident_ != nullptr ? advance(data, next) : step(data, next.front());
    CENTROID_ASSIGN(const auto done, std::move(made));
    stats.samples += done.samples;
    stats.correct += done.correct;
    stats.loss_sum += done.loss_sum;
  }
  if (!batches.empty())
    stats.gradient_norm = std::exchange(gradient_norm_, -1);  // before it was clipped
  if (!batches.empty()) stats.learning_rate = optimizer_->learning_rate(steps_);
  if (resident_ != nullptr && !batches.empty()) CENTROID_TRY(resident_->store(rounds_.own()));
  stats.compute_seconds += std::chrono::duration<double>(centroid::now() - begin).count();
  return {};
}

/// Reset slots that are not finite: they would make every later step not finite.
Status LocalSteps::forget_nonfinite() {
  CENTROID_TRY(fetch_slots());
  const auto is_bad = [](float x) { return !std::isfinite(x); };
  const auto has_bad = [&](const auto& slot) { return std::ranges::any_of(slot, is_bad); };
  if (std::ranges::none_of(slots_, has_bad)) return {};
  for (std::size_t k = 0; k < slots_.size(); ++k) {
    std::ranges::fill(slots_[k], 0.0f);
    if (resident_ != nullptr) CENTROID_TRY(resident_->load_slot(k, slots_[k]));
  }
  steps_ = 0;
  return {};
}

Result<RoundReport> LocalSteps::round(const Share& share, const Dataset& data, StepStats& stats) {
  CENTROID_TRY(take_up(share));
  optimizer_->set_base_rate(share.inner_rate < 0 ? options_.optimizer.learning_rate
                                                 : share.inner_rate);
  cluster_steps_ = share.steps_before;
  world_ = share.world;
  const std::span<const std::uint64_t> samples = rounds_.samples();
  const std::uint64_t batch = options_.batch;
  const std::uint64_t steps = samples.size() / batch + (samples.size() % batch > 0 ? 1 : 0);
  const std::uint64_t before =
      steps - std::min<std::uint64_t>(share.overlap, steps > 0 ? steps - 1 : 0);
  StepStats rest;
  stats = {};
  CENTROID_TRY(train(data, samples, {0, before}, steps, stats));
  if (steps > 0 && stats.gradient_norm < 0) {
    CENTROID_ASSIGN(stats.gradient_norm, group_.gradient_norm());
  }
  stats.tokens = stats.samples;
  stats.parameter_norm = std::exchange(parameter_norm_, -1);
  CENTROID_TRY(rounds_.contribute(stats));
  CENTROID_TRY(train(data, samples, {before, steps}, steps, rest));
  stats.add(rest);
  if (steps > 0 && share.round.value % kNormRounds == 1)  // rarely: the other workers wait for it
    parameter_norm_ = std::sqrt(sum_of_squares(rounds_.own().first(group_.trained())));
  CENTROID_ASSIGN(const auto report, rounds_.finish(rest));
  if (report.outcome == RoundReport::Outcome::kSkipped) CENTROID_TRY(forget_nonfinite());
  if (keeper_) {
    const bool is_over = report.outcome == RoundReport::Outcome::kCommitted ||
                         report.outcome == RoundReport::Outcome::kSkipped;
    if (is_over)
      keeper_->closed(share.round, source());
    else
      keeper_->broken();
  }
  return report;
}

void LocalSteps::leave() {
  if (keeper_) keeper_->leave(source());
}

}  // namespace centroid::worker
