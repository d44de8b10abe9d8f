#include "worker/exchange/local_exchange.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <vector>

#include "common/base/config.h"
#include "common/base/log.h"
#include "common/base/random.h"
#include "common/optim/norm.h"
#include "common/optim/optimizer_fields.h"
#include "common/tensor/fingerprint.h"
#include "common/tensor/finite.h"
#include "common/tensor/fragments.h"

namespace centroid::worker {

namespace {

class LocalExchange final : public Exchange {
 public:
  LocalExchange(LocalOptions options, ChunkPlan plan, FragmentPlan fragments, ExchangeMemory memory,
                std::unique_ptr<Optimizer> optimizer)
      : options_(std::move(options)),
        plan_(std::move(plan)),
        fragments_(std::move(fragments)),
        memory_(std::move(memory)),
        optimizer_(std::move(optimizer)),
        slots_(optimizer_->slots(), std::vector<float>(memory_.params.size())) {
    memory_.initialize(options_.seed);
  }

  Result<std::variant<Share, Finished>> next() override {
    const bool is_done = (options_.epochs > 0 && epoch_ >= options_.epochs) ||
                         (options_.rounds > 0 && round_.value > options_.rounds);
    if (stop_ || is_done) {
      const auto reason = stop_ ? Finished::Reason::kStopped : Finished::Reason::kFinished;
      return std::variant<Share, Finished>(
          Finished{.reason = reason,
                   .evaluate = true,
                   .version = version_,
                   .text = stop_ ? "stopped" : "the goal is reached"});
    }
    Share share;
    share.generation = Generation(1);
    share.round = round_;
    share.version = version_;
    share.epoch = epoch_;
    share.seed = options_.seed;
    const std::uint64_t left = options_.train_samples - offset_, batch = options_.batch,
                        steps = options_.local.steps_per_round();
    share.begin = offset_;
    share.end = offset_ + (steps > left / batch ? left : steps * batch);
    share.evaluate = std::exchange(evaluate_next_, false);
    share.is_local = options_.local.count > 1;
    share.fragment = fragments_.turn(steps_);
    // What is made after a contribution goes into the next one: there is none behind the last.
    if (!is_last(share)) share.overlap = static_cast<std::uint32_t>(options_.local.overlap);
    share.steps_before = local_steps_;
    return std::variant<Share, Finished>(share);
  }

  void begin(const Share& share) override { share_ = share; }
  void ready(TensorId) override {}

  Result<RoundReport> finish(const StepStats&) override {
    RoundReport report;
    const std::string bad = options_.propagate_nonfinite ? "" : nonfinite();
    if (!bad.empty() && !options_.skip_nonfinite)
      return Error(ErrorCode::kFailedPrecondition,
                   "JIDOKA HALT: worker 0 (local): " + bad + " in round " + to_string(round_));
    if (bad.empty()) {
      step();
      version_ = version_.next();
    } else {
      report.outcome = RoundReport::Outcome::kSkipped;
      report.reason = bad;
    }
    if (share_.is_local)
      local_steps_ += share_.samples() / options_.batch + (share_.samples() % options_.batch > 0);
    report.version = version_;
    round_ = round_.next();
    offset_ = share_.end;
    if (offset_ >= options_.train_samples) {
      offset_ = 0;
      ++epoch_;
      evaluate_next_ = true;
    }
    return report;
  }

  void report(const Evaluation&) override {}

  void leave(const std::string& reason) override {
    if (options_.checkpoint_dir.empty()) return;
    const Status saved = save();
    if (!saved.ok()) log::error("checkpoint.failed", {{"error", saved.error()}, {"when", reason}});
  }

  void request_stop(const std::string&) override { stop_ = true; }
  ExchangeTraffic traffic() const override { return {}; }

  std::uint64_t optimizer_fingerprint() const override {
    std::uint64_t all = mix64(1, steps_);
    for (const auto& slot : slots_) all = fingerprint(slot, all);
    return all;
  }

 private:
  bool is_last(const Share& share) const {
    return (options_.rounds > 0 && share.round.value >= options_.rounds) ||
           (options_.epochs > 0 && epoch_ + 1 >= options_.epochs &&
            share.end >= options_.train_samples);
  }

