#include "worker/node/replica_group.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <numeric>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "common/base/log.h"
#include "common/base/trace.h"
#include "common/device/device.h"
#include "common/tensor/chunk_plan.h"
#include "worker/data/batch_loader.h"
#include "worker/node/tensor_reducer.h"

namespace centroid::worker {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxDevices = 256;
/// Rows of one forward pass of `evaluate`, samples or tokens: bounds the work space, long enough to
/// keep BLAS busy.
constexpr std::uint64_t kEvaluateRows = 256;
constexpr std::uint64_t kEvaluateTokens = 2048;

std::uint64_t evaluate_samples(const Model& model) {
  if (model.vocabulary() == 0) return kEvaluateRows;
  return std::max<std::uint64_t>(kEvaluateTokens / model.features(), 1);
}

std::uint64_t bytes_of(const Dataset& data) {
  return sizeof(float) * (data.x.size() + data.vals.size()) +
         sizeof(std::uint32_t) * (data.y.size() + data.cols.size() + data.tokens.size()) +
         sizeof(std::uint64_t) * (data.row_begin.size() + data.token_begin.size());
}

/// What all devices do next; lives on the caller's stack until the last one is done.
struct Job {
  const Dataset* data = nullptr;
  const LoadedBatch* batch = nullptr;  // to train on
  Range rows;                          // to evaluate
  bool is_training = false;
};

struct Outcome {
  GroupStep result;
  std::optional<Error> error;
};

std::span<float> floats(const DeviceMemory& memory) {
  return {reinterpret_cast<float*>(memory.data()), memory.size() / sizeof(float)};
}

/// Rows [part.begin, part.end) of a loaded batch, as a model takes them.
Batch rows_of(const LoadedBatch& loaded, const Dataset& data, Range part) {
  const auto cut = [&](const auto& values, std::uint64_t of_one) {
    return std::span(values).subspan(part.begin * of_one, part.size() * of_one);
  };
  Batch batch;
  batch.samples = part.size();
  batch.ids = cut(loaded.index, 1);
  batch.y = cut(loaded.y, data.targets());
  if (data.vocabulary > 0) {
    batch.tokens = cut(loaded.tokens, data.features);
    batch.lengths = cut(loaded.lengths, 1);
  } else {
    batch.x = cut(loaded.x, data.features);
  }
  return batch;
}

/// One device's place in the group. Used by the device's thread only, except at construction.
struct Seat {
  trace::Lane lane;
  std::unique_ptr<DeviceMemory> gradient;  // on the host; null: the group's, or none
  std::unique_ptr<Replica> replica;
  LoadedBatch rows;  // that it evaluates
};
static_assert(Dataset::kNoLabel == kNoTarget);

/// Memory of a batch on all devices.
struct OnReplicas final : OnDevices {
  std::vector<StagedBatch> parts;
};

/// Brings batches to GPUs while others are trained on.
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
      // Memory that is short now is not in a moment; the step itself tells of all else.
      if (!is_there.ok() && !std::exchange(is_told_, true))
        log::warn("batch.not_staged", {{"why", is_there.error()}});
      return false;
    }
    return true;
  }

 private:
  const std::vector<Seat>& seats_;
  bool is_told_ = false;
};

/// The least free memory of the devices that have their own.
std::optional<std::uint64_t> least_room(const std::vector<Seat>& seats) {
  std::optional<std::uint64_t> least;
  for (const Seat& seat : seats)
    if (const auto room = seat.replica->room())
      least = std::min(least.value_or(room->free), room->free);
  return least;
}

/// What a group is made of.
struct Parts {
  std::unique_ptr<DeviceMemory> params, gradients;
  std::unique_ptr<NcclGroup> nccl;
  std::vector<Seat> seats;
};

class ThreadedReplicaGroup final : public ReplicaGroup {
 public:
  ThreadedReplicaGroup(const Model& model, Parts parts, const GroupOptions& options)
      : slowdown_(options.slowdown),
        model_(model.clone()),
        evaluated_at_a_time_(evaluate_samples(model)),
        params_(std::move(parts.params)),
        current_(floats(*params_)),
        gradients_(std::move(parts.gradients)),
        nccl_(std::move(parts.nccl)),
        seats_(std::move(parts.seats)),
        reducer_(model.manifest(), sources(), floats(*gradients_)),
        outcomes_(seats_.size()),
        shares_(seats_.size()),
        room_before_(least_room(seats_)),
        stage_(seats_),
        loader_(options.load_ahead, room_before_ ? &stage_ : nullptr) {
    for (std::size_t d = 0; d < seats_.size(); ++d)
      threads_.emplace_back([this, d](const std::stop_token& stop) { run(d, stop); });
  }

