#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/tensor/tensor.h"
#include "worker/model/tensor_part.h"

namespace centroid::worker {

struct Batch;

/// Part of a step: a layer's forward, its backward, or both.
struct Pass {
  std::vector<std::uint32_t> reads;   ///< layers whose parameters it uses
  std::vector<std::uint32_t> writes;  ///< layers of whose gradients it computes a part
};

/// Addresses of a manifest's tensors, on the model's device. The tensors of one layer are adjacent,
/// in the manifest's order.
struct TensorPlaces {
  std::vector<const float*> params;
  std::vector<float*> gradients;

  /// All tensors end to end. `gradients` null: none.
  void set(const Manifest& manifest, const float* params, float* gradients);
};

/// A model whose step runs in passes, which need only the layers that they name. The passes of a
/// step in order give the bits of Model::queue_step.
///
/// gradient  the first pass that writes a layer overwrites its tensors' gradients, later ones add
/// order     of a step with n passes, pass i computes layer i forward, and pass n - 1 - i backward;
///           one pass may do both for the last layer
/// thread    as the model
class Layered {
 public:
  virtual ~Layered() = default;
  /// The layer of each tensor of the manifest; never less than that of the tensor before.
  virtual std::vector<std::uint32_t> layers() const = 0;
  /// Of a step, or without gradient of an evaluation.
  virtual std::vector<Pass> passes(bool with_gradient) const = 0;
  /// What Model::initialize gives this tensor.
  virtual void initialize_tensor(std::uint64_t seed, TensorId tensor,
                                 std::span<float> out) const = 0;
  /// Begin a step, or an evaluation, of at least one sample. `places` lasts until the last pass;
  /// its entries may change between passes.
  virtual void begin(const Batch& batch, const TensorPlaces& places, bool with_gradient) = 0;
  virtual void run(std::size_t pass) = 0;

  /// Divide the model into stages of a pipeline: compute only the layers [begin, end). Work space
  /// is that of these layers; no passes of others run.
  virtual void set_stage(std::uint32_t begin, std::uint32_t end) = 0;
  /// Numbers of a sample that layer `layer` receives from the layer before it; layer > 0.
  virtual std::uint64_t border(std::uint32_t layer) const = 0;
  /// Of a stage, after `begin` of a step: where its input must be before its first pass, and where
  /// its output is after its last layer's forward. [samples, border]
  virtual float* stage_input() = 0;
  virtual const float* stage_output() = 0;
  /// Where the gradient of the output must be before the last layer's backward; after the first
  /// layer's backward the gradient of the input is there.
  virtual float* stage_gradient() = 0;

  /// Divide the tensors among ranks: have and compute only this part. The manifest becomes the
  /// part's, and clones have it too. Values and gradients of tensors that are whole, and losses,
  /// have the same bits on every rank.
  ///
  /// fails  invalid_argument: the model cannot be divided so, with the numbers
  virtual Status set_part(const TensorPart& part) = 0;
};

}  // namespace centroid::worker
