#include <charconv>
#include <optional>
#include <string_view>

#include "worker/model/adapters.h"
#include "worker/model/backend.h"
#include "worker/model/mlp.h"
#include "worker/model/model.h"
#include "worker/model/transformer.h"

namespace centroid::worker {

namespace {

constexpr std::size_t kMaxLayers = 64;
constexpr std::uint64_t kMaxWidth = 1'000'000;

Error bad(const std::string& spec, const std::string& what) {
  return {ErrorCode::kInvalidArgument,
          "model '" + spec + "': " + what + "; expected for example mlp:64-512-512-10,relu"};
}

std::optional<Activation> parse_activation(std::string_view text) {
  for (const Activation known : {Activation::kRelu, Activation::kGelu})
    if (text == to_string(known)) return known;
  return std::nullopt;
}

/// "64-512-10"
Result<std::vector<std::uint64_t>> parse_widths(std::string_view text, const std::string& spec) {
  std::vector<std::uint64_t> widths;
  std::uint64_t parameters = 0;
  for (bool is_more = true; is_more;) {
    const std::string_view field = text.substr(0, text.find('-'));
    is_more = field.size() < text.size();
    text.remove_prefix(field.size() + (is_more ? 1 : 0));
    std::uint64_t width = 0;
    const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), width);
    if (error != std::errc() || end != field.data() + field.size() || width < 1 ||
        width > kMaxWidth)
      return bad(spec, "width " + std::to_string(widths.size() + 1) + " is '" + std::string(field) +
                           "', not a number from 1 to " + std::to_string(kMaxWidth));
    if (!widths.empty()) parameters += (widths.back() + 1) * width;
    widths.push_back(width);
    if (widths.size() > kMaxLayers + 1 || parameters > kMaxParameters)
      return bad(spec, "more than " + std::to_string(kMaxLayers) + " layers or " +
                           std::to_string(kMaxParameters) + " parameters");
  }
  if (widths.size() < 2) return bad(spec, "fewer than two widths (input and classes)");
  if (widths.back() < 2) return bad(spec, "the last width, the number of classes, is below 2");
  return widths;
}

}  // namespace

Result<std::unique_ptr<Model>> make_model(const std::string& spec, const std::string& base_file) {
  std::string_view rest = spec;
  if (rest.substr(0, rest.find(':')) == "transformer") {
    CENTROID_ASSIGN(auto config, TransformerConfig::parse(spec));
    if (config.lora.rank > 0 && base_file.empty())
      return Error(ErrorCode::kInvalidArgument,
                   "model '" + spec +
                       "': adapters (lora) need base weights: set a file with --base-weights");
    Base base;
    if (!base_file.empty()) {
      CENTROID_ASSIGN(base, load_base(config, base_file));
    }
    return std::unique_ptr<Model>(new Transformer(std::move(config), std::move(base)));
  }
  if (!base_file.empty()) return bad(spec, "base_weights is for transformers, not for this model");
  constexpr std::string_view kKind = "mlp:";
  if (!rest.starts_with(kKind)) return bad(spec, "unknown kind, expected mlp: or transformer");
  rest.remove_prefix(kKind.size());
  bool has_norm = false;
  if (const auto comma = rest.rfind(','); comma != std::string_view::npos) {
    const std::string_view field = rest.substr(comma + 1);
    has_norm = field == "norm=batch";
    if (field.starts_with("norm=") && !has_norm && field != "norm=none")
      return bad(spec, std::string("'").append(field) + "' is neither norm=none nor norm=batch");
    if (field.starts_with("norm=")) rest = rest.substr(0, comma);
  }
  auto activation = std::optional(Activation::kRelu);
  if (const auto comma = rest.find(','); comma != std::string_view::npos) {
    const std::string_view name = rest.substr(comma + 1);
    activation = parse_activation(name);
    if (!activation)
      return bad(spec, "activation '" + std::string(name) + "' is neither relu nor gelu");
    rest = rest.substr(0, comma);
  }
  CENTROID_ASSIGN(auto widths, parse_widths(rest, spec));
  return std::unique_ptr<Model>(new Mlp(std::move(widths), *activation, has_norm));
}

StepResult Model::step(const Batch& batch, std::span<const float> params,
                       std::span<float> gradients, const std::function<void(TensorId)>& on_ready) {
  queue_step(batch, params, gradients, on_ready);
  return backend().result();
}

StepResult Model::evaluate(const Batch& batch, std::span<const float> params) {
  queue_evaluate(batch, params);
  return backend().result();
}

std::unique_ptr<Model> Model::clone() const { return clone_on(make_cpu_backend()); }

}  // namespace centroid::worker
