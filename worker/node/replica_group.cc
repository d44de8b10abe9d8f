#include "worker/node/replica_group.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <numeric>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

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

/// One device: its model and memory. Used by the device's thread only, except at construction.
struct Replica {
  std::string name;
  trace::Lane lane;
  std::unique_ptr<Device> device;
  std::unique_ptr<Model> model;
  std::unique_ptr<DeviceMemory> gradient;  // null when there is one device only
  LoadedBatch rows;                        // that it evaluates
};
static_assert(Dataset::kNoLabel == kNoTarget);

class HostReplicaGroup final : public ReplicaGroup {
 public:
  HostReplicaGroup(std::vector<Replica> replicas, std::unique_ptr<DeviceMemory> params,
                   std::unique_ptr<DeviceMemory> gradients, std::uint64_t load_ahead,
                   double slowdown)
      : loader_(load_ahead),
        slowdown_(slowdown),
        replicas_(std::move(replicas)),
        params_(std::move(params)),
        current_(floats(*params_)),
        gradients_(std::move(gradients)),
        reducer_(replicas_.front().model->manifest(), sources(), floats(*gradients_)),
        outcomes_(replicas_.size()),
        shares_(replicas_.size()) {
    for (std::size_t d = 0; d < replicas_.size(); ++d)
      threads_.emplace_back([this, d](const std::stop_token& stop) { run(d, stop); });
  }

  ~HostReplicaGroup() override {
    for (auto& thread : threads_) thread.request_stop();
    threads_.clear();  // joins
  }

  std::size_t devices() const override { return replicas_.size(); }
  std::span<float> params() override { return current_; }
  void use_params(std::span<float> memory) override {
    CENTROID_CHECK(memory.size() == current_.size());
    current_ = memory;
  }
  std::span<float> gradients() override { return floats(*gradients_); }
  void use_noise(std::uint64_t key) override { noise_ = key; }
  void expect(const Dataset& data,
              const std::vector<std::span<const std::uint64_t>>& steps) override {
    loader_.expect(data, steps);
  }

  Result<GroupStep> step(const Dataset& data, std::span<const std::uint64_t> samples,
                         const std::function<void(TensorId)>& on_ready) override {
    CENTROID_TRY(check_fits(*replicas_.front().model, data));
    const auto outside = std::find_if(samples.begin(), samples.end(),
                                      [&](std::uint64_t i) { return i >= data.samples; });
    if (outside != samples.end())
      return Error(ErrorCode::kInvalidArgument, "sample " + std::to_string(*outside) +
                                                    " of a data set of " +
                                                    std::to_string(data.samples));
    for (std::size_t d = 0; d < replicas_.size(); ++d)
      shares_[d] = part_of(samples.size(), replicas_.size(), d).size();
    reducer_.begin(shares_, &on_ready);
    const LoadedBatch* batch = nullptr;
    try {
      batch = &loader_.take(data, samples);
    } catch (const std::bad_alloc&) {
      return Error(ErrorCode::kResourceExhausted,
                   "no memory to load " + std::to_string(samples.size()) + " samples");
    }
    const Job job{&data, batch, {}, true};
    return run_on_all(job);
  }

  Result<GroupStep> evaluate(const Dataset& data, std::uint64_t begin, std::uint64_t end) override {
    CENTROID_TRY(check_fits(*replicas_.front().model, data));
    if (begin > end || end > data.samples)
      return Error(ErrorCode::kInvalidArgument, "samples " + std::to_string(begin) + " to " +
                                                    std::to_string(end) + " of a data set of " +
                                                    std::to_string(data.samples));
    const Job job{&data, nullptr, {begin, end}, false};
    return run_on_all(job);
  }

 private:
  std::vector<std::span<const float>> sources() const {
    std::vector<std::span<const float>> all;
    for (const auto& replica : replicas_)
      all.push_back(floats(replica.gradient ? *replica.gradient : *gradients_));
    return all;
  }

  Result<GroupStep> run_on_all(const Job& job) {
    {
      std::unique_lock lock(mutex_);
      job_ = &job;
      running_ = replicas_.size();
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
      if (job.is_training)
        train(d, job, outcome.result);
      else
        forward(d, job, outcome.result);
    } catch (const std::bad_alloc&) {
      cause = "out of memory";
    } catch (const std::exception& exception) {
      cause = exception.what();
    } catch (...) {
      cause = "unknown exception";
    }
    if (!cause.empty())
      outcome.error = Error(ErrorCode::kInternal, "device " + replicas_[d].name + ": " + cause);
    if (job.is_training && slowdown_ > 1)
      std::this_thread::sleep_for((slowdown_ - 1) * (Clock::now() - begin));
    const auto end = Clock::now();
    outcome.result.compute_seconds = std::chrono::duration<double>(end - begin).count();
    replicas_[d].lane.span(job.is_training ? trace::Stage::kCompute : trace::Stage::kEvaluate,
                           begin, end);
    return outcome;
  }

