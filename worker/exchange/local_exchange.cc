#include "worker/exchange/local_exchange.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <vector>

#include "common/base/config.h"
#include "common/base/log.h"
#include "common/base/random.h"
#include "common/optim/norm.h"
#include "common/tensor/fingerprint.h"
#include "common/tensor/finite.h"

namespace centroid::worker {

namespace {

class LocalExchange final : public Exchange {
 public:
  LocalExchange(LocalOptions options, ChunkPlan plan, ExchangeMemory memory,
                std::unique_ptr<Optimizer> optimizer)
      : options_(std::move(options)),
        plan_(std::move(plan)),
        memory_(std::move(memory)),
        optimizer_(std::move(optimizer)) {
    std::size_t at = 0;
    for (const TensorInfo& tensor : options_.manifest) {
      const auto size = static_cast<std::size_t>(tensor.elements());
      if (parts_.empty() || parts_.back().is_buffer != is_buffer(tensor))
        parts_.push_back({.begin = at, .size = 0, .is_buffer = is_buffer(tensor)});
      parts_.back().size += size;
      at += size;
    }
    slots_.assign(optimizer_->slots(), std::vector<float>(memory_.params.size()));
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
    share.begin = offset_;
    share.end = std::min(offset_ + options_.batch, options_.train_samples);
    share.evaluate = std::exchange(evaluate_next_, false);
    return std::variant<Share, Finished>(share);
  }

  void begin(const Share& share) override { share_ = share; }
  void ready(TensorId) override {}

  Result<RoundReport> finish(const StepStats&) override {
    RoundReport report;
    const std::string bad = options_.propagate_nonfinite ? "" : nonfinite_tensor();
    if (!bad.empty() && !options_.skip_nonfinite)
      return Error(ErrorCode::kFailedPrecondition,
                   "JIDOKA HALT: worker 0 (local): the gradient of tensor " + bad +
                       " is not finite in round " + to_string(round_));
    if (bad.empty()) {
      step();
      version_ = version_.next();
    } else {
      report.outcome = RoundReport::Outcome::kSkipped;
      report.reason = "the gradient of tensor " + bad + " is not finite";
    }
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
  /// Neighbouring tensors that are all trained, or all buffers.
  struct Part {
    std::size_t begin = 0, size = 0;
    bool is_buffer = false;
  };

  void step() {
    const std::span<const float> gradient = clipped_gradient();
    ++steps_;
    for (const Part& part : parts_) {
      const std::span<float> params = memory_.params.subspan(part.begin, part.size);
      if (part.is_buffer) {
        step_buffer(params, memory_.gradients.subspan(part.begin, part.size), params);
        continue;
      }
      std::vector<std::span<float>> slots;
      for (auto& slot : slots_) slots.push_back(std::span(slot).subspan(part.begin, part.size));
      optimizer_->step(steps_, params, gradient.subspan(part.begin, part.size), slots, params);
    }
  }

  /// The round's gradient, clipped where that is asked for; of buffers it has no meaning.
  std::span<const float> clipped_gradient() {
    PlaneNorm norm;
    const double bound = optimizer_->config().clip_norm;
    if (bound > 0)
      for (const Chunk& chunk : plan_.chunks()) {
        if (plan_.is_buffer(chunk)) continue;
        norm.add(chunk.position, memory_.gradients.subspan(chunk.position, chunk.elements));
        norm.end_chunk();
      }
    const float factor = clip_factor(norm.value(), bound);
    const std::span<const float> gradient = memory_.gradients;
    if (factor == 1) return gradient;
    clipped_.assign(gradient.begin(), gradient.end());
    for (float& g : clipped_) g *= factor;
    return clipped_;
  }

  std::string nonfinite_tensor() const {
    std::size_t at = 0;
    for (const TensorInfo& tensor : options_.manifest) {
      if (!is_finite(memory_.gradients.subspan(at, tensor.elements()))) return tensor.name;
      at += tensor.elements();
    }
    return {};
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
  ChunkPlan plan_;  ///< when the norm may be clipped
  ExchangeMemory memory_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<Part> parts_;
  std::vector<std::vector<float>> slots_;
  std::vector<float> clipped_;
  Share share_;
  Round round_{1};
  Version version_{1};
  std::uint64_t epoch_ = 0, offset_ = 0, steps_ = 0;
  bool evaluate_next_ = false;
  std::atomic<bool> stop_ = false;
};

}  // namespace

Result<LocalOptions> parse_local_options(const std::string& json) {
  LocalOptions options;
  OptimizerConfig& optimizer = options.optimizer;
  std::string nonfinite = "halt";
  config::Schema s("local", "Settings of a job without a server.");
  s.field("optimizer", &optimizer.name, {.text = "update rule", .choices = optimizer_names()});
  s.field("lr", &optimizer.learning_rate, {.text = "learning rate", .min = 0.0});
  s.field("lr_schedule", &optimizer.schedule, {.text = "factor on the learning rate"});
  s.field("clip_norm", &optimizer.clip_norm, {.text = "limit of the gradient's norm", .min = 0.0});
  s.field("momentum", &optimizer.momentum, {.text = "momentum, nesterov", .min = 0.0});
  s.field("beta1", &optimizer.beta1, {.text = "adam, adamw, yogi"});
  s.field("beta2", &optimizer.beta2, {.text = "adam, adamw, yogi"});
  s.field("epsilon", &optimizer.epsilon, {.text = "adam, adamw, yogi, adagrad"});
  s.field("weight_decay", &optimizer.weight_decay, {.text = "as on the server"});
  s.field("l1", &optimizer.l1, {.text = "ftrl"});
  s.field("ftrl_beta", &optimizer.ftrl_beta, {.text = "ftrl"});
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
  return options;
}

Result<std::unique_ptr<Exchange>> make_local_exchange(LocalOptions options, ExchangeMemory memory) {
  if (options.epochs == 0 && options.rounds == 0)
    return Error(ErrorCode::kInvalidArgument,
                 "without a server training needs a goal: epochs or rounds");
  CENTROID_ASSIGN(auto optimizer, make_optimizer(options.optimizer));
  ChunkPlan plan;
  if (options.optimizer.clip_norm > 0) {
    CENTROID_ASSIGN(plan, ChunkPlan::make(options.manifest, options.chunk_bytes));
  }
  return std::unique_ptr<Exchange>(std::make_unique<LocalExchange>(
      std::move(options), std::move(plan), std::move(memory), std::move(optimizer)));
}

}  // namespace centroid::worker
