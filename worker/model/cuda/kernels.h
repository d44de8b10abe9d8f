#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/result.h"
#include "common/device/cuda/queue.h"

namespace centroid::worker::cuda {

// The transformer's loops (worker/model/kernels.h) on a GPU: fused, one warp per row, 16-byte
// accesses if rows and addresses are aligned.
//
// All addresses are the device's. Functions queue work on the stream and return at once; none
// allocates or waits.
//
// bits    elementwise functions and dropout: those of the CPU. Sums over rows have another fixed
//         order, within 1e-5 of the largest result of the CPU

using centroid::cuda::Queue;

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
/// out = kept(in) * scale, or out += that. `in` may be `out`.
Status drop(const Dropout& dropout, bool add, std::uint64_t rows, std::uint64_t width,
            const float* in, float* out, const Queue& queue);

/// kernels::Norm; a bias makes it layer normalisation.
struct Norm {
  const float* weight = nullptr;
  const float* bias = nullptr;
};
/// kernels::add_norm: one pass, with dropout of `branch` too.
Status add_norm(const Norm& norm, const Dropout& dropout, std::uint64_t rows, std::uint64_t width,
                const float* residual, const float* branch, float* x, float* y, float* stats,
                const Queue& queue);
/// Size of norm_back's scratch in floats.
std::uint64_t norm_back_scratch(std::uint64_t rows, std::uint64_t width);
/// Adds to `gradient`; overwrites weight_gradient and bias_gradient (null: not needed).
Status norm_back(const Norm& norm, std::uint64_t rows, std::uint64_t width, const float* x,
                 const float* stats, const float* dy, float* gradient, float* weight_gradient,
                 float* bias_gradient, float* scratch, const Queue& queue);

/// As BatchNorm::forward and ::backward of worker/model/batch_norm.h, except that columns are
/// summed in parts of 128 rows. scratch: norm_back_scratch.
struct BatchNorm {
  std::uint64_t rows = 0, width = 0;
  const float *z = nullptr, *weight = nullptr, *bias = nullptr;
  const float *running_mean = nullptr, *running_var = nullptr;
  float* moments = nullptr;
};
Status batch_norm(const BatchNorm& norm, bool is_gelu, float* mean_change, float* var_change,
                  float* out, float* slope, float* scratch, const Queue& queue);
Status batch_norm_back(const BatchNorm& norm, float* gradient, float* weight_gradient,
                       float* bias_gradient, float* scratch, const Queue& queue);

/// Layout of one number per row of many matrices: that of row r of matrix m is at m / heads *
/// of_sample + m % heads + r * of_row.
struct RowNumbers {
  std::uint64_t heads = 1, of_sample = 0, of_row = 1;
};
/// kernels::causal_softmax of `count` matrices [rows, width], one after the other.
Status causal_softmax(std::uint64_t count, std::uint64_t rows, std::uint64_t begin,
                      std::uint64_t width, float scale, float* scores, float* lse,
                      const RowNumbers& at, const Queue& queue);
Status causal_softmax_back(std::uint64_t count, std::uint64_t rows, std::uint64_t begin,
                           std::uint64_t width, float scale, const float* lse, const float* delta,
                           const RowNumbers& at, float* scores, float* dscores, const Queue& queue);
/// out[g] = sum over j of a[g, j] * b[g, j].
Status head_dots(std::uint64_t groups, std::uint64_t width, const float* a, const float* b,
                 float* out, const Queue& queue);

/// For each row the loss and whether the label's logit is the largest (kNoTarget: 0 and 0); logits
/// (+ bias, null: none) become the gradient of share * (sum of losses) if `needs_gradient`. The
/// caller checks labels before they are copied to the device.
Status cross_entropy(const std::uint32_t* labels, std::uint64_t rows, std::uint64_t classes,
                     const float* bias, float share, bool needs_gradient, float* logits,
                     float* losses, std::uint32_t* correct, const Queue& queue);
/// Sums over rows.
struct Totals {
  double loss = 0;
  unsigned long long correct = 0, targets = 0;
};
/// Add the rows to `totals`, which the caller clears first.
Status add_up(const std::uint32_t* labels, std::uint64_t rows, const float* losses,
              const std::uint32_t* correct, Totals* totals, const Queue& queue);

Status zero(std::uint64_t elements, float* out, const Queue& queue);
Status add(std::uint64_t elements, const float* in, float* out, const Queue& queue);
/// out[r] = in[index[r]]; place: out[index[r]] = in[r].
Status move_rows(bool place, std::uint64_t rows, std::uint64_t width, const std::uint32_t* index,
                 const float* in, float* out, const Queue& queue);
/// Size of sum_rows' scratch in floats.
std::uint64_t sum_rows_scratch(std::uint64_t rows, std::uint64_t width);
/// sums[j] = sum over rows of values[r, j].
Status sum_rows(std::uint64_t rows, std::uint64_t width, const float* values, float* sums,
                float* scratch, const Queue& queue);

/// activation.h; `is_gelu` or ReLU.
Status bias_activate(bool is_gelu, std::uint64_t rows, std::uint64_t width, const float* bias,
                     float* z, float* slope, const Queue& queue);
Status scale_by_slope(bool is_gelu, std::uint64_t elements, const float* of, float* gradient,
                      const Queue& queue);

/// kernels::embed and its backward pass, in the order of rows: gives the CPU's bits.
Status embed(const Dropout& dropout, std::uint64_t rows, const std::uint32_t* tokens,
             std::uint64_t context, std::uint64_t width, const float* table, const float* positions,
             float* out, const Queue& queue);
Status embed_back(std::uint64_t rows, const std::uint32_t* tokens, std::uint64_t width,
                  const float* gradient, float* table, const Queue& queue);

/// Matrices at first + sample * of_sample + head * of_head.
struct Many {
  const float* first = nullptr;
  std::uint64_t of_sample = 0, of_head = 0;
};
/// out [3, samples * heads] = the addresses of three matrices for each head of each sample.
Status point(std::uint64_t samples, std::uint64_t heads, const Many& a, const Many& b,
             const Many& c, const float** out, const Queue& queue);

}  // namespace centroid::worker::cuda