  ~ThreadedReplicaGroup() override {
    for (auto& thread : threads_) thread.request_stop();
    threads_.clear();                  // joins
    if (nccl_) (void)nccl_->settle();  // or the replicas would wait for what never ends
  }

  std::size_t devices() const override { return seats_.size(); }
  std::span<float> params() override { return current_; }
  void use_params(std::span<float> memory) override {
    CENTROID_CHECK(memory.size() == current_.size());
    current_ = memory;
  }
  std::span<float> gradients() override { return floats(*gradients_); }
  Replica::OnDevice device_gradient() override {
    return nccl_ || seats_.size() == 1 ? seats_.front().replica->gradient_on_device()
                                       : Replica::OnDevice{};
  }
  void leave_gradient() override { seats_.front().replica->leave_gradient(); }
  void use_noise(std::uint64_t key) override { noise_ = key; }
  void expect(const Dataset& data,
              const std::vector<std::span<const std::uint64_t>>& steps) override {
    loader_.expect(data, steps);
  }
  void set_load_ahead(std::uint64_t depth) override { loader_.set_depth(depth); }

  std::uint64_t staged() const override { return staged_; }
  Result<GroupStep> step(const Dataset& data, std::span<const std::uint64_t> samples,
                         const std::function<void(TensorId)>& on_ready) override {
    CENTROID_TRY(check_fits(*model_, data));
    const auto outside = std::find_if(samples.begin(), samples.end(),
                                      [&](std::uint64_t i) { return i >= data.samples; });
    if (outside != samples.end())
      return Error(ErrorCode::kInvalidArgument, "sample " + std::to_string(*outside) +
                                                    " of a data set of " +
                                                    std::to_string(data.samples));
    for (std::size_t d = 0; d < seats_.size(); ++d)
      shares_[d] = part_of(samples.size(), seats_.size(), d).size();
    reducer_.begin(shares_, &on_ready);
    const LoadedBatch* batch = nullptr;
    try {
      batch = &loader_.take(data, samples);
    } catch (const std::bad_alloc&) {
      return Error(ErrorCode::kResourceExhausted,
                   "no memory to load " + std::to_string(samples.size()) + " samples");
    }
    const Job job{&data, batch, {}, true};
    if (batch->is_on_devices) ++staged_;
    auto done = run_on_all(job);
    if (done.ok() && room_before_ && !samples.empty())
      calibrate(batch_bytes(data, shares_.front()));
    return done;
  }

  Result<GroupStep> evaluate(const Dataset& data, std::uint64_t begin, std::uint64_t end) override {
    CENTROID_TRY(check_fits(*model_, data));
    if (begin > end || end > data.samples)
      return Error(ErrorCode::kInvalidArgument, "samples " + std::to_string(begin) + " to " +
                                                    std::to_string(end) + " of a data set of " +
                                                    std::to_string(data.samples));
    const Job job{&data, nullptr, {begin, end}, false};
    return run_on_all(job);
  }

 private:
  /// The first step has taken what steps take: from now on batches wait on the GPUs, as many as fit
  /// beside it.
  void calibrate(std::uint64_t batch_bytes) {
    const std::uint64_t before = *std::exchange(room_before_, std::nullopt);
    const std::uint64_t after = least_room(seats_).value_or(before);
    const std::uint64_t peak = before - std::min(before, after);
    const std::uint64_t depth = load_depth({.free_bytes = before,
                                            .peak_bytes = peak,
                                            .batch_bytes = batch_bytes,
                                            .most = loader_.depth()});
    loader_.stage_at_most(depth);
    log::info("devices.calibrated",
              {{"free_bytes", before}, {"step_bytes", peak}, {"batches_ahead", depth}});
  }

  std::vector<std::span<const float>> sources() const {
    std::vector<std::span<const float>> all;
    for (const auto& seat : seats_)
      if (!nccl_ || all.empty())
        all.push_back(floats(seat.gradient ? *seat.gradient : *gradients_));
    return all;
  }

