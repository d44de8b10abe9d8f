#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "common/base/result.h"
#include "common/optim/rules.h"
#include "worker/model/activation.h"
#include "worker/model/attention.h"
#include "worker/model/batch_norm.h"
#include "worker/model/kernels.h"
#include "worker/model/model.h"

namespace centroid::worker {

/// How exactly a GPU multiplies matrices of float32; sums are float32 always. The CPU has kF32
/// only.
enum class Matmul : std::uint8_t {
  kF32,
  kTf32,  ///< factors cut to 10 bits behind the point
  kBf16,  ///< factors cut to 7
};

/// "f32", "tf32", "bf16"
Result<Matmul> parse_matmul(std::string_view name);

/// One step of an optimizer over a model's parameters, in place.
struct Update {
  rules::Step rule{};
  double clip_norm = 0;  ///< bound of the gradient's norm (norm.h: sum_of_squares); 0: none
  std::size_t elements = 0;
  float* gradient = nullptr;  ///< may be scaled
  float* params = nullptr;
  std::array<float*, 2> slots{};  ///< as many as the rule has
};

/// What models compute with, on one device: the CPU does it in the call, a GPU gets it queued on
/// one stream and does it in that order. Loops are those of kernels.h, activation.h, batch_norm.h
/// and loss.h, shapes as there; matrices are row-major.
///
/// memory  addresses are the device's, but where "host" is said
/// errors  the first one stays: everything after it does nothing, and `status` tells it. What was
///         computed since is rubbish
/// thread  one at a time
class Backend {
 public:
  virtual ~Backend() = default;
  /// Memory for a step, of at least so many floats, on a 16-byte boundary at least. Its content is
  /// lost when more is asked for than ever before.
  virtual float* work_space(std::size_t floats) = 0;
  /// A copy on the device of host memory that does not change, as long as the backend lives: the
  /// same one for the same memory.
  virtual const float* keep(std::span<const float> host) = 0;
  /// Bring a batch (host) to the device; valid until the next one. `context` 0: it has no tokens.
  virtual Inputs bring(const Batch& batch, std::size_t context) = 0;
  virtual void zero(std::size_t elements, float* out) = 0;
  virtual void copy(std::size_t elements, const float* in, float* out) = 0;
  /// out[r] = in[rows_of[r]]; and out[rows_of[r]] = in[r].
  virtual void pick_rows(std::size_t rows, std::size_t width, const std::uint32_t* rows_of,
                         const float* in, float* out) = 0;
  virtual void place_rows(std::size_t rows, std::size_t width, const std::uint32_t* rows_of,
                          const float* in, float* out) = 0;

  /// As blas::gemm.
  virtual void gemm(bool transpose_a, bool transpose_b, std::size_t m, std::size_t n, std::size_t k,
                    float alpha, const float* a, std::size_t lda, const float* b, std::size_t ldb,
                    float beta, float* c, std::size_t ldc) = 0;
  /// sums[j] = sum over rows of values[r, j].
  virtual void sum_rows(std::size_t rows, std::size_t width, const float* values, float* sums) = 0;

  virtual void add_bias_activate(Activation activation, std::size_t rows, std::size_t width,
                                 const float* bias, float* z, float* slope) = 0;
  /// A layer: z[m, n] = f(x[m, k] w[n, k]^T + bias[n]), and its slope as above.
  virtual void layer(Activation activation, std::size_t m, std::size_t n, std::size_t k,
                     const float* x, const float* w, const float* bias, float* z, float* slope) {
    gemm(false, true, m, n, k, 1.0F, x, k, w, k, 0.0F, z, n);
    add_bias_activate(activation, m, n, bias, z, slope);
  }
  virtual void scale_by_slope(Activation activation, std::size_t elements, const float* output,
                              const float* slope, float* gradient) = 0;

