#include "worker/exchange/cluster_exchange.h"

#include <algorithm>
#include <cstring>

#include <boost/asio/post.hpp>

#include "common/async/wait_on.h"
#include "common/base/log.h"
#include "common/base/random.h"
#include "common/optim/norm.h"
#include "common/tensor/fingerprint.h"
#include "worker/exchange/server_link.h"
#include "worker/exchange/step_guard.h"

namespace centroid::worker {

namespace {

constexpr std::uint64_t kPiece = 65536;  ///< elements that stay in the cache during their step

/// The loop's half: turns the link's events into the Exchange contract. One thread (`ready`: device
/// threads).
class ClusterExchange final : public Exchange {
 public:
  ClusterExchange(Executor executor, std::unique_ptr<transport::Transport> transport,
                  ClusterOptions options, ExchangeMemory memory, metrics::Registry& registry)
      : executor_(executor),
        memory_(memory),
        link_(executor, std::move(transport), std::move(options), memory, mailbox_, registry) {
    wait_ = trace::StageProbe(registry, "worker", trace::Stage::kWait);
    apply_ = trace::StageProbe(registry, "worker", trace::Stage::kApply);
    running_ = Pending<void>(executor_, link_.run());
  }

  ~ClusterExchange() override {
    if (!left_) leave("the worker is going");
  }

  Result<std::variant<Share, Finished>> next() override {
    post([this, serial = serial_] { link_.loop_waits(serial); });
    if (keep_) save_local(*std::exchange(keep_, std::nullopt));
    for (;;) {
      auto event = mailbox_.pop(true);
      if (!event)
        return std::variant<Share, Finished>(Finished{
            .reason = Finished::Reason::kStopped, .version = {}, .text = mailbox_.stop_reason()});
      if (auto* error = std::get_if<Error>(&event->what)) return *error;
      if (auto* lost = std::get_if<LinkEvent::Lost>(&event->what)) {
        log::warn("server.lost", {{"why", lost->cause}});
        post([this, serial = serial_] { link_.loop_waits(serial); });
        continue;
      }
      if (auto* keep = std::get_if<proto::Keep>(&event->what)) save_local(keep->round);
      if (auto* finish = std::get_if<proto::Finish>(&event->what))
        return std::variant<Share, Finished>(
            Finished{.reason = static_cast<Finished::Reason>(finish->reason),
                     .evaluate = finish->evaluate,
                     .version = finish->version,
                     .text = finish->text});
      if (auto* open = std::get_if<proto::RoundOpen>(&event->what)) {
        ++serial_;
        optimizer_step_ = link_.model().fragments().steps_before(open->optimizer_step);
        fragment_ = link_.model().fragments().turn(open->optimizer_step);
        rate_ = open->rates.learning_rate;
        version_ = open->version;
        is_complete_ = false;
        if (open->round.value == 1 && round_ > 1)
          log::warn("job.restarted",
                    {{"lost_round", round_ - 1}, {"why", "the server has no later state"}});
        round_ = open->round.value;
        return std::variant<Share, Finished>(
            Share{.generation = open->generation,
                  .round = open->round,
                  .rank = open->rank,
                  .world = open->world,
                  .version = open->version,
                  .epoch = open->epoch,
                  .seed = link_.model().terms().seed,
                  .begin = open->begin,
                  .end = open->end,
                  .evaluate = open->evaluate,
                  .is_local = link_.model().terms().local_steps > 1,
                  .fragment = fragment_,
                  .overlap = open->overlap,
                  .steps_before = open->steps_before(link_.model().terms()),
                  .inner_rate = open->rates.inner});
      }
    }
  }

  void begin(const Share&) override {}

  void ready(TensorId tensor) override {
    post([this, serial = serial_, tensor] { link_.ready(serial, tensor); });
  }

  void complete(const StepStats& stats) override {
    if (std::exchange(is_complete_, true)) return;
    before_.fingerprint = replica_fingerprint();  // while others compute, or chunks travel
    post([this, serial = serial_, stats, before = std::exchange(before_, {})] {
      link_.finish(serial, stats, before);
    });
  }

