#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/result.h"
#include "common/codec/spec.h"
#include "common/device/cuda/queue.h"

namespace centroid::cuda {

// The codecs' loops on a GPU, with the bits of common/codec on the CPU (except the bits of a NaN
// sum). Addresses are of device memory or pinned host memory. Functions queue work and return at
// once; none allocates or waits.
//
// limits  n < 2^32; floats on 4-byte boundaries; n = 0 does nothing
// speed   16-byte accesses if the addresses allow it: see each function

/// residual += gradient (with momentum correction); element by element as error_feedback.h defines.
struct AddArguments {
  const float* gradient = nullptr;  ///< null: nothing is added, x is only read
  float* x = nullptr;               ///< the residual
  float* momentum = nullptr;        ///< null: no momentum correction
  float factor = 0;
  bool nesterov = false;
  bool store_nonfinite = false;  ///< sums that are not finite are stored; else x keeps its value
};

/// Result of a selection.
struct SelectSummary {
  std::uint64_t count = 0;
  std::uint64_t nonfinite = 0;  ///< sums that are not finite; then nothing is selected
  std::uint64_t first_nonfinite = 0;
};

struct SelectArguments {
  AddArguments add;
  std::uint64_t n = 0, k = 0;
  std::byte* memory = nullptr;       ///< select_bytes(n), on a 16-byte boundary, not shared
  std::uint32_t* index = nullptr;    ///< min(k, n), ascending
  float* value = nullptr;            ///< x[index]
  SelectSummary* summary = nullptr;  ///< written last
};

/// Scratch memory of a selection of n numbers: slightly more than n / 4 bytes.
std::size_t select_bytes(std::uint64_t n);

/// The k largest magnitudes as TopkSelector selects them, after the addition.
/// cost  with addition 12 n bytes, then 4 n; further accesses depend on the numbers near the k-th:
///       below 1 n for gradients, 8 n at most (all numbers equal). Ten launches.
Status select(const SelectArguments& arguments, const Queue& queue);

/// For sent numbers: x[index[j]] = rest[j] (0 without `rest`), momentum[index[j]] = 0 (if there is
/// one). Indices differ from each other.
Status settle(const std::uint32_t* index, const float* rest, std::uint64_t count, float* x,
              float* momentum, const Queue& queue);

/// How numbers of a dense payload are stored; f32 is a copy.
enum class Dense : std::uint8_t { kF32, kBf16, kF16, kFiniteBf16, kInt8, kSign };

/// Findings of `encode`; added to `flags` by bits.
constexpr std::uint32_t kNotFinite = 1;  ///< a number is not finite (int8: beyond int8::limit)
constexpr std::uint32_t kInexact = 2;    ///< some x is not x̂ + (x - x̂); not for sign, which rounds

struct EncodeArguments {
  Dense type = Dense::kBf16;  ///< not kF32
  Rounding rounding = Rounding::kNearest;
  std::uint64_t stream = 0;  ///< of stochastic rounding
  const float* x = nullptr;
  std::uint64_t n = 0;
  std::byte* out = nullptr;  ///< the numbers without the form; any boundary
  std::uint32_t* flags = nullptr;
};
/// Write the numbers of a dense payload. 16-byte accesses with x and `out` on 16-byte boundaries
/// (int8: and n a multiple of 1024, or the numbers after the scales on an 8-byte boundary).
Status encode(const EncodeArguments& arguments, const Queue& queue);

/// x -= x̂ as `encode` stored it (int8: to nearest), and momentum = 0 if there is one; nothing if
/// `flags` are not 0. 16-byte accesses with x and momentum on 16-byte boundaries.
Status subtract(Dense type, float* x, float* momentum, std::uint64_t n, const std::uint32_t* flags,
                const Queue& queue);

}  // namespace centroid::cuda