  virtual void drop(const kernels::Dropout& dropout, std::size_t rows, std::size_t width,
                    const float* in, float* out) = 0;
  virtual void add(const kernels::Dropout& dropout, std::size_t rows, std::size_t width,
                   const float* in, float* out) = 0;
  virtual void embed(const kernels::Dropout& dropout, std::size_t rows, const std::uint32_t* tokens,
                     std::size_t context, std::size_t width, const float* table,
                     const float* positions, float* out) = 0;
  virtual void embed_back(std::size_t rows, const std::uint32_t* tokens, std::size_t width,
                          const float* gradient, float* table) = 0;
  virtual void add_norm(const kernels::Norm& norm, const kernels::Dropout& dropout,
                        std::size_t rows, std::size_t width, const float* residual,
                        const float* branch, float* x, float* y, float* stats) = 0;
  virtual void norm_back(const kernels::Norm& norm, std::size_t rows, std::size_t width,
                         const float* x, const float* stats, const float* dy, float* gradient,
                         float* weight_gradient, float* bias_gradient) = 0;
  virtual void batch_norm(const BatchNorm& norm, Activation activation, float* mean_change,
                          float* var_change, float* out, float* slope) = 0;
  virtual void batch_norm_back(const BatchNorm& norm, float* gradient, float* weight_gradient,
                               float* bias_gradient) = 0;
  virtual void gelu(std::size_t elements, const float* in, float* out) = 0;
  virtual void gelu_back(std::size_t elements, const float* in, float* gradient) = 0;
  virtual void swiglu(std::size_t rows, std::size_t width, const float* gate_up, float* out) = 0;
  virtual void swiglu_back(std::size_t rows, std::size_t width, const float* gradient,
                           float* gate_up) = 0;
  /// Floats of Attention::scratch.
  virtual std::size_t attention_scratch(std::size_t samples, std::size_t context,
                                        std::size_t heads) const = 0;
  virtual void attend(const Attention& attention, float* out) = 0;
  virtual void attend_back(const Attention& attention, const float* out, const float* dout,
                           float* delta, float* dqkv) = 0;

  /// Rows whose logits are in memory at a time.
  virtual std::size_t head_rows() const = 0;
  /// Add bias (null: none) to logits; softmax cross-entropy; logits become the gradient of share *
  /// (sum of losses) when `needs_gradient`. Losses add up until `result`.
  virtual void cross_entropy(std::size_t rows, std::size_t classes, const std::uint32_t* labels,
                             const float* bias, float share, bool needs_gradient,
                             float* logits) = 0;
  /// The bits of Optimizer::step.
  virtual void update(const Update& step) = 0;
  /// sqrt(sum_of_squares) of so many numbers (norm.h), the same bits; waits for it.
  virtual double norm(const float* numbers, std::size_t elements) = 0;
  /// What steps take of the device's memory, in bytes.
  struct Memory {
    std::uint64_t needed = 0;  ///< in all, with what steps before have taken
    std::uint64_t taken = 0;   ///< of that already
    std::uint64_t alone = 0;   ///< of these steps, whatever has been taken
  };
  /// `steps` calls this backend as it will, and nothing is computed: only what memory it takes is
  /// noted. Addresses that it is given lead nowhere. The CPU takes memory as it goes: nothing.
  /// fails  as the steps would before anything is queued (sizes that are not possible)
  virtual Result<Memory> rehearse(const std::function<void()>& steps) {
    (void)steps;
    return Memory();
  }
  /// Take the memory of the last rehearsal, so that such steps take none. Nothing may be under way:
  /// memory that is too small is freed.
  virtual Status reserve() { return {}; }
  /// Wait for everything that was queued: the losses since the last time.
  virtual StepResult result() = 0;
  virtual Status status() const = 0;
};

std::unique_ptr<Backend> make_cpu_backend();

/// keys[s] = the key of sample s's dropout.
void dropout_keys(const Batch& batch, std::span<std::uint64_t> keys);
/// rows[s] = the row of sample s's last token, of `context` rows a sample.
void last_rows(const Batch& batch, std::size_t context, std::span<std::uint32_t> rows);

}  // namespace centroid::worker
