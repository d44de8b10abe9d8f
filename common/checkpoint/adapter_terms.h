#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace centroid {

/// The terms of low-rank adapters in `adapter_config.json`: a matrix W becomes W + scale B A.
///
/// scale   lora_alpha / r, with use_rslora lora_alpha / sqrt(r)
/// source  Hugging Face PEFT, LoraConfig; Kalajdzievski 2023, "A Rank Stabilization Scaling Factor
///         for Fine-Tuning with LoRA"
struct AdapterTerms {
  double scale = 0, alpha = 0;
  std::uint64_t rank = 0;
  bool is_by_root = false;           ///< use_rslora
  std::vector<std::string> targets;  ///< ascending; empty if it is no list of names
};

/// fails  not_found, data_loss: no such file, no JSON object; invalid_argument: another kind of
///        adapters, or a setting that changes W in another way (named)
Result<AdapterTerms> read_adapter_terms(const std::filesystem::path& file);

}  // namespace centroid
