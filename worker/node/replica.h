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

/// A device, the stream it computes on, and what computes there; the later stand on the earlier.
struct Compute {
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Backend> backend;
};
/// "cpu:0", "cuda:1".
/// fails  as make_device and make_cuda_backend
Result<Compute> open_compute(const std::string& spec, Matmul matmul);

/// The place of a GPU among those that add through NCCL; no group: it adds with nobody.
struct NcclSeat {
  NcclGroup* group = nullptr;
  std::size_t rank = 0;
};

/// One step of an optimizer over all of a model that is trained (Update).
struct OptimizerStep {
  rules::Step rule{};
  double clip_norm = 0;
};

/// Training that stays on a device: parameters and the optimizer's slots are there from step to
/// step. thread: as Replica's.
class Residence {
 public:
  /// Memory for so many slots, all 0; those that were there are gone.
  virtual Status reserve(std::size_t slots) = 0;
  virtual Status write_slot(std::size_t slot, std::span<const float> from) = 0;
  virtual Status read_slot(std::size_t slot, std::span<float> to) = 0;
  /// The parameters; they come with Replica::use.
  virtual Status read_params(std::span<float> to) = 0;
  /// Queue forward and backward, as Replica::train but that nothing is delivered, and the step: on
  /// every rank of a group the same one, with the same bits. `batch` may go when it returns, but
  /// for what of it is on the device.
  virtual Status queue(const Batch& batch, std::uint64_t total, const OptimizerStep& step) = 0;
  /// Wait for what was queued: the losses of all of it.
  virtual Result<StepResult> collect() = 0;

 protected:
  ~Residence() = default;
};

/// One device of a worker: a model with its memory. thread: one at a time, but for `name`.
class Replica {
 public:
  virtual ~Replica() = default;
  virtual const std::string& name() const = 0;
  /// The steps to come read these parameters (host memory, which stays as it is meanwhile).
  virtual Status use(std::span<const float> params) = 0;
  /// Forward and backward. `deliver(tensor)`, from this thread, from the last of the manifest to
  /// the first: its gradient is in the host memory that was given to make_replica. With a seat that
  /// is the mean over the group, where each rank counts by its share of `total` samples, and only
  /// rank 0 delivers.
  virtual Result<StepResult> train(const Batch& batch, std::uint64_t total,
                                   const std::function<void(TensorId)>& deliver) = 0;
  /// When the last `train` had computed, as far as is seen here; additions and copies go on behind
  /// it. Nothing: it was over when it returned.
  virtual std::optional<TimePoint> computed_at() const { return std::nullopt; }
  virtual Result<StepResult> evaluate(const Batch& batch) = 0;
  /// Where the gradient is on a device, for who takes it from there; nothing on the CPU.
  struct OnDevice {
    Device* device = nullptr;
    const float* gradient = nullptr;
  };
  virtual OnDevice gradient_on_device() { return {}; }
  /// Its norm there, of the last step; the CPU's is where everybody has it.
  virtual Result<double> gradient_norm() { return -1.0; }
  /// From now on `train` leaves it there: delivered is what is complete on the device. Between
  /// steps.
  virtual void keep_gradient_on_device() {}
  /// Null on the CPU.
  virtual Residence* residence() { return nullptr; }
  /// Bring a batch to the device before its turn; done when it returns. thread: any one, beside the
  /// replica's. False: it stays on the host, where there is no place (make_places) for it.
  virtual Result<bool> stage(const Batch& batch, StagedBatch& into) = 0;
  /// As BatchStaging::make_room. thread: while no step is under way
  virtual Status make_places(std::size_t places, std::uint64_t samples,
                             std::uint64_t most_bytes) = 0;
  /// Memory of the device besides parameters and gradients, in bytes; 0 of the CPU.
  struct StepMemory {
    std::uint64_t step = 0;             ///< of a training step
    std::uint64_t with_evaluation = 0;  ///< of both: they use the same memory, one after the other
    std::uint64_t taken = 0;            ///< of that already
  };
  /// What steps of so many samples take. Nothing is taken, and nothing computed. Between steps.
  virtual Result<StepMemory> memory_of(std::uint64_t samples) = 0;
  /// Take it, so that steps of no more samples and evaluations take none: who takes or frees memory
  /// while GPUs add may hold up all of them. Between steps of all devices.
  virtual Status make_room(std::uint64_t samples) = 0;
  /// Memory of the device; nothing for the CPU, whose everything is the host's.
  virtual std::optional<DeviceRoom> room() const = 0;
};

struct ReplicaOptions {
  std::span<float> gradient;  ///< host memory, pinned for a GPU; empty: rank > 0 of a group
  NcclSeat seat;
  /// Gradients of a GPU travel in pieces of about so many bytes, while it computes the others.
  std::size_t bucket_bytes = 4u << 20;
};
/// fails  resource_exhausted: the device has not the memory (says how much was free)
Result<std::unique_ptr<Replica>> make_replica(const Model& model, Compute compute,
                                              ReplicaOptions options);

}  // namespace centroid::worker
