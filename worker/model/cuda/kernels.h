#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/result.h"

namespace centroid::worker::cuda {

/// The transformer's loops (worker/model/kernels.h) on a GPU: fused, one warp per row, 16-byte
/// accesses where rows and addresses are multiples of them.
///
/// All addresses are the device's; all functions queue work on the stream and return at once. None
/// allocates or waits.
///
/// bits    elementwise functions and dropout: those of the CPU. Sums over rows run in another
/// order:
///         the same every time, within 1e-5 of the largest result of the CPU's
struct Queue {
  unsigned processors = 1;
  void* stream = nullptr;  ///< cudaStream_t
};

Status gelu(std::uint64_t elements, const float* in, float* out, const Queue& queue);
Status gelu_back(std::uint64_t elements, const float* in, float* gradient, const Queue& queue);
Status swiglu(std::uint64_t rows, std::uint64_t width, const float* gate_up, float* out,
              const Queue& queue);
Status swiglu_back(std::uint64_t rows, std::uint64_t width, const float* gradient, float* gate_up,
                   const Queue& queue);

/// kernels::Dropout; `keys` on the device.
struct Dropout {
  std::uint32_t threshold = 0;
  float scale = 1;
  const std::uint64_t* keys = nullptr;
  std::uint64_t context = 1, site = 0;
};
/// out = kept(in) * scale, or out += it. `in` may be `out`.
Status drop(const Dropout& dropout, bool add, std::uint64_t rows, std::uint64_t width,
            const float* in, float* out, const Queue& queue);

/// kernels::Norm; a bias makes it layer normalisation.
struct Norm {
  const float* weight = nullptr;
  const float* bias = nullptr;
};
Status add_norm(const Norm& norm, std::uint64_t rows, std::uint64_t width, const float* residual,
                const float* branch, float* x, float* y, float* stats, const Queue& queue);
/// Floats of scratch that norm_back takes.
std::uint64_t norm_back_scratch(std::uint64_t rows, std::uint64_t width);
/// `gradient` is added to; weight_gradient and bias_gradient (null: not wanted) are overwritten.
Status norm_back(const Norm& norm, std::uint64_t rows, std::uint64_t width, const float* x,
                 const float* stats, const float* dy, float* gradient, float* weight_gradient,
                 float* bias_gradient, float* scratch, const Queue& queue);

Status causal_softmax(std::uint64_t rows, std::uint64_t begin, std::uint64_t width, float scale,
                      float* scores, float* lse, std::uint64_t lse_step, const Queue& queue);
Status causal_softmax_back(std::uint64_t rows, std::uint64_t begin, std::uint64_t width,
                           float scale, const float* lse, const float* delta, std::uint64_t step,
                           float* scores, float* dscores, const Queue& queue);

/// Of each row the loss and whether the label's logit is the largest (kNoTarget: 0 and 0); logits
/// become the gradient of share * (sum of losses) when `want_gradient`. Labels are checked by who
/// copies them to the device.
Status cross_entropy(const std::uint32_t* labels, std::uint64_t rows, std::uint64_t classes,
                     float share, bool want_gradient, float* logits, float* losses,
                     std::uint32_t* correct, const Queue& queue);

}  // namespace centroid::worker::cuda
