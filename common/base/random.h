#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace centroid {

/// Mix 64 bits so that every input bit reaches every output bit.
///
/// source  Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators" (finaliser of
///         SplitMix64)
constexpr std::uint64_t mix64(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

constexpr std::uint64_t mix64(std::uint64_t a, std::uint64_t b) { return mix64(mix64(a) ^ b); }

/// Unpredictable bits of the calling thread's host (host.h): for names, jitter and salts.
std::uint64_t random_seed();

/// Counter-based generator: the same (seed, stream) gives the same numbers on every machine and
/// compiler.
class CounterRng {
 public:
  constexpr explicit CounterRng(std::uint64_t seed, std::uint64_t stream = 0)
      : key_(mix64(seed, stream)) {}
  constexpr std::uint64_t next() { return mix64(key_ + 0x9E3779B97F4A7C15ULL * ++counter_); }
  /// Uniform in [0, n), n >= 1, without modulo bias.
  constexpr std::uint64_t below(std::uint64_t n) {
    std::uint64_t x = next();
    const std::uint64_t limit = ~std::uint64_t{0} - (~std::uint64_t{0} % n + 1) % n;
    while (x > limit) x = next();
    return x % n;
  }
  /// Uniform in [0, 1), 53 bits.
  constexpr double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  /// Standard normal (Box-Muller, one of the pair).
  double normal() {
    const double u = 1.0 - uniform();
    return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * uniform());
  }

 private:
  std::uint64_t key_;
  std::uint64_t counter_ = 0;
};

}  // namespace centroid
