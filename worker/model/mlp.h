#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "worker/model/activation.h"
#include "worker/model/backend.h"
#include "worker/model/model.h"

namespace centroid::worker {

/// Fully connected layers with an activation between them and softmax cross-entropy at the end;
/// optionally with batch normalisation before each activation.
///
/// shape   layer i: "layers.i.weight" [out, in] and "layers.i.bias" [out] (PyTorch's layout), out =
///         in @ weight^T + bias. With normalisation layer i has no bias but "norms.i.weight" and
///         "norms.i.bias" [out]; the buffers "norms.i.running_mean" and "norms.i.running_var"
///         follow all layers
/// order   on_ready runs through the manifest backwards: buffers, then bias and weight of the last
///         layer first
/// bits    the same input on the same machine gives the same bits; parameters from `initialize`
///         are equal on every machine
/// layers  each fully connected layer is one; with normalisation there are no passes, because their
///         buffers are no gradients
class Mlp final : public Model, private Layered {
 public:
  /// `widths` from input to classes: at least two, each at least 1 (make_model checks).
  Mlp(std::vector<std::uint64_t> widths, Activation activation, bool has_norm,
      std::unique_ptr<Backend> backend = make_cpu_backend());

  const Manifest& manifest() const override { return manifest_; }
  std::uint64_t features() const override { return widths_.front(); }
  std::uint32_t classes() const override { return static_cast<std::uint32_t>(widths_.back()); }
  std::string spec() const override;
  std::uint64_t work_bytes(std::uint64_t samples, bool with_gradient) const override;
  /// He for ReLU and GELU layers, Glorot for the last, zeros for biases and running means, ones for
  /// norms' weights and running variances.
  void initialize(std::uint64_t seed, std::span<float> params) const override;
  void queue_step(const Batch& batch, std::span<const float> params, std::span<float> gradients,
                  const std::function<void(TensorId)>& on_ready) override;
  void queue_evaluate(const Batch& batch, std::span<const float> params) override;
  Backend& backend() override { return *backend_; }
  Layered* layered() override { return has_norm_ ? nullptr : this; }
  std::unique_ptr<Model> clone_on(std::unique_ptr<Backend> backend) const override;

 private:
  /// Numbers of a layer's tensors. With a norm `bias` is the norm's.
  struct Layer {
    std::uint32_t weight = 0, bias = 0;
    std::uint32_t scale = 0, mean = 0, variance = 0;  // of a norm
  };
  std::size_t count() const { return widths_.size() - 1; }  ///< of layers
  bool is_normal(std::size_t layer) const { return has_norm_ && layer + 1 < count(); }
  const float* param(std::uint32_t tensor) const { return places_->params[tensor]; }
  float* gradient(std::uint32_t tensor) const { return places_->gradients[tensor]; }
  void ready(std::uint32_t tensor) const {
    if (on_ready_ != nullptr) (*on_ready_)(TensorId(tensor));
  }
  bool needs_slope() const { return activation_ == Activation::kGelu; }
  std::size_t assign_memory(std::size_t samples, bool with_gradient, float* memory);
  /// Input of a layer: the batch, or the output of the layer before.
  const float* input_of(std::size_t layer) const;
  BatchNorm norm_of(std::size_t layer) const;
  void forward_layer(std::size_t layer);
  void backward_layer(std::size_t layer);

  std::vector<std::uint32_t> layers() const override;
  std::vector<Pass> passes(bool with_gradient) const override;
  void initialize_tensor(std::uint64_t seed, TensorId tensor, std::span<float> out) const override;
  void begin(const Batch& batch, const TensorPlaces& places, bool with_gradient) override;
  void run(std::size_t pass) override;
  void set_stage(std::uint32_t begin, std::uint32_t end) override;
  Status set_part(const TensorPart& part) override;
  std::uint64_t border(std::uint32_t layer) const override;
  float* stage_input() override;
  const float* stage_output() override;
  float* stage_gradient() override;

  std::vector<std::uint64_t> widths_;
  Activation activation_;
  bool has_norm_;
  Manifest manifest_;
  std::vector<Layer> tensors_;
  std::vector<std::size_t> positions_;  // first element of each tensor, plus the end
  std::unique_ptr<Backend> backend_;
  std::size_t first_ = 0, end_ = 0;  // layers of the stage
  TensorPlaces flat_;                // of whole steps
  // Of the present step:
  Inputs in_;
  std::size_t rows_ = 0;
  bool is_training_ = false;
  const TensorPlaces* places_ = nullptr;
  const std::function<void(TensorId)>* on_ready_ = nullptr;
  // Work space. output_[last] turns from logits into their gradient.
  std::vector<float*> output_;
  std::vector<float*> slope_;
  std::vector<float*> product_;     // input of the norm, for a layer with one
  std::vector<float*> moments_;     // BatchNorm
  float* gradient_ = nullptr;       // of the present layer's output
  float* next_gradient_ = nullptr;  // of the output of the layer before it
};

}  // namespace centroid::worker
