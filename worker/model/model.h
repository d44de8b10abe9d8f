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

namespace centroid::worker {

/// A label that is not judged: behind the end of a short sequence.
constexpr std::uint32_t kNoTarget = std::numeric_limits<std::uint32_t>::max();

struct Batch {
  std::span<const float> x;          ///< [samples, features]; empty when the model takes tokens
  std::span<const std::uint32_t> y;  ///< [samples, targets]
  std::uint64_t samples = 0;
  std::span<const std::uint32_t> tokens{};  ///< [samples, features]; any known token behind the end
  std::span<const std::uint32_t> lengths{};  ///< [samples], 1..features; empty: all are whole
  /// Dropout: the random numbers of sample i are those of (noise, ids[i]), whoever computes it.
  /// Without ids sample i is i.
  std::span<const std::uint64_t> ids{};
  std::uint64_t noise = 0;
};

struct StepResult {
  double loss_sum = 0;        ///< sum over targets of the cross-entropy, nats
  std::uint64_t correct = 0;  ///< targets whose largest logit is the label's
  std::uint64_t targets = 0;  ///< judged: samples, or the tokens of a language model
};

/// One replica's computation. Parameters and gradients live in flat float32 memory laid out as the
/// manifest, end to end. Not thread-safe: one replica, one thread.
class Model {
 public:
  virtual ~Model() = default;
  virtual const Manifest& manifest() const = 0;  ///< of what is trained
  virtual std::uint64_t features() const = 0;    ///< of one sample; tokens of the longest sequence
  virtual std::uint32_t classes() const = 0;
  virtual std::string spec() const = 0;  ///< "mlp:64-512-512-10,relu"
  /// Samples are sequences of tokens below this; 0: rows of numbers.
  virtual std::uint32_t vocabulary() const { return 0; }
  virtual std::uint64_t targets() const { return 1; }  ///< labels of one sample
  /// Memory that `step` (or `evaluate`) of so many samples takes besides parameters and gradients.
  virtual std::uint64_t work_bytes(std::uint64_t samples, bool with_gradient) const = 0;
  /// Memory of what is not trained, shared by all clones.
  virtual std::uint64_t frozen_bytes() const { return 0; }

  /// Deterministic initialisation from the seed.
  virtual void initialize(std::uint64_t seed, std::span<float> params) const = 0;

  /// Forward and backward over one batch: gradients of the *mean* loss over the batch's samples go
  /// to `gradients` (overwritten); of a sample with several targets the mean over them counts, one
  /// that is not judged as 0. `on_ready(tensor)` is called once per tensor as soon as its gradient
  /// is final, last layer first. An empty batch gives zero gradients and still calls on_ready for
  /// every tensor.
  virtual StepResult step(const Batch& batch, std::span<const float> params,
                          std::span<float> gradients,
                          const std::function<void(TensorId)>& on_ready) = 0;

  /// Forward only, without dropout.
  virtual StepResult evaluate(const Batch& batch, std::span<const float> params) = 0;

  virtual std::unique_ptr<Model> clone() const = 0;  ///< another replica with its own work space
};

/// "mlp:64-512-512-10" with optional ",relu" (default) or ",gelu", or "transformer:FIELD=VALUE,..."
/// (transformer_config.h). fails invalid_argument saying what is wrong where.
/// `base_file`: what a transformer begins at or its adapters stand beside (adapters.h); empty:
/// none.
Result<std::unique_ptr<Model>> make_model(const std::string& spec,
                                          const std::string& base_file = "");

}  // namespace centroid::worker
