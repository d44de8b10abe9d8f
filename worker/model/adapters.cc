#include "worker/model/adapters.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/checkpoint/adapter_terms.h"
#include "common/checkpoint/fault_point.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/shards.h"
#include "common/storage/file.h"
#include "common/tensor/text.h"

namespace centroid::worker {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kTensors = "adapter_model.safetensors";
constexpr const char* kConfig = "adapter_config.json";
const std::string kPrefix = "base_model.model.";
const std::string kDraft = ".new-";
constexpr const char* kBase = "base_fingerprint";

Error bad(const fs::path& file, const std::string& what) {
  return {ErrorCode::kInvalidArgument, file.string() + ": " + what};
}

const TensorInfo* find(const Manifest& manifest, const std::string& name) {
  const auto found = std::ranges::find(manifest, name, &TensorInfo::name);
  return found == manifest.end() ? nullptr : &*found;
}

/// Read the tensor `wanted`, which is `name` in the file.
Status read_tensor(const SafetensorsReader& reader, const fs::path& file, const std::string& name,
                   const TensorInfo& wanted, std::span<float> into) {
  const TensorInfo* const found = find(reader.manifest(), name);
  if (found == nullptr) return bad(file, "tensor " + name + " is missing");
  if (found->shape != wanted.shape)
    return bad(file, "tensor " + name + " has shape " + centroid::to_string(found->shape) +
                         ", the model's has " + centroid::to_string(wanted.shape));
  return reader.read_f32(name, into);
}

Json config_of(const TransformerConfig& config) {
  const bool has_head = !config.tied;
  return {{"peft_type", "LORA"},
          {"task_type", config.is_language() ? "CAUSAL_LM" : "SEQ_CLS"},
          {"r", config.lora.rank},
          {"lora_alpha", config.lora.scale() * static_cast<double>(config.lora.rank)},
          {"lora_dropout", config.lora.dropout},
          {"target_modules", config.lora.targets},
          {"modules_to_save", has_head ? Json(Json::array({"head"})) : Json(nullptr)},
          {"bias", "none"},
          {"fan_in_fan_out", false},
          {"inference_mode", true},
          {"base_model_name_or_path", nullptr}};
}

Status check_config(const fs::path& file, const TransformerConfig& config) {
  CENTROID_ASSIGN(const AdapterTerms terms, read_adapter_terms(file));
  const Json mine = config_of(config);
  if (terms.rank != config.lora.rank)
    return bad(file, "r is " + std::to_string(terms.rank) + ", the model's is " + mine["r"].dump());
  if (std::abs(terms.scale - config.lora.scale()) > 1e-9 * terms.scale)
    return bad(file, "lora_alpha is " + Json(terms.alpha).dump() +
                         (terms.is_by_root ? " (use_rslora: by the root of r)" : "") +
                         ", the model's is " + mine["lora_alpha"].dump() +
                         ": the same adapters have lora_alpha=" +
                         Json(terms.scale * static_cast<double>(terms.rank)).dump() + " here");
  auto expected = config.lora.targets;
  std::ranges::sort(expected);
  if (terms.targets != expected)
    return bad(file, "target_modules are not the model's " + mine["target_modules"].dump());
  return {};
}

/// Remove temporary files of crashed programs: unchanged for an hour.
void remove_abandoned(const fs::path& folder) {
  constexpr double kHour = 3600;
  const double now = SystemClock().unix_seconds();
  const auto entries = file::list(folder);
  if (!entries.ok()) return;
  for (const auto& [name, about] : *entries) {
    if (!name.starts_with(kTensors + kDraft) && !name.starts_with(kConfig + kDraft)) continue;
    const double age = now - 1e-9 * static_cast<double>(about.modified_ns);
    if (age > kHour) (void)file::remove(folder / name);
  }
}

}  // namespace

