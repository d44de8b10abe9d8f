#include <algorithm>
#include <cmath>
#include <vector>

#include "common/base/random.h"
#include "common/device/blas.h"
#include "worker/model/transformer.h"

namespace centroid::worker {

namespace {

/// Uniform numbers with this deviation, because normal ones need a mathematics library.
void fill_uniform(std::uint64_t seed, std::uint64_t stream, double deviation,
                  std::span<float> out) {
  const double limit = deviation * std::sqrt(3.0);
  CounterRng rng(seed, stream);
  for (float& x : out) x = static_cast<float>((2.0 * rng.uniform() - 1.0) * limit);
}

}  // namespace

void Transformer::initialize(std::uint64_t seed, std::span<float> params) const {
  CENTROID_CHECK(params.size() == parameters_);
  std::size_t at = 0;
  for (std::uint32_t t = 0; t < manifest_.size(); ++t) {
    const auto out = params.subspan(at, manifest_[t].elements());
    at += out.size();
    initialize_tensor(seed, TensorId(t), out);
  }
}

// Normalisations begin as the identity. Every matrix preserves the scale of its input; those that
// write to the residual path are scaled down by the depth, so that their sum has the scale of one.
// B of adapters is 0, so that training begins at the base; A is as in Hugging Face's PEFT.
void Transformer::draw(std::uint64_t seed, TensorId id, std::span<float> out) const {
  const TensorInfo& tensor = trained_[id.value];
  const auto is = [&](std::string_view end) { return tensor.name.ends_with(end); };
  const bool is_head = tensor.name == "head.weight";
  if (base_ && (config_.lora.rank == 0 || is_head)) {
    const auto of = std::ranges::find_if(
        tensors_, [&](const Tensor& t) { return t.trained != kNone && t.id == id.value; });
    std::ranges::copy(std::span(base_->values).subspan(of->begin, out.size()), out.begin());
    return;
  }
  const double depth = std::sqrt(2.0 * static_cast<double>(config_.layers));
  const double in = static_cast<double>(tensor.shape.back());
  if (tensor.shape.size() == 1)
    std::ranges::fill(out, is(".weight") ? 1.0F : 0.0F);
  else if (is("lora_B.weight"))
    std::ranges::fill(out, 0.0F);
  else if (is("lora_A.weight"))
    fill_uniform(seed, id.value, std::sqrt(1.0 / (3.0 * in)), out);
  else if (tensor.name.starts_with("embed.") || is_head)
    fill_uniform(seed, id.value, 0.02, out);
  else
    fill_uniform(seed, id.value,
                 std::sqrt(1.0 / in) / (is("o_proj.weight") || is("down_proj.weight") ? depth : 1),
                 out);
}

void Transformer::initialize_tensor(std::uint64_t seed, TensorId id, std::span<float> out) const {
  const TensorInfo& whole = trained_[id.value];
  if (out.size() == whole.elements()) return draw(seed, id, out);
  std::vector<float> values(whole.elements());
  draw(seed, id, values);
  own_.cut(whole, values, out);
}

std::vector<float> Transformer::merged(std::span<const float> params) const {
  CENTROID_CHECK(params.size() == parameters_);
  const std::size_t total = tensors_.back().begin + tensors_.back().elements;
  std::vector<float> out(total);
  for (const Tensor& tensor : tensors_) {
    float* const to = out.data() + tensor.begin;
    const float* from = tensor.trained != kNone ? params.data() + tensor.trained
                                                : base_->values.data() + tensor.begin;
    std::copy_n(from, tensor.elements, to);
    if (tensor.adapter == kNone) continue;
    const Adapter& adapter = adapters_[tensor.adapter];
    const std::size_t in = tensor.elements / adapter.out, rank = config_.lora.rank;
    blas::gemm(false, false, adapter.out, in, rank, static_cast<float>(config_.lora.scale()),
               params.data() + adapter.b, rank, params.data() + adapter.a, in, 1.0F, to, in);
  }
  return out;
}

}  // namespace centroid::worker
