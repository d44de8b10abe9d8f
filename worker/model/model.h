#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/tensor/tensor.h"

namespace centroid::worker {

struct Batch {
  std::span<const float> x;          ///< [samples, features]
  std::span<const std::uint32_t> y;  ///< [samples]
  std::uint64_t samples = 0;
};

struct StepResult {
  double loss_sum = 0;        ///< sum over samples of the cross-entropy, nats
  std::uint64_t correct = 0;  ///< samples whose largest logit is the label's
};

/// One replica's computation. Parameters and gradients live in flat float32 memory laid out as the
/// manifest, end to end. Not thread-safe: one replica, one thread.
class Model {
 public:
  virtual ~Model() = default;
  virtual const Manifest& manifest() const = 0;
  virtual std::uint64_t features() const = 0;
  virtual std::uint32_t classes() const = 0;
  virtual std::string spec() const = 0;  ///< "mlp:64-512-512-10,relu"

  /// Deterministic initialisation from the seed: He for ReLU and GELU layers, Glorot for the last,
  /// zeros for biases.
  virtual void initialize(std::uint64_t seed, std::span<float> params) const = 0;

  /// Forward and backward over one batch: gradients of the *mean* loss over the batch go to
  /// `gradients` (overwritten). `on_ready(tensor)` is called once per tensor as soon as its
  /// gradient is final, last layer first. An empty batch gives zero gradients and still calls
  /// on_ready for every tensor.
  virtual StepResult step(const Batch& batch, std::span<const float> params,
                          std::span<float> gradients,
                          const std::function<void(TensorId)>& on_ready) = 0;

  /// Forward only.
  virtual StepResult evaluate(const Batch& batch, std::span<const float> params) = 0;

  virtual std::unique_ptr<Model> clone() const = 0;  ///< another replica with its own work space
};

/// "mlp:64-512-512-10" with optional ",relu" (default) or ",gelu". fails invalid_argument saying
/// what is wrong where.
Result<std::unique_ptr<Model>> make_model(const std::string& spec);

}  // namespace centroid::worker
