#include "common/base/crc32c_join.h"

namespace centroid {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78;  // reflected
constexpr std::uint32_t kOne = 0x80000000;         // x^0: the highest bit

std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (std::uint32_t bit = kOne; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b & 1) != 0 ? (b >> 1) ^ kPolynomial : b >> 1;
  }
  return product;
}

}  // namespace

std::uint32_t crc32c_join(std::uint32_t a, std::uint32_t b, std::uint64_t bytes_of_b) {
  std::uint32_t power = kOne >> 8;  // x^8
  std::uint32_t shift = kOne;
  for (std::uint64_t n = bytes_of_b; n != 0; n >>= 1) {
    if ((n & 1) != 0) shift = multiply(shift, power);
    power = multiply(power, power);
  }
  return multiply(shift, a) ^ b;
}

}  // namespace centroid
