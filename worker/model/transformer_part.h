#pragma once

#include <cstdint>
#include <span>

#include "common/base/result.h"
#include "common/tensor/tensor.h"
#include "worker/model/tensor_part.h"
#include "worker/model/transformer_config.h"

namespace centroid::worker {

/// What one rank has of a transformer whose tensors are divided: some heads, some columns of the
/// MLP, some rows of the token embedding and of the head. Normalisations and the position embedding
/// are whole on every rank.
///
/// source  Shoeybi et al. 2019, "Megatron-LM", section 3
struct TransformerPart {
  PartRange heads, hidden, tokens, outputs;
  std::uint64_t head_width = 0;

  std::uint64_t width() const { return heads.count * head_width; }  ///< of the attention

  /// `rank` < `ranks`. One rank has all.
  ///
  /// fails  invalid_argument: heads or hidden are no multiple of the ranks, fewer tokens or classes
  ///        than ranks, adapters; the message has the numbers
  static Result<TransformerPart> of(const TransformerConfig& config, std::uint32_t rank,
                                    std::uint32_t ranks);

  /// The same tensors with the part's shapes.
  Manifest cut(Manifest whole) const;
  /// The part's elements of a tensor.
  void cut(const TensorInfo& whole, std::span<const float> values, std::span<float> out) const;

 private:
  PartRange rows_of(const TensorInfo& whole) const;
  PartRange columns_of(const TensorInfo& whole) const;
};

}  // namespace centroid::worker
