#include "worker/model/transformer_part.h"

#include <algorithm>
#include <string>
#include <string_view>

namespace centroid::worker {

namespace {

/// The first ranks have one item more if the ranks do not divide them.
PartRange part_of(std::uint64_t items, std::uint32_t rank, std::uint32_t ranks) {
  const std::uint64_t each = items / ranks, more = items % ranks;
  return {each * rank + std::min<std::uint64_t>(rank, more), each + (rank < more ? 1 : 0)};
}

std::uint64_t columns(const TensorInfo& tensor) {
  return tensor.shape.size() > 1 ? tensor.shape[1] : 1;
}

Status check(const TransformerConfig& config, std::uint32_t ranks) {
  const auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::kInvalidArgument, "model '" + config.spec() +
                                                  "' cannot be divided by " +
                                                  "tp=" + std::to_string(ranks) + ": " + why);
  };
  const auto no_multiple = [&](const char* what, std::uint64_t number) {
    return refuse(std::string(what) + " " + std::to_string(number) + " is no multiple of " +
                  std::to_string(ranks));
  };
  if (config.lora.rank > 0) return refuse("it has adapters (lora); use dp and pp");
  if (config.heads % ranks != 0) return no_multiple("heads", config.heads);
  if (config.hidden % ranks != 0) return no_multiple("hidden", config.hidden);
  const auto too_few = [&](const char* what, std::uint64_t number) {
    return refuse(std::string(what) + " " + std::to_string(number) + " is below " +
                  std::to_string(ranks));
  };
  if (config.vocabulary < ranks) return too_few("vocabulary", config.vocabulary);
  if (config.outputs() < ranks) return too_few("classes", config.outputs());
  return {};
}

}  // namespace

Result<TransformerPart> TransformerPart::of(const TransformerConfig& config, std::uint32_t rank,
                                            std::uint32_t ranks) {
  if (ranks > 1) CENTROID_TRY(check(config, ranks));
  return TransformerPart{part_of(config.heads, rank, ranks), part_of(config.hidden, rank, ranks),
                         part_of(config.vocabulary, rank, ranks),
                         part_of(config.outputs(), rank, ranks), config.head_width()};
}

PartRange TransformerPart::rows_of(const TensorInfo& whole) const {
  const auto is = [&](std::string_view end) { return whole.name.ends_with(end); };
  if (is("q_proj.weight") || is("k_proj.weight") || is("v_proj.weight"))
    return {heads.begin * head_width, width()};
  if (is("gate_proj.weight") || is("up_proj.weight")) return hidden;
  if (whole.name == "embed.tokens.weight") return tokens;
  if (whole.name == "head.weight") return outputs;
  return {0, whole.shape[0]};
}

PartRange TransformerPart::columns_of(const TensorInfo& whole) const {
  if (whole.name.ends_with("o_proj.weight")) return {heads.begin * head_width, width()};
  if (whole.name.ends_with("down_proj.weight")) return hidden;
  return {0, columns(whole)};
}

Manifest TransformerPart::cut(Manifest whole) const {
  for (TensorInfo& tensor : whole) {
    const PartRange own_rows = rows_of(tensor), own_columns = columns_of(tensor);
    tensor.shape[0] = own_rows.count;
    if (tensor.shape.size() > 1) tensor.shape[1] = own_columns.count;
  }
  return whole;
}

void TransformerPart::cut(const TensorInfo& whole, std::span<const float> values,
                          std::span<float> out) const {
  const PartRange own_rows = rows_of(whole), own_columns = columns_of(whole);
  const std::uint64_t stride = columns(whole);
  CENTROID_CHECK(values.size() == whole.elements());
  CENTROID_CHECK(out.size() == own_rows.count * own_columns.count);
  for (std::uint64_t row = 0; row < own_rows.count; ++row)
    std::copy_n(values.data() + (own_rows.begin + row) * stride + own_columns.begin,
                own_columns.count, out.data() + row * own_columns.count);
}

}  // namespace centroid::worker
