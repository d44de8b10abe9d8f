#include "worker/model/transformer_config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <optional>

#include "common/tensor/text.h"

namespace centroid::worker {

namespace {

using Config = TransformerConfig;

constexpr std::string_view kKind = "transformer";

/// A field of the spec: its valid values, its parser and its printer.
struct Field {
  std::string_view name, may_be;
  std::function<bool(Config&, std::string_view)> read;
  std::function<std::string(const Config&)> write;
};

template <class Number>
std::optional<Number> number_of(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Field count(std::string_view name, std::string_view may_be, std::uint64_t Config::* member,
            std::uint64_t least, std::uint64_t most) {
  return {name, may_be,
          [=](Config& c, std::string_view text) {
            const auto value = number_of<std::uint64_t>(text);
            if (!value || *value < least || *value > most) return false;
            c.*member = *value;
            return true;
          },
          [=](const Config& c) { return std::to_string(c.*member); }};
}

std::string text_of(double value) {
  std::array<char, 32> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), end};
}

bool read_share(double& into, std::string_view text) {
  const auto value = number_of<double>(text);
  if (!value || !(*value >= 0 && *value < 1)) return false;
  into = *value;
  return true;
}

bool read_targets(Config& c, std::string_view text) {
  const auto& known = projection_names();
  std::vector<std::string> named;
  for (bool is_more = true; is_more;) {
    const std::string_view name = text.substr(0, text.find('+'));
    is_more = name.size() < text.size();
    text.remove_prefix(name.size() + (is_more ? 1 : 0));
    if (std::ranges::find(known, name) == known.end()) return false;
    if (std::ranges::find(named, name) != named.end()) return false;
    named.emplace_back(name);
  }
  c.lora.targets.clear();
  for (const auto& name : known)
    if (std::ranges::find(named, name) != named.end()) c.lora.targets.push_back(name);
  return true;
}

std::string targets_of(const Config& c) {
  std::string out;
  for (const auto& name : c.lora.targets) (out += out.empty() ? "" : "+") += name;
  return out;
}

const std::vector<Field>& fields() {
  static const std::vector<Field> all = {
      count("layers", "a number from 1 to 128", &Config::layers, 1, 128),
      count("width", "a number from 1 to 65536", &Config::width, 1, 65'536),
      count("heads", "a number from 1 to 1024", &Config::heads, 1, 1024),
      count("hidden", "a number from 1 to 1000000", &Config::hidden, 1, 1'000'000),
      count("context", "a number from 2 to 65536", &Config::context, 2, 65'536),
      count("vocabulary", "a number from 2 to 1000000", &Config::vocabulary, 2, 1'000'000),
      count("classes", "a number from 2 to 1000000", &Config::classes, 2, 1'000'000),
      {"mlp", "gelu or swiglu",
       [](Config& c, std::string_view text) {
         c.mlp = text == "gelu" ? Config::Mlp::kGelu : Config::Mlp::kSwiGlu;
         return text == "gelu" || text == "swiglu";
       },
       [](const Config& c) {
         return std::string(c.mlp == Config::Mlp::kGelu ? "gelu" : "swiglu");
       }},
      {"norm", "rms or layer",
       [](Config& c, std::string_view text) {
         c.norm = text == "rms" ? Config::Norm::kRms : Config::Norm::kLayer;
         return text == "rms" || text == "layer";
       },
       [](const Config& c) { return std::string(c.norm == Config::Norm::kRms ? "rms" : "layer"); }},
      {"tied", "yes or no",
       [](Config& c, std::string_view text) {
         c.tied = text == "yes";
         return text == "yes" || text == "no";
       },
       [](const Config& c) { return std::string(c.tied ? "yes" : "no"); }},
      {"dropout", "at least 0 and below 1",
       [](Config& c, std::string_view text) { return read_share(c.dropout, text); },
       [](const Config& c) { return text_of(c.dropout); }},
      {"lora", "a rank from 1 to 4096",
       [](Config& c, std::string_view text) {
         const auto rank = number_of<std::uint64_t>(text);
         if (!rank || *rank < 1 || *rank > 4096) return false;
         c.lora.rank = *rank;
         return true;
       },
       [](const Config& c) { return std::to_string(c.lora.rank); }},
      {"lora_alpha", "a number above 0",
       [](Config& c, std::string_view text) {
         const auto alpha = number_of<double>(text);
         if (!alpha || !(*alpha > 0 && *alpha <= 1e6)) return false;
         c.lora.alpha = *alpha;
         return true;
       },
       [](const Config& c) { return text_of(c.lora.alpha); }},
      {"lora_dropout", "at least 0 and below 1",
       [](Config& c, std::string_view text) { return read_share(c.lora.dropout, text); },
       [](const Config& c) { return text_of(c.lora.dropout); }},
      {"lora_targets",
       "one or more of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, with + "
       "between",
       read_targets, targets_of},
  };
  return all;
}

Error bad_config(const std::string& spec, const std::string& what) {
  return {ErrorCode::kInvalidArgument, "model '" + printable(spec, 256) + "': " + what};
}

Status check(const Config& c, const std::string& spec) {
  const auto text = [](std::uint64_t n) { return std::to_string(n); };
  if (c.width % c.heads != 0)
    return bad_config(spec, "width " + text(c.width) + " is no multiple of heads " + text(c.heads));
  if (c.tied && !c.is_language())
    return bad_config(spec, "tied=yes with classes: the head has one row per class, not per token");
  if (c.lora.rank == 0 && (c.lora.alpha > 0 || c.lora.dropout > 0 || !c.lora.targets.empty()))
    return bad_config(spec, "lora_alpha, lora_dropout and lora_targets need lora=RANK");
  if (c.lora.rank > std::min(c.width, c.hidden))
    return bad_config(spec, "lora " + text(c.lora.rank) + " is above the width or hidden: " +
                                text(std::min(c.width, c.hidden)));
  const auto& targets = c.lora.targets;
  if (c.mlp == Config::Mlp::kGelu && std::ranges::find(targets, "gate_proj") != targets.end())
    return bad_config(spec, "lora_targets has gate_proj, which there is with mlp=swiglu only");
  const std::uint64_t matrices = 4 * c.width * c.width + 3 * c.width * c.hidden;
  if (c.layers * matrices + (2 * c.vocabulary + c.context) * c.width > kMaxParameters)
    return bad_config(spec, "more than " + text(kMaxParameters) + " parameters");
  if (c.spec().size() > 256) return bad_config(spec, "the description is longer than 256 bytes");
  return {};
}

}  // namespace

const std::vector<std::string>& projection_names() {
  static const std::vector<std::string> names = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                                 "gate_proj", "up_proj", "down_proj"};
  return names;
}

Result<TransformerConfig> TransformerConfig::parse(const std::string& spec) {
  std::string_view rest = spec;
  rest.remove_prefix(kKind.size());
  if (!rest.empty() && rest.front() != ':')
    return bad_config(spec, "expected transformer or transformer:FIELD=VALUE,...");
  if (!rest.empty()) rest.remove_prefix(1);
  Config config;
  std::vector<std::string_view> seen;
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const std::size_t equals = item.find('=');
    const std::string_view name = item.substr(0, equals);
    const auto field =
        std::ranges::find_if(fields(), [&](const Field& f) { return f.name == name; });
    if (equals == std::string_view::npos || field == fields().end()) {
      std::string known;
      for (const Field& f : fields()) (known += known.empty() ? "" : ", ") += f.name;
      return bad_config(spec, std::string("'") + printable(item) +
                                  "' is not FIELD=VALUE with one of the fields " + known);
    }
    if (std::ranges::find(seen, name) != seen.end())
      return bad_config(spec, "field " + std::string(name) + " is there twice");
    seen.push_back(name);
    const std::string_view value = item.substr(equals + 1);
    if (!field->read(config, value))
      return bad_config(spec, "field " + std::string(name) + " is '" + printable(value) +
                                  "', expected " + std::string(field->may_be));
  }
  if (config.hidden == 0) config.hidden = 4 * config.width;
  if (config.lora.rank > 0 && config.lora.targets.empty())
    config.lora.targets = {"q_proj", "v_proj"};  // as the paper's section 7.1 recommends
  CENTROID_TRY(check(config, spec));
  return config;
}

