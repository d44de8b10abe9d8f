#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/tensor/dtype.h"

namespace centroid {

using Shape = std::vector<std::uint64_t>;

std::string to_string(const Shape& shape);  ///< "[512, 64]"; a scalar is "[]"

/// What a tensor is, without its bytes.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;

  std::uint64_t elements() const;  ///< product of the shape; 1 for a scalar
  std::uint64_t bytes() const { return elements() * size_of(dtype); }
  bool operator==(const TensorInfo&) const = default;
};

/// The tensors of a model in their agreed order. TensorId is the index.
using Manifest = std::vector<TensorInfo>;

/// 64-bit hash over names, dtypes, shapes and order: equal manifests, equal hash, on every machine.
std::uint64_t manifest_hash(const Manifest& manifest);

/// Check limits (docs/wire.md): names 1..256 bytes and unique, rank <= 8, no overflow, at least one tensor.
Status validate(const Manifest& manifest);

/// Say how `theirs` differs from `ours`: names the first tensor with both shapes and dtypes. Empty when equal.
std::string describe_difference(const Manifest& ours, const Manifest& theirs);

/// Memory of one tensor, not owned; must not outlive its owner.
struct TensorView {
  const TensorInfo* info = nullptr;
  std::byte* data = nullptr;

  MutableBytes bytes() const { return {data, static_cast<std::size_t>(info->bytes())}; }
  std::span<float> f32() const { return {reinterpret_cast<float*>(data), static_cast<std::size_t>(info->elements())}; }
};

}  // namespace centroid
