#include "worker/node/replica_group.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <numeric>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "common/base/log.h"
#include "common/base/trace.h"
#include "common/device/host_memory.h"
#include "common/optim/norm.h"
#include "common/tensor/chunk_plan.h"
#include "worker/data/batch_loader.h"
#include "worker/node/replica_parts.h"
#include "worker/node/tensor_reducer.h"

namespace centroid::worker {

namespace {

using Clock = std::chrono::steady_clock;

/// The next operation of all devices; on the caller's stack until the last one is done.
struct Job {
  enum class Kind : std::uint8_t { kTrain, kEvaluate, kLoad, kAdvance } kind = Kind::kTrain;
  const Dataset* data = nullptr;
  std::vector<const LoadedBatch*> batches{};  // to train on; kAdvance may have several
  Range rows{};                               // to evaluate
  std::span<const float> params{};            // to train on; kAdvance uses the resident ones
  std::span<const OptimizerStep> steps{};     // of kAdvance
  bool is_training() const { return kind == Kind::kTrain || kind == Kind::kAdvance; }
};

struct Outcome {
  GroupStep result;
  std::optional<Error> error;
};

static_assert(Dataset::kNoLabel == kNoTarget);

/// A batch's memory on all devices.
struct OnReplicas final : OnDevices {
  std::vector<StagedBatch> parts;
};

/// Copies batches to GPUs during training.
class ReplicaStage final : public BatchStage {
 public:
  explicit ReplicaStage(const std::vector<Seat>& seats) : seats_(seats) {}
  bool put(const Dataset& data, LoadedBatch& batch) override {
    if (!batch.on_devices) batch.on_devices = std::make_unique<OnReplicas>();
    auto& parts = static_cast<OnReplicas&>(*batch.on_devices).parts;
    parts.resize(seats_.size());
    for (std::size_t d = 0; d < seats_.size(); ++d) {
      const Range part = part_of(batch.index.size(), seats_.size(), d);
      const auto is_there = seats_[d].replica->stage(rows_of(batch, data, part), parts[d]);
      if (is_there.ok() && *is_there) continue;
      // The step reports the error too.
      if (!is_there.ok() && !std::exchange(is_told_, true))
        log::warn("batch.staging_failed", {{"why", is_there.error()}});
      return false;
    }
    return true;
  }

 private:
  const std::vector<Seat>& seats_;
  bool is_told_ = false;
};

class ThreadedReplicaGroup final : public ReplicaGroup, public ResidentTraining {
 public:
  ThreadedReplicaGroup(const Model& model, Parts parts, const GroupOptions& options)
      : slowdown_(options.slowdown),
        batch_(options.batch),
        model_(model.clone()),
        trained_(trained_elements(model.manifest())),
        evaluated_at_a_time_(evaluate_samples(model)),
        memory_(std::move(*parts.memory)),
        params_(std::move(parts.params)),
        current_(params_.as<float>()),
        gradients_(std::move(parts.gradients)),
        nccl_(std::move(parts.nccl)),
        seats_(std::move(parts.seats)),
        own_(seats_.front().replica->residence() == nullptr ? 1 : 0),
        reducer_(model.manifest(), sources(), gradients_.as<float>()),
        outcomes_(seats_.size()),
        shares_(seats_.size()),
        room_before_(parts.room),
        stage_(seats_),
        loader_(options.load_ahead, room_before_ ? &stage_ : nullptr,
                seats_.front().replica->residence() != nullptr ? kQueuedSteps : 1) {
    for (std::size_t d = own_; d < seats_.size(); ++d)
      threads_.emplace_back([this, d](const std::stop_token& stop) { run(d, stop); });
  }

  ~ThreadedReplicaGroup() override {
    for (auto& thread : threads_) thread.request_stop();
    threads_.clear();                  // joins
    if (nccl_) (void)nccl_->settle();  // aborts pending calls, which the replicas would wait for
  }

