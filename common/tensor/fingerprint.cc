#include "common/tensor/fingerprint.h"

#include <array>
#include <cstddef>
#include <cstring>

#include "common/base/random.h"

namespace centroid {
namespace {

// Eight independent chains hide the latency of mix64's two multiplications.
constexpr std::size_t kLanes = 8;

std::uint64_t word_at(const float* at) {
  std::uint64_t word = 0;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

}  // namespace

std::uint64_t fingerprint(std::span<const float> values, std::uint64_t seed) {
  std::array<std::uint64_t, kLanes> lanes;
  for (std::size_t k = 0; k < kLanes; ++k) lanes[k] = mix64(seed, k);

  const std::size_t words = values.size() / 2;
  const float* const data = values.data();
  std::size_t j = 0;
  for (; j + kLanes <= words; j += kLanes) {
    for (std::size_t k = 0; k < kLanes; ++k)
      lanes[k] = mix64(lanes[k] ^ word_at(data + 2 * (j + k)));
  }
  for (; j < words; ++j) lanes[j % kLanes] = mix64(lanes[j % kLanes] ^ word_at(data + 2 * j));
  if (values.size() % 2 != 0) {
    std::uint32_t last = 0;
    std::memcpy(&last, data + 2 * words, sizeof(last));
    lanes[words % kLanes] = mix64(lanes[words % kLanes] ^ last);
  }

  std::uint64_t hash = mix64(seed, values.size());
  for (const std::uint64_t lane : lanes) hash = mix64(hash, lane);
  return hash;
}

}  // namespace centroid