Result<Base> load_base(const TransformerConfig& config, const fs::path& file) {
  if (!file::is_regular(file))
    return Error(
        ErrorCode::kNotFound,
        file.string() + " is no file: base_weights takes a checkpoint's model.safetensors");
  CENTROID_ASSIGN(const SafetensorsReader reader, SafetensorsReader::open(file));
  const Manifest whole = config.whole();
  std::size_t total = 0;
  for (const TensorInfo& tensor : whole) total += tensor.elements();
  std::vector<float> weights(total);
  std::size_t at = 0;
  for (const TensorInfo& tensor : whole) {
    const auto into = std::span(weights).subspan(at, tensor.elements());
    at += into.size();
    const TensorInfo* const found = find(reader.manifest(), tensor.name);
    const bool is_own_head = tensor.name == "head.weight" && !config.is_language() &&
                             (found == nullptr || found->shape != tensor.shape);
    if (is_own_head) {
      CounterRng rng(0);
      for (float& x : into)
        x = static_cast<float>((2.0 * rng.uniform() - 1.0) * 0.02 * std::sqrt(3.0));
    } else {
      CENTROID_TRY(read_tensor(reader, file, tensor.name, tensor, into));
    }
  }
  return Base(std::make_shared<const BaseWeights>(std::move(weights)));
}

Status save_adapters(const fs::path& folder, const TransformerConfig& config, std::uint64_t base,
                     std::span<const float> params) {
  Manifest manifest = config.trained();
  for (TensorInfo& tensor : manifest) tensor.name.insert(0, kPrefix);
  std::error_code error;
  file::create_directories(folder, error);
  if (error)
    return Error(ErrorCode::kFailedPrecondition,
                 "folder " + folder.string() + " cannot be made: " + error.message());
  // Write to temporary names first: the old files stay complete until then. Workers may share the
  // folder.
  remove_abandoned(folder);
  const std::string mine = kDraft + std::to_string(::getpid());
  const fs::path tensors = folder / (kTensors + mine), text = folder / (kConfig + mine);
  for (const auto& left : {tensors, text}) CENTROID_TRY(file::remove(left));
  CENTROID_ASSIGN(auto writer,
                  SafetensorsWriter::create(tensors, manifest,
                                            {{"format", "pt"}, {kBase, std::to_string(base)}}));
  CENTROID_TRY(writer.append(std::as_bytes(params)));
  CENTROID_TRY(writer.finish());
  const std::string says = config_of(config).dump(2) + "\n";
  CENTROID_TRY(write_text_file(text, says));
  fault::point("adapters.drafted");
  // Between the two renames the folder has no description rather than one of other adapters.
  const auto described = file::read_text(folder / kConfig);
  if (!described.ok() || *described != says) {
    CENTROID_TRY(file::remove(folder / kConfig));
    CENTROID_TRY(file::sync_directory(folder));
    fault::point("adapters.undescribed");
  }
  CENTROID_TRY(file::rename(tensors, folder / kTensors));
  fault::point("adapters.tensors_renamed");
  CENTROID_TRY(file::rename(text, folder / kConfig));
  fault::point("adapters.renamed");
  return file::sync_directory(folder);
}

Status load_adapters(const fs::path& folder, const TransformerConfig& config, std::uint64_t base,
                     std::span<float> params) {
  CENTROID_TRY(check_config(folder / kConfig, config));
  const fs::path file = folder / kTensors;
  CENTROID_ASSIGN(const SafetensorsReader reader, SafetensorsReader::open(file));
  const auto recorded = reader.metadata().find(kBase);
  if (recorded != reader.metadata().end() && recorded->second != std::to_string(base))
    return bad(file, "was trained beside base weights with fingerprint " + recorded->second +
                         ", these have " + std::to_string(base));
  const Manifest trained = config.trained();
  for (const TensorInfo& tensor : reader.manifest()) {
    const bool is_ours = tensor.name.starts_with(kPrefix) &&
                         find(trained, tensor.name.substr(kPrefix.size())) != nullptr;
    if (!is_ours)
      return bad(file,
                 "tensor " + printable(tensor.name, 200) + " is none of the model's adapters");
  }
  std::size_t at = 0;
  for (const TensorInfo& tensor : trained) {
    CENTROID_TRY(read_tensor(reader, file, kPrefix + tensor.name, tensor,
                             params.subspan(at, tensor.elements())));
    at += tensor.elements();
  }
  CENTROID_CHECK(at == params.size());
  return {};
}

}  // namespace centroid::worker