  std::size_t devices() const override { return seats_.size(); }
  std::span<float> params() override { return current_; }
  std::size_t trained() override { return trained_; }
  void use_params(std::span<float> memory) override {
    CENTROID_CHECK(memory.size() == current_.size());
    current_ = memory;
  }
  std::span<float> gradients() override { return gradients_.as<float>(); }
  Result<double> gradient_norm() override {
    if (device_gradient().device != nullptr) return seats_.front().replica->gradient_norm();
    return std::sqrt(sum_of_squares(gradients().first(trained_)));
  }
  Buffer host_memory(std::size_t bytes) override { return memory_.take(bytes); }
  Replica::OnDevice device_gradient() override {
    return nccl_ || seats_.size() == 1 ? seats_.front().replica->gradient_on_device()
                                       : Replica::OnDevice{};
  }
  void keep_gradient_on_device() override { seats_.front().replica->keep_gradient_on_device(); }
  void use_noise(std::uint64_t key) override { noise_ = key; }
  void expect(const Dataset& data,
              const std::vector<std::span<const std::uint64_t>>& steps) override {
    expected_ = steps.size();
    longest_ = 0;
    for (const auto& samples : steps) longest_ = std::max<std::uint64_t>(longest_, samples.size());
    if (most_staged_ > 0 && longest_ > room_for_) {
      loader_.expect(data, {});   // frees its places
      (void)make_room(longest_);  // the step reports a failure
    }
    make_places();
    loader_.expect(data, steps);
  }
  void set_load_ahead(std::uint64_t depth) override { loader_.set_depth(depth); }
  std::uint64_t load_ahead(std::uint64_t samples) const override {
    const std::uint64_t depth = loader_.depth();
    if (depth == 0 || batch_ == 0 || samples <= batch_) return depth;
    return std::max<std::uint64_t>(depth * batch_ / samples, 1);
  }

  std::uint64_t staged() const override { return staged_; }
  Result<GroupStep> step(const Dataset& data, std::span<const std::uint64_t> samples,
                         const std::function<void(TensorId)>& on_ready) override {
    for (std::size_t d = 0; d < seats_.size(); ++d)
      shares_[d] = part_of(samples.size(), seats_.size(), d).size();
    reducer_.begin(shares_, &on_ready);
    return train_on(data, {&samples, 1}, {.kind = Job::Kind::kTrain, .params = current_});
  }

  ResidentTraining* resident() override {
    const bool is_on_gpus = seats_.front().replica->residence() != nullptr;
    return is_on_gpus && (nccl_ || seats_.size() == 1) ? this : nullptr;
  }
  Status reserve(std::size_t slots) override {
    const std::uint64_t plane = current_.size_bytes();
    for (std::size_t d = 0; batch_ > 0 && d < seats_.size(); ++d)
      CENTROID_TRY(check_room(*seats_[d].replica, *model_, part_of(batch_, seats_.size(), d).size(),
                              slots, plane));
    for (Seat& seat : seats_) {
      if (Status taken = seat.replica->residence()->reserve(slots); !taken.ok())
        return std::move(taken).error().with_context("memory for " + std::to_string(slots) +
                                                     " slots of the optimizer");
    }
    if (room_before_) *room_before_ -= std::min(*room_before_, slots * plane);
    return {};
  }
  Status load(std::span<const float> params) override {
    const auto done = run_on_all({.kind = Job::Kind::kLoad, .params = params});
    return done.ok() ? Status() : Status(done.error());
  }
  Status store(std::span<float> params, std::size_t device) override {
    return seats_.at(device).replica->residence()->read_params(params);
  }
  Status load_slot(std::size_t slot, std::span<const float> from) override {
    for (Seat& seat : seats_) CENTROID_TRY(seat.replica->residence()->write_slot(slot, from));
    return {};
  }
  Status store_slot(std::size_t slot, std::span<float> to, std::size_t device) override {
    return seats_.at(device).replica->residence()->read_slot(slot, to);
  }
  Result<GroupStep> advance(const Dataset& data,
                            std::span<const std::span<const std::uint64_t>> batches,
                            std::span<const OptimizerStep> steps) override {
    CENTROID_CHECK(batches.size() == steps.size() && batches.size() <= kQueuedSteps);
    return train_on(data, batches, {.kind = Job::Kind::kAdvance, .steps = steps});
  }