  /// The chunks that this round steps.
  const FragmentPlan::Fragment& fragment() const { return fragments_[fragments_.turn(steps_)]; }

  void step() {
    const std::span<const float> mean = clipped_mean();
    const std::uint64_t number = fragments_.steps_before(steps_) + 1;
    for (const Chunk& chunk : fragment().chunks) {
      const std::span<float> params = part(memory_.params, chunk);
      if (plan_.is_buffer(chunk)) {
        step_buffer(params, part(mean, chunk), params);
        continue;
      }
      std::vector<std::span<float>> slots;
      for (auto& slot : slots_) slots.push_back(part(std::span(slot), chunk));
      optimizer_->step(number, params, part(mean, chunk), slots, params);
    }
    ++steps_;
  }

  template <class T>
  static std::span<T> part(std::span<T> plane, const Chunk& chunk) {
    return plane.subspan(chunk.position, chunk.elements);
  }

  /// The mean, clipped where that is asked for; of buffers a norm has no meaning.
  std::span<const float> clipped_mean() {
    const std::span<const float> mean = weighed();
    const double bound = optimizer_->config().clip_norm;
    if (bound <= 0) return mean;
    PlaneNorm norm;
    for (const Chunk& chunk : fragment().chunks) {
      if (plan_.is_buffer(chunk)) continue;
      norm.add(chunk.position, part(mean, chunk));
      norm.end_chunk();
    }
    const float factor = clip_factor(norm.value(), bound);
    if (factor == 1) return mean;
    mean_.resize(mean.size());
    for (const Chunk& chunk : fragment().chunks)
      std::ranges::transform(
          part(mean, chunk), part(std::span(mean_), chunk).begin(),
          [by = plan_.is_buffer(chunk) ? 1.0f : factor](float g) { return g * by; });
    return mean_;
  }

  /// The contribution as a server has it: times its weight, divided by the sum of weights.
  std::span<const float> weighed() {
    const std::uint64_t samples = share_.samples();
    if (std::has_single_bit(samples)) return memory_.gradients;  // nothing is rounded
    const auto weight = static_cast<float>(samples);
    const auto factor = static_cast<float>(1.0 / static_cast<double>(samples));
    mean_.resize(memory_.gradients.size());
    for (const Chunk& chunk : fragment().chunks)
      std::ranges::transform(part(memory_.gradients, chunk), part(std::span(mean_), chunk).begin(),
                             [=](float g) { return weight * g * factor; });
    return mean_;
  }

  /// Why a server would refuse the contribution; empty: it would not. The mean is finite where its
  /// numbers times the weight are.
  std::string nonfinite() const {
    std::string overflow;
    const auto fits = [by = static_cast<float>(share_.samples())](float g) {
      return std::isfinite(by * g);
    };
    for (const TensorId tensor : fragment().tensors) {
      const std::string why = " tensor " + options_.manifest[tensor.value].name + " is not finite";
      for (const Chunk& chunk : plan_.chunks_of(tensor)) {
        const std::span<const float> gradient = part(memory_.gradients, chunk);
        const Magnitude magnitude = magnitude_of(gradient);
        if (magnitude == Magnitude::kInfinite) return "the gradient of" + why;
        if (magnitude == Magnitude::kLarge && !std::ranges::all_of(gradient, fits) &&
            overflow.empty())
          overflow = "the sum or result of" + why;
      }
    }
    return overflow;
  }

