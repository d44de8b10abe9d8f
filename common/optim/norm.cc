#include "common/optim/norm.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/optim/rules.h"
#include "common/tensor/multiversion.h"

namespace centroid {
namespace {

constexpr std::size_t kLanes = 16;

// The square of a float is exact in double, so a fused operation gives the same bits.
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

struct BlockKernel {
  CENTROID_KERNEL void run(const float* x, std::size_t rows, double* sums) {
    for (std::size_t row = 0; row < rows; ++row) {
      CENTROID_INDEPENDENT
      for (std::size_t l = 0; l < rules::kSquaresLanes; ++l) {
        const auto v = static_cast<double>(x[row * rules::kSquaresLanes + l]);
        sums[l] += v * v;
      }
    }
  }
};

double add_by_halves(std::span<double> sums) {
  for (std::size_t half = sums.size() / 2; half > 0; half /= 2)
    for (std::size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  return sums[0];
}

}  // namespace

double sum_of_squares(std::span<const float> plane) {
  std::array<double, rules::kSquaresTotals> totals{};
  for (std::size_t b = 0; b * rules::kSquaresBlock < plane.size(); ++b) {
    const std::size_t begin = b * rules::kSquaresBlock;
    const auto block =
        plane.subspan(begin, std::min<std::size_t>(rules::kSquaresBlock, plane.size() - begin));
    std::array<double, rules::kSquaresLanes> sums{};
    const std::size_t rows = block.size() / rules::kSquaresLanes;
    run_multiversioned<BlockKernel>(block.data(), rows, sums.data());
    for (std::size_t i = rows * rules::kSquaresLanes; i < block.size(); ++i) {
      const auto v = static_cast<double>(block[i]);
      sums[i % rules::kSquaresLanes] += v * v;
    }
    totals[b % rules::kSquaresTotals] += add_by_halves(sums);
  }
  return add_by_halves(totals);
}

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

float clip_factor(double norm, double bound) { return rules::clip_factor_of(norm, bound); }

}  // namespace centroid