  Result<GroupStep> evaluate(const Dataset& data, std::uint64_t begin, std::uint64_t end) override {
    CENTROID_TRY(check_fits(*model_, data));
    if (begin > end || end > data.samples)
      return Error(ErrorCode::kInvalidArgument, "samples " + std::to_string(begin) + " to " +
                                                    std::to_string(end) + " of a data set of " +
                                                    std::to_string(data.samples));
    CENTROID_TRY(make_room(0));
    return run_on_all(
        {.kind = Job::Kind::kEvaluate, .data = &data, .rows = {begin, end}, .params = current_});
  }

 private:
  /// Allocate before the step, so that no device allocates while another one's addition waits for
  /// it.
  Status make_room(std::uint64_t samples) {
    // Larger steps leave less memory for batches: free the batches' places first.
    const bool grows = most_staged_ > 0 && samples > room_for_;
    room_for_ = std::max(room_for_, samples);
    for (std::size_t d = 0; grows && d < seats_.size(); ++d)
      CENTROID_TRY(seats_[d].replica->make_places(0, 0, 0));
    const std::uint64_t before = grows ? least_room(seats_).value_or(0) : 0;
    for (std::size_t d = 0; d < seats_.size(); ++d)
      CENTROID_TRY(seats_[d].replica->make_room(part_of(samples, seats_.size(), d).size()));
    if (before == 0) return {};
    const std::uint64_t after = least_room(seats_).value_or(before);
    step_bytes_ += before - std::min(before, after);
    make_places();
    return {};
  }

  /// Allocate places for expected batches and those in use.
  void make_places() {
    const std::uint64_t waiting = std::min(expected_, most_staged_);
    const std::uint64_t usable = LoaderRoom::usable(free_bytes_),
                        most_bytes = usable - std::min(usable, step_bytes_);
    for (std::size_t d = 0; waiting > 0 && d < seats_.size(); ++d) {
      const std::uint64_t samples = part_of(longest_, seats_.size(), d).size();
      const Status made =
          seats_[d].replica->make_places(waiting + kQueuedSteps, samples, most_bytes);
      if (!made.ok() && !std::exchange(is_told_, true))
        log::warn("batch.staging_failed", {{"why", made.error()}});
    }
  }

  Result<GroupStep> train_on(const Dataset& data,
                             std::span<const std::span<const std::uint64_t>> batches, Job job) {
    CENTROID_TRY(check_fits(*model_, data));
    std::uint64_t most = 0;
    for (const auto samples : batches) {
      const auto outside = std::find_if(samples.begin(), samples.end(),
                                        [&](std::uint64_t i) { return i >= data.samples; });
      if (outside != samples.end())
        return Error(ErrorCode::kInvalidArgument, "sample " + std::to_string(*outside) +
                                                      " of a data set of " +
                                                      std::to_string(data.samples));
      most = std::max<std::uint64_t>(most, samples.size());
      try {
        job.batches.push_back(&loader_.take(data, samples));
      } catch (const std::bad_alloc&) {
        return Error(ErrorCode::kResourceExhausted,
                     "no memory to load " + std::to_string(samples.size()) + " samples");
      }
      if (job.batches.back()->is_on_devices) ++staged_;
    }
    job.data = &data;
    CENTROID_TRY(make_room(most));
    auto done = run_on_all(job);
    if (done.ok() && room_before_ && most > 0)
      calibrate(batch_bytes(data, part_of(std::max(most, batch_), seats_.size(), 0).size()));
    return done;
  }

  /// The first step has allocated the memory of steps: from now on as many batches as fit into the
  /// rest wait on the GPUs.
  void calibrate(std::uint64_t batch_bytes) {
    const std::uint64_t before = *std::exchange(room_before_, std::nullopt);
    const std::uint64_t after = least_room(seats_).value_or(before);
    const std::uint64_t peak = before - std::min(before, after);
    const std::uint64_t fit = load_depth({.free_bytes = before,
                                          .peak_bytes = peak,
                                          .batch_bytes = batch_bytes,
                                          .most = loader_.depth() + kQueuedSteps - 1});
    const std::uint64_t depth = fit - std::min<std::uint64_t>(fit, kQueuedSteps - 1);
    free_bytes_ = before;
    step_bytes_ = peak;
    most_staged_ = depth;
    make_places();
    loader_.stage_at_most(depth);  // batches in use are in that memory too
    log::info("devices.calibrated",
              {{"free_bytes", before}, {"step_bytes", peak}, {"batches_ahead", depth}});
  }

