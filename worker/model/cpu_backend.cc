#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "common/device/blas.h"
#include "common/optim/norm.h"
#include "common/optim/optimizer.h"
#include "worker/model/backend.h"
#include "worker/model/loss.h"

namespace centroid::worker {

namespace {

/// Rows whose logits are in memory at a time: enough for an efficient BLAS product.
constexpr std::size_t kHeadRows = 256;

class CpuBackend final : public Backend, private PartOperations {
 public:
  float* work_space(std::size_t floats) override {
    if (memory_.size() < floats) memory_.resize(floats);
    return memory_.data();
  }
  const float* keep(std::span<const float> host) override { return host.data(); }

  Inputs bring(const Batch& batch, std::size_t context) override {
    Inputs in{batch.x.data(), batch.y.data(), batch.tokens.data(), nullptr, nullptr};
    if (context == 0) return in;
    keys_.resize(batch.samples);
    last_.resize(batch.samples);
    dropout_keys(batch, keys_);
    last_rows(batch, context, last_);
    in.keys = keys_.data();
    in.last = last_.data();
    return in;
  }
  void zero(std::size_t elements, float* out) override { std::fill_n(out, elements, 0.0F); }
  void copy(std::size_t elements, const float* in, float* out) override {
    std::copy_n(in, elements, out);
  }
  void pick_rows(std::size_t rows, std::size_t width, const std::uint32_t* rows_of, const float* in,
                 float* out) override {
    for (std::size_t r = 0; r < rows; ++r)
      std::copy_n(in + rows_of[r] * width, width, out + r * width);
  }
  void place_rows(std::size_t rows, std::size_t width, const std::uint32_t* rows_of,
                  const float* in, float* out) override {
    for (std::size_t r = 0; r < rows; ++r)
      std::copy_n(in + r * width, width, out + rows_of[r] * width);
  }

