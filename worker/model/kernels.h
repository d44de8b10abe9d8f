#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "worker/model/model.h"
#include "worker/model/tensor_part.h"

namespace centroid::worker::kernels {

// Loops of the transformer; each passes once over memory and allocates nothing. The order of sums
// depends only on the lengths, so every machine gives the same bits.

/// Dropout of a matrix: kept elements are multiplied by `scale` = 1 / (1 - probability).
///
/// A row is a position of a sample; its random numbers are those of (keys[sample], site, position).
struct Dropout {
  std::uint32_t threshold = 0;  ///< probability to drop, in 1/65536; 0: all are kept
  float scale = 1;
  std::span<const std::uint64_t> keys;  ///< [samples]
  std::size_t context = 1;              ///< rows of a sample
  std::uint64_t site = 0;               ///< place in the model

  static Dropout of(double probability);
  explicit operator bool() const { return threshold > 0; }
};

/// out = kept(in) * scale; `in` may be `out`.
void drop(const Dropout& dropout, std::size_t rows, std::size_t width, const float* in, float* out);
/// out += kept(in) * scale (or + in without dropout).
void add(const Dropout& dropout, std::size_t rows, std::size_t width, const float* in, float* out);

/// out[r] = table[tokens[r]] + positions[r mod context], then dropout.
void embed(const Dropout& dropout, std::span<const std::uint32_t> tokens, std::size_t context,
           std::size_t width, const float* table, const float* positions, float* out);
/// table[tokens[r]] += gradient[r] in the order of rows; the other rows do not change.
void embed_back(std::span<const std::uint32_t> tokens, std::size_t width, const float* gradient,
                float* table);
/// positions[p] = sum over samples of gradient[sample, p].
void sum_samples(std::size_t samples, std::size_t elements, const float* gradient, float* sums);

/// Layer or RMS normalisation: y = (x - mean) / deviation * weight + bias. RMS has no bias (null)
/// and uses 0 as the mean.
///
/// source  Ba, Kiros, Hinton 2016, "Layer normalization"; Zhang, Sennrich 2019, "Root mean square
///         layer normalization"; 1e-5 is added to the square of the deviation
struct Norm {
  bool is_layer = false;
  const float* weight = nullptr;  ///< [width]
  const float* bias = nullptr;    ///< [width]
};
/// x = residual + kept(branch) (no branch: x = residual, which may be x), y = norm(x).
///
/// shape   residual, branch, x, y [rows, width]; stats [rows, 2]: mean, 1 / deviation
void add_norm(const Norm& norm, const Dropout& dropout, std::size_t rows, std::size_t width,
              const float* residual, const float* branch, float* x, float* y, float* stats);
/// gradient += d loss / d x where dy = d loss / d y; weight_gradient, bias_gradient are overwritten
/// (null: not needed).
void norm_back(const Norm& norm, std::size_t rows, std::size_t width, const float* x,
               const float* stats, const float* dy, float* gradient, float* weight_gradient,
               float* bias_gradient);

void gelu(std::size_t elements, const float* in, float* out);
/// gradient *= gelu'(in)
void gelu_back(std::size_t elements, const float* in, float* gradient);
/// out = silu(gate) * up.
///
/// shape  gate_up [rows, 2 * width]: gate, then up, in each row
void swiglu(std::size_t rows, std::size_t width, const float* gate_up, float* out);
/// gate_up becomes d loss / d gate_up; gradient = d loss / d out
void swiglu_back(std::size_t rows, std::size_t width, const float* gradient, float* gate_up);

/// Softmax over the first begin + r + 1 numbers of row r, scaled by `scale`; the later ones become
/// 0. `lse[r]` = log of the sum of exponentials, stored with stride `lse_step`.
///
/// shape   scores [rows, width], begin + rows <= width
void causal_softmax(std::size_t rows, std::size_t begin, std::size_t width, float scale,
                    float* scores, float* lse, std::size_t lse_step);
/// scores become the probabilities again, dscores (d loss / d probabilities) those of the scores
/// before scaling: p * (dp - delta[r]) * scale. Above the diagonal both become 0.
void causal_softmax_back(std::size_t rows, std::size_t begin, std::size_t width, float scale,
                         const float* lse, const float* delta, std::size_t step, float* scores,
                         float* dscores);
/// delta[r, h] = sum over the columns of head h of out * gradient.
void head_dots(std::size_t rows, std::size_t heads, std::size_t head_width, const float* out,
               const float* gradient, float* delta);

/// Softmax cross-entropy of logits; a row whose label is kNoTarget is ignored. Logits become the
/// gradient of share * (sum of losses) when `needs_gradient`.
///
/// shape   logits [labels.size(), classes]
/// fails   a label >= classes is a bug of the caller: aborts
/// note    if several logits are the largest, the first is the prediction; a row with a NaN counts
///         as wrong
StepResult cross_entropy(std::span<const std::uint32_t> labels, std::size_t classes, float share,
                         bool needs_gradient, float* logits);

// Of tables and logits that are divided among ranks (TensorPart).

/// out[r] = the row of tokens[r] (0 if another rank has it) + positions[r mod context] (null: 0).
///
/// shape   table [part.count, width]: the rows from part.begin on
void embed_part(PartRange part, std::span<const std::uint32_t> tokens, std::size_t context,
                std::size_t width, const float* table, const float* positions, float* out);
/// As embed_back, of the tokens whose rows this rank has.
void embed_back_part(PartRange part, std::span<const std::uint32_t> tokens, std::size_t width,
                     const float* gradient, float* table);

/// Cross-entropy as above of rows that each rank has the logits of some classes of. `largest`,
/// combined by maximum, then `exponentials`, combined by sum, then `cross_entropy`.
struct LossPart {
  std::span<const std::uint32_t> labels;  ///< of all classes
  PartRange classes;                      ///< of this rank
  float share = 0;
  float* logits = nullptr;   ///< [labels.size(), classes.count]
  float* largest = nullptr;  ///< [labels.size()]: the largest logit
  /// [3, labels.size()]: the sum of e^(logit - largest); the label's logit - largest; how many
  /// logits before the label's are the largest
  float* terms = nullptr;
};
void largest(const LossPart& loss);
void exponentials(const LossPart& loss);
/// The same on every rank; the logits become the gradient of this rank's.
StepResult cross_entropy(const LossPart& loss, bool needs_gradient);

}  // namespace centroid::worker::kernels