  Result<GroupStep> run_on_all(const Job& job) {
    {
      std::unique_lock lock(mutex_);
      job_ = &job;
      running_ = seats_.size();
      ++turn_;
      begun_.notify_all();
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

  /// The device's thread.
  void run(std::size_t d, const std::stop_token& stop) {
    std::uint64_t seen = 0;
    for (;;) {
      const Job* job = nullptr;
      {
        std::unique_lock lock(mutex_);
        if (!begun_.wait(lock, stop, [&] { return turn_ != seen; })) return;
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
    std::string cause;
    try {
      Status done = seats_[d].replica->use(current_);
      if (done.ok())
        done = job.is_training ? train(d, job, outcome.result) : forward(d, job, outcome.result);
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
    if (job.is_training && slowdown_ > 1)
      std::this_thread::sleep_for((slowdown_ - 1) * (Clock::now() - begin));
    const auto end = Clock::now();
    outcome.result.compute_seconds = std::chrono::duration<double>(end - begin).count();
    seats_[d].lane.span(job.is_training ? trace::Stage::kCompute : trace::Stage::kEvaluate, begin,
                        end);
    return outcome;
  }

  Status train(std::size_t d, const Job& job, GroupStep& result) {
    const std::uint64_t samples = job.batch->index.size();
    Batch batch = rows_of(*job.batch, *job.data, part_of(samples, seats_.size(), d));
    batch.noise = noise_;
    if (job.batch->is_on_devices)
      batch.resident = &static_cast<const OnReplicas&>(*job.batch->on_devices).parts[d].inputs;
    CENTROID_ASSIGN(const StepResult step,
                    seats_[d].replica->train(batch, samples,
                                             [this](TensorId tensor) { reducer_.ready(tensor); }));
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
  const std::unique_ptr<Model> model_;  // asked about shapes only
  const std::uint64_t evaluated_at_a_time_;
  std::unique_ptr<DeviceMemory> params_;
  std::span<float> current_;  // what the replicas read: params_, or memory of the exchange
  std::unique_ptr<DeviceMemory> gradients_;
  std::unique_ptr<NcclGroup> nccl_;
  std::vector<Seat> seats_;
  std::uint64_t noise_ = 0;
  TensorReducer reducer_;
  std::mutex mutex_;
  std::condition_variable_any begun_;
  std::condition_variable finished_;
  // Under mutex_:
  const Job* job_ = nullptr;
  std::uint64_t turn_ = 0;
  std::size_t running_ = 0;
  std::vector<Outcome> outcomes_;
  std::vector<std::uint64_t> shares_;  // the caller's thread only
  std::uint64_t staged_ = 0;
  std::optional<std::uint64_t> room_before_;  // of GPUs, until the first step was measured
  ReplicaStage stage_;
  BatchLoader loader_;                 // its thread is joined before what it uses goes
  std::vector<std::jthread> threads_;  // last: joined before the rest goes
};

Result<std::vector<Compute>> open_all(const GroupOptions& options) {
  std::vector<Compute> all;
  std::string_view left = options.devices;
  for (bool is_more = true; is_more;) {
    const std::string spec(left.substr(0, left.find(',')));
    is_more = spec.size() < left.size();
    left.remove_prefix(spec.size() + (is_more ? 1 : 0));
    CENTROID_ASSIGN(Compute compute, options.open(spec, options.matmul));
    const std::string name = compute.device->name();
    const auto is_same = [&](const Compute& other) { return other.device->name() == name; };
    if (std::any_of(all.begin(), all.end(), is_same))
      return Error(ErrorCode::kInvalidArgument,
                   "devices '" + options.devices + "' name " + name + " twice");
    all.push_back(std::move(compute));
    if (all.size() > kMaxDevices)
      return Error(ErrorCode::kInvalidArgument,
                   "more than " + std::to_string(kMaxDevices) + " devices");
  }
  return all;
}

/// NCCL among two GPUs or more; nothing where they have to add on the host, which is logged.
std::unique_ptr<NcclGroup> join_by_nccl(const std::vector<Compute>& all,
                                        const GroupOptions& options) {
  std::vector<int> numbers;
  for (const Compute& one : all) {
    if (one.device->is_host()) return nullptr;
    const std::string name = one.device->name();  // "cuda:3"
    numbers.push_back(std::atoi(name.c_str() + name.find(':') + 1));
  }
  if (numbers.size() < 2) return nullptr;
  const auto on_host = [&](const std::string& why) {
    log::warn("nccl.not_used", {{"why", why},
                                {"devices", options.devices},
                                {"instead", "gradients are copied and added on the host"}});
    return nullptr;
  };
  if (options.nccl.empty()) return on_host("the setting nccl is empty");
  auto library = nccl::Library::load(options.nccl);
  if (!library.ok()) return on_host(library.error().message());
  auto group =
      NcclGroup::make(std::move(library).value(), numbers, {.timeout = options.nccl_timeout});
  if (!group.ok()) return on_host(group.error().message());
  return std::move(group).value();
}

Result<Parts> make_parts(const Model& model, const GroupOptions& options) {
  CENTROID_ASSIGN(auto all, open_all(options));
  std::uint64_t bytes = 0;
  for (const auto& tensor : model.manifest()) bytes += tensor.bytes();
  Parts parts;
  // Pinned where there is a GPU: all copies of it end or begin here.
  const auto gpu = std::ranges::find_if(all, [](const Compute& c) { return !c.device->is_host(); });
  Device& of_memory = *(gpu == all.end() ? all.front() : *gpu).device;
  CENTROID_ASSIGN(parts.params, of_memory.allocate_pinned(bytes));
  CENTROID_ASSIGN(parts.gradients, of_memory.allocate_pinned(bytes));
  parts.nccl = join_by_nccl(all, options);
  for (Compute& compute : all) {
    Seat seat;
    seat.lane = trace::Lane(compute.device->name());
    ReplicaOptions mine;
    mine.bucket_bytes = options.bucket_bytes;
    if (parts.nccl) mine.seat = {parts.nccl.get(), parts.seats.size()};
    if (parts.nccl || all.size() == 1) {
      if (parts.seats.empty()) mine.gradient = floats(*parts.gradients);
    } else {
      CENTROID_ASSIGN(seat.gradient, compute.device->allocate_pinned(bytes));
      mine.gradient = floats(*seat.gradient);
    }
    CENTROID_ASSIGN(seat.replica, make_replica(model, std::move(compute), mine));
    parts.seats.push_back(std::move(seat));
  }
  for (std::size_t d = 0; options.batch > 0 && d < parts.seats.size(); ++d) {
    const Replica& replica = *parts.seats[d].replica;
    const std::uint64_t share = part_of(options.batch, parts.seats.size(), d).size();
    const std::uint64_t need = replica.step_bytes(share);
    if (const auto room = replica.room(); room && need > room->free)
      return Error(ErrorCode::kFailedPrecondition,
                   "device " + replica.name() + ": a step of " + std::to_string(share) +
                       " samples takes " + std::to_string(need) + " bytes, " +
                       std::to_string(room->free) + " of " + std::to_string(room->total) +
                       " are free beside parameters and gradients. Lower --batch, the model's "
                       "context or width, or give more devices");
  }
  return parts;
}

}  // namespace

Status check_fits(const Model& model, const Dataset& data) {
  const auto has = [](std::uint64_t features, std::uint32_t vocabulary, std::uint64_t classes,
                      bool is_language) {
    std::string text;
    if (vocabulary == 0)
      text = std::to_string(features) + " features";
    else
      text = "sequences of " + std::to_string(features) + " tokens out of " +
             std::to_string(vocabulary);
    return text +
           (is_language ? " without classes" : " and " + std::to_string(classes) + " classes");
  };
  const bool of_data = data.targets() > 1, of_model = model.targets() > 1;
  const bool fits = data.features == model.features() && data.vocabulary == model.vocabulary() &&
                    of_data == of_model && data.classes == model.classes();
  if (fits) return {};
  return Error(ErrorCode::kInvalidArgument,
               "model " + model.spec() + " does not fit the data: it takes " +
                   has(model.features(), model.vocabulary(), model.classes(), of_model) + ", '" +
                   data.name + "' has " +
                   has(data.features, data.vocabulary, data.classes, of_data));
}

GroupMemory memory_of(const Model& model, std::uint64_t devices, std::uint64_t batch,
                      const DataSplit& data, bool on_gpus) {
  std::uint64_t plane = 0;
  for (const auto& tensor : model.manifest()) plane += tensor.bytes();
  const std::uint64_t share = part_of(batch, devices, 0).size();
  const std::uint64_t rows = evaluate_samples(model);
  GroupMemory need;
  need.shared = 2 * plane + model.frozen_bytes();
  need.data = bytes_of(data.train) + bytes_of(data.test);
  need.batch = batch_bytes(data.train, batch);
  need.per_device = (devices > 1 ? plane : 0) + batch_bytes(data.test, rows);
  if (on_gpus)
    need.per_device += 2 * batch_bytes(data.train, share);  // what they are copied from
  else
    need.per_device += std::max(model.work_bytes(share, true), model.work_bytes(rows, false));
  need.devices = devices;
  return need;
}

Status check_memory(const GroupMemory& need, const MemoryLimit& limit) {
  if (need.total() <= limit.bytes) return {};
  const auto text = [](std::uint64_t bytes) { return std::to_string(bytes); };
  return Error(ErrorCode::kFailedPrecondition,
               "model, data and batch need " + text(need.total()) + " bytes, " + limit.source +
                   " allows " + text(limit.bytes) + ": " + text(need.shared) +
                   " for parameters, gradient and frozen weights, " + text(need.data) +
                   " for the data, " + text(need.batch) + " for a batch, and for each of " +
                   text(need.devices) + " devices " + text(need.per_device) +
                   ". Lower --batch, the model's context or width, or the number of devices; "
                   "memory_limit overrides the limit");
}

Result<std::unique_ptr<ReplicaGroup>> make_replica_group(const Model& model, GroupOptions options) {
  CENTROID_ASSIGN(Parts parts, make_parts(model, options));
  try {
    return std::unique_ptr<ReplicaGroup>(
        new ThreadedReplicaGroup(model, std::move(parts), options));
  } catch (const std::system_error& failure) {
    return Error(ErrorCode::kResourceExhausted,
                 "no thread for each of the devices '" + options.devices + "': " + failure.what());
  }
}

}  // namespace centroid::worker
