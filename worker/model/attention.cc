#include "worker/model/attention.h"

#include <algorithm>
#include <cmath>

#include "common/device/blas.h"
#include "worker/model/kernels.h"

namespace centroid::worker {

namespace {

float scale_of(std::size_t head_width) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_width)));
}

}  // namespace

void Attention::forward(float* out) const {
  const std::size_t width = heads * head_width, stride = 3 * width;
  for (std::size_t s = 0; s < samples; ++s)
    for (std::size_t h = 0; h < heads; ++h) {
      const std::size_t row = s * context;
      const float* q = qkv + row * stride + h * head_width;
      const float* k = q + width;
      const float* v = k + width;
      for (std::size_t begin = 0; begin < context; begin += kAttentionRows) {
        const std::size_t rows = std::min(kAttentionRows, context - begin);
        const std::size_t keys = begin + rows;
        blas::gemm(false, true, rows, keys, head_width, 1.0F, q + begin * stride, stride, k, stride,
                   0.0F, scratch, keys);
        kernels::causal_softmax(rows, begin, keys, scale_of(head_width), scratch,
                                lse + (row + begin) * heads + h, heads);
        blas::gemm(false, false, rows, head_width, keys, 1.0F, scratch, keys, v, stride, 0.0F,
                   out + (row + begin) * width + h * head_width, width);
      }
    }
}

void Attention::backward(const float* out, const float* dout, float* delta, float* dqkv) const {
  const std::size_t width = heads * head_width, stride = 3 * width;
  kernels::head_dots(samples * context, heads, head_width, out, dout, delta);
  float* p = scratch;
  float* dp = scratch + kAttentionRows * context;
  for (std::size_t s = 0; s < samples; ++s)
    for (std::size_t h = 0; h < heads; ++h) {
      const std::size_t row = s * context;
      const float* q = qkv + row * stride + h * head_width;
      const float* k = q + width;
      const float* v = k + width;
      const float* g = dout + row * width + h * head_width;
      float* dq = dqkv + row * stride + h * head_width;
      float* dk = dq + width;
      float* dv = dk + width;
      // Begin with the last block: it attends to all keys, so it overwrites dqkv and the others
      // add.
      const std::size_t blocks = (context + kAttentionRows - 1) / kAttentionRows;
      for (std::size_t b = blocks; b > 0; --b) {
        const std::size_t begin = (b - 1) * kAttentionRows;
        const std::size_t rows = std::min(kAttentionRows, context - begin);
        const std::size_t keys = begin + rows;
        const std::size_t at = (row + begin) * heads + h;
        const float onto = b == blocks ? 0.0F : 1.0F;
        blas::gemm(false, true, rows, keys, head_width, 1.0F, q + begin * stride, stride, k, stride,
                   0.0F, p, keys);
        blas::gemm(false, true, rows, keys, head_width, 1.0F, g + begin * width, width, v, stride,
                   0.0F, dp, keys);
        kernels::causal_softmax_back(rows, begin, keys, scale_of(head_width), lse + at, delta + at,
                                     heads, p, dp);
        blas::gemm(true, false, keys, head_width, rows, 1.0F, p, keys, g + begin * width, width,
                   onto, dv, stride);
        blas::gemm(true, false, keys, head_width, rows, 1.0F, dp, keys, q + begin * stride, stride,
                   onto, dk, stride);
        blas::gemm(false, false, rows, head_width, keys, 1.0F, dp, keys, k, stride, 0.0F,
                   dq + begin * stride, stride);
      }
    }
}

}  // namespace centroid::worker
