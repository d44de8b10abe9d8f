#include <cmath>

#include "common/device/cuda/launch.h"
#include "worker/model/cuda/batch_norm.cuh"
#include "worker/model/cuda/kernels.cuh"
#include "worker/model/cuda/kernels.h"
#include "worker/model/cuda/rows.cuh"

namespace centroid::worker::cuda {
namespace {

using centroid::cuda::address;
using centroid::cuda::blocks_for;
using centroid::cuda::launched;
using centroid::cuda::stream_of;

template <class... Pointers>
bool is_wide(std::uint64_t width, const Pointers*... pointers) {
  return width % 4 == 0 && ((address(pointers) % 16 == 0) && ...);
}

unsigned row_blocks(std::uint64_t rows, const Queue& queue) {
  return blocks_for(rows * kLanes, queue.processors);
}

/// choose(layer, wide, held) as constants.
template <class Choose>
auto of_norm(bool layer, bool wide, bool held, const Choose& choose) {
  const auto third = [&](auto a, auto b) {
    return held ? choose(a, b, std::true_type()) : choose(a, b, std::false_type());
  };
  const auto second = [&](auto a) {
    return wide ? third(a, std::true_type()) : third(a, std::false_type());
  };
  return layer ? second(std::true_type()) : second(std::false_type());
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
  const bool wide = is_wide(width, in, out);
  const auto kernel = add ? (wide ? drop_kernel<true, true> : drop_kernel<true, false>)
                          : (wide ? drop_kernel<false, true> : drop_kernel<false, false>);
  CENTROID_LAUNCH(kernel, blocks_for(rows * ((width + 3) / 4), queue.processors), kThreads,
                  stream_of(queue), d.threshold, d.scale, d.keys, d.context, d.site, rows, width,
                  in, out);
  return launched("kernel of drop");
}

Status add_norm(const Norm& norm, const Dropout& dropout, std::uint64_t rows, std::uint64_t width,
                const float* residual, const float* branch, float* x, float* y, float* stats,
                const Queue& queue) {
  if (rows * width == 0) return {};
  const bool wide = is_wide(width, norm.weight, norm.bias, residual, branch, x, y);
  const auto kernel =
      of_norm(norm.bias != nullptr, wide, width <= kCachedColumns,
              [](auto layer, auto four, auto held) { return &add_norm_kernel<layer, four, held>; });
  CENTROID_LAUNCH(kernel, row_blocks(rows, queue), kThreads, stream_of(queue), norm.weight,
                  norm.bias, dropout, rows, width, residual, branch, x, y, stats);
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
    const auto kernel = of_norm(
        norm.bias != nullptr, wide, width <= kCachedColumns,
        [](auto layer, auto four, auto held) { return &norm_back_kernel<layer, four, held>; });
    CENTROID_LAUNCH(kernel, row_blocks(rows, queue), kThreads, stream, norm.weight, rows, width, x,
                    stats, dy, gradient);
  }
  if (weight_gradient == nullptr && bias_gradient == nullptr) return launched("norm_back");
  const std::uint64_t parts = (rows + kColumnRows - 1) / kColumnRows;
  if (parts > 0) {
    const bool wide = is_wide(width, x, dy, scratch);
    const auto kernel = wide ? norm_columns_kernel<true> : norm_columns_kernel<false>;
    CENTROID_LAUNCH(kernel, blocks_for(parts * width / (wide ? 4 : 1), queue.processors), kThreads,
                    stream, rows, width, x, stats, dy, scratch);
  }
  CENTROID_LAUNCH(norm_sums_kernel, blocks_for(width, queue.processors), kThreads, stream, parts,
                  width, scratch, weight_gradient, bias_gradient);
  return launched("kernels of norm_back");
}

Status batch_norm(const BatchNorm& norm, bool is_gelu, float* mean_change, float* var_change,
                  float* out, float* slope, float* scratch, const Queue& queue) {
  if (norm.rows * norm.width == 0) return {};
  const cudaStream_t stream = stream_of(queue);
  const bool is_of_rows = mean_change != nullptr && norm.rows > 1;
  const std::uint64_t parts = is_of_rows ? (norm.rows + kColumnRows - 1) / kColumnRows : 0;
  if (parts > 0) {
    const bool wide = is_wide(norm.width, norm.z, scratch);
    const auto kernel = wide ? batch_columns_kernel<true> : batch_columns_kernel<false>;
    CENTROID_LAUNCH(kernel, blocks_for(parts * norm.width / (wide ? 4 : 1), queue.processors),
                    kThreads, stream, norm.rows, norm.width, norm.z, scratch);
  }
  CENTROID_LAUNCH(batch_moments_kernel, blocks_for(norm.width, queue.processors), kThreads, stream,
                  norm, parts, scratch, mean_change, var_change);
  const bool wide = is_wide(norm.width, norm.z, norm.weight, norm.bias, norm.moments, out, slope);
  const auto kernel =
      is_gelu ? (wide ? batch_norm_kernel<true, true> : batch_norm_kernel<true, false>)
              : (wide ? batch_norm_kernel<false, true> : batch_norm_kernel<false, false>);
  CENTROID_LAUNCH(kernel, row_blocks(norm.rows, queue), kThreads, stream, norm, out, slope);
  return launched("kernels of batch_norm");
}
Status batch_norm_back(const BatchNorm& norm, float* gradient, float* weight_gradient,
                       float* bias_gradient, float* scratch, const Queue& queue) {
  if (norm.rows * norm.width == 0) return {};
  const cudaStream_t stream = stream_of(queue);
  const std::uint64_t parts = (norm.rows + kColumnRows - 1) / kColumnRows;
  {
    const bool wide = is_wide(norm.width, norm.z, norm.moments, gradient, scratch);
    const auto kernel = wide ? batch_back_columns_kernel<true> : batch_back_columns_kernel<false>;
    CENTROID_LAUNCH(kernel, blocks_for(parts * norm.width / (wide ? 4 : 1), queue.processors),
                    kThreads, stream, norm, gradient, scratch);
  }
  CENTROID_LAUNCH(norm_sums_kernel, blocks_for(norm.width, queue.processors), kThreads, stream,
                  parts, norm.width, scratch, weight_gradient, bias_gradient);
  const bool wide = is_wide(norm.width, norm.z, norm.weight, norm.moments, gradient,
                            weight_gradient, bias_gradient);
  const auto kernel = wide ? batch_back_kernel<true> : batch_back_kernel<false>;
  CENTROID_LAUNCH(kernel, row_blocks(norm.rows, queue), kThreads, stream, norm, weight_gradient,
                  bias_gradient, gradient);
  return launched("kernels of batch_norm_back");
}

Status causal_softmax(std::uint64_t count, std::uint64_t rows, std::uint64_t begin,
                      std::uint64_t width, float scale, float* scores, float* lse,
                      const RowNumbers& at, const Queue& queue) {
  if (count * rows == 0) return {};
  const bool held = width <= kCachedColumns;
  const auto kernel =
      is_wide(width, scores)
          ? (held ? causal_softmax_kernel<true, true> : causal_softmax_kernel<true, false>)
          : (held ? causal_softmax_kernel<false, true> : causal_softmax_kernel<false, false>);
  CENTROID_LAUNCH(kernel, row_blocks(count * rows, queue), kThreads, stream_of(queue), count, rows,
                  begin, width, scale, scores, lse, at);
  return launched("kernel of causal_softmax");
}
Status causal_softmax_back(std::uint64_t count, std::uint64_t rows, std::uint64_t begin,
                           std::uint64_t width, float scale, const float* lse, const float* delta,
                           const RowNumbers& at, float* scores, float* dscores,
                           const Queue& queue) {
  if (count * rows == 0) return {};
  const auto kernel = is_wide(width, scores, dscores) ? causal_softmax_back_kernel<true>
                                                      : causal_softmax_back_kernel<false>;
  CENTROID_LAUNCH(kernel, row_blocks(count * rows, queue), kThreads, stream_of(queue), count, rows,
                  begin, width, scale, lse, delta, at, scores, dscores);
  return launched("kernel of causal_softmax_back");
}
Status head_dots(std::uint64_t groups, std::uint64_t width, const float* a, const float* b,
                 float* out, const Queue& queue) {
  if (groups == 0) return {};
  const auto kernel = is_wide(width, a, b) ? head_dots_kernel<true> : head_dots_kernel<false>;
  CENTROID_LAUNCH(kernel, row_blocks(groups, queue), kThreads, stream_of(queue), groups, width, a,
                  b, out);
  return launched("kernel of head_dots");
}

Status cross_entropy(const std::uint32_t* labels, std::uint64_t rows, std::uint64_t classes,
                     const float* bias, float share, bool needs_gradient, float* logits,
                     float* losses, std::uint32_t* correct, const Queue& queue) {
  if (rows == 0) return {};
  const bool held = classes <= kCachedColumns;
  const auto kernel =
      is_wide(classes, logits, bias)
          ? (held ? cross_entropy_kernel<true, true> : cross_entropy_kernel<true, false>)
          : (held ? cross_entropy_kernel<false, true> : cross_entropy_kernel<false, false>);
  CENTROID_LAUNCH(kernel, row_blocks(rows, queue), kThreads, stream_of(queue), labels, rows,
                  classes, bias, share, needs_gradient, logits, losses, correct);
  return launched("kernel of cross_entropy");
}
Status add_up(const std::uint32_t* labels, std::uint64_t rows, const float* losses,
              const std::uint32_t* correct, Totals* totals, const Queue& queue) {
  if (rows == 0) return {};
  CENTROID_LAUNCH(totals_kernel, 1, kThreads, stream_of(queue), labels, rows, losses, correct,
                  totals);
  return launched("kernel of add_up");
}

Status zero(std::uint64_t elements, float* out, const Queue& queue) {
  const std::uint64_t wide = is_wide(0, out) ? elements / 4 * 4 : 0, rest = elements - wide;
  if (wide > 0) {
    const auto kernel = zero_kernel<true>;
    CENTROID_LAUNCH(kernel, blocks_for(wide / 4, queue.processors), kThreads, stream_of(queue),
                    wide, out);
  }
  if (rest > 0) {
    const auto kernel = zero_kernel<false>;
    CENTROID_LAUNCH(kernel, blocks_for(rest, queue.processors), kThreads, stream_of(queue), rest,
                    out + wide);
  }
  return launched("kernels of zero");
}
Status add(std::uint64_t elements, const float* in, float* out, const Queue& queue) {
  const std::uint64_t wide = is_wide(0, in, out) ? elements / 4 * 4 : 0, rest = elements - wide;
  if (wide > 0) {
    const auto kernel = add_kernel<true>;
    CENTROID_LAUNCH(kernel, blocks_for(wide / 4, queue.processors), kThreads, stream_of(queue),
                    wide, in, out);
  }
  if (rest > 0) {
    const auto kernel = add_kernel<false>;
    CENTROID_LAUNCH(kernel, blocks_for(rest, queue.processors), kThreads, stream_of(queue), rest,
                    in + wide, out + wide);
  }
  return launched("kernels of add");
}
Status move_rows(bool place, std::uint64_t rows, std::uint64_t width, const std::uint32_t* index,
                 const float* in, float* out, const Queue& queue) {
  if (rows * width == 0) return {};
  const bool wide = is_wide(width, in, out);
  const auto kernel = place
                          ? (wide ? move_rows_kernel<true, true> : move_rows_kernel<true, false>)
                          : (wide ? move_rows_kernel<false, true> : move_rows_kernel<false, false>);
  CENTROID_LAUNCH(kernel, blocks_for(rows * width / (wide ? 4 : 1), queue.processors), kThreads,
                  stream_of(queue), rows, width, index, in, out);
  return launched("kernel of move_rows");
}

std::uint64_t sum_rows_scratch(std::uint64_t rows, std::uint64_t width) {
  const std::uint64_t parts = (rows + kColumnRows - 1) / kColumnRows;
  return parts > 1 ? parts * width : 0;
}
Status sum_rows(std::uint64_t rows, std::uint64_t width, const float* values, float* sums,
                float* scratch, const Queue& queue) {
  if (width == 0) return {};
  if (rows == 0) return zero(width, sums, queue);
  const std::uint64_t parts = (rows + kColumnRows - 1) / kColumnRows;
  float* const into = parts > 1 ? scratch : sums;
  const bool wide = is_wide(width, values, into);
  const auto kernel = wide ? column_parts_kernel<true> : column_parts_kernel<false>;
  CENTROID_LAUNCH(kernel, blocks_for(parts * width / (wide ? 4 : 1), queue.processors), kThreads,
                  stream_of(queue), rows, width, values, into);
  if (parts > 1) {
    CENTROID_LAUNCH(column_sums_kernel, blocks_for(width, queue.processors), kThreads,
                    stream_of(queue), parts, width, scratch, sums);
  }
  return launched("kernels of sum_rows");
}

Status bias_activate(bool is_gelu, std::uint64_t rows, std::uint64_t width, const float* bias,
                     float* z, float* slope, const Queue& queue) {
  if (rows * width == 0) return {};
  const bool wide = is_wide(width, bias, z, slope);
  const auto kernel =
      is_gelu ? (wide ? bias_activate_kernel<true, true> : bias_activate_kernel<true, false>)
              : (wide ? bias_activate_kernel<false, true> : bias_activate_kernel<false, false>);
  CENTROID_LAUNCH(kernel, row_blocks(rows, queue), kThreads, stream_of(queue), rows, width, bias, z,
                  slope);
  return launched("kernel of bias_activate");
}
Status scale_by_slope(bool is_gelu, std::uint64_t elements, const float* of, float* gradient,
                      const Queue& queue) {
  const std::uint64_t wide = is_wide(0, of, gradient) ? elements / 4 * 4 : 0;
  const std::uint64_t rest = elements - wide;
  if (wide > 0) {
    const auto kernel = is_gelu ? slope_kernel<true, true> : slope_kernel<false, true>;
    CENTROID_LAUNCH(kernel, blocks_for(wide / 4, queue.processors), kThreads, stream_of(queue),
                    wide, of, gradient);
  }
  if (rest > 0) {
    const auto kernel = is_gelu ? slope_kernel<true, false> : slope_kernel<false, false>;
    CENTROID_LAUNCH(kernel, blocks_for(rest, queue.processors), kThreads, stream_of(queue), rest,
                    of + wide, gradient + wide);
  }
  return launched("kernels of scale_by_slope");
}

Status embed(const Dropout& dropout, std::uint64_t rows, const std::uint32_t* tokens,
             std::uint64_t context, std::uint64_t width, const float* table, const float* positions,
             float* out, const Queue& queue) {
  if (rows * width == 0) return {};
  const auto kernel =
      is_wide(width, table, positions, out) ? embed_kernel<true> : embed_kernel<false>;
  CENTROID_LAUNCH(kernel, blocks_for(rows * ((width + 3) / 4), queue.processors), kThreads,
                  stream_of(queue), dropout, rows, tokens, context, width, table, positions, out);
  return launched("kernel of embed");
}
Status embed_back(std::uint64_t rows, const std::uint32_t* tokens, std::uint64_t width,
                  const float* gradient, float* table, const Queue& queue) {
  if (rows * width == 0) return {};
  const bool wide = is_wide(width, gradient, table);
  const std::uint64_t step = wide ? kColumnStep<true> : kColumnStep<false>;
  const auto kernel = wide ? embed_back_kernel<true> : embed_back_kernel<false>;
  CENTROID_LAUNCH(kernel, row_blocks(rows * ((width + step - 1) / step), queue), kThreads,
                  stream_of(queue), rows, tokens, width, gradient, table);
  return launched("kernel of embed_back");
}

Status point(std::uint64_t samples, std::uint64_t heads, const Many& a, const Many& b,
             const Many& c, const float** out, const Queue& queue) {
  if (samples * heads == 0) return {};
  CENTROID_LAUNCH(point_kernel, blocks_for(3 * samples * heads, queue.processors), kThreads,
                  stream_of(queue), samples, heads, a, b, c, out);
  return launched("kernel of point");
}

}  // namespace centroid::worker::cuda
