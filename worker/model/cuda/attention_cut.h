#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace centroid::worker::cuda {

/// Queries of a head whose scores are in memory at a time, and scores of all heads together.
inline constexpr std::size_t kQueries = 128, kScores = std::size_t{1} << 24;

/// Division of attention into batched products.
struct Cut {
  std::size_t samples, queries;
};
inline Cut cut_of(std::size_t samples, std::size_t context, std::size_t heads) {
  const std::size_t queries = std::min(context, kQueries);
  const std::size_t fit = kScores / std::max<std::size_t>(heads * queries * context, 1);
  return {std::clamp<std::size_t>(fit, 1, std::max<std::size_t>(samples, 1)), queries};
}

/// Factor of the scores.
inline float scale_of(std::size_t head_width) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_width)));
}

}  // namespace centroid::worker::cuda
