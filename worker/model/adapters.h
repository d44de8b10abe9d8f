#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "worker/model/transformer.h"

namespace centroid::worker {

/// Read the weights that a model begins at or stands on: a safetensors file (a checkpoint's
/// model.safetensors) with all tensors of config.whole() in f32, bf16 or f16; others are left out.
///
/// A classifier takes a head of its own shape from the file; else its head begins at small random
/// numbers, the same for everybody. Adapters in the file are not added.
///
/// fails  not_found; invalid_argument: names the tensor that is missing or has another shape, and
///        both shapes; data_loss: damaged file
Result<Base> load_base(const TransformerConfig& config, const std::filesystem::path& file);

/// Write what was trained beside a frozen base as Hugging Face's PEFT does:
/// adapter_model.safetensors ("base_model.model.<module>.lora_A.weight", and the head) and
/// adapter_config.json. `base` is the fingerprint of the base weights, kept in the file's metadata.
/// Both files are replaced, and on the disk when it returns. Of who is killed meanwhile there are
/// the old ones, the new ones, or new tensors with the old description, which is then the same;
/// where it is not it is away in between. Drafts that are left behind go with a call an hour later.
///
/// fails  as SafetensorsWriter
Status save_adapters(const std::filesystem::path& folder, const TransformerConfig& config,
                     std::uint64_t base, std::span<const float> params);

/// Read them back into `params`, laid out as config.trained(). Files of PEFT are taken too.
///
/// fails  not_found; invalid_argument: rank, alpha or targets differ from the config's, another
///        base (where the file says which), a tensor is missing or has another shape; data_loss
Status load_adapters(const std::filesystem::path& folder, const TransformerConfig& config,
                     std::uint64_t base, std::span<float> params);

}  // namespace centroid::worker
