#include "worker/model/mlp.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/random.h"
#include "common/device/blas.h"
#include "worker/model/loss.h"

namespace centroid::worker {

namespace {

void grow(std::vector<float>& space, std::size_t elements) {
  if (space.size() < elements) space.resize(elements);
}

/// sums[j] = sum over rows of values[r, j], in the order of the rows.
void sum_rows(std::size_t rows, std::size_t width, const float* __restrict values,
              float* __restrict sums) {
  std::fill_n(sums, width, 0.0F);
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t j = 0; j < width; ++j) sums[j] += values[r * width + j];
}

}  // namespace

Mlp::Mlp(std::vector<std::uint64_t> widths, Activation activation)
    : widths_(std::move(widths)), activation_(activation) {
  CENTROID_CHECK(widths_.size() >= 2);
  std::size_t position = 0;
  const auto add = [&](std::string name, Shape shape) {
    positions_.push_back(position);
    manifest_.push_back({std::move(name), DType::kF32, std::move(shape)});
    position += manifest_.back().elements();
  };
  for (std::size_t i = 0; i < layers(); ++i) {
    const std::string layer = "layers." + std::to_string(i);
    add(layer + ".weight", {widths_[i + 1], widths_[i]});
    add(layer + ".bias", {widths_[i + 1]});
  }
  positions_.push_back(position);
  output_.resize(layers());
  slope_.resize(layers());
}

std::string Mlp::spec() const {
  std::string text = "mlp:";
  for (const std::uint64_t width : widths_) text.append(std::to_string(width)).append(1, '-');
  text.back() = ',';
  return text.append(to_string(activation_));
}

std::uint64_t Mlp::work_bytes(std::uint64_t samples, bool with_gradient) const {
  std::uint64_t widest = 0, per_sample = 0;
  for (std::size_t i = 1; i < widths_.size(); ++i) {
    widest = std::max(widest, widths_[i]);
    per_sample += widths_[i];
    if (with_gradient && needs_slope() && i + 1 < widths_.size()) per_sample += widths_[i];
  }
  return samples * (per_sample + (with_gradient ? 2 * widest : 0)) * sizeof(float);
}

// Uniform forms of both rules: they need a square root only, so the bits are the same on every
// machine. source  He et al. 2015, "Delving deep into rectifiers", limit sqrt(6 / in); Glorot,
// Bengio 2010, limit sqrt(6 / (in + out))
void Mlp::initialize(std::uint64_t seed, std::span<float> params) const {
  CENTROID_CHECK(params.size() == positions_.back());
  for (std::size_t i = 0; i < layers(); ++i) {
    const bool is_last = i + 1 == layers();
    const double fan = static_cast<double>(widths_[i] + (is_last ? widths_[i + 1] : 0));
    const double limit = std::sqrt(6.0 / fan);
    CounterRng rng(seed, 2 * i);  // stream: the tensor's number
    for (float& weight : params.subspan(weight_at(i), bias_at(i) - weight_at(i)))
      weight = static_cast<float>((2.0 * rng.uniform() - 1.0) * limit);
    const auto bias = params.subspan(bias_at(i), widths_[i + 1]);
    std::fill(bias.begin(), bias.end(), 0.0F);
  }
}

void Mlp::check_sizes(const Batch& batch, std::size_t params) const {
  CENTROID_CHECK(params == positions_.back());
  CENTROID_CHECK(batch.y.size() == batch.samples);
  CENTROID_CHECK(batch.x.size() == batch.samples * features());
}

void Mlp::reserve(std::size_t samples, bool with_gradient) {
  std::size_t widest = 0;
  for (std::size_t i = 0; i < layers(); ++i) {
    widest = std::max(widest, static_cast<std::size_t>(widths_[i + 1]));
    grow(output_[i], samples * widths_[i + 1]);
    if (with_gradient && needs_slope() && i + 1 < layers())
      grow(slope_[i], samples * widths_[i + 1]);
  }
  if (!with_gradient) return;
  grow(gradient_, samples * widest);
  grow(next_gradient_, samples * widest);
}

const float* Mlp::input_of(std::size_t layer, const Batch& batch) const {
  return layer == 0 ? batch.x.data() : output_[layer - 1].data();
}

StepResult Mlp::forward(const Batch& batch, std::span<const float> params, bool with_gradient) {
  reserve(batch.samples, with_gradient);
  for (std::size_t i = 0; i < layers(); ++i) {
    const std::size_t in = widths_[i];
    const std::size_t out = widths_[i + 1];
    float* z = output_[i].data();
    blas::gemm(false, true, batch.samples, out, in, 1.0F, input_of(i, batch), in,
               params.data() + weight_at(i), in, 0.0F, z, out);
    if (i + 1 < layers())
      add_bias_activate(activation_, batch.samples, out, params.data() + bias_at(i), z,
                        with_gradient && needs_slope() ? slope_[i].data() : nullptr);
  }
  return softmax_cross_entropy(batch.y, widths_.back(), params.data() + bias_at(layers() - 1),
                               output_.back().data(), with_gradient);
}

void Mlp::backward_layer(std::size_t layer, const Batch& batch, std::span<const float> params,
                         std::span<float> gradients,
                         const std::function<void(TensorId)>& on_ready) {
  const std::size_t in = widths_[layer];
  const std::size_t out = widths_[layer + 1];
  const std::size_t rows = batch.samples;
  const bool is_last = layer + 1 == layers();
  const float* above = is_last ? output_.back().data() : gradient_.data();
  sum_rows(rows, out, above, gradients.data() + bias_at(layer));
  on_ready(TensorId(static_cast<std::uint32_t>(2 * layer + 1)));
  blas::gemm(true, false, out, in, rows, 1.0F, above, out, input_of(layer, batch), in, 0.0F,
             gradients.data() + weight_at(layer), in);
  on_ready(TensorId(static_cast<std::uint32_t>(2 * layer)));
  if (layer == 0) return;
  blas::gemm(false, false, rows, in, out, 1.0F, above, out, params.data() + weight_at(layer), in,
             0.0F, next_gradient_.data(), in);
  scale_by_slope(activation_, rows * in, output_[layer - 1].data(), slope_[layer - 1].data(),
                 next_gradient_.data());
  std::swap(gradient_, next_gradient_);
}

StepResult Mlp::step(const Batch& batch, std::span<const float> params, std::span<float> gradients,
                     const std::function<void(TensorId)>& on_ready) {
  check_sizes(batch, params.size());
  CENTROID_CHECK(gradients.size() == params.size());
  if (batch.samples == 0) {
    std::fill(gradients.begin(), gradients.end(), 0.0F);
    for (std::size_t t = manifest_.size(); t > 0; --t)
      on_ready(TensorId(static_cast<std::uint32_t>(t - 1)));
    return {};
  }
  const StepResult result = forward(batch, params, true);
  for (std::size_t i = layers(); i > 0; --i)
    backward_layer(i - 1, batch, params, gradients, on_ready);
  return result;
}

StepResult Mlp::evaluate(const Batch& batch, std::span<const float> params) {
  check_sizes(batch, params.size());
  return batch.samples == 0 ? StepResult{} : forward(batch, params, false);
}

std::unique_ptr<Model> Mlp::clone() const { return std::make_unique<Mlp>(widths_, activation_); }

}  // namespace centroid::worker
