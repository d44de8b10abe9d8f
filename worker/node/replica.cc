#include "worker/node/replica.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/trace.h"
#include "worker/node/group_memory.h"

namespace centroid::worker {

namespace {

using Clock = std::chrono::steady_clock;

std::span<float> floats(const DeviceMemory& memory) {
  return {reinterpret_cast<float*>(memory.data()), memory.size() / sizeof(float)};
}

/// A replica on the CPU: uses parameters and gradient in host memory directly.
class HostReplica final : public Replica {
 public:
  HostReplica(const Model& model, Compute compute, std::span<float> gradient)
      : name_(compute.device->name()),
        device_(std::move(compute.device)),
        model_(model.clone_on(std::move(compute.backend))),
        gradient_(gradient) {}
  const std::string& name() const override { return name_; }
  Status use(std::span<const float> params) override {
    params_ = params;
    return {};
  }
  Result<StepResult> train(const Batch& batch, std::uint64_t,
                           const std::function<void(TensorId)>& deliver) override {
    return model_->step(batch, params_, gradient_, deliver);
  }
  Result<StepResult> evaluate(const Batch& batch) override {
    return model_->evaluate(batch, params_);
  }
  Result<bool> stage(const Batch&, StagedBatch&) override { return false; }
  Status make_places(std::size_t, std::uint64_t, std::uint64_t) override { return {}; }
  Result<StepMemory> memory_of(std::uint64_t) override { return StepMemory(); }
  Status make_room(std::uint64_t) override { return {}; }
  std::optional<DeviceRoom> room() const override { return std::nullopt; }

 private:
  std::string name_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Model> model_;
  std::span<const float> params_;
  std::span<float> gradient_;
};

/// Samples of zeros: the memory of a step does not depend on their values.
struct Zeros {
  Zeros(const Model& model, std::uint64_t samples) : y(samples * model.targets()) {
    const std::size_t inputs = samples * model.features();
    if (model.vocabulary() > 0)
      tokens.resize(inputs);
    else
      x.resize(inputs);
    batch.x = x;
    batch.y = y;
    batch.tokens = tokens;
    batch.samples = samples;
  }
  std::vector<float> x;
  std::vector<std::uint32_t> y, tokens;
  Batch batch;
};

/// Adjacent tensors that are copied together.
struct Bucket {
  std::size_t begin = 0, end = 0;      // floats
  std::uint32_t first = 0, last = 0;   // tensors
  std::unique_ptr<StreamEvent> ready;  // computed
  std::unique_ptr<StreamEvent> there;  // summed, and in host memory
  std::uint64_t calls = 0;             // number of the group's calls up to its addition
  TimePoint begun{};                   // queued
};

/// A replica on a GPU: one stream computes, another copies and adds. Events order the two: a bucket
/// is copied when it is computed, and computing begins when the parameters are loaded. The thread
/// queues the step, delivers complete buckets between two tensors, then waits for the remaining
/// buckets in order.
class DeviceReplica final : public Replica, public Residence {
 public:
  DeviceReplica(Compute compute, ReplicaOptions options)
      : name_(compute.device->name()),
        device_(std::move(compute.device)),
        compute_(std::move(compute.stream)),
        options_(options),
        lane_(name_ + " transfer") {}
  ~DeviceReplica() override {
    if (transfer_) (void)transfer_->wait();
    (void)compute_->wait();
  }
  DeviceReplica(const DeviceReplica&) = delete;
  DeviceReplica& operator=(const DeviceReplica&) = delete;

  Status start(const Model& model, std::unique_ptr<Backend> backend) {
    model_ = model.clone_on(std::move(backend));
    std::size_t bytes = 0;
    for (const auto& tensor : model.manifest()) bytes += tensor.bytes();
    CENTROID_ASSIGN(params_, device_->allocate(bytes));
    CENTROID_ASSIGN(gradient_, device_->allocate(bytes));
    trained_ = trained_elements(model.manifest());
    CENTROID_ASSIGN(transfer_, device_->make_stream(Priority::kHigh));
    CENTROID_ASSIGN(loaded_, device_->make_event());
    CENTROID_ASSIGN(added_, device_->make_event());
    CENTROID_ASSIGN(advanced_, device_->make_event());
    return cut(model.manifest());
  }

  const std::string& name() const override { return name_; }

