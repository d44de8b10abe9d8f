#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "worker/model/transformer.h"

namespace centroid::worker {

/// Read the initial or frozen weights of a model: a safetensors file (a checkpoint's
/// model.safetensors) with all tensors of config.whole() in f32, bf16 or f16. Other tensors are
/// ignored.
///
/// A classifier reads its head from the file if the shape matches; else the head gets small random
/// numbers, the same on every worker. Adapters in the file are not added.
///
/// fails  not_found; invalid_argument: names the tensor that is missing or has another shape, and
///        both shapes; data_loss: damaged file
Result<Base> load_base(const TransformerConfig& config, const std::filesystem::path& file);

/// Write the adapters and the head in the format of Hugging Face's PEFT: adapter_model.safetensors
/// ("base_model.model.<module>.lora_A.weight", and the head) and adapter_config.json. `base` is the
/// fingerprint of the base weights, stored in the file's metadata. Both files are replaced and
/// synced before the call returns. After a crash the folder has the old files, the new files, or
/// tensors with an equal description or none: a different description is removed before the tensors
/// are replaced. A call removes temporary files of crashed programs that are older than an hour.
///
/// fails  as SafetensorsWriter
Status save_adapters(const std::filesystem::path& folder, const TransformerConfig& config,
                     std::uint64_t base, std::span<const float> params);

/// Read adapters into `params`, laid out as config.trained(). Also reads files of PEFT.
///
/// fails  not_found; invalid_argument: rank, alpha or targets differ from the config's, another
///        base (if the file names it), a tensor is missing or has another shape; data_loss
Status load_adapters(const std::filesystem::path& folder, const TransformerConfig& config,
                     std::uint64_t base, std::span<float> params);

}  // namespace centroid::worker
