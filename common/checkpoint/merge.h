#pragma once

#include <filesystem>

#include "common/base/result.h"
#include "common/tensor/tensor.h"

namespace centroid {

struct MergeOptions {
  DType dtype = DType::kF32;  ///< kF32, kF16 or kBF16, rounded to nearest even
  bool any_base = false;      ///< do not compare the base with the one of the training
};

/// Merge base weights and their low-rank adapters into one model: each matrix W [out, in] with a
/// pair A [rank, in], B [out, rank] becomes W + scale B A, scale being lora_alpha / r
/// (with use_rslora lora_alpha / sqrt(r)). Other tensors of the adapters, such as a head, replace
/// the base's or are appended.
///
/// base      one safetensors file with matrices in f32, bf16 or f16; products and sums in double,
///           rounded once
/// adapters  folder of adapter_model.safetensors and adapter_config.json, as Hugging Face's PEFT
///           writes them ("base_model.model.<module>.lora_A.weight")
/// memory    the numbers of the base, to compare its fingerprint; with any_base one matrix at a
///           time
///
/// fails  not_found; already_exists: the target; invalid_argument: names the tensor or the setting
///        that cannot be merged, or both fingerprints if the base is another one; data_loss
Status merge_adapters(const std::filesystem::path& base, const std::filesystem::path& adapters,
                      const std::filesystem::path& target, const MergeOptions& options);

}  // namespace centroid
