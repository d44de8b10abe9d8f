#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/tensor/buffer.h"
#include "worker/data/data_source.h"
#include "worker/model/model.h"
#include "worker/node/group_memory.h"
#include "worker/node/replica.h"

namespace centroid::worker {

struct GroupStep {
  double loss_sum = 0;
  std::uint64_t correct = 0;
  std::uint64_t samples = 0;   ///< that count: of a language model the predicted tokens
  double compute_seconds = 0;  ///< of the slowest device
};

/// Steps that are queued on a GPU before it is waited for: enough that the wait and the first
/// kernels after it are a small part of the time, few enough for their batches to fit in its
/// memory.
inline constexpr std::size_t kQueuedSteps = 8;

/// Training with parameters and optimizer slots that stay on the GPUs of a group between steps,
/// with the same bits on each. thread: that of ReplicaGroup's caller, between steps.
class ResidentTraining {
 public:
  /// Allocate memory for `slots` slots, all 0.
  /// fails  failed_precondition: a GPU lacks memory for them and a step (names both numbers and
  ///        what to change)
  virtual Status reserve(std::size_t slots) = 0;
  /// Load the parameters that later steps start from. A step or an evaluation of the group
  /// overwrites them.
  virtual Status load(std::span<const float> params) = 0;
  /// Read the parameters from one of the devices, which have the same bits.
  virtual Status store(std::span<float> params, std::size_t device = 0) = 0;
  virtual Status load_slot(std::size_t slot, std::span<const float> from) = 0;
  virtual Status store_slot(std::size_t slot, std::span<float> to, std::size_t device = 0) = 0;
  /// For each batch: forward and backward, the mean gradient of all devices, and an optimizer step
  /// with it. All are queued; only the sum of their losses is copied back. At most kQueuedSteps
  /// batches, and as many `steps` as batches.
  virtual Result<GroupStep> advance(const Dataset& data,
                                    std::span<const std::span<const std::uint64_t>> batches,
                                    std::span<const OptimizerStep> steps) = 0;

 protected:
  ~ResidentTraining() = default;
};

/// The devices of one worker, each with a thread and a full model replica, and their reduced
/// gradient. Samples have equal weight.
///
/// The worker's share is split over the devices as by part_of; the reduced gradient of a tensor is
/// the mean over all samples of the worker: sum over devices in device order of (n_d / n) * g_d.
/// With one device the gradient is used in place. `on_ready(tensor)` is called exactly once per
/// tensor and step, from some device's thread, as soon as the tensor is reduced; calls are
/// serialised.
///
/// The host's parameters are copied to GPUs before every step; gradients are copied back by bucket
/// during the backward pass. Two or more GPUs add through NCCL, and the first one's gradient is
/// copied to the host; without NCCL all gradients are copied and added on the host.
class ReplicaGroup {
 public:
  virtual ~ReplicaGroup() = default;
  virtual std::size_t devices() const = 0;
  /// Parameters that all replicas read; the exchange writes them between steps. Replicas share this
  /// memory.
  virtual std::span<float> params() = 0;
  /// Number of trained parameters; buffers follow them (common/tensor/tensor.h).
  virtual std::size_t trained() { return params().size(); }
  /// Read parameters from `memory` (of the same length) from the next step on; it must outlive its
  /// use. Call only between steps.
  virtual void use_params(std::span<float> memory) = 0;
  /// Host memory for other data that is copied to and from the devices (HostMemory).
  virtual Buffer host_memory(std::size_t bytes) { return Buffer(bytes); }
  /// The reduced mean gradient of the last step.
  virtual std::span<float> gradients() = 0;
  /// Its Euclidean norm, without buffers: that of the mean, not the mean of the devices' norms.
  /// Reads the gradient once, on its device. Call only between steps.
  virtual Result<double> gradient_norm() = 0;
  /// The reduced gradient on a device, if one device has all of it; a tensor is complete when
  /// `on_ready` is called. Null: no device has it.
  virtual Replica::OnDevice device_gradient() { return {}; }
  /// Later steps leave the gradient on the device and do not write `gradients`. Call only between
  /// steps.
  virtual void keep_gradient_on_device() {}
  /// Null without a GPU, or if the host adds the gradients of several.
  virtual ResidentTraining* resident() { return nullptr; }
  /// Set the key of the random numbers of later steps (dropout). With the same key a sample gets
  /// the same numbers on every device and worker. Call only between steps.
  virtual void use_noise(std::uint64_t key) = 0;
  /// Announce the samples of the next steps, in order. They are loaded in the background
  /// (load_ahead); other samples are loaded on demand.
  virtual void expect(const Dataset& data,
                      const std::vector<std::span<const std::uint64_t>>& steps) = 0;
  /// Number of steps whose batch was on the GPUs ahead of time.
  virtual std::uint64_t staged() const { return 0; }
  /// Change the number of batches to load ahead. Call only between steps.
  virtual void set_load_ahead(std::uint64_t) {}
  /// Number of batches of `samples` samples that may be loaded ahead: fewer if they are larger than
  /// GroupOptions::batch.
  virtual std::uint64_t load_ahead(std::uint64_t samples) const {
    (void)samples;
    return 0;
  }
  /// Forward and backward on `samples` (indices into the data set). Blocks until all devices are
  /// done.
  virtual Result<GroupStep> step(const Dataset& data, std::span<const std::uint64_t> samples,
                                 const std::function<void(TensorId)>& on_ready) = 0;
  /// Forward over [begin, end) of the data set, split over the devices.
  virtual Result<GroupStep> evaluate(const Dataset& data, std::uint64_t begin,
                                     std::uint64_t end) = 0;
};

struct GroupOptions {
  std::string devices = "cpu:0";  ///< "cpu:0,cpu:1", "cuda:0,cuda:1"
  std::uint64_t load_ahead = 0;   ///< maximum number of batches to load ahead
  /// Samples of a step on all devices; GPUs that lack memory for it are refused. 0: not known.
  std::uint64_t batch = 0;
  /// Factor of the time of a training step; the additional time is slept (tests of unequal
  /// machines).
  double slowdown = 1;
  Matmul matmul = Matmul::kF32;
  /// NCCL's library, through which two or more GPUs add. Empty: they add on the host, like other
  /// devices. If it cannot be used, GPUs add on the host too, which is logged.
  std::string nccl = "libnccl.so.2";
  std::chrono::milliseconds nccl_timeout{600'000};  ///< of one step's additions
  std::size_t bucket_bytes = 4u << 20;              ///< ReplicaOptions
  /// Limit of host memory that is pinned for GPUs: parameters, gradients, memory of the exchange.
  std::size_t pinned_bytes = std::numeric_limits<std::size_t>::max();
  std::function<Result<Compute>(const std::string& spec, Matmul matmul)> open = open_compute;
};
/// fails  as make_device; invalid_argument for a device named twice; failed_precondition: a step
///        does not fit into a GPU (names both numbers and what to change)
Result<std::unique_ptr<ReplicaGroup>> make_replica_group(const Model& model, GroupOptions options);

}  // namespace centroid::worker
