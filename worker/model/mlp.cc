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
      backend_(std::move(backend)),
      end_(widths_.size() - 1) {
  CENTROID_CHECK(widths_.size() >= 2);
  std::size_t position = 0;
  const auto add = [&](std::string name, Shape shape) {
    positions_.push_back(position);
    manifest_.push_back({std::move(name), DType::kF32, std::move(shape)});
    position += manifest_.back().elements();
    return static_cast<std::uint32_t>(manifest_.size() - 1);
  };
  for (std::size_t i = 0; i < count(); ++i) {
    const std::string layer = "layers." + std::to_string(i), norm = "norms." + std::to_string(i);
    Layer& of = tensors_.emplace_back();
    of.weight = add(layer + ".weight", {widths_[i + 1], widths_[i]});
    if (is_normal(i)) of.scale = add(norm + ".weight", {widths_[i + 1]});
    of.bias = add((is_normal(i) ? norm : layer) + ".bias", {widths_[i + 1]});
  }
  for (std::size_t i = 0; i < count() && is_normal(i); ++i) {
    const std::string norm = "norms." + std::to_string(i);
    tensors_[i].mean = add(norm + ".running_mean", {widths_[i + 1]});
    tensors_[i].variance = add(norm + ".running_var", {widths_[i + 1]});
  }
  positions_.push_back(position);
  output_.resize(count());
  slope_.resize(count());
  product_.resize(count());
  moments_.resize(count());
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
  if (first_ > 0) {
    widest = widths_[first_];
    output_[first_ - 1] = take(samples * widths_[first_]);
  }
  for (std::size_t i = first_; i < end_; ++i) {
    widest = std::max(widest, static_cast<std::size_t>(widths_[i + 1]));
    output_[i] = take(samples * widths_[i + 1]);
    const bool has_slope = with_gradient && needs_slope() && i + 1 < count();
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
  counted.first_ = first_;
  counted.end_ = end_;
  return counted.assign_memory(samples, with_gradient, nullptr) * sizeof(float);
}

void Mlp::initialize(std::uint64_t seed, std::span<float> params) const {
  CENTROID_CHECK(params.size() == positions_.back());
  for (std::uint32_t t = 0; t < manifest_.size(); ++t)
    initialize_tensor(seed, TensorId(t), params.subspan(positions_[t], manifest_[t].elements()));
}

// Uniform forms of both rules: they need only a square root, so the bits are the same on every
// machine. source He et al. 2015, "Delving deep into rectifiers", limit sqrt(6 / in); Glorot,
// Bengio 2010, limit sqrt(6 / (in + out))
void Mlp::initialize_tensor(std::uint64_t seed, TensorId tensor, std::span<float> out) const {
  std::ranges::fill(out, 0.0F);  // biases and running means
  for (std::size_t i = 0; i < count(); ++i) {
    const Layer& of = tensors_[i];
    const bool is_scale = is_normal(i) && (tensor.value == of.scale || tensor.value == of.variance);
    if (is_scale) std::ranges::fill(out, 1.0F);
    if (tensor.value != of.weight) continue;
    const bool is_last = i + 1 == count();
    const double fan = static_cast<double>(widths_[i] + (is_last ? widths_[i + 1] : 0));
    const double limit = std::sqrt(6.0 / fan);
    CounterRng rng(seed, 2 * i);  // stream: the tensor's number without norms
    for (float& weight : out) weight = static_cast<float>((2.0 * rng.uniform() - 1.0) * limit);
  }
}

const float* Mlp::input_of(std::size_t layer) const {
  return layer == 0 ? in_.x : output_[layer - 1];
}

BatchNorm Mlp::norm_of(std::size_t layer) const {
  const Layer& of = tensors_[layer];
  return {.rows = rows_,
          .width = widths_[layer + 1],
          .z = product_[layer],
          .weight = param(of.scale),
          .bias = param(of.bias),
          .running_mean = param(of.mean),
          .running_var = param(of.variance),
          .moments = moments_[layer]};
}

std::vector<std::uint32_t> Mlp::layers() const {
  std::vector<std::uint32_t> out;
  for (std::uint32_t i = 0; i < count(); ++i) out.insert(out.end(), 2, i);  // weight and bias
  return out;
}

std::vector<Pass> Mlp::passes(bool with_gradient) const {
  std::vector<Pass> out;
  for (std::uint32_t i = 0; i < count(); ++i) out.push_back({{i}, {}});
  for (auto i = static_cast<std::uint32_t>(count()); i > 0 && with_gradient; --i) {
    out.push_back({{}, {i - 1}});
    if (i > 1) out.back().reads = {i - 1};  // nobody needs the gradient of the input
  }
  return out;
}

void Mlp::begin(const Batch& batch, const TensorPlaces& places, bool with_gradient) {
  CENTROID_CHECK(batch.y.size() == batch.samples);
  CENTROID_CHECK(batch.x.size() == batch.samples * features());
  rows_ = batch.samples;
  is_training_ = with_gradient;
  places_ = &places;
  on_ready_ = nullptr;
  assign_memory(rows_, with_gradient,
                backend_->work_space(assign_memory(rows_, with_gradient, nullptr)));
  in_ = backend_->bring(batch, 0);
}

void Mlp::run(std::size_t pass) {
  if (pass < count())
    forward_layer(pass);
  else
    backward_layer(2 * count() - 1 - pass);
}

void Mlp::set_stage(std::uint32_t begin, std::uint32_t end) {
  CENTROID_CHECK(begin < end && end <= count());
  first_ = begin;
  end_ = end;
}

Status Mlp::set_part(const TensorPart& part) {
  if (part.ranks == 1) return {};
  return Error(ErrorCode::kInvalidArgument,
               "model '" + spec() + "' cannot be divided by tp=" + std::to_string(part.ranks) +
                   ": only transformers can; use dp and pp");
}

std::uint64_t Mlp::border(std::uint32_t layer) const { return widths_[layer]; }

float* Mlp::stage_input() { return output_[first_ - 1]; }

const float* Mlp::stage_output() { return output_[end_ - 1]; }

float* Mlp::stage_gradient() { return gradient_; }

void Mlp::forward_layer(std::size_t layer) {
  const std::size_t in = widths_[layer], out = widths_[layer + 1];
  const Layer& of = tensors_[layer];
  const bool is_last = layer + 1 == count();
  if (!is_last && !has_norm_) {
    backend_->layer(activation_, rows_, out, in, input_of(layer), param(of.weight), param(of.bias),
                    output_[layer], slope_[layer]);
    return;
  }
  // The loss adds the bias of the last layer.
  backend_->gemm(false, true, rows_, out, in, 1.0F, input_of(layer), in, param(of.weight), in, 0.0F,
                 is_last ? output_[layer] : product_[layer], out);
  if (is_last) {
    backend_->cross_entropy(rows_, out, in_.y, param(of.bias), 1.0F / static_cast<float>(rows_),
                            is_training_, output_[layer]);
    return;
  }
  // A buffer's gradient is its change.
  backend_->batch_norm(norm_of(layer), activation_, is_training_ ? gradient(of.mean) : nullptr,
                       is_training_ ? gradient(of.variance) : nullptr, output_[layer],
                       slope_[layer]);
}

void Mlp::backward_layer(std::size_t layer) {
  const std::size_t in = widths_[layer], out = widths_[layer + 1];
  const bool is_last = layer + 1 == count();
  const float* above = is_last ? output_.back() : gradient_;
  const Layer& of = tensors_[layer];
  if (layer + 1 == end_ && !is_last)  // the next stage does not have the slope
    backend_->scale_by_slope(activation_, rows_ * out, output_[layer], slope_[layer], gradient_);
  if (is_normal(layer)) {
    backend_->batch_norm_back(norm_of(layer), gradient_, gradient(of.scale), gradient(of.bias));
  } else {
    backend_->sum_rows(rows_, out, above, gradient(of.bias));
  }
  ready(of.bias);
  if (is_normal(layer)) ready(of.scale);
  backend_->gemm(true, false, out, in, rows_, 1.0F, above, out, input_of(layer), in, 0.0F,
                 gradient(of.weight), in);
  ready(of.weight);
  if (layer == 0) return;
  backend_->gemm(false, false, rows_, in, out, 1.0F, above, out, param(of.weight), in, 0.0F,
                 next_gradient_, in);
  if (layer > first_)
    backend_->scale_by_slope(activation_, rows_ * in, output_[layer - 1], slope_[layer - 1],
                             next_gradient_);
  std::swap(gradient_, next_gradient_);
}

void Mlp::queue_step(const Batch& batch, std::span<const float> params, std::span<float> gradients,
                     const std::function<void(TensorId)>& on_ready) {
  CENTROID_CHECK(params.size() == positions_.back() && gradients.size() == params.size());
  if (batch.samples == 0) {
    backend_->zero(gradients.size(), gradients.data());
    for (std::size_t t = manifest_.size(); t > 0; --t)
      on_ready(TensorId(static_cast<std::uint32_t>(t - 1)));
    return;
  }
  flat_.set(manifest_, params.data(), gradients.data());
  begin(batch, flat_, true);
  on_ready_ = &on_ready;
  for (std::size_t i = 0; i < count(); ++i) forward_layer(i);
  for (std::size_t t = manifest_.size(); t > 0 && is_buffer(manifest_[t - 1]); --t)
    on_ready(TensorId(static_cast<std::uint32_t>(t - 1)));
  for (std::size_t i = count(); i > 0; --i) backward_layer(i - 1);
}

void Mlp::queue_evaluate(const Batch& batch, std::span<const float> params) {
  CENTROID_CHECK(params.size() == positions_.back());
  if (batch.samples == 0) return;
  flat_.set(manifest_, params.data(), nullptr);
  begin(batch, flat_, false);
  for (std::size_t i = 0; i < count(); ++i) forward_layer(i);
}

std::unique_ptr<Model> Mlp::clone_on(std::unique_ptr<Backend> backend) const {
  return std::make_unique<Mlp>(widths_, activation_, has_norm_, std::move(backend));
}

}  // namespace centroid::worker
