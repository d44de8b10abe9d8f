#include <cmath>

#include "worker/model/cuda/kernels.cuh"
#include "worker/model/cuda/kernels.h"
#if !defined(CENTROID_SIMT)
#include "common/device/cuda/cuda_device.h"
#endif

namespace centroid::worker::cuda {
namespace {

using centroid::cuda::address;
using centroid::cuda::blocks_for;

cudaStream_t stream_of(const Queue& queue) { return static_cast<cudaStream_t>(queue.stream); }

/// What the launches said; one that fails queues nothing.
Status launched([[maybe_unused]] const char* what) {
#if defined(CENTROID_SIMT)
  return {};
#else
  return centroid::cuda::status_of(cudaGetLastError(), what);
#endif
}

template <class... Pointers>
bool is_wide(std::uint64_t width, const Pointers*... pointers) {
  return width % 4 == 0 && ((address(pointers) % 16 == 0) && ...);
}

unsigned row_blocks(std::uint64_t rows, const Queue& queue) {
  return blocks_for(rows * kLanes, queue.processors);
}

template <bool kBack>
void launch_gelu(std::uint64_t n, const float* in, float* out, const Queue& queue) {
  const std::uint64_t wide = is_wide(0, in, out) ? n / 4 * 4 : 0;
  const cudaStream_t stream = stream_of(queue);
  if (wide > 0) {
    const auto kernel = gelu_kernel<true, kBack>;
    CENTROID_LAUNCH(kernel, blocks_for(wide / 4, queue.processors), kThreads, stream, wide, in,
                    out);
  }
  if (wide < n) {
    const auto kernel = gelu_kernel<false, kBack>;
    CENTROID_LAUNCH(kernel, blocks_for(n - wide, queue.processors), kThreads, stream, n - wide,
                    in + wide, out + wide);
  }
}

}  // namespace

Status gelu(std::uint64_t elements, const float* in, float* out, const Queue& queue) {
  launch_gelu<false>(elements, in, out, queue);
  return launched("kernel of gelu");
}
Status gelu_back(std::uint64_t elements, const float* in, float* gradient, const Queue& queue) {
  launch_gelu<true>(elements, in, gradient, queue);
  return launched("kernel of gelu_back");
}

Status swiglu(std::uint64_t rows, std::uint64_t width, const float* gate_up, float* out,
              const Queue& queue) {
  if (rows * width == 0) return {};
  const auto kernel = is_wide(width, gate_up, out) ? swiglu_kernel<true> : swiglu_kernel<false>;
  CENTROID_LAUNCH(kernel, row_blocks(rows, queue), kThreads, stream_of(queue), rows, width, gate_up,
                  out);
  return launched("kernel of swiglu");
}
Status swiglu_back(std::uint64_t rows, std::uint64_t width, const float* gradient, float* gate_up,
                   const Queue& queue) {
  if (rows * width == 0) return {};
  const auto kernel =
      is_wide(width, gradient, gate_up) ? swiglu_back_kernel<true> : swiglu_back_kernel<false>;
  CENTROID_LAUNCH(kernel, row_blocks(rows, queue), kThreads, stream_of(queue), rows, width,
                  gradient, gate_up);
  return launched("kernel of swiglu_back");
}

Status drop(const Dropout& d, bool add, std::uint64_t rows, std::uint64_t width, const float* in,
            float* out, const Queue& queue) {
  if (rows * width == 0) return {};
  const auto kernel = add ? drop_kernel<true> : drop_kernel<false>;
  CENTROID_LAUNCH(kernel, blocks_for(rows * ((width + 3) / 4), queue.processors), kThreads,
                  stream_of(queue), d.threshold, d.scale, d.keys, d.context, d.site, rows, width,
                  in, out);
  return launched("kernel of drop");
}

Status add_norm(const Norm& norm, std::uint64_t rows, std::uint64_t width, const float* residual,
                const float* branch, float* x, float* y, float* stats, const Queue& queue) {
  if (rows * width == 0) return {};
  const bool wide = is_wide(width, norm.weight, norm.bias, residual, branch, x, y);
  const auto kernel = norm.bias != nullptr
                          ? (wide ? add_norm_kernel<true, true> : add_norm_kernel<true, false>)
                          : (wide ? add_norm_kernel<false, true> : add_norm_kernel<false, false>);
  CENTROID_LAUNCH(kernel, row_blocks(rows, queue), kThreads, stream_of(queue), norm.weight,
                  norm.bias, rows, width, residual, branch, x, y, stats);
  return launched("kernel of add_norm");
}

std::uint64_t norm_back_scratch(std::uint64_t rows, std::uint64_t width) {
  return 2 * width * ((rows + kColumnRows - 1) / kColumnRows);
}

Status norm_back(const Norm& norm, std::uint64_t rows, std::uint64_t width, const float* x,
                 const float* stats, const float* dy, float* gradient, float* weight_gradient,
                 float* bias_gradient, float* scratch, const Queue& queue) {
  const cudaStream_t stream = stream_of(queue);
  if (rows * width > 0) {
    const bool wide = is_wide(width, norm.weight, x, dy, gradient);
    const auto kernel =
        norm.bias != nullptr
            ? (wide ? norm_back_kernel<true, true> : norm_back_kernel<true, false>)
            : (wide ? norm_back_kernel<false, true> : norm_back_kernel<false, false>);
    CENTROID_LAUNCH(kernel, row_blocks(rows, queue), kThreads, stream, norm.weight, rows, width, x,
                    stats, dy, gradient);
  }
  if (weight_gradient == nullptr && bias_gradient == nullptr) return launched("norm_back");
  const std::uint64_t parts = (rows + kColumnRows - 1) / kColumnRows;
  if (parts > 0) {
    CENTROID_LAUNCH(norm_columns_kernel, blocks_for(parts * width, queue.processors), kThreads,
                    stream, rows, width, x, stats, dy, scratch);
  }
  CENTROID_LAUNCH(norm_sums_kernel, blocks_for(width, queue.processors), kThreads, stream, parts,
                  width, scratch, weight_gradient, bias_gradient);
  return launched("kernels of norm_back");
}

Status causal_softmax(std::uint64_t rows, std::uint64_t begin, std::uint64_t width, float scale,
                      float* scores, float* lse, std::uint64_t lse_step, const Queue& queue) {
  if (rows == 0) return {};
  CENTROID_LAUNCH(causal_softmax_kernel, row_blocks(rows, queue), kThreads, stream_of(queue), rows,
                  begin, width, scale, scores, lse, lse_step);
  return launched("kernel of causal_softmax");
}
Status causal_softmax_back(std::uint64_t rows, std::uint64_t begin, std::uint64_t width,
                           float scale, const float* lse, const float* delta, std::uint64_t step,
                           float* scores, float* dscores, const Queue& queue) {
  if (rows == 0) return {};
  CENTROID_LAUNCH(causal_softmax_back_kernel, row_blocks(rows, queue), kThreads, stream_of(queue),
                  rows, begin, width, scale, lse, delta, step, scores, dscores);
  return launched("kernel of causal_softmax_back");
}

Status cross_entropy(const std::uint32_t* labels, std::uint64_t rows, std::uint64_t classes,
                     float share, bool want_gradient, float* logits, float* losses,
                     std::uint32_t* correct, const Queue& queue) {
  if (rows == 0) return {};
  CENTROID_LAUNCH(cross_entropy_kernel, row_blocks(rows, queue), kThreads, stream_of(queue), labels,
                  rows, classes, share, want_gradient, logits, losses, correct);
  return launched("kernel of cross_entropy");
}

}  // namespace centroid::worker::cuda
