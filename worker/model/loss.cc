#include "worker/model/loss.h"

#include <cmath>

namespace centroid::worker {

StepResult softmax_cross_entropy(std::span<const std::uint32_t> labels, std::size_t classes,
                                 const float* bias, float share, float* logits,
                                 bool needs_gradient) {
  StepResult result;
  result.targets = labels.size();
  float* row = logits;
  for (const std::uint32_t label : labels) {
    CENTROID_CHECK(label < classes);
    for (std::size_t j = 0; j < classes; ++j) row[j] += bias[j];
    std::size_t largest = 0;
    for (std::size_t j = 1; j < classes; ++j)
      if (row[j] > row[largest]) largest = j;
    const float top = row[largest];
    const float of_label = row[label] - top;
    float sum = 0;
    for (std::size_t j = 0; j < classes; ++j) {
      row[j] = std::exp(row[j] - top);
      sum += row[j];
    }
    result.loss_sum += std::log(static_cast<double>(sum)) - static_cast<double>(of_label);
    if (largest == label && !std::isnan(sum)) ++result.correct;
    if (needs_gradient) {
      const float scale = share / sum;
      for (std::size_t j = 0; j < classes; ++j) row[j] *= scale;
      row[label] -= share;
    }
    row += classes;
  }
  return result;
}

}  // namespace centroid::worker