std::string TransformerConfig::spec() const {
  Config defaults;
  defaults.hidden = 4 * width;
  std::string out(kKind);
  char separator = ':';
  for (const Field& field : fields()) {
    const std::string mine = field.write(*this);
    const bool is_shape = field.name == "layers" || field.name == "width" ||
                          field.name == "heads" || field.name == "context" ||
                          field.name == "vocabulary";
    if (!is_shape && mine == field.write(defaults)) continue;
    out.append(1, separator).append(field.name).append(1, '=').append(mine);
    separator = ',';
  }
  return out;
}

Manifest TransformerConfig::whole() const {
  Manifest all;
  const auto add = [&](std::string name, Shape shape) {
    all.push_back({std::move(name), DType::kF32, std::move(shape)});
  };
  const auto add_norm = [&](const std::string& name) {
    add(name + ".weight", {width});
    if (norm == Norm::kLayer) add(name + ".bias", {width});
  };
  add("embed.tokens.weight", {vocabulary, width});
  add("embed.positions.weight", {context, width});
  for (std::uint64_t i = 0; i < layers; ++i) {
    const std::string block = "blocks." + std::to_string(i) + ".";
    add_norm(block + "norm1");
    for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"})
      add(block + "attention." + name + ".weight", {width, width});
    add_norm(block + "norm2");
    if (mlp == Mlp::kSwiGlu) add(block + "mlp.gate_proj.weight", {hidden, width});
    add(block + "mlp.up_proj.weight", {hidden, width});
    add(block + "mlp.down_proj.weight", {width, hidden});
  }
  add_norm("norm");
  if (!tied) add("head.weight", {outputs(), width});
  return all;
}

Manifest TransformerConfig::trained() const {
  Manifest all = whole();
  if (lora.rank == 0) return all;
  Manifest out;
  for (TensorInfo& tensor : all) {
    const std::string_view name = tensor.name;
    const auto is_target = [&](const std::string& target) {
      return name.ends_with("." + target + ".weight");
    };
    if (name == "head.weight") out.push_back(tensor);
    if (std::ranges::none_of(lora.targets, is_target)) continue;
    const std::string module(name.substr(0, name.size() - std::string_view(".weight").size()));
    out.push_back({module + ".lora_A.weight", DType::kF32, {lora.rank, tensor.shape[1]}});
    out.push_back({module + ".lora_B.weight", DType::kF32, {tensor.shape[0], lora.rank}});
  }
  return out;
}

}  // namespace centroid::worker
