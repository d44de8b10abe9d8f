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

/// Precision of a GPU's products of float32 matrices; sums are always float32. The CPU has only
/// kF32.
enum class Matmul : std::uint8_t {
  kF32,
  kTf32,  ///< factors have 10 bits of fraction
  kBf16,  ///< factors have 7
};

/// "f32", "tf32", "bf16"
Result<Matmul> parse_matmul(std::string_view name);

/// One step of an optimizer over a model's parameters, in place.
struct Update {
  rules::Step rule{};
  double clip_norm = 0;  ///< limit of the gradient's norm (norm.h: sum_of_squares); 0: none
  std::size_t elements = 0;
  float* gradient = nullptr;  ///< may be scaled
  float* params = nullptr;
  std::array<float*, 2> slots{};  ///< those that the rule uses
};

/// The operations of a model whose tensors are divided among ranks, in host memory: those of
/// kernels.h.
class PartOperations {
 public:
  virtual ~PartOperations() = default;
  virtual void embed(PartRange part, std::size_t rows, const std::uint32_t* tokens,
                     std::size_t context, std::size_t width, const float* table,
                     const float* positions, float* out) = 0;
  virtual void embed_back(PartRange part, std::size_t rows, const std::uint32_t* tokens,
                          std::size_t width, const float* gradient, float* table) = 0;
  virtual void largest(const kernels::LossPart& loss) = 0;
  virtual void exponentials(const kernels::LossPart& loss) = 0;
  /// Adds the losses to those of `Backend::result`.
  virtual void cross_entropy(const kernels::LossPart& loss, bool needs_gradient) = 0;
};

/// The operations of models on one device. The CPU computes in the call; a GPU queues the work on
/// one stream. The functions are those of kernels.h, activation.h, batch_norm.h and loss.h, with
/// their shapes; matrices are row-major.
///
/// memory  addresses are the device's unless marked "host"
/// errors  the first error is kept: later calls do nothing, `status` returns it, and results are
///         undefined
/// thread  one at a time
class Backend {
 public:
  virtual ~Backend() = default;
  /// Memory for a step: at least `floats` floats, aligned to 16 bytes. Its content is lost when a
  /// call requests more than all calls before.
  virtual float* work_space(std::size_t floats) = 0;
  /// A device copy of constant host memory, valid as long as the backend. The same memory gives the
  /// same copy.
  virtual const float* keep(std::span<const float> host) = 0;
  /// Copy a batch (host) to the device; valid until the next call. `context` 0: it has no tokens.
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
  /// A layer: z[m, n] = f(x[m, k] w[n, k]^T + bias[n]), and its slope as in activation.h.
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

  /// Maximum number of rows whose logits are in memory at a time.
  virtual std::size_t head_rows() const = 0;
  /// Add bias (null: none) to logits; softmax cross-entropy; logits become the gradient of share *
  /// (sum of losses) when `needs_gradient`. Losses add up until `result`.
  virtual void cross_entropy(std::size_t rows, std::size_t classes, const std::uint32_t* labels,
                             const float* bias, float share, bool needs_gradient,
                             float* logits) = 0;
  /// Null: models on this device are not divided.
  virtual PartOperations* parts() { return nullptr; }
  /// Gives the same bits as Optimizer::step.
  virtual void update(const Update& step) = 0;
  /// sqrt(sum_of_squares) of `elements` numbers, bit for bit as norm.h. Waits for the result.
  virtual double norm(const float* numbers, std::size_t elements) = 0;
  /// Device memory that steps need, in bytes.
  struct Memory {
    std::uint64_t needed = 0;  ///< in all, including the memory of earlier steps
    std::uint64_t taken = 0;   ///< part of it that is allocated already
    std::uint64_t alone = 0;   ///< of these steps alone
  };
  /// Measure the memory that `steps` needs: its calls of this backend compute nothing and return
  /// invalid addresses. The CPU allocates on demand and reports 0.
  /// fails  as the steps themselves for impossible sizes
  virtual Result<Memory> rehearse(const std::function<void()>& steps) {
    (void)steps;
    return Memory();
  }
  /// Allocate the memory of the last rehearsal, so that such steps allocate nothing. No work may be
  /// queued: memory that is too small is freed.
  virtual Status reserve() { return {}; }
  /// Wait for all queued work. Returns the losses since the last call.
  virtual StepResult result() = 0;
  virtual Status status() const = 0;
};

std::unique_ptr<Backend> make_cpu_backend();

/// keys[s] = the key of sample s's dropout.
void dropout_keys(const Batch& batch, std::span<std::uint64_t> keys);
/// rows[s] = the row of sample s's last token, of `context` rows a sample.
void last_rows(const Batch& batch, std::size_t context, std::span<std::uint32_t> rows);

}  // namespace centroid::worker