  Result<RoundReport> finish(const StepStats& stats) override {
    const auto begin = centroid::now();
    complete(stats);
    for (;;) {
      auto event = mailbox_.pop(false);
      if (event) {
        if (auto* error = std::get_if<Error>(&event->what)) return *error;
      }
      RoundReport report;
      before_.wait = report.wait_seconds = wait_.ended(lane_, begin, centroid::now(), round_);
      if (!event) {
        report.outcome = RoundReport::Outcome::kLost;
        report.reason = mailbox_.stop_reason();
        return report;
      }
      if (auto* lost = std::get_if<LinkEvent::Lost>(&event->what)) {
        report.outcome = RoundReport::Outcome::kLost;
        report.reason = lost->cause.message();
        return report;
      }
      if (auto* keep = std::get_if<proto::Keep>(&event->what)) keep_ = keep->round;
      if (auto* closed = std::get_if<proto::RoundClosed>(&event->what)) {
        report.version = closed->version;
        report.reason = closed->reason;
        report.outcome = proto::is_late(closed->outcome) ? RoundReport::Outcome::kLate
                         : closed->outcome == proto::Outcome::kCommitted
                             ? RoundReport::Outcome::kCommitted
                             : RoundReport::Outcome::kSkipped;
        if (closed->outcome == proto::Outcome::kCommitted) {
          const TimePoint came = centroid::now();
          CENTROID_TRY(load(closed->contributors, event->among_peers));
          post([this, serial = serial_] { link_.applied(serial); });
          before_.apply = apply_.ended(lane_, came, centroid::now(), round_);
        }
        return report;
      }
      if (auto* open = std::get_if<proto::RoundOpen>(&event->what)) {  // this one was given up
        mailbox_.put_back({*open});
        report.outcome = RoundReport::Outcome::kLost;
        report.reason = "the server gave the round up and opened another one";
        return report;
      }
      if (auto* finish = std::get_if<proto::Finish>(
              &event->what)) {  // halted or stopped in the middle of the round
        mailbox_.push({*finish});
        report.outcome = RoundReport::Outcome::kLost;
        report.reason = finish->text;
        return report;
      }
    }
  }

  void report(const Evaluation& evaluation) override {
    post([this, evaluation] { link_.report(evaluation); });
  }

  void leave(const std::string& reason) override {
    if (std::exchange(left_, true)) return;
    call_on(executor_, [this, &reason] { link_.end(reason); });  // it may have ended by itself
    running_.get();
    link_.save_feedback();
    const std::span<float> last = link_.model().params();
    if (last.empty() || last.data() == memory_.params.data()) return;
    std::memcpy(memory_.params.data(), last.data(), last.size_bytes());
    memory_.use_params(memory_.params);
  }

  void request_stop(const std::string& why) override { mailbox_.request_stop(why); }
  void abandon(const std::string& why) override { mailbox_.request_stop(why, true); }

  ExchangeTraffic traffic() const override {
    const auto traffic = link_.traffic();
    return {.bytes_in = traffic.bytes_in, .bytes_out = traffic.bytes_out, .codecs = link_.codecs()};
  }

  std::uint64_t optimizer_fingerprint() const override {
    return optimizer_ ? slots_fingerprint(mix64(1, optimizer_step_)) : 0;
  }

 private:
  template <class F>
  void post(F f) {
    boost::asio::post(executor_, std::move(f));
  }

  std::uint64_t slots_fingerprint(std::uint64_t seed) const {
    for (const auto& slot : link_.model().slots()) seed = fingerprint(slot, seed);
    return seed;
  }

  /// Of this version's parameters and slots, where the server wants it; 0: it does not.
  std::uint64_t replica_fingerprint() const {
    const std::uint32_t every = link_.compare_rounds();
    const ModelPlanes& model = link_.model();
    if (every == 0 || version_.value % every != 0 || !model.terms().apply_on_worker) return 0;
    const std::uint64_t all = slots_fingerprint(fingerprint(model.params(), version_.value));
    return std::max<std::uint64_t>(all, 1);
  }

  void save_local(Round round) {
    if (!memory_.save_local) return;
    const Status kept = memory_.save_local(round);
    post([this, round, kept] { link_.local_saved(round, kept); });
  }