  Status use(std::span<const float> params) override {
    CENTROID_CHECK(params.size() * sizeof(float) == params_->size());
    const NcclSeat& seat = options_.seat;
    const TimePoint begin = Clock::now();
    if (seat.rank == 0)
      CENTROID_TRY(transfer_->copy(
          params_->data(), reinterpret_cast<const std::byte*>(params.data()), params_->size()));
    if (seat.group != nullptr) {
      const std::array<std::span<float>, 1> all{floats(*params_)};
      CENTROID_TRY(seat.group->broadcast(seat.rank, all, 0, transfer_->native()));
    }
    CENTROID_TRY(loaded_->record(*transfer_));
    CENTROID_TRY(loaded_->hold(*compute_));
    CENTROID_TRY(wait_for(*loaded_));  // the host memory may be reused; NCCL's watch sees the end
    lane_.span(trace::Stage::kExchange, begin, last_end_ = Clock::now());
    return {};
  }

  Result<StepResult> train(const Batch& batch, std::uint64_t total,
                           const std::function<void(TensorId)>& deliver) override {
    CENTROID_TRY(transfer_->wait());  // of a step that failed
    computed_at_.reset();
    queue_step(batch, total, !is_on_device_only_, [&] { note(hand_out(deliver)); });
    while (!failed_ && delivered_ < shipped_) {
      // The last bucket is copied when all is computed.
      if (delivered_ + 1 == shipped_)
        note(wait_for(*buckets_[delivered_].ready, 0));  // does not wait for additions
      note(poll_compute());
      if (failed_) break;
      note(wait_for(buckets_[delivered_]));
      note(poll_compute());
      note(hand_out(deliver));
    }
    // Tell the group that all calls are complete.
    if (options_.seat.group != nullptr && !failed_) note(wait_for(buckets_.back()));
    const StepResult result = model_->backend().result();
    CENTROID_TRY(model_->backend().status());
    if (failed_) return *failed_;
    CENTROID_CHECK(delivered_ == buckets_.size());
    return result;
  }

  std::optional<TimePoint> computed_at() const override { return computed_at_; }

  Result<StepResult> evaluate(const Batch& batch) override {
    const StepResult result = model_->evaluate(batch, floats(*params_));
    CENTROID_TRY(model_->backend().status());
    return result;
  }

  Residence* residence() override { return this; }

  Status reserve(std::size_t slots) override {
    slots_.clear();
    for (std::size_t k = 0; k < slots; ++k) {
      CENTROID_ASSIGN(slots_.emplace_back(), device_->allocate(params_->size()));
    }
    return {};
  }
  Status write_slot(std::size_t slot, std::span<const float> from) override {
    CENTROID_CHECK(from.size_bytes() == slots_.at(slot)->size());
    CENTROID_TRY(transfer_->copy(
        slots_[slot]->data(), reinterpret_cast<const std::byte*>(from.data()), from.size_bytes()));
    return transfer_->wait();
  }
  Status read_slot(std::size_t slot, std::span<float> to) override {
    return read(*slots_.at(slot), to);
  }
  Status read_params(std::span<float> to) override { return read(*params_, to); }

  Status queue(const Batch& batch, std::uint64_t total, const OptimizerStep& step) override {
    queue_step(batch, total, false, [] {});
    if (failed_) return *failed_;
    CENTROID_TRY(added_->record(*transfer_));
    CENTROID_TRY(added_->hold(*compute_));
    Update update{.rule = step.rule, .clip_norm = step.clip_norm};
    update.params = floats(*params_).data();
    update.gradient = floats(*gradient_).data();
    update.elements = trained_;
    CENTROID_CHECK(slots_.size() <= update.slots.size());
    for (std::size_t k = 0; k < slots_.size(); ++k) update.slots[k] = floats(*slots_[k]).data();
    model_->backend().update(update);
    if (trained_ < floats(*params_).size()) {
      Update buffers{.rule = rules::kBufferStep};
      buffers.params = floats(*params_).data() + trained_;
      buffers.gradient = floats(*gradient_).data() + trained_;
      buffers.elements = floats(*params_).size() - trained_;
      model_->backend().update(buffers);
    }
    return model_->backend().status();
  }

  Result<StepResult> collect() override {
    CENTROID_TRY(advanced_->record(*compute_));
    CENTROID_TRY(wait_for(*advanced_));  // with a group: its watch thread sees a failure
    const StepResult result = model_->backend().result();
    CENTROID_TRY(model_->backend().status());
    return result;
  }