  std::vector<std::span<const float>> sources() const {
    std::vector<std::span<const float>> all;
    for (const auto& seat : seats_)
      if (!nccl_ || all.empty())
        all.push_back((seat.gradient ? seat.gradient : gradients_).as<float>());
    return all;
  }

  Result<GroupStep> run_on_all(const Job& job) {
    {
      const std::lock_guard lock(mutex_);
      job_ = &job;
      running_ = threads_.size();
      ++turn_;
    }
    if (!threads_.empty()) started_.notify_all();
    for (std::size_t d = 0; d < own_; ++d) outcomes_[d] = perform(d, job);
    {
      std::unique_lock lock(mutex_);
      finished_.wait(lock, [this] { return running_ == 0; });
      job_ = nullptr;
    }
    GroupStep sum;
    for (auto& outcome : outcomes_) {
      if (outcome.error) return *std::exchange(outcome.error, std::nullopt);
      sum.loss_sum += outcome.result.loss_sum;
      sum.correct += outcome.result.correct;
      sum.samples += outcome.result.samples;
      sum.compute_seconds = std::max(sum.compute_seconds, outcome.result.compute_seconds);
    }
    return sum;
  }

  /// Main loop of a device's thread.
  void run(std::size_t d, const std::stop_token& stop) {
    std::uint64_t seen = 0;
    for (;;) {
      const Job* job = nullptr;
      {
        std::unique_lock lock(mutex_);
        if (!started_.wait(lock, stop, [&] { return turn_ != seen; })) return;
        seen = turn_;
        job = job_;
      }
      Outcome outcome = perform(d, *job);
      const std::lock_guard lock(mutex_);
      outcomes_[d] = std::move(outcome);
      if (--running_ == 0) finished_.notify_one();
    }
  }

  Outcome perform(std::size_t d, const Job& job) {
    Outcome outcome;
    const auto begin = Clock::now();
    auto computes = begin;  // once the parameters are loaded
    std::string cause;
    try {
      Status done;
      if (job.kind != Job::Kind::kAdvance) done = seats_[d].replica->use(job.params);
      computes = Clock::now();
      if (done.ok() && job.kind == Job::Kind::kEvaluate)
        done = forward(d, job, outcome.result);
      else if (done.ok() && job.is_training())
        done = train(d, job, outcome.result);
      if (!done.ok()) outcome.error = std::move(done).error();
    } catch (const std::bad_alloc&) {
      cause = "out of memory";
    } catch (const std::exception& exception) {
      cause = exception.what();
    } catch (...) {
      cause = "unknown exception";
    }
    const std::string& name = seats_[d].replica->name();
    if (!cause.empty())
      outcome.error = Error(ErrorCode::kInternal, "device " + name + ": " + cause);
    if (outcome.error && nccl_) nccl_->abort(name + " failed: " + outcome.error->message());
    auto computed = Clock::now();
    if (job.kind == Job::Kind::kTrain && !outcome.error)
      computed = seats_[d].replica->computed_at().value_or(computed);
    if (job.is_training() && slowdown_ > 1)
      std::this_thread::sleep_for((slowdown_ - 1) * (Clock::now() - begin));
    const auto end = Clock::now();
    outcome.result.compute_seconds = std::chrono::duration<double>(end - begin).count();
    if (job.kind == Job::Kind::kLoad) return outcome;
    seats_[d].lane.span(job.is_training() ? trace::Stage::kCompute : trace::Stage::kEvaluate,
                        computes, computed);
    return outcome;
  }

  /// A device's part of a batch.
  Batch part_of_batch(std::size_t d, const Job& job, const LoadedBatch& loaded) const {
    Batch batch = rows_of(loaded, *job.data, part_of(loaded.index.size(), seats_.size(), d));
    batch.noise = noise_;
    if (loaded.is_on_devices)
      batch.resident = &static_cast<const OnReplicas&>(*loaded.on_devices).parts[d].inputs;
    return batch;
  }

