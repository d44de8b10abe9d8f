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
  std::uint64_t samples = 0;   ///< judged: of a language model the tokens it predicted
  double compute_seconds = 0;  ///< of the slowest device
};

/// Steps that are queued on a GPU before their losses are waited for: enough that what a wait and
/// the first kernels behind it take is a small part, few enough for their batches to be there.
inline constexpr std::size_t kQueuedSteps = 8;

/// Training that stays on the GPUs of a group from step to step: parameters and the slots of an
/// optimizer are there, the same bits on each. thread: the caller's of ReplicaGroup, between steps.
class ResidentTraining {
 public:
  /// Memory for so many slots, all 0.
  /// fails  failed_precondition: a GPU has not the memory for them beside a step (both numbers, and
  ///        what to change)
  virtual Status reserve(std::size_t slots) = 0;
  /// The steps to come begin with these parameters, until a step or an evaluation of the group
  /// brings others.
  virtual Status load(std::span<const float> params) = 0;
  /// Of one of the devices: they have the same bits.
  virtual Status store(std::span<float> params, std::size_t device = 0) = 0;
  virtual Status load_slot(std::size_t slot, std::span<const float> from) = 0;
  virtual Status store_slot(std::size_t slot, std::span<float> to, std::size_t device = 0) = 0;
  /// For each batch: forward and backward, the mean gradient of all devices, and the step of the
  /// optimizer with it. They are queued one behind the other, and nothing but the losses of all of
  /// them comes back, once. At most kQueuedSteps, and as many `steps` as batches.
  virtual Result<GroupStep> advance(const Dataset& data,
                                    std::span<const std::span<const std::uint64_t>> batches,
                                    std::span<const OptimizerStep> steps) = 0;

 protected:
  ~ResidentTraining() = default;
};

/// The devices of one worker: one thread and one full model replica each, one reduced gradient.
/// Equal weights per sample.
///
/// The share of the worker is split over the devices by the remainder rule; the reduced gradient of
/// a tensor is the mean over all samples of the worker: sum over devices in device order of (n_d /
/// n) * g_d. With one device the gradient is used in place. `on_ready(tensor)` is called exactly
/// once per tensor and step, from some device's thread, as soon as the tensor is reduced; calls are
/// serialised.
///
/// GPUs have parameters of their own, which come from the host's before every step; their gradients
/// are copied back bucket by bucket while backward goes on. Two or more add through NCCL, and the
/// first one's copy is the worker's; without NCCL all are copied and added on the host.
class ReplicaGroup {
 public:
  virtual ~ReplicaGroup() = default;
  virtual std::size_t devices() const = 0;
  /// Parameters all replicas read: written by the exchange between steps (one copy: replicas share
  /// host memory).
  virtual std::span<float> params() = 0;
  /// So many of them are trained; those behind are buffers (common/tensor/tensor.h).
  virtual std::size_t trained() { return params().size(); }
  /// Read parameters from `memory` (the same length) from the next step on; it must outlive its
  /// use. Between steps only.
  virtual void use_params(std::span<float> memory) = 0;
  /// Host memory for more of what is copied to the devices and back (HostMemory).
  virtual Buffer host_memory(std::size_t bytes) { return Buffer(bytes); }
  /// The reduced mean gradient of the last step.
  virtual std::span<float> gradients() = 0;
  /// Its Euclidean norm, without buffers: that of the mean, not the mean of the devices' norms. A
  /// pass over it, where it is. Between steps only.
  virtual Result<double> gradient_norm() = 0;
  /// The same on a device, where one device has all of it; complete when `on_ready` says so. Null:
  /// there is none.
  virtual Replica::OnDevice device_gradient() { return {}; }
  /// The steps to come leave it there: `gradients` is not written any more. Between steps only.
  virtual void keep_gradient_on_device() {}
  /// Null where there is no GPU, or where the host adds the gradients of several.
  virtual ResidentTraining* resident() { return nullptr; }
  /// Key of the random numbers of the steps to come (dropout); with it a sample draws the same on
  /// every device and worker. Between steps only.
  virtual void use_noise(std::uint64_t key) = 0;
  /// The steps to come train on these samples, in this order: they are loaded in the background
  /// (load_ahead). What comes otherwise is loaded when it comes.
  virtual void expect(const Dataset& data,
                      const std::vector<std::span<const std::uint64_t>>& steps) = 0;
  /// Steps so far whose batch was on the GPUs before its turn.
  virtual std::uint64_t staged() const { return 0; }
  /// Load so many batches ahead from now on. Between steps only.
  virtual void set_load_ahead(std::uint64_t) {}
  /// Batches of so many samples that may be loaded ahead: fewer, where they are longer than
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
  std::uint64_t load_ahead = 0;   ///< batches that may be loaded before they are asked for
  /// Samples of a step, of all devices; GPUs that have not the memory for it are refused. 0: not
  /// known.
  std::uint64_t batch = 0;
  /// A training step takes so many times as long, the rest of it asleep (tests of unequal
  /// machines).
  double slowdown = 1;
  Matmul matmul = Matmul::kF32;
  /// NCCL's library, through which two GPUs or more add; empty: they add on the host, as devices of
  /// other kinds do, and as GPUs do where it cannot be used (which is logged).
  std::string nccl = "libnccl.so.2";
  std::chrono::milliseconds nccl_timeout{600'000};  ///< of one step's additions
  std::size_t bucket_bytes = 4u << 20;              ///< ReplicaOptions
  /// Bound of host memory that is pinned for GPUs: parameters, gradients, what the exchange takes.
  std::size_t pinned_bytes = std::numeric_limits<std::size_t>::max();
  std::function<Result<Compute>(const std::string& spec, Matmul matmul)> open = open_compute;
};
/// fails  as make_device; invalid_argument for a device named twice; failed_precondition: a step
///        does not fit into a GPU (both numbers, and what to change)
Result<std::unique_ptr<ReplicaGroup>> make_replica_group(const Model& model, GroupOptions options);

}  // namespace centroid::worker