  OnDevice gradient_on_device() override { return {device_.get(), floats(*gradient_).data()}; }
  Result<double> gradient_norm() override {
    const auto gradient = floats(*gradient_).first(trained_);
    const double norm = model_->backend().norm(gradient.data(), gradient.size());
    CENTROID_TRY(model_->backend().status());
    return norm;
  }
  void keep_gradient_on_device() override { is_on_device_only_ = true; }

  Result<bool> stage(const Batch& batch, StagedBatch& into) override {
    return staging_.put(batch, into);
  }
  Status make_places(std::size_t places, std::uint64_t samples, std::uint64_t most_bytes) override {
    return staging_.make_room(places, *model_, samples, most_bytes);
  }
  Result<StepMemory> memory_of(std::uint64_t samples) override {
    StepMemory memory;
    CENTROID_ASSIGN(const auto of_step, rehearse(samples, false));
    CENTROID_ASSIGN(const auto of_both, rehearse(samples, true));
    memory.step = of_step.alone;
    memory.with_evaluation = of_both.needed;
    memory.taken = of_both.taken;
    return memory;
  }
  Status make_room(std::uint64_t samples) override {
    if (room_for_ && samples <= *room_for_) return {};
    CENTROID_TRY(rehearse(samples, true));
    if (Status taken = model_->backend().reserve(); !taken.ok())
      return std::move(taken).error().with_context("memory for a step of " +
                                                   std::to_string(samples) + " samples");
    room_for_ = samples;
    return {};
  }
  std::optional<DeviceRoom> room() const override {
    const auto room = device_->room();
    return room.ok() ? std::optional(*room) : std::nullopt;
  }

 private:
  /// Divide the tensors into buckets, from last to first.
  Status cut(const Manifest& manifest) {
    std::size_t end = params_->size() / sizeof(float);
    for (std::size_t t = manifest.size(); t > 0; --t) {
      const std::size_t begin = end - manifest[t - 1].elements();
      const bool is_full =
          buckets_.empty() || (buckets_.back().end - begin) * sizeof(float) > options_.bucket_bytes;
      if (is_full) {
        Bucket bucket;
        bucket.end = end;
        bucket.last = static_cast<std::uint32_t>(t - 1);
        CENTROID_ASSIGN(bucket.ready, device_->make_event());
        CENTROID_ASSIGN(bucket.there, device_->make_event());
        buckets_.push_back(std::move(bucket));
      }
      buckets_.back().begin = end = begin;
      buckets_.back().first = static_cast<std::uint32_t>(t - 1);
    }
    return {};
  }

  Result<Backend::Memory> rehearse(std::uint64_t samples, bool evaluates) {
    const Zeros step(*model_, samples), rows(*model_, evaluates ? evaluate_samples(*model_) : 0);
    Backend& backend = model_->backend();
    return backend.rehearse([&] {
      model_->queue_step(step.batch, floats(*params_), floats(*gradient_), [](TensorId) {});
      model_->queue_evaluate(rows.batch, floats(*params_));
      (void)backend.norm(floats(*gradient_).data(), floats(*gradient_).size());  // of clipping
    });
  }

  /// Queue forward, backward and the additions; `between` after each bucket.
  template <class Between>
  void queue_step(const Batch& batch, std::uint64_t total, bool to_host, const Between& between) {
    shipped_ = delivered_ = 0;
    failed_.reset();
    model_->queue_step(batch, floats(*params_), floats(*gradient_), [&](TensorId tensor) {
      CENTROID_CHECK(shipped_ < buckets_.size());
      if (tensor.value != buckets_[shipped_].first) return;
      note(ship(buckets_[shipped_], batch.samples, total, to_host));
      ++shipped_;
      between();
    });
  }

  /// Copy from the device's memory, after all queued computation.
  Status read(const DeviceMemory& from, std::span<float> to) {
    CENTROID_CHECK(to.size_bytes() == from.size());
    CENTROID_TRY(advanced_->record(*compute_));
    CENTROID_TRY(advanced_->hold(*transfer_));
    CENTROID_TRY(
        transfer_->copy(reinterpret_cast<std::byte*>(to.data()), from.data(), from.size()));
    return transfer_->wait();
  }

