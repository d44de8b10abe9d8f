#include "common/checkpoint/adapter_terms.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "common/storage/file.h"

namespace centroid {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxConfigBytes = 1u << 20;

Error bad(const fs::path& file, const std::string& what) {
  return {ErrorCode::kInvalidArgument, file.string() + ": " + what};
}

}  // namespace

Result<AdapterTerms> read_adapter_terms(const fs::path& file) {
  const auto text = file::read_text(file, kMaxConfigBytes);
  if (!text.ok() && text.error().code() == ErrorCode::kResourceExhausted)
    return bad(file, "is larger than " + std::to_string(kMaxConfigBytes) + " bytes");
  if (!text.ok())
    return Error(ErrorCode::kNotFound,
                 file.string() + " cannot be read: " + text.error().message());
  const auto json = nlohmann::json::parse(*text, nullptr, false);
  if (!json.is_object())
    return Error(ErrorCode::kDataLoss, file.string() + " is not a JSON object");
  const auto number = [&](const char* name) {
    const auto found = json.find(name);
    return found != json.end() && found->is_number() ? found->get<double>() : 0.0;
  };
  const auto is_set = [&](const char* name) {
    const auto found = json.find(name);
    return found != json.end() && (found->is_boolean() ? found->get<bool>() : !found->empty());
  };
  if (json.value("peft_type", nlohmann::json()) != "LORA")
    return bad(file, "peft_type is not LORA: other adapters are not supported");
  for (const char* unknown :
       {"fan_in_fan_out", "use_dora", "lora_bias", "rank_pattern", "alpha_pattern"})
    if (is_set(unknown)) return bad(file, std::string(unknown) + " is set, which is not supported");
  AdapterTerms terms;
  const double rank = number("r");
  terms.alpha = number("lora_alpha");
  if (!(rank >= 1 && rank <= 1e6) || !(terms.alpha > 0) || !std::isfinite(terms.alpha))
    return bad(file, "r and lora_alpha must be numbers above 0");
  if (rank != std::floor(rank)) return bad(file, "r must be an integer");
  terms.rank = static_cast<std::uint64_t>(rank);
  terms.is_by_root = is_set("use_rslora");
  terms.scale = terms.alpha / (terms.is_by_root ? std::sqrt(rank) : rank);
  if (const auto found = json.find("target_modules"); found != json.end() && found->is_array())
    for (const auto& target : *found)
      if (target.is_string()) terms.targets.push_back(target.get<std::string>());
  std::ranges::sort(terms.targets);
  return terms;
}

}  // namespace centroid