  void gemm(bool transpose_a, bool transpose_b, std::size_t m, std::size_t n, std::size_t k,
            float alpha, const float* a, std::size_t lda, const float* b, std::size_t ldb,
            float beta, float* c, std::size_t ldc) override {
    blas::gemm(transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  }
  void sum_rows(std::size_t rows, std::size_t width, const float* values, float* sums) override {
    kernels::sum_samples(rows, width, values, sums);
  }

  void add_bias_activate(Activation activation, std::size_t rows, std::size_t width,
                         const float* bias, float* z, float* slope) override {
    worker::add_bias_activate(activation, rows, width, bias, z, slope);
  }
  void scale_by_slope(Activation activation, std::size_t elements, const float* output,
                      const float* slope, float* gradient) override {
    worker::scale_by_slope(activation, elements, output, slope, gradient);
  }

  void drop(const kernels::Dropout& dropout, std::size_t rows, std::size_t width, const float* in,
            float* out) override {
    kernels::drop(dropout, rows, width, in, out);
  }
  void add(const kernels::Dropout& dropout, std::size_t rows, std::size_t width, const float* in,
           float* out) override {
    kernels::add(dropout, rows, width, in, out);
  }
  void embed(const kernels::Dropout& dropout, std::size_t rows, const std::uint32_t* tokens,
             std::size_t context, std::size_t width, const float* table, const float* positions,
             float* out) override {
    kernels::embed(dropout, {tokens, rows}, context, width, table, positions, out);
  }
  void embed_back(std::size_t rows, const std::uint32_t* tokens, std::size_t width,
                  const float* gradient, float* table) override {
    kernels::embed_back({tokens, rows}, width, gradient, table);
  }
  void add_norm(const kernels::Norm& norm, const kernels::Dropout& dropout, std::size_t rows,
                std::size_t width, const float* residual, const float* branch, float* x, float* y,
                float* stats) override {
    kernels::add_norm(norm, dropout, rows, width, residual, branch, x, y, stats);
  }
  void norm_back(const kernels::Norm& norm, std::size_t rows, std::size_t width, const float* x,
                 const float* stats, const float* dy, float* gradient, float* weight_gradient,
                 float* bias_gradient) override {
    kernels::norm_back(norm, rows, width, x, stats, dy, gradient, weight_gradient, bias_gradient);
  }
  void batch_norm(const BatchNorm& norm, Activation activation, float* mean_change,
                  float* var_change, float* out, float* slope) override {
    norm.forward(activation, mean_change, var_change, out, slope);
  }
  void batch_norm_back(const BatchNorm& norm, float* gradient, float* weight_gradient,
                       float* bias_gradient) override {
    norm.backward(gradient, weight_gradient, bias_gradient);
  }
  void gelu(std::size_t elements, const float* in, float* out) override {
    kernels::gelu(elements, in, out);
  }
  void gelu_back(std::size_t elements, const float* in, float* gradient) override {
    kernels::gelu_back(elements, in, gradient);
  }
  void swiglu(std::size_t rows, std::size_t width, const float* gate_up, float* out) override {
    kernels::swiglu(rows, width, gate_up, out);
  }
  void swiglu_back(std::size_t rows, std::size_t width, const float* gradient,
                   float* gate_up) override {
    kernels::swiglu_back(rows, width, gradient, gate_up);
  }
  std::size_t attention_scratch(std::size_t, std::size_t context, std::size_t) const override {
    return worker::attention_scratch(context);
  }
  void attend(const Attention& attention, float* out) override { attention.forward(out); }
  void attend_back(const Attention& attention, const float* out, const float* dout, float* delta,
                   float* dqkv) override {
    attention.backward(out, dout, delta, dqkv);
  }

  std::size_t head_rows() const override { return kHeadRows; }
  void cross_entropy(std::size_t rows, std::size_t classes, const std::uint32_t* labels,
                     const float* bias, float share, bool needs_gradient, float* logits) override {
    const std::span<const std::uint32_t> of(labels, rows);
    const StepResult part =
        bias != nullptr ? softmax_cross_entropy(of, classes, bias, share, logits, needs_gradient)
                        : kernels::cross_entropy(of, classes, share, needs_gradient, logits);
    add_losses(part);
  }
  PartOperations* parts() override { return this; }
  void update(const Update& step) override {
    const std::span<float> params(step.params, step.elements),
        gradient(step.gradient, step.elements);
    if (step.clip_norm > 0) {
      const float factor = clip_factor(std::sqrt(sum_of_squares(gradient)), step.clip_norm);
      if (factor != 1)
        for (float& g : gradient) g *= factor;
    }
    std::array<std::span<float>, 2> slots;
    std::size_t count = 0;
    for (float* const slot : step.slots)
      if (slot != nullptr) slots[count++] = {slot, step.elements};
    run_step(step.rule, params, gradient, std::span(slots).first(count), params);
  }
  double norm(const float* numbers, std::size_t elements) override {
    return std::sqrt(sum_of_squares({numbers, elements}));
  }
  StepResult result() override { return std::exchange(sum_, {}); }
  Status status() const override { return {}; }

 private:
  void embed(PartRange part, std::size_t rows, const std::uint32_t* tokens, std::size_t context,
             std::size_t width, const float* table, const float* positions, float* out) override {
    kernels::embed_part(part, {tokens, rows}, context, width, table, positions, out);
  }
  void embed_back(PartRange part, std::size_t rows, const std::uint32_t* tokens, std::size_t width,
                  const float* gradient, float* table) override {
    kernels::embed_back_part(part, {tokens, rows}, width, gradient, table);
  }
  void largest(const kernels::LossPart& loss) override { kernels::largest(loss); }
  void exponentials(const kernels::LossPart& loss) override { kernels::exponentials(loss); }
  void cross_entropy(const kernels::LossPart& loss, bool needs_gradient) override {
    add_losses(kernels::cross_entropy(loss, needs_gradient));
  }
  void add_losses(const StepResult& part) {
    sum_.loss_sum += part.loss_sum;
    sum_.correct += part.correct;
    sum_.targets += part.targets;
  }

  std::vector<float> memory_;
  std::vector<std::uint64_t> keys_;
  std::vector<std::uint32_t> last_;
  StepResult sum_;
};

}  // namespace

void dropout_keys(const Batch& batch, std::span<std::uint64_t> keys) {
  for (std::size_t s = 0; s < keys.size(); ++s)
    keys[s] = mix64(batch.noise, batch.ids.empty() ? s : batch.ids[s]);
}

void last_rows(const Batch& batch, std::size_t context, std::span<std::uint32_t> rows) {
  for (std::size_t s = 0; s < rows.size(); ++s) {
    const std::size_t length = batch.lengths.empty() ? context : batch.lengths[s];
    rows[s] = static_cast<std::uint32_t>(s * context + length - 1);
  }
}

Result<Matmul> parse_matmul(std::string_view name) {
  if (name == "f32") return Matmul::kF32;
  if (name == "tf32") return Matmul::kTf32;
  if (name == "bf16") return Matmul::kBf16;
  return Error(ErrorCode::kInvalidArgument,
               "matmul '" + std::string(name) + "' is not f32, tf32 or bf16");
}

std::unique_ptr<Backend> make_cpu_backend() { return std::make_unique<CpuBackend>(); }

}  // namespace centroid::worker