  Status ship(Bucket& bucket, std::uint64_t samples, std::uint64_t total, bool to_host) {
    const auto own = floats(*gradient_).subspan(bucket.begin, bucket.end - bucket.begin);
    bucket.begun = Clock::now();
    CENTROID_TRY(bucket.ready->record(*compute_));
    CENTROID_TRY(bucket.ready->hold(*transfer_));
    const NcclSeat& seat = options_.seat;
    if (seat.group != nullptr && total > 0) {
      const std::array<std::span<float>, 1> all{own};
      CENTROID_TRY(seat.group->all_reduce(seat.rank, all, static_cast<double>(samples),
                                          static_cast<double>(total), transfer_->native()));
    }
    if (seat.group != nullptr) bucket.calls = seat.group->calls(seat.rank);
    if (!options_.gradient.empty() && to_host)
      CENTROID_TRY(
          transfer_->copy(reinterpret_cast<std::byte*>(options_.gradient.data() + bucket.begin),
                          reinterpret_cast<const std::byte*>(own.data()), own.size_bytes()));
    return bucket.there->record(*transfer_);
  }

  Status poll_compute() {
    if (computed_at_ || shipped_ < buckets_.size()) return {};
    CENTROID_ASSIGN(const bool is_done, buckets_.back().ready->done());
    if (is_done) computed_at_ = Clock::now();
    return {};
  }

  /// Deliver the buckets that are complete.
  Status hand_out(const std::function<void(TensorId)>& deliver) {
    while (!failed_ && delivered_ < shipped_) {
      const Bucket& bucket = buckets_[delivered_];
      CENTROID_ASSIGN(const bool is_there, bucket.there->done());
      if (!is_there) return {};
      CENTROID_TRY(poll_compute());  // before the span: computing ends no later than the copy
      if (options_.seat.group != nullptr)
        options_.seat.group->over(options_.seat.rank, bucket.calls);
      ++delivered_;
      // Spans follow each other: the host does not know when the GPU begins one.
      const TimePoint begin = std::max(bucket.begun, last_end_);
      lane_.span(trace::Stage::kExchange, begin, last_end_ = Clock::now());
      if (options_.gradient.empty()) continue;
      for (std::uint32_t t = bucket.last + 1; t > bucket.first; --t) deliver(TensorId(t - 1));
    }
    return {};
  }

  /// `calls`: number of the group's calls before the event; none: all so far.
  Status wait_for(StreamEvent& event, std::optional<std::uint64_t> calls = std::nullopt) {
    const NcclSeat& seat = options_.seat;
    if (seat.group == nullptr) return event.wait();
    return seat.group->wait(seat.rank, [&event] { return event.done(); }, calls);
  }
  Status wait_for(const Bucket& bucket) { return wait_for(*bucket.there, bucket.calls); }

  void note(Status status) {
    if (!status.ok() && !failed_) failed_ = std::move(status).error();
  }

  std::string name_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> compute_;
  ReplicaOptions options_;
  std::unique_ptr<DeviceMemory> params_, gradient_;
  std::size_t trained_ = 0;                           // floats before the buffers
  std::vector<std::unique_ptr<DeviceMemory>> slots_;  // of a resident optimizer
  std::unique_ptr<Stream> transfer_;
  std::unique_ptr<StreamEvent> loaded_;            // parameters are loaded
  std::unique_ptr<StreamEvent> added_, advanced_;  // gradients summed; step done
  std::vector<Bucket> buckets_;
  std::unique_ptr<Model> model_;
  bool is_on_device_only_ = false;  // the gradient is not copied to the host
  trace::Lane lane_;                // of loading parameters, and of adding and copying gradients
  TimePoint last_end_{};
  BatchStaging staging_{*device_};
  std::optional<std::uint64_t> room_for_;  // samples of a step
  // Of the present step:
  std::size_t shipped_ = 0, delivered_ = 0;  // buckets
  std::optional<TimePoint> computed_at_;
  std::optional<Error> failed_;
};

}  // namespace

Result<std::unique_ptr<Replica>> make_replica(const Model& model, Compute compute,
                                              ReplicaOptions options) {
  if (compute.device->is_host())
    return std::unique_ptr<Replica>(new HostReplica(model, std::move(compute), options.gradient));
  const Device& device = *compute.device;
  auto backend = std::move(compute.backend);
  auto replica = std::make_unique<DeviceReplica>(std::move(compute), options);
  if (Status started = replica->start(model, std::move(backend)); !started.ok()) {
    std::string has = device.name();
    if (const auto room = device.room(); room.ok())
      has += ", of whose " + std::to_string(room->total) + " bytes " + std::to_string(room->free) +
             " are free";
    return std::move(started).error().with_context(has);
  }
  return std::unique_ptr<Replica>(std::move(replica));
}

}  // namespace centroid::worker
