#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/tensor/tensor.h"
#include "worker/model/layered.h"

namespace centroid::worker {

/// A label that does not count: after the end of a short sequence.
constexpr std::uint32_t kNoTarget = std::numeric_limits<std::uint32_t>::max();

/// Addresses of a batch on a device.
struct Inputs {
  const float* x = nullptr;               ///< [samples, features]
  const std::uint32_t* y = nullptr;       ///< [samples, targets]
  const std::uint32_t* tokens = nullptr;  ///< [samples, context]
  const std::uint64_t* keys = nullptr;    ///< [samples]: of dropout
  const std::uint32_t* last = nullptr;    ///< [samples]: the row of each sample's last token
};

struct Batch {
  std::span<const float> x;          ///< [samples, features]; empty when the model takes tokens
  std::span<const std::uint32_t> y;  ///< [samples, targets]
  std::uint64_t samples = 0;
  std::span<const std::uint32_t> tokens{};   ///< [samples, features]; any valid token after the end
  std::span<const std::uint32_t> lengths{};  ///< [samples], 1..features; empty: all are full
  /// Dropout: the random numbers of sample i depend only on (noise, ids[i]), not on the worker.
  /// Without ids, ids[i] = i.
  std::span<const std::uint64_t> ids{};
  std::uint64_t noise = 0;
  /// Copies of x, y and tokens on the backend's device; null: none.
  const Inputs* resident = nullptr;
};

struct StepResult {
  double loss_sum = 0;        ///< sum over targets of the cross-entropy, nats
  std::uint64_t correct = 0;  ///< targets whose largest logit is the label's
  std::uint64_t targets = 0;  ///< that count: samples, or the tokens of a language model
};

class Backend;

/// One replica's computation, on the device of its backend. Parameters and gradients live in flat
/// float32 memory of that device, laid out as the manifest, end to end; batches in host memory. Not
/// thread-safe: one replica, one thread.
class Model {
 public:
  virtual ~Model() = default;
  /// Trained tensors, followed by buffers (common/tensor/tensor.h), whose "gradient" in a step is
  /// old - new.
  virtual const Manifest& manifest() const = 0;
  virtual std::uint64_t features() const = 0;  ///< of one sample; tokens of the longest sequence
  virtual std::uint32_t classes() const = 0;
  virtual std::string spec() const = 0;  ///< "mlp:64-512-512-10,relu"
  /// Number of tokens; 0: samples are rows of numbers.
  virtual std::uint32_t vocabulary() const { return 0; }
  virtual std::uint64_t targets() const { return 1; }  ///< labels of one sample
  /// Memory that `step` (or `evaluate`) of `samples` samples needs besides parameters and
  /// gradients.
  virtual std::uint64_t work_bytes(std::uint64_t samples, bool with_gradient) const = 0;
  /// Memory of frozen weights, shared by all clones.
  virtual std::uint64_t frozen_bytes() const { return 0; }

  /// Deterministic initialisation from the seed, of host memory.
  virtual void initialize(std::uint64_t seed, std::span<float> params) const = 0;

  /// Forward and backward over one batch: gradients of the *mean* loss over the batch's samples
  /// overwrite `gradients`. The loss of a sample with several targets is their mean; a target that
  /// does not count has loss 0. `on_ready(tensor)` is called once per tensor as soon as its
  /// gradient is final, the last of the manifest first; on a GPU as soon as its work is queued. An
  /// empty batch gives zero gradients and still calls on_ready for every tensor.
  virtual void queue_step(const Batch& batch, std::span<const float> params,
                          std::span<float> gradients,
                          const std::function<void(TensorId)>& on_ready) = 0;
  /// Forward only, without dropout.
  virtual void queue_evaluate(const Batch& batch, std::span<const float> params) = 0;
  virtual Backend& backend() = 0;
  /// To run a step in passes; null: this model cannot.
  virtual Layered* layered() { return nullptr; }

  /// The same, and wait for the results.
  StepResult step(const Batch& batch, std::span<const float> params, std::span<float> gradients,
                  const std::function<void(TensorId)>& on_ready);
  StepResult evaluate(const Batch& batch, std::span<const float> params);

  /// Another replica with its own work space, on the backend's device; `clone`: on the CPU.
  virtual std::unique_ptr<Model> clone_on(std::unique_ptr<Backend> backend) const = 0;
  std::unique_ptr<Model> clone() const;
};

/// "mlp:64-512-512-10" with optional ",relu" (default) or ",gelu" and ",norm=batch", or
/// "transformer:FIELD=VALUE,..." (transformer_config.h). `base_file`: initial weights of a
/// transformer, or the frozen ones of its adapters (adapters.h); empty: none.
/// fails  invalid_argument: names the field and the error.
Result<std::unique_ptr<Model>> make_model(const std::string& spec,
                                          const std::string& base_file = "");

}  // namespace centroid::worker
