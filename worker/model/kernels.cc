#include "worker/model/kernels.h"

#include <algorithm>
#include <cmath>

#include "common/tensor/multiversion.h"
#include "worker/model/elements.h"

namespace centroid::worker::kernels {

namespace {

/// Number of partial sums: the width of the widest vectors, on every machine.
constexpr std::size_t kLanes = 16;
constexpr float kEpsilon = 1e-5F;

CENTROID_KERNEL float total(const float* lanes) {
  float sums[kLanes];
  for (std::size_t l = 0; l < kLanes; ++l) sums[l] = lanes[l];
  for (std::size_t half = kLanes / 2; half > 0; half /= 2)
    for (std::size_t l = 0; l < half; ++l) sums[l] += sums[l + half];
  return sums[0];
}

CENTROID_KERNEL float sum_of(std::size_t n, const float* x) {
  float lanes[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (std::size_t l = 0; l < kLanes; ++l) lanes[l] += x[i + l];
  for (std::size_t l = 0; i < n; ++i, ++l) lanes[l] += x[i];
  return total(lanes);
}

CENTROID_KERNEL float dot_of(std::size_t n, const float* a, const float* b) {
  float lanes[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (std::size_t l = 0; l < kLanes; ++l) lanes[l] += a[i + l] * b[i + l];
  for (std::size_t l = 0; i < n; ++i, ++l) lanes[l] += a[i] * b[i];
  return total(lanes);
}

/// sum (x - mean)^2
CENTROID_KERNEL float squares_of(std::size_t n, const float* x, float mean) {
  float lanes[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (std::size_t l = 0; l < kLanes; ++l) {
      const float from = x[i + l] - mean;
      lanes[l] += from * from;
    }
  for (std::size_t l = 0; i < n; ++i, ++l) {
    const float from = x[i] - mean;
    lanes[l] += from * from;
  }
  return total(lanes);
}

/// sum a b (x - mean)
CENTROID_KERNEL float dot_of_normal(std::size_t n, const float* a, const float* b, const float* x,
                                    float mean) {
  float lanes[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (std::size_t l = 0; l < kLanes; ++l) lanes[l] += a[i + l] * b[i + l] * (x[i + l] - mean);
  for (std::size_t l = 0; i < n; ++i, ++l) lanes[l] += a[i] * b[i] * (x[i] - mean);
  return total(lanes);
}

CENTROID_KERNEL float largest_of(std::size_t n, const float* x) {
  float lanes[kLanes];
  for (std::size_t l = 0; l < kLanes; ++l) lanes[l] = x[0];
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (std::size_t l = 0; l < kLanes; ++l) lanes[l] = x[i + l] > lanes[l] ? x[i + l] : lanes[l];
  for (; i < n; ++i) lanes[0] = x[i] > lanes[0] ? x[i] : lanes[0];
  float most = lanes[0];
  for (std::size_t l = 1; l < kLanes; ++l) most = lanes[l] > most ? lanes[l] : most;
  return most;
}

/// out (+)= kept(in) * scale for one row.
template <bool kAdd>
void drop_row(const Dropout& d, std::size_t row, std::size_t width, const float* in, float* out) {
  const std::uint64_t key = mix64(d.keys[row / d.context], d.site);
  const std::uint64_t first = (row % d.context) * ((width + 3) / 4);
  for (std::size_t i = 0; i < width; i += 4) {
    const std::uint32_t kept = survivors_of_four(key, first + i / 4, d.threshold);
    for (std::size_t j = 0; j < 4 && i + j < width; ++j) {
      const float value = ((kept >> j) & 1U) != 0 ? in[i + j] * d.scale : 0.0F;
      out[i + j] = kAdd ? out[i + j] + value : value;
    }
  }
}

struct AddNorm {
  CENTROID_KERNEL void run(const Norm* norm, const Dropout* dropout, std::size_t rows,
                           std::size_t width, const float* residual, const float* branch, float* x,
                           float* y, float* stats) {
    const auto n = static_cast<float>(width);
    for (std::size_t r = 0; r < rows; ++r, residual += width, x += width, y += width) {
      if (branch != nullptr && *dropout) {
        if (x != residual) std::copy_n(residual, width, x);
        drop_row<true>(*dropout, r, width, branch + r * width, x);
      } else if (branch != nullptr) {
        const float* more = branch + r * width;
        CENTROID_INDEPENDENT
        for (std::size_t j = 0; j < width; ++j) x[j] = residual[j] + more[j];
      } else if (x != residual) {
        std::copy_n(residual, width, x);
      }
      const float mean = norm->is_layer ? sum_of(width, x) / n : 0.0F;
      const float inverse = 1.0F / std::sqrt(squares_of(width, x, mean) / n + kEpsilon);
      stats[2 * r] = mean;
      stats[2 * r + 1] = inverse;
      const float* weight = norm->weight;
      const float* bias = norm->bias;
      if (bias != nullptr) {
        CENTROID_INDEPENDENT
        for (std::size_t j = 0; j < width; ++j)
          y[j] = (x[j] - mean) * inverse * weight[j] + bias[j];
      } else {
        CENTROID_INDEPENDENT
        for (std::size_t j = 0; j < width; ++j) y[j] = x[j] * inverse * weight[j];
      }
    }
  }
};

struct NormBack {
  CENTROID_KERNEL void run(const Norm* norm, std::size_t rows, std::size_t width, const float* x,
                           const float* stats, const float* dy, float* gradient,
                           float* weight_gradient, float* bias_gradient) {
    const auto n = static_cast<float>(width);
    const float* weight = norm->weight;
    for (std::size_t r = 0; r < rows; ++r, x += width, dy += width, gradient += width) {
      const float mean = stats[2 * r];
      const float inverse = stats[2 * r + 1];
      const float mean_g = norm->is_layer ? dot_of(width, dy, weight) / n : 0.0F;
      const float mean_dot = dot_of_normal(width, dy, weight, x, mean) * inverse / n;
      CENTROID_INDEPENDENT
      for (std::size_t j = 0; j < width; ++j) {
        const float normal = (x[j] - mean) * inverse;
        gradient[j] += inverse * (dy[j] * weight[j] - mean_g - normal * mean_dot);
      }
      if (weight_gradient != nullptr) {
        CENTROID_INDEPENDENT
        for (std::size_t j = 0; j < width; ++j)
          weight_gradient[j] += dy[j] * ((x[j] - mean) * inverse);
      }
      if (bias_gradient != nullptr) {
        CENTROID_INDEPENDENT
        for (std::size_t j = 0; j < width; ++j) bias_gradient[j] += dy[j];
      }
    }
  }
};

struct GeluKernel {
  CENTROID_KERNEL void run(std::size_t n, const float* in, float* out) {
    CENTROID_INDEPENDENT
    for (std::size_t i = 0; i < n; ++i) out[i] = gelu_of(in[i]).value;
  }
};
struct GeluBack {
  CENTROID_KERNEL void run(std::size_t n, const float* in, float* gradient) {
    CENTROID_INDEPENDENT
    for (std::size_t i = 0; i < n; ++i) gradient[i] *= gelu_of(in[i]).slope;
  }
};

struct SwiGlu {
  CENTROID_KERNEL void run(std::size_t rows, std::size_t width, const float* gate_up, float* out) {
    for (std::size_t r = 0; r < rows; ++r) {
      const float* gate = gate_up + r * 2 * width;
      const float* up = gate + width;
      float* to = out + r * width;
      CENTROID_INDEPENDENT
      for (std::size_t j = 0; j < width; ++j) to[j] = silu_of(gate[j]) * up[j];
    }
  }
};
struct SwiGluBack {
  CENTROID_KERNEL void run(std::size_t rows, std::size_t width, const float* gradient,
                           float* gate_up) {
    for (std::size_t r = 0; r < rows; ++r) {
      float* gate = gate_up + r * 2 * width;
      float* up = gate + width;
      const float* g = gradient + r * width;
      CENTROID_INDEPENDENT
      for (std::size_t j = 0; j < width; ++j) {
        const float of_up = g[j] * silu_of(gate[j]);
        gate[j] = g[j] * up[j] * silu_slope_of(gate[j]);
        up[j] = of_up;
      }
    }
  }
};

struct CausalSoftmax {
  CENTROID_KERNEL void run(std::size_t rows, std::size_t begin, std::size_t width, float scale,
                           float* scores, float* lse, std::size_t lse_step) {
    for (std::size_t r = 0; r < rows; ++r, scores += width) {
      const std::size_t seen = begin + r + 1;
      const float top = largest_of(seen, scores) * scale;
      CENTROID_INDEPENDENT
      for (std::size_t j = 0; j < seen; ++j) scores[j] = exp_of(scores[j] * scale - top);
      const float sum = sum_of(seen, scores);
      const float inverse = 1.0F / sum;
      for (std::size_t j = 0; j < seen; ++j) scores[j] *= inverse;
      for (std::size_t j = seen; j < width; ++j) scores[j] = 0.0F;
      lse[r * lse_step] = top + std::log(sum);
    }
  }
};
struct CausalSoftmaxBack {
  CENTROID_KERNEL void run(std::size_t rows, std::size_t begin, std::size_t width, float scale,
                           const float* lse, const float* delta, std::size_t step, float* scores,
                           float* dscores) {
    for (std::size_t r = 0; r < rows; ++r, scores += width, dscores += width) {
      const std::size_t seen = begin + r + 1;
      const float of_all = lse[r * step];
      const float mean = delta[r * step];
      CENTROID_INDEPENDENT
      for (std::size_t j = 0; j < seen; ++j) {
        const float p = exp_of(scores[j] * scale - of_all);
        scores[j] = p;
        dscores[j] = p * (dscores[j] - mean) * scale;
      }
      for (std::size_t j = seen; j < width; ++j) scores[j] = dscores[j] = 0.0F;
    }
  }
};

struct HeadDots {
  CENTROID_KERNEL void run(std::size_t groups, std::size_t width, const float* a, const float* b,
                           float* out) {
    for (std::size_t g = 0; g < groups; ++g) out[g] = dot_of(width, a + g * width, b + g * width);
  }
};

struct CrossEntropy {
  CENTROID_KERNEL void run(const std::uint32_t* labels, std::size_t rows, std::size_t classes,
                           float share, bool needs_gradient, float* logits, StepResult* result) {
    for (std::size_t r = 0; r < rows; ++r, logits += classes) {
      const std::uint32_t label = labels[r];
      if (label == kNoTarget) {
        std::fill_n(logits, classes, 0.0F);
        continue;
      }
      CENTROID_CHECK(label < classes);
      const float top = largest_of(classes, logits);
      const float of_label = logits[label] - top;
      const float* first = logits;
      while (first < logits + label && *first != top) ++first;
      const bool is_first = of_label == 0.0F && first == logits + label;
      CENTROID_INDEPENDENT
      for (std::size_t j = 0; j < classes; ++j) logits[j] = exp_of(logits[j] - top);
      const float sum = sum_of(classes, logits);
      result->loss_sum += std::log(static_cast<double>(sum)) - static_cast<double>(of_label);
      if (is_first && sum == sum) ++result->correct;
      ++result->targets;
      if (!needs_gradient) continue;
      const float factor = share / sum;
      for (std::size_t j = 0; j < classes; ++j) logits[j] *= factor;
      logits[label] -= share;
    }
  }
};

struct Exponentials {
  CENTROID_KERNEL void run(const LossPart* loss) {
    const std::size_t rows = loss->labels.size(), classes = loss->classes.count;
    float *sums = loss->terms, *labels = sums + rows, *before = labels + rows;
    float* logits = loss->logits;
    for (std::size_t r = 0; r < rows; ++r, logits += classes) {
      sums[r] = labels[r] = before[r] = 0.0F;
      if (loss->labels[r] == kNoTarget) continue;
      const float top = loss->largest[r];
      const std::uint64_t label = loss->labels[r], first = loss->classes.begin;
      if (label >= first && label < first + classes) labels[r] = logits[label - first] - top;
      for (std::size_t j = 0; j < classes && first + j < label; ++j)
        if (logits[j] == top) before[r] += 1.0F;
      CENTROID_INDEPENDENT
      for (std::size_t j = 0; j < classes; ++j) logits[j] = exp_of(logits[j] - top);
      sums[r] = sum_of(classes, logits);
    }
  }
};
struct LossOfParts {
  CENTROID_KERNEL void run(const LossPart* loss, bool needs_gradient, StepResult* result) {
    const std::size_t rows = loss->labels.size(), classes = loss->classes.count;
    const float *sums = loss->terms, *labels = sums + rows, *before = labels + rows;
    float* logits = loss->logits;
    for (std::size_t r = 0; r < rows; ++r, logits += classes) {
      if (loss->labels[r] == kNoTarget) {
        std::fill_n(logits, classes, 0.0F);
        continue;
      }
      const float sum = sums[r];
      result->loss_sum += std::log(static_cast<double>(sum)) - static_cast<double>(labels[r]);
      if (labels[r] == 0.0F && before[r] == 0.0F && sum == sum) ++result->correct;
      ++result->targets;
      if (!needs_gradient) continue;
      const float factor = loss->share / sum;
      for (std::size_t j = 0; j < classes; ++j) logits[j] *= factor;
      const std::uint64_t label = loss->labels[r], first = loss->classes.begin;
      if (label >= first && label < first + classes) logits[label - first] -= loss->share;
    }
  }
};

}  // namespace

Dropout Dropout::of(double probability) {
  Dropout out;
  out.threshold = static_cast<std::uint32_t>(std::lround(probability * 65536.0));
  out.scale = static_cast<float>(65536.0 / (65536.0 - out.threshold));
  return out;
}

void drop(const Dropout& dropout, std::size_t rows, std::size_t width, const float* in,
          float* out) {
  for (std::size_t r = 0; r < rows; ++r)
    drop_row<false>(dropout, r, width, in + r * width, out + r * width);
}

void add(const Dropout& dropout, std::size_t rows, std::size_t width, const float* in, float* out) {
  if (dropout) {
    for (std::size_t r = 0; r < rows; ++r)
      drop_row<true>(dropout, r, width, in + r * width, out + r * width);
  } else {
    CENTROID_INDEPENDENT
    for (std::size_t i = 0; i < rows * width; ++i) out[i] += in[i];
  }
}

void embed(const Dropout& dropout, std::span<const std::uint32_t> tokens, std::size_t context,
           std::size_t width, const float* table, const float* positions, float* out) {
  for (std::size_t r = 0; r < tokens.size(); ++r, out += width) {
    const float* token = table + tokens[r] * width;
    const float* position = positions + (r % context) * width;
    CENTROID_INDEPENDENT
    for (std::size_t j = 0; j < width; ++j) out[j] = token[j] + position[j];
    if (dropout) drop_row<false>(dropout, r, width, out, out);
  }
}

void embed_back(std::span<const std::uint32_t> tokens, std::size_t width, const float* gradient,
                float* table) {
  for (std::size_t r = 0; r < tokens.size(); ++r, gradient += width) {
    float* row = table + tokens[r] * width;
    CENTROID_INDEPENDENT
    for (std::size_t j = 0; j < width; ++j) row[j] += gradient[j];
  }
}

void sum_samples(std::size_t samples, std::size_t elements, const float* gradient, float* sums) {
  std::fill_n(sums, elements, 0.0F);
  for (std::size_t s = 0; s < samples; ++s, gradient += elements) {
    CENTROID_INDEPENDENT
    for (std::size_t j = 0; j < elements; ++j) sums[j] += gradient[j];
  }
}

void add_norm(const Norm& norm, const Dropout& dropout, std::size_t rows, std::size_t width,
              const float* residual, const float* branch, float* x, float* y, float* stats) {
  run_multiversioned<AddNorm>(&norm, &dropout, rows, width, residual, branch, x, y, stats);
}

void norm_back(const Norm& norm, std::size_t rows, std::size_t width, const float* x,
               const float* stats, const float* dy, float* gradient, float* weight_gradient,
               float* bias_gradient) {
  if (weight_gradient != nullptr) std::fill_n(weight_gradient, width, 0.0F);
  if (bias_gradient != nullptr) std::fill_n(bias_gradient, width, 0.0F);
  run_multiversioned<NormBack>(&norm, rows, width, x, stats, dy, gradient, weight_gradient,
                               bias_gradient);
}

void gelu(std::size_t elements, const float* in, float* out) {
  run_multiversioned<GeluKernel>(elements, in, out);
}
void gelu_back(std::size_t elements, const float* in, float* gradient) {
  run_multiversioned<GeluBack>(elements, in, gradient);
}
void swiglu(std::size_t rows, std::size_t width, const float* gate_up, float* out) {
  run_multiversioned<SwiGlu>(rows, width, gate_up, out);
}
void swiglu_back(std::size_t rows, std::size_t width, const float* gradient, float* gate_up) {
  run_multiversioned<SwiGluBack>(rows, width, gradient, gate_up);
}

void causal_softmax(std::size_t rows, std::size_t begin, std::size_t width, float scale,
                    float* scores, float* lse, std::size_t lse_step) {
  run_multiversioned<CausalSoftmax>(rows, begin, width, scale, scores, lse, lse_step);
}
void causal_softmax_back(std::size_t rows, std::size_t begin, std::size_t width, float scale,
                         const float* lse, const float* delta, std::size_t step, float* scores,
                         float* dscores) {
  run_multiversioned<CausalSoftmaxBack>(rows, begin, width, scale, lse, delta, step, scores,
                                        dscores);
}
void head_dots(std::size_t rows, std::size_t heads, std::size_t head_width, const float* out,
               const float* gradient, float* delta) {
  run_multiversioned<HeadDots>(rows * heads, head_width, out, gradient, delta);
}

StepResult cross_entropy(std::span<const std::uint32_t> labels, std::size_t classes, float share,
                         bool needs_gradient, float* logits) {
  StepResult result;
  run_multiversioned<CrossEntropy>(labels.data(), labels.size(), classes, share, needs_gradient,
                                   logits, &result);
  return result;
}

void embed_part(PartRange part, std::span<const std::uint32_t> tokens, std::size_t context,
                std::size_t width, const float* table, const float* positions, float* out) {
  for (std::size_t r = 0; r < tokens.size(); ++r, out += width) {
    if (positions != nullptr)
      std::copy_n(positions + (r % context) * width, width, out);
    else
      std::fill_n(out, width, 0.0F);
    if (tokens[r] < part.begin || tokens[r] >= part.begin + part.count) continue;
    const float* token = table + (tokens[r] - part.begin) * width;
    CENTROID_INDEPENDENT
    for (std::size_t j = 0; j < width; ++j) out[j] += token[j];
  }
}

void embed_back_part(PartRange part, std::span<const std::uint32_t> tokens, std::size_t width,
                     const float* gradient, float* table) {
  for (std::size_t r = 0; r < tokens.size(); ++r, gradient += width) {
    if (tokens[r] < part.begin || tokens[r] >= part.begin + part.count) continue;
    const auto own = static_cast<std::uint32_t>(tokens[r] - part.begin);
    embed_back({&own, 1}, width, gradient, table);
  }
}

void largest(const LossPart& loss) {
  const std::size_t classes = loss.classes.count;
  for (std::size_t r = 0; r < loss.labels.size(); ++r)
    loss.largest[r] = largest_of(classes, loss.logits + r * classes);
}

void exponentials(const LossPart& loss) { run_multiversioned<Exponentials>(&loss); }

StepResult cross_entropy(const LossPart& loss, bool needs_gradient) {
  StepResult result;
  run_multiversioned<LossOfParts>(&loss, needs_gradient, &result);
  return result;
}

}  // namespace centroid::worker::kernels
