#include "common/tensor/squares.h"

#include <cstddef>

#include "common/tensor/multiversion.h"

namespace centroid {

namespace {

struct AddSquares {
  CENTROID_KERNEL void run(const float* values, std::size_t rows, double* lanes) {
    double sum[16];
    for (std::size_t l = 0; l < 16; ++l) sum[l] = lanes[l];
    for (std::size_t row = 0; row < rows; ++row) {
      CENTROID_INDEPENDENT
      for (std::size_t l = 0; l < 16; ++l) {
        const auto v = static_cast<double>(values[row * 16 + l]);
        sum[l] += v * v;
      }
    }
    for (std::size_t l = 0; l < 16; ++l) lanes[l] = sum[l];
  }
};

}  // namespace

double squares_of(std::span<const float> values) {
  double lanes[16] = {};
  const std::size_t rows = values.size() / 16;
  run_multiversioned<AddSquares>(values.data(), rows, lanes);
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  for (const float value : values.subspan(rows * 16))
    sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}

}  // namespace centroid