  /// The committed results become the parameters: as they are, or by the optimizer's step with the
  /// mean gradient of so many workers.
  Status load(std::uint32_t contributors, bool among_peers) {
    const std::span<float> params = link_.model().params(), results = link_.model().results();
    if (!link_.model().terms().apply_on_worker) {
      if (link_.model().fragments().count() > 1) {
        for (const Chunk& chunk : fragment().chunks)
          std::ranges::copy(results.subspan(chunk.position, chunk.elements),
                            params.subspan(chunk.position, chunk.elements).begin());
      } else if (memory_.use_params) {
        link_.model().swap_planes();
        memory_.use_params(link_.model().params());
      } else {
        std::memcpy(params.data(), results.data(), results.size_bytes());
      }
      return {};
    }
    CENTROID_TRY(use_rate());
    optimizer_->set_rate_factor(rate_factor_of(contributors, link_.model().terms().scale_ratio));
    std::vector<std::span<float>> slots;
    for (auto& slot : link_.model().slots()) slots.emplace_back(slot);
    const bool was_moderate = link_.model().is_moderate(fragment_);
    const auto tried = link_.model().take_tried();
    is_moderate_ = (tried ? tried->is_moderate : was_moderate) && among_peers &&
                   link_.model().checks_nonfinite();
    if (link_.model().results_are_encoded())
      CENTROID_TRY(step_encoded(params, slots));
    else if (const SparseMean* mean = among_peers ? link_.sparse_mean() : nullptr; mean != nullptr)
      step_listed(*mean, params, slots, results);
    else
      step_dense(params, slots, results, among_peers && tried ? &tried->clip_factor : nullptr);
    link_.model().set_moderate(fragment_, is_moderate_);
    return {};
  }

  /// The same with a mean that is in the plane. `tried`: the factor of its trial.
  void step_dense(std::span<float> params, const std::vector<std::span<float>>& slots,
                  std::span<float> results, const float* tried) {
    const ModelPlanes& model = link_.model();
    // With one fragment that is all tensors, end to end.
    std::vector<Range> runs{{0, params.size()}}, buffers;
    if (model.fragments().count() > 1 || model.plan().has_buffers()) {
      runs.clear();
      for (const Chunk& chunk : fragment().chunks)
        (model.plan().is_buffer(chunk) ? buffers : runs)
            .push_back({chunk.position, chunk.position + chunk.elements});
    }
    const bool clips = optimizer_->config().clip_norm > 0;
    const float factor = !clips ? 1 : tried ? *tried : clip_factor_of(model, fragment());
    const rules::Step rule = optimizer_->at(optimizer_step_ + 1);
    std::vector<std::span<float>> parts(slots.size());
    const auto step = [&](const Range& piece) {
      const auto part = [&piece](std::span<float> plane) {
        return plane.subspan(piece.begin, piece.size());
      };
      const std::span<float> mean = part(results), to = part(params);
      if (factor != 1)
        for (float& g : mean) g *= factor;
      std::ranges::transform(slots, parts.begin(), part);
      run_step(rule, to, mean, parts, to);
      look_at(to);
    };
    for (const Range& run : runs)
      for (std::uint64_t at = run.begin; at < run.end; at += kPiece)
        step({at, std::min(at + kPiece, run.end)});
    for (const Range& run : buffers) {
      const std::span<float> to = params.subspan(run.begin, run.size());
      step_buffer(to, results.subspan(run.begin, run.size()), to);
      look_at(to);
    }
  }

  /// What a step has made, while it is in the cache.
  void look_at(std::span<const float> made) { is_moderate_ = is_moderate_ && is_moderate(made); }

  /// The round's learning rate: a server may have come back with another one, or its operator has
  /// changed it.
  Status use_rate() {
    OptimizerConfig wanted = link_.model().terms().optimizer;
    const double rate = rate_ < 0 ? wanted.learning_rate : rate_;
    if (rate_ >= 0) wanted.schedule = "constant";  // it is the one by the schedule
    if (optimizer_) wanted.learning_rate = optimizer_->config().learning_rate;
    if (!optimizer_ || optimizer_->config() != wanted) {
      CENTROID_ASSIGN(optimizer_, make_optimizer(wanted));
    }
    optimizer_->set_base_rate(rate);
    return {};
  }

  const FragmentPlan::Fragment& fragment() const { return link_.model().fragments()[fragment_]; }

  /// The same with a mean that is mostly 0.
  void step_listed(const SparseMean& mean, std::span<float> params,
                   const std::vector<std::span<float>>& slots, std::span<const float> results) {
    const std::uint64_t step = optimizer_step_ + 1;
    std::vector<std::span<float>> parts(slots.size());
    for (const SparseMean::Part& part : mean.parts) {
      const std::span<float> to = params.subspan(part.position, part.elements);
      if (part.is_listed && optimizer_->ignores_zeros()) {
        const auto index = std::span(mean.index).subspan(part.first, part.count);
        optimizer_->step_at(step, index, std::span(mean.value).subspan(part.first, part.count), to);
        for (const std::uint32_t i : index) is_moderate_ = is_moderate_ && is_moderate(to[i]);
        continue;
      }
      std::span<const float> dense = results.subspan(part.position, part.elements);
      if (part.is_listed) {
        mean_.resize(std::max<std::size_t>(mean_.size(), part.elements));
        dense = std::span(mean_).first(part.elements);
        mean.write_out(part, std::span(mean_).first(part.elements));
      }
      for (std::size_t k = 0; k < slots.size(); ++k)
        parts[k] = slots[k].subspan(part.position, part.elements);
      if (part.is_buffer)
        step_buffer(to, dense, to);
      else
        optimizer_->step(step, to, dense, parts, to);
      look_at(to);
    }
  }

