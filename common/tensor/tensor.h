#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/tensor/dtype.h"

namespace centroid {

using Shape = std::vector<std::uint64_t>;

std::string to_string(const Shape& shape);  ///< "[512, 64]"; a scalar is "[]"

/// Description of a tensor, without its bytes.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;

  /// Product of the shape; 1 for a scalar. Valid for validated tensors only (validate refuses
  /// overflow).
  std::uint64_t elements() const;
  std::uint64_t bytes() const { return elements() * size_of(dtype); }
  bool operator==(const TensorInfo&) const = default;
};

/// The tensors of a model in their agreed order. TensorId is the index.
using Manifest = std::vector<TensorInfo>;

/// 64-bit hash over names, dtypes, shapes and order: equal manifests, equal hash, on every machine.
///
/// Against accidents, not attackers: a chain of mix64 over [count] then per tensor [name length,
/// name in words of 8 bytes, zero-padded, dtype number, rank, dimensions]; every length precedes
/// what it counts, so no two manifests read alike.
std::uint64_t manifest_hash(const Manifest& manifest);

constexpr std::size_t kMaxTensorNameBytes = 256;
constexpr std::size_t kMaxTensorRank = 8;

/// Product of the shape times the element size; nothing if it does not fit in 63 bits. Dimensions
/// of 0 do not hide an overflow of the others.
std::optional<std::uint64_t> checked_bytes(const TensorInfo& tensor);

/// Check limits (docs/reference/wire.md): names 1..256 bytes of UTF-8 and unique ("__metadata__" is
/// reserved by safetensors), rank <= 8, all bytes together below 2^63, at least one tensor.
Status validate(const Manifest& manifest);

/// Whether a model stores this tensor without training it, as batch normalisation its running_mean
/// and running_var: the last part of its name, after the last dot, begins with "running_".
/// The "gradient" of such a buffer is old - new, so that a round's weighted mean of gradients is
/// the mean of the workers' values. Every step subtracts it unscaled (step_buffer,
/// common/optim/optimizer.h), and norms exclude it.
bool is_buffer(const TensorInfo& tensor);

/// Elements of the trained tensors, for a model whose buffers come last (worker/model); aborts for
/// another one.
std::uint64_t trained_elements(const Manifest& manifest);

/// Describe how `theirs` differs from `ours`: names the first tensor with both shapes and dtypes.
/// Empty if equal.
std::string describe_difference(const Manifest& ours, const Manifest& theirs);

/// Memory of one tensor, not owned; must not outlive its owner.
struct TensorView {
  const TensorInfo* info = nullptr;
  std::byte* data = nullptr;

  MutableBytes bytes() const { return {data, static_cast<std::size_t>(info->bytes())}; }
  std::span<float> f32() const {
    return {reinterpret_cast<float*>(data), static_cast<std::size_t>(info->elements())};
  }
};

}  // namespace centroid