  void train(std::size_t d, const Job& job, GroupStep& result) {
    Replica& replica = replicas_[d];
    const Range share = part_of(job.batch->index.size(), replicas_.size(), d);
    Batch batch = rows_of(*job.batch, *job.data, share);
    batch.noise = noise_;
    const auto gradient = floats(replica.gradient ? *replica.gradient : *gradients_);
    const StepResult step = replica.model->step(
        batch, current_, gradient, [this](TensorId tensor) { reducer_.ready(tensor); });
    result.loss_sum = step.loss_sum;
    result.correct = step.correct;
    result.samples = step.targets;
  }

  void forward(std::size_t d, const Job& job, GroupStep& result) {
    Replica& replica = replicas_[d];
    const Range share = part_of(job.rows.size(), replicas_.size(), d);
    const std::uint64_t last = job.rows.begin + share.end;
    const std::uint64_t most = evaluate_samples(*replica.model);
    for (std::uint64_t at = job.rows.begin + share.begin; at < last; at += most) {
      LoadedBatch& rows = replica.rows;
      rows.index.resize(std::min(most, last - at));
      std::iota(rows.index.begin(), rows.index.end(), at);
      rows.load(*job.data, rows.index);
      const Batch batch = rows_of(rows, *job.data, {0, rows.index.size()});
      const StepResult step = replica.model->evaluate(batch, current_);
      result.loss_sum += step.loss_sum;
      result.correct += step.correct;
      result.samples += step.targets;
    }
  }

  BatchLoader loader_;
  const double slowdown_;
  std::vector<Replica> replicas_;
  std::unique_ptr<DeviceMemory> params_;
  std::span<float> current_;  // what the replicas read: params_, or memory of the exchange
  std::unique_ptr<DeviceMemory> gradients_;
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
  std::vector<std::jthread> threads_;  // last: joined before the rest goes
};

Result<std::vector<Replica>> make_replicas(const Model& model, const std::string& devices) {
  std::vector<Replica> replicas;
  std::string_view left = devices;
  for (bool is_more = true; is_more;) {
    const std::string spec(left.substr(0, left.find(',')));
    is_more = spec.size() < left.size();
    left.remove_prefix(spec.size() + (is_more ? 1 : 0));
    Replica replica;
    CENTROID_ASSIGN(replica.device, make_device(spec));
    replica.name = replica.device->name();
    replica.lane = trace::Lane(replica.name);
    if (!replica.device->is_host())
      return Error(ErrorCode::kUnimplemented,
                   "device " + replica.name + ": models run on the CPU only, use cpu:N");
    const auto is_same = [&](const Replica& other) { return other.name == replica.name; };
    if (std::any_of(replicas.begin(), replicas.end(), is_same))
      return Error(ErrorCode::kInvalidArgument,
                   "devices '" + devices + "' name " + replica.name + " twice");
    replica.model = model.clone();
    replicas.push_back(std::move(replica));
    if (replicas.size() > kMaxDevices)
      return Error(ErrorCode::kInvalidArgument,
                   "more than " + std::to_string(kMaxDevices) + " devices");
  }
  return replicas;
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
                      const DataSplit& data) {
  std::uint64_t plane = 0;
  for (const auto& tensor : model.manifest()) plane += tensor.bytes();
  const std::uint64_t share = part_of(batch, devices, 0).size();
  const std::uint64_t rows = evaluate_samples(model);
  GroupMemory need;
  need.shared = 2 * plane + model.frozen_bytes();
  need.data = bytes_of(data.train) + bytes_of(data.test);
  need.batch = batch_bytes(data.train, batch);
  need.per_device = (devices > 1 ? plane : 0) + batch_bytes(data.test, rows) +
                    std::max(model.work_bytes(share, true), model.work_bytes(rows, false));
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

Result<std::unique_ptr<ReplicaGroup>> make_replica_group(const Model& model,
                                                         const std::string& devices,
                                                         std::uint64_t load_ahead,
                                                         double slowdown) {
  CENTROID_ASSIGN(auto replicas, make_replicas(model, devices));
  std::uint64_t bytes = 0;
  for (const auto& tensor : model.manifest()) bytes += tensor.bytes();
  Device& first = *replicas.front().device;
  CENTROID_ASSIGN(auto params, first.allocate(bytes));
  CENTROID_ASSIGN(auto gradients, first.allocate(bytes));
  if (replicas.size() > 1) {
    for (auto& replica : replicas) {
      CENTROID_ASSIGN(replica.gradient, replica.device->allocate(bytes));
    }
  }
  try {
    return std::unique_ptr<ReplicaGroup>(new HostReplicaGroup(
        std::move(replicas), std::move(params), std::move(gradients), load_ahead, slowdown));
  } catch (const std::system_error& failure) {
    return Error(ErrorCode::kResourceExhausted,
                 "no thread for each of the devices '" + devices + "': " + failure.what());
  }
}

}  // namespace centroid::worker
