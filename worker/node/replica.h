#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/device/device.h"
#include "common/optim/rules.h"
#include "worker/model/backend.h"
#include "worker/model/model.h"
#include "worker/node/batch_staging.h"
#include "worker/node/nccl_group.h"

namespace centroid::worker {

/// A device, its compute stream and its backend; each member uses the ones before it.
struct Compute {
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Backend> backend;
};
/// "cpu:0", "cuda:1".
/// fails  as make_device and make_cuda_backend
Result<Compute> open_compute(const std::string& spec, Matmul matmul);

/// A GPU's rank in a NCCL group; no group: it does not add.
struct NcclSeat {
  NcclGroup* group = nullptr;
  std::size_t rank = 0;
};

/// One step of an optimizer over all trained parameters (Update).
struct OptimizerStep {
  rules::Step rule{};
  double clip_norm = 0;
};

/// Training with parameters and optimizer slots that stay on the device between steps. thread: as
/// Replica.
class Residence {
 public:
  /// Allocate memory for `slots` slots, all 0; earlier ones are freed.
  virtual Status reserve(std::size_t slots) = 0;
  virtual Status write_slot(std::size_t slot, std::span<const float> from) = 0;
  virtual Status read_slot(std::size_t slot, std::span<float> to) = 0;
  /// Read the parameters; Replica::use writes them.
  virtual Status read_params(std::span<float> to) = 0;
  /// Queue forward, backward (as Replica::train, without delivery) and the step, which every rank
  /// of a group makes with the same bits. After the call only the device copies of `batch` must
  /// stay valid.
  virtual Status queue(const Batch& batch, std::uint64_t total, const OptimizerStep& step) = 0;
  /// Wait for the queued steps. Returns the sum of their losses.
  virtual Result<StepResult> collect() = 0;

 protected:
  ~Residence() = default;
};

/// One device of a worker: a model with its memory. thread: one at a time, except `name`.
class Replica {
 public:
  virtual ~Replica() = default;
  virtual const std::string& name() const = 0;
  /// Later steps read these parameters (host memory, which must not change meanwhile).
  virtual Status use(std::span<const float> params) = 0;
  /// Forward and backward. `deliver(tensor)`, from this thread, from the last of the manifest to
  /// the first: its gradient is in the host memory of ReplicaOptions. With a seat the gradient is
  /// the mean over the group, weighted by each rank's share of `total` samples, and only rank 0
  /// delivers.
  virtual Result<StepResult> train(const Batch& batch, std::uint64_t total,
                                   const std::function<void(TensorId)>& deliver) = 0;
  /// Time when the computation of the last `train` was seen to be complete; additions and copies
  /// follow it. None: when `train` returned.
  virtual std::optional<TimePoint> computed_at() const { return std::nullopt; }
  virtual Result<StepResult> evaluate(const Batch& batch) = 0;
  /// Location of the gradient on a device; null on the CPU.
  struct OnDevice {
    Device* device = nullptr;
    const float* gradient = nullptr;
  };
  virtual OnDevice gradient_on_device() { return {}; }
  /// Norm of the device's gradient of the last step; -1 on the CPU, whose gradient is in host
  /// memory.
  virtual Result<double> gradient_norm() { return -1.0; }
  /// From now on `train` does not copy the gradient to the host, and delivers a tensor when it is
  /// complete on the device. Call between steps.
  virtual void keep_gradient_on_device() {}
  /// Null on the CPU.
  virtual Residence* residence() { return nullptr; }
  /// Copy a batch to the device ahead of time; returns when the copy is complete. False: no place
  /// (make_places) is free, and it stays on the host. thread: any one, concurrently with the
  /// replica's
  virtual Result<bool> stage(const Batch& batch, StagedBatch& into) = 0;
  /// As BatchStaging::make_room. thread: while no step runs
  virtual Status make_places(std::size_t places, std::uint64_t samples,
                             std::uint64_t most_bytes) = 0;
  /// Memory of the device besides parameters and gradients, in bytes; 0 of the CPU.
  struct StepMemory {
    std::uint64_t step = 0;             ///< of a training step
    std::uint64_t with_evaluation = 0;  ///< of both, which share memory
    std::uint64_t taken = 0;            ///< part of it that is allocated already
  };
  /// Memory of steps of `samples` samples. Allocates and computes nothing. Call between steps.
  virtual Result<StepMemory> memory_of(std::uint64_t samples) = 0;
  /// Allocate it, so that evaluations and steps of at most `samples` samples allocate none: to
  /// allocate or free memory while GPUs add may block all of them. Call between steps of all
  /// devices.
  virtual Status make_room(std::uint64_t samples) = 0;
  /// Memory of the device; none for the CPU, which uses host memory.
  virtual std::optional<DeviceRoom> room() const = 0;
};

struct ReplicaOptions {
  std::span<float> gradient;  ///< host memory, pinned for a GPU; empty: rank > 0 of a group
  NcclSeat seat;
  /// Approximate bytes of a bucket. A GPU's gradients are copied by bucket while it computes the
  /// others.
  std::size_t bucket_bytes = 4u << 20;
};
/// fails  resource_exhausted: the device lacks memory (names the free bytes)
Result<std::unique_ptr<Replica>> make_replica(const Model& model, Compute compute,
                                              ReplicaOptions options);

}  // namespace centroid::worker