  Status save() {
    CENTROID_ASSIGN(auto directory,
                    CheckpointDirectory::open(options_.checkpoint_dir, options_.checkpoint_keep));
    CheckpointInfo info;
    info.run_id = "local";
    info.version = version_;
    info.round = Round(round_.value - 1);
    info.epoch = epoch_;
    info.offset = offset_;
    info.optimizer_step = steps_;
    info.seed = options_.seed;
    info.optimizer = optimizer_->config().name;
    info.slot_names = optimizer_->slot_names();
    info.created_unix_seconds = SystemClock().unix_seconds();
    info.extra["model"] = options_.model;
    if (options_.local.fragments > 1)
      info.extra["fragments"] = std::to_string(options_.local.fragments);
    if (local_steps_ > 0) info.extra["local_steps"] = std::to_string(local_steps_);
    const auto read = [&](std::size_t plane, std::uint64_t offset,
                          std::span<float> into) -> Status {
      const float* const from = plane == 0 ? memory_.params.data() : slots_[plane - 1].data();
      std::memcpy(into.data(), from + offset, into.size_bytes());
      return {};
    };
    CENTROID_ASSIGN(const auto entry, directory.write(info, options_.manifest, read));
    log::info("checkpoint.written", {{"path", entry.path.string()}, {"version", version_.value}});
    return {};
  }

  LocalOptions options_;
  ChunkPlan plan_;
  FragmentPlan fragments_;
  ExchangeMemory memory_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<std::vector<float>> slots_;
  std::vector<float> mean_;  ///< where it is not the gradient
  Share share_;
  Round round_{1};
  Version version_{1};
  std::uint64_t epoch_ = 0, offset_ = 0;
  std::uint64_t steps_ = 0, local_steps_ = 0;  ///< of the optimizer; of the worker
  bool evaluate_next_ = false;
  std::atomic<bool> stop_ = false;
};

}  // namespace

Result<LocalOptions> parse_local_options(const std::string& json) {
  LocalOptions options;
  std::string nonfinite = "halt";
  config::Schema s("local", "Settings of a job without a server.");
  add_optimizer_fields(s, options.optimizer);
  s.field("local_steps", &options.local.count,
          {.text = "steps of a round", .min = 1, .max = 1'000'000});
  s.field("fragments", &options.local.fragments,
          {.text = "sets of tensors", .min = 1, .max = 4096});
  s.field("overlap", &options.local.overlap,
          {.text = "steps after the contribution", .max = 1'000'000});
  s.field("outer", &options.local.outer,
          {.text = "use of the change", .choices = {"nesterov", "average", "optimizer"}});
  s.field("seed", &options.seed, {.text = "of the data order"});
  s.field("epochs", &options.epochs, {.text = "the goal; 0: none"});
  s.field("rounds", &options.rounds, {.text = "the goal; 0: none"});
  s.field("checkpoint_dir", &options.checkpoint_dir, {.text = "for the final state"});
  s.field("nonfinite", &nonfinite,
          {.text = "numbers that are not finite", .choices = {"halt", "skip", "propagate"}});
  options.epochs = 0;
  CENTROID_TRY(s.load_text(json, "settings without a server"));
  options.skip_nonfinite = nonfinite == "skip";
  options.propagate_nonfinite = nonfinite == "propagate";
  CENTROID_TRY(use_local_steps(options.local, options.optimizer));
  return options;
}

Result<std::unique_ptr<Exchange>> make_local_exchange(LocalOptions options, ExchangeMemory memory) {
  if (options.epochs == 0 && options.rounds == 0)
    return Error(ErrorCode::kInvalidArgument,
                 "without a server training needs a goal: epochs or rounds");
  CENTROID_ASSIGN(auto optimizer, make_optimizer(options.optimizer));
  CENTROID_ASSIGN(ChunkPlan plan, ChunkPlan::make(options.manifest, options.chunk_bytes));
  const auto count = static_cast<std::uint32_t>(options.local.fragments);
  CENTROID_ASSIGN(FragmentPlan fragments, FragmentPlan::make(plan, count));
  if (options.local.count > 1) {
    if (!memory.begin_local)
      return Error(ErrorCode::kInvalidArgument,
                   "local_steps " + std::to_string(options.local.count) +
                       ": this program makes a gradient in every step");
    LocalTerms terms{.run_id = "local", .fragments = count};
    CENTROID_ASSIGN(memory.gradients, memory.begin_local(terms, plan));
  }
  return std::unique_ptr<Exchange>(
      std::make_unique<LocalExchange>(std::move(options), std::move(plan), std::move(fragments),
                                      std::move(memory), std::move(optimizer)));
}

}  // namespace centroid::worker
