#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/tensor/tensor.h"

namespace centroid::worker {

/// Limit of a model: 8 GiB of float32.
inline constexpr std::uint64_t kMaxParameters = std::uint64_t{1} << 31;

/// Low-rank adapters of frozen matrices: out += alpha / rank * dropout(in) A^T B^T.
/// source  Hu et al. 2021, "LoRA: Low-rank adaptation of large language models"
struct LoraConfig {
  std::uint64_t rank = 0;  ///< 0: none, all weights are trained
  double alpha = 0;        ///< 0: equal to the rank (a factor of 1)
  double dropout = 0;
  std::vector<std::string> targets;  ///< names of projections, in the order of the model

  double scale() const { return (alpha > 0 ? alpha : double(rank)) / double(rank); }
};

/// Shape of a decoder-only transformer.
struct TransformerConfig {
  enum class Mlp : std::uint8_t { kGelu, kSwiGlu };
  enum class Norm : std::uint8_t { kRms, kLayer };

  std::uint64_t layers = 2, width = 64, heads = 4, hidden = 0;  // hidden 0: 4 * width
  std::uint64_t context = 64;                                   ///< tokens of the longest sequence
  std::uint64_t vocabulary = 256;                               ///< number of tokens; bytes: 256
  std::uint64_t classes = 0;  ///< 0: predict the next token; else classify the sequence
  Mlp mlp = Mlp::kGelu;
  Norm norm = Norm::kRms;
  bool tied = false;  ///< the head is the token embedding
  double dropout = 0;
  LoraConfig lora;

  std::uint64_t outputs() const { return classes > 0 ? classes : vocabulary; }
  std::uint64_t head_width() const { return width / heads; }
  bool is_language() const { return classes == 0; }

  /// "transformer" or "transformer:layers=4,width=128,mlp=swiglu,tied=yes,lora=8,...".
  /// fails  invalid_argument: names the field, its value, and the valid ones
  static Result<TransformerConfig> parse(const std::string& spec);
  /// Canonical form: fields that differ from the default, in a fixed order.
  std::string spec() const;

  /// All tensors without adapters, in the order of the forward pass; matrices [out, in], as
  /// PyTorch's. Projections of one input (q, k, v; gate, up) are adjacent.
  Manifest whole() const;
  /// Trained tensors: `whole`, or with adapters those ("….lora_A.weight" [rank, in],
  /// "….lora_B.weight" [out, rank]) and the head unless it is tied.
  Manifest trained() const;
};

/// The projections that may have adapters: q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj,
/// down_proj.
const std::vector<std::string>& projection_names();

}  // namespace centroid::worker