  /// The same chunk by chunk, so that a decoded mean is used while it is in the cache.
  Status step_encoded(std::span<float> params, const std::vector<std::span<float>>& slots) {
    mean_.resize(link_.model().plan().max_chunk_elements());
    std::vector<std::span<float>> parts(slots.size());
    double seconds = 0;
    float factor = 1;
    if (optimizer_->config().clip_norm > 0) {
      CENTROID_ASSIGN(factor, factor_of_encoded());
    }
    for (const Chunk& chunk : fragment().chunks) {
      const std::span<float> mean = std::span(mean_).first(chunk.elements);
      const std::span<float> part = params.subspan(chunk.position, chunk.elements);
      const auto begin = centroid::now();
      std::optional<SparseNumbers> sparse;
      if (optimizer_->ignores_zeros()) {
        CENTROID_ASSIGN(sparse, link_.model().sparse_result(chunk));
      }
      if (!sparse) CENTROID_TRY(link_.model().decode_result(chunk, mean));
      seconds += std::chrono::duration<double>(centroid::now() - begin).count();
      if (sparse) {
        std::span<const float> values = sparse->value;
        if (factor != 1) {
          std::ranges::transform(values, mean.begin(), [=](float g) { return g * factor; });
          values = mean.first(values.size());
        }
        optimizer_->step_at(optimizer_step_ + 1, sparse->index, values, part);
        continue;
      }
      if (link_.model().plan().is_buffer(chunk)) {
        step_buffer(part, mean, part);
        continue;
      }
      if (factor != 1)
        for (float& g : mean) g *= factor;
      for (std::size_t k = 0; k < slots.size(); ++k)
        parts[k] = slots[k].subspan(chunk.position, chunk.elements);
      optimizer_->step(optimizer_step_ + 1, part, mean, parts, part);
    }
    link_.counters().update([&](CodecTotals& totals) { totals.decode_seconds += seconds; });
    return {};
  }

  /// What the decoded mean is to be multiplied with, so that its norm keeps the bound.
  Result<float> factor_of_encoded() {
    PlaneNorm norm;
    for (const Chunk& chunk : fragment().chunks) {
      if (link_.model().plan().is_buffer(chunk)) continue;
      CENTROID_ASSIGN(const auto sparse, link_.model().sparse_result(chunk));
      if (sparse) {
        norm.add(chunk.position, sparse->index, sparse->value);
        norm.end_chunk();
        continue;
      }
      const std::span<float> mean = std::span(mean_).first(chunk.elements);
      CENTROID_TRY(link_.model().decode_result(chunk, mean));
      norm.add(chunk.position, mean);
      norm.end_chunk();
    }
    return clip_factor(norm.value(), optimizer_->config().clip_norm);
  }

  Executor executor_;
  ExchangeMemory memory_;
  Mailbox mailbox_;
  ServerLink link_;
  Pending<void> running_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<float> mean_;  // a chunk's
  std::uint64_t serial_ = 0, optimizer_step_ = 0;
  std::uint32_t fragment_ = 0;  // of the round
  bool is_moderate_ = false;    // what its step makes, and made before
  double rate_ = -1;            // of the round, if it is not the terms'
  Version version_;             // with which it began
  std::optional<Round> keep_;   // a Keep that came before its round's end was heard
  bool is_complete_ = false;    // the round's contribution
  LoopSeconds before_;          // of the round that ended last
  bool left_ = false;
  trace::StageProbe wait_, apply_;
  const trace::Lane lane_{"loop"};
  std::uint64_t round_ = 0;
};

}  // namespace

std::unique_ptr<Exchange> make_cluster_exchange(Executor executor,
                                                std::unique_ptr<transport::Transport> transport,
                                                ClusterOptions options, ExchangeMemory memory,
                                                metrics::Registry& registry) {
  return std::make_unique<ClusterExchange>(executor, std::move(transport), std::move(options),
                                           std::move(memory), registry);
}

}  // namespace centroid::worker
