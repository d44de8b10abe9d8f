#include "worker/model/mlp.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/random.h"

namespace centroid::worker {

Mlp::Mlp(std::vector<std::uint64_t> widths, Activation activation, bool has_norm,
         std::unique_ptr<Backend> backend)
    : widths_(std::move(widths)),
      activation_(activation),
      has_norm_(has_norm),
      backend_(std::move(backend)) {
  CENTROID_CHECK(widths_.size() >= 2);
  std::size_t position = 0;
  const auto add = [&](std::string name, Shape shape) {
    positions_.push_back(position);
    manifest_.push_back({std::move(name), DType::kF32, std::move(shape)});
    position += manifest_.back().elements();
    return static_cast<std::uint32_t>(manifest_.size() - 1);
  };
  for (std::size_t i = 0; i < layers(); ++i) {
    const std::string layer = "layers." + std::to_string(i), norm = "norms." + std::to_string(i);
    Layer& of = tensors_.emplace_back();
    of.weight = add(layer + ".weight", {widths_[i + 1], widths_[i]});
    if (is_normal(i)) of.scale = add(norm + ".weight", {widths_[i + 1]});
    of.bias = add((is_normal(i) ? norm : layer) + ".bias", {widths_[i + 1]});
  }
  for (std::size_t i = 0; i < layers() && is_normal(i); ++i) {
    const std::string norm = "norms." + std::to_string(i);
    tensors_[i].mean = add(norm + ".running_mean", {widths_[i + 1]});
    tensors_[i].variance = add(norm + ".running_var", {widths_[i + 1]});
  }
  positions_.push_back(position);
  output_.resize(layers());
  slope_.resize(layers());
  product_.resize(layers());
  moments_.resize(layers());
}

std::string Mlp::spec() const {
  std::string text = "mlp:";
  for (const std::uint64_t width : widths_) text.append(std::to_string(width)).append(1, '-');
  text.back() = ',';
  return text.append(to_string(activation_)).append(has_norm_ ? ",norm=batch" : "");
}

/// Divide `memory` among the buffers (null: only count). Returns the number of floats.
std::size_t Mlp::assign_memory(std::size_t samples, bool with_gradient, float* memory) {
  constexpr std::size_t kLine = 16;  // floats of 64 bytes
  std::size_t used = 0, widest = 0;
  const auto take = [&](std::size_t count) {
    float* const at = memory == nullptr ? nullptr : memory + used;
    used += (count + kLine - 1) / kLine * kLine;
    return at;
  };
  for (std::size_t i = 0; i < layers(); ++i) {
    widest = std::max(widest, static_cast<std::size_t>(widths_[i + 1]));
    output_[i] = take(samples * widths_[i + 1]);
    const bool has_slope = with_gradient && needs_slope() && i + 1 < layers();
    slope_[i] = has_slope ? take(samples * widths_[i + 1]) : nullptr;
    if (!is_normal(i)) continue;
    moments_[i] = take(2 * widths_[i + 1]);
    product_[i] = with_gradient ? take(samples * widths_[i + 1]) : output_[i];
  }
  gradient_ = with_gradient ? take(samples * widest) : nullptr;
  next_gradient_ = with_gradient ? take(samples * widest) : nullptr;
  return used;
}

std::uint64_t Mlp::work_bytes(std::uint64_t samples, bool with_gradient) const {
  Mlp counted(widths_, activation_, has_norm_, nullptr);
  return counted.assign_memory(samples, with_gradient, nullptr) * sizeof(float);
}

// Uniform forms of both rules: they need only a square root, so the bits are the same on every
// machine. source He et al. 2015, "Delving deep into rectifiers", limit sqrt(6 / in); Glorot,
// Bengio 2010, limit sqrt(6 / (in + out))
void Mlp::initialize(std::uint64_t seed, std::span<float> params) const {
  CENTROID_CHECK(params.size() == positions_.back());
  for (std::size_t i = 0; i < layers(); ++i) {
    const bool is_last = i + 1 == layers();
    const double fan = static_cast<double>(widths_[i] + (is_last ? widths_[i + 1] : 0));
    const double limit = std::sqrt(6.0 / fan);
    CounterRng rng(seed, 2 * i);  // stream: the tensor's number without norms
    const auto tensor = [&](std::uint32_t number) {
      return params.subspan(positions_[number], manifest_[number].elements());
    };
    const Layer& of = tensors_[i];
    for (float& weight : tensor(of.weight))
      weight = static_cast<float>((2.0 * rng.uniform() - 1.0) * limit);
    std::ranges::fill(tensor(of.bias), 0.0F);
    if (!is_normal(i)) continue;
    std::ranges::fill(tensor(of.scale), 1.0F);
    std::ranges::fill(tensor(of.mean), 0.0F);
    std::ranges::fill(tensor(of.variance), 1.0F);
  }
}

void Mlp::check_sizes(const Batch& batch, std::size_t params) const {
  CENTROID_CHECK(params == positions_.back());
  CENTROID_CHECK(batch.y.size() == batch.samples);
  CENTROID_CHECK(batch.x.size() == batch.samples * features());
}

const float* Mlp::input_of(std::size_t layer) const {
  return layer == 0 ? in_.x : output_[layer - 1];
}

BatchNorm Mlp::norm_of(std::size_t layer, std::size_t rows, std::span<const float> params) const {
  const Layer& of = tensors_[layer];
  const auto at = [&](std::uint32_t tensor) { return params.data() + positions_[tensor]; };
  return {.rows = rows,
          .width = widths_[layer + 1],
          .z = product_[layer],
          .weight = at(of.scale),
          .bias = at(of.bias),
          .running_mean = at(of.mean),
          .running_var = at(of.variance),
          .moments = moments_[layer]};
}

void Mlp::forward(const Batch& batch, std::span<const float> params, std::span<float> gradients) {
  const std::size_t rows = batch.samples;
  const bool with_gradient = !gradients.empty();
  assign_memory(rows, with_gradient,
                backend_->work_space(assign_memory(rows, with_gradient, nullptr)));
  in_ = backend_->bring(batch, 0);
  for (std::size_t i = 0; i < layers(); ++i) {
    const std::size_t in = widths_[i];
    const std::size_t out = widths_[i + 1];
    const float* const weight = params.data() + weight_at(i);
    if (i + 1 < layers() && !has_norm_) {
      backend_->layer(activation_, rows, out, in, input_of(i), weight, params.data() + bias_at(i),
                      output_[i], slope_[i]);
      continue;
    }
    // The loss adds the bias of the last layer.
    backend_->gemm(false, true, rows, out, in, 1.0F, input_of(i), in, weight, in, 0.0F,
                   is_normal(i) ? product_[i] : output_[i], out);
    if (!is_normal(i)) continue;
    const auto change = [&](std::uint32_t tensor) {
      return with_gradient ? gradients.data() + positions_[tensor] : nullptr;
    };
    backend_->batch_norm(norm_of(i, rows, params), activation_, change(tensors_[i].mean),
                         change(tensors_[i].variance), output_[i], slope_[i]);
  }
  backend_->cross_entropy(rows, widths_.back(), in_.y, params.data() + bias_at(layers() - 1),
                          1.0F / static_cast<float>(rows), with_gradient, output_.back());
}

void Mlp::backward_layer(std::size_t layer, std::size_t rows, std::span<const float> params,
                         std::span<float> gradients,
                         const std::function<void(TensorId)>& on_ready) {
  const std::size_t in = widths_[layer];
  const std::size_t out = widths_[layer + 1];
  const bool is_last = layer + 1 == layers();
  const float* above = is_last ? output_.back() : gradient_;
  const Layer& of = tensors_[layer];
  if (is_normal(layer)) {
    backend_->batch_norm_back(norm_of(layer, rows, params), gradient_,
                              gradients.data() + positions_[of.scale],
                              gradients.data() + bias_at(layer));
  } else {
    backend_->sum_rows(rows, out, above, gradients.data() + bias_at(layer));
  }
  on_ready(TensorId(of.bias));
  if (is_normal(layer)) on_ready(TensorId(of.scale));
  backend_->gemm(true, false, out, in, rows, 1.0F, above, out, input_of(layer), in, 0.0F,
                 gradients.data() + weight_at(layer), in);
  on_ready(TensorId(of.weight));
  if (layer == 0) return;
  backend_->gemm(false, false, rows, in, out, 1.0F, above, out, params.data() + weight_at(layer),
                 in, 0.0F, next_gradient_, in);
  backend_->scale_by_slope(activation_, rows * in, output_[layer - 1], slope_[layer - 1],
                           next_gradient_);
  std::swap(gradient_, next_gradient_);
}

void Mlp::queue_step(const Batch& batch, std::span<const float> params, std::span<float> gradients,
                     const std::function<void(TensorId)>& on_ready) {
  check_sizes(batch, params.size());
  CENTROID_CHECK(gradients.size() == params.size());
  if (batch.samples == 0) {
    backend_->zero(gradients.size(), gradients.data());
    for (std::size_t t = manifest_.size(); t > 0; --t)
      on_ready(TensorId(static_cast<std::uint32_t>(t - 1)));
    return;
  }
  forward(batch, params, gradients);
  for (std::size_t t = manifest_.size(); t > 0 && is_buffer(manifest_[t - 1]); --t)
    on_ready(TensorId(static_cast<std::uint32_t>(t - 1)));
  for (std::size_t i = layers(); i > 0; --i)
    backward_layer(i - 1, batch.samples, params, gradients, on_ready);
}

void Mlp::queue_evaluate(const Batch& batch, std::span<const float> params) {
  check_sizes(batch, params.size());
  if (batch.samples > 0) forward(batch, params, {});
}

std::unique_ptr<Model> Mlp::clone_on(std::unique_ptr<Backend> backend) const {
  return std::make_unique<Mlp>(widths_, activation_, has_norm_, std::move(backend));
}

}  // namespace centroid::worker