  Status train(std::size_t d, const Job& job, GroupStep& result) {
    Replica& replica = *seats_[d].replica;
    StepResult step;
    if (job.kind == Job::Kind::kAdvance) {
      Residence& residence = *replica.residence();
      for (std::size_t i = 0; i < job.batches.size(); ++i) {
        const LoadedBatch& loaded = *job.batches[i];
        CENTROID_TRY(
            residence.queue(part_of_batch(d, job, loaded), loaded.index.size(), job.steps[i]));
      }
      CENTROID_ASSIGN(step, residence.collect());
    } else {
      const LoadedBatch& loaded = *job.batches.front();
      const auto deliver = [this](TensorId tensor) { reducer_.ready(tensor); };
      CENTROID_ASSIGN(step,
                      replica.train(part_of_batch(d, job, loaded), loaded.index.size(), deliver));
    }
    result.loss_sum = step.loss_sum;
    result.correct = step.correct;
    result.samples = step.targets;
    return {};
  }

  Status forward(std::size_t d, const Job& job, GroupStep& result) {
    const Range share = part_of(job.rows.size(), seats_.size(), d);
    const std::uint64_t last = job.rows.begin + share.end, most = evaluated_at_a_time_;
    for (std::uint64_t at = job.rows.begin + share.begin; at < last; at += most) {
      LoadedBatch& rows = seats_[d].rows;
      rows.index.resize(std::min(most, last - at));
      std::iota(rows.index.begin(), rows.index.end(), at);
      rows.load(*job.data, rows.index);
      const Batch batch = rows_of(rows, *job.data, {0, rows.index.size()});
      CENTROID_ASSIGN(const StepResult step, seats_[d].replica->evaluate(batch));
      result.loss_sum += step.loss_sum;
      result.correct += step.correct;
      result.samples += step.targets;
    }
    return {};
  }

  const double slowdown_;
  const std::uint64_t batch_;           // of all devices
  const std::unique_ptr<Model> model_;  // used only for shapes
  const std::size_t trained_;           // elements before the buffers
  const std::uint64_t evaluated_at_a_time_;
  HostMemory memory_;
  Buffer params_;
  std::span<float> current_;  // that replicas read: params_, or memory of the exchange
  Buffer gradients_;
  std::unique_ptr<NcclGroup> nccl_;
  std::vector<Seat> seats_;
  /// Number of first devices that compute on the caller's thread. It is 1 for CPUs, whose steps
  /// never block: to wake a thread and be woken costs as much as a small step on a machine without
  /// an idle core.
  const std::size_t own_;
  std::uint64_t noise_ = 0;
  TensorReducer reducer_;
  std::mutex mutex_;
  std::condition_variable_any started_;
  std::condition_variable finished_;
  // Under mutex_:
  const Job* job_ = nullptr;
  std::uint64_t turn_ = 0;
  std::size_t running_ = 0;
  std::vector<Outcome> outcomes_;
  std::vector<std::uint64_t> shares_;  // the caller's thread only
  std::uint64_t staged_ = 0;
  std::optional<std::uint64_t> room_before_;  // of GPUs, until the first step was measured
  std::uint64_t expected_ = 0, longest_ = 0;  // steps, and samples of the largest
  std::uint64_t most_staged_ = 0;
  std::uint64_t free_bytes_ = 0,
                step_bytes_ = 0;     // of a device: before steps allocated, and what they did
  std::uint64_t room_for_ = batch_;  // samples of a step
  bool is_told_ = false;             // the lack of memory for batches was logged
  ReplicaStage stage_;
  BatchLoader loader_;  // its thread is joined before the members above are destroyed
  std::vector<std::jthread> threads_;  // last: joined before other members are destroyed
};

}  // namespace

Result<std::unique_ptr<ReplicaGroup>> make_replica_group(const Model& model, GroupOptions options) {
  try {
    CENTROID_ASSIGN(Parts parts, make_parts(model, options));
    return std::unique_ptr<ReplicaGroup>(
        new ThreadedReplicaGroup(model, std::move(parts), options));
  } catch (const std::system_error& failure) {
    return Error(ErrorCode::kResourceExhausted,
                 "no thread for each of the devices '" + options.devices + "': " + failure.what());
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kResourceExhausted,
                 "no memory for parameters and gradients of model " + model.spec());
  }
}

}  // namespace centroid::worker
