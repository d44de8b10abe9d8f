#include "common/optim/norm.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/tensor/multiversion.h"

namespace centroid {
namespace {

constexpr std::size_t kLanes = 16;

// The square of a float is exact in double, so that fusing could not change it.
struct SquaresKernel {
  CENTROID_KERNEL void run(const float* x, std::size_t rows, double* lanes) {
    double sum[kLanes];
    for (std::size_t l = 0; l < kLanes; ++l) sum[l] = lanes[l];
    for (std::size_t row = 0; row < rows; ++row) {
      CENTROID_INDEPENDENT
      for (std::size_t l = 0; l < kLanes; ++l) {
        const auto v = static_cast<double>(x[row * kLanes + l]);
        sum[l] += v * v;
      }
    }
    for (std::size_t l = 0; l < kLanes; ++l) lanes[l] = sum[l];
  }
};

}  // namespace

void PlaneNorm::add(std::uint64_t position, std::span<const float> values) {
  const auto one = [&](std::size_t i) {
    const auto v = static_cast<double>(values[i]);
    lanes_[(position + i) % kLanes] += v * v;
  };
  std::size_t i = 0;
  for (; i < values.size() && (position + i) % kLanes != 0; ++i) one(i);
  const std::size_t rows = (values.size() - i) / kLanes;
  run_multiversioned<SquaresKernel>(values.data() + i, rows, lanes_.data());
  for (i += rows * kLanes; i < values.size(); ++i) one(i);
}

void PlaneNorm::add(std::uint64_t position, std::span<const std::uint32_t> index,
                    std::span<const float> values) {
  for (std::size_t j = 0; j < index.size(); ++j) {
    const auto v = static_cast<double>(values[j]);
    lanes_[(position + index[j]) % kLanes] += v * v;
  }
}

double PlaneNorm::end_chunk() {
  double squares = 0;
  for (double& lane : lanes_) squares += std::exchange(lane, 0.0);
  add_chunk(squares);
  return squares;
}

double PlaneNorm::value() const {
  double open = 0;
  for (const double lane : lanes_) open += lane;
  return std::sqrt(sum_ + open);
}

float clip_factor(double norm, double bound) {
  if (!(bound > 0) || !std::isfinite(norm) || norm <= bound) return 1;
  return static_cast<float>(bound / norm);
}

}  // namespace centroid
