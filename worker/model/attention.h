#pragma once

#include <cstddef>

namespace centroid::worker {

/// Causal multi-head self-attention over sequences of equal length.
///
/// shape   qkv [samples * context, 3 * width]: queries, keys, values of all heads side by side,
///         head h in columns h * head_width; out [samples * context, width]; lse [samples *
///         context, heads]: logarithms of the softmax's sums, for the backward pass
/// cost    computes the scores of kAttentionRows queries at a time, so memory is linear in the
///         context; skips keys after a block's last query
/// source  Vaswani et al. 2017; probabilities recomputed in the backward pass: Dao et al. 2022,
///         "FlashAttention", section 3.1
struct Attention {
  std::size_t samples = 0, context = 0, heads = 0, head_width = 0;
  const float* qkv = nullptr;
  float* lse = nullptr;
  float* scratch = nullptr;  ///< attention_scratch(context) floats

  void forward(float* out) const;
  /// dqkv is overwritten. `delta`: scratch of [samples * context, heads].
  void backward(const float* out, const float* dout, float* delta, float* dqkv) const;
};

constexpr std::size_t kAttentionRows = 64;
constexpr std::size_t attention_scratch(std::size_t context) {
  return 2 * kAttentionRows * context;
}

}  // namespace centroid::worker
