#include "common/codec/spec.h"

#include <algorithm>
#include <array>
#include <bitset>
#include <charconv>
#include <vector>

#include "common/tensor/text.h"

namespace centroid {
namespace {

using Kind = CodecSpec::Kind;

constexpr std::array<std::string_view, CodecSpec::kKinds> kNames{"f32",  "bf16", "f16",
                                                                 "int8", "topk", "sign"};
constexpr std::uint32_t kWhole = 1'000'000'000;

/// One field: its codecs, values, reader and printer. `get` returns nothing for the default.
struct Field {
  std::string_view name;
  std::uint8_t kinds;  // bit per Kind
  std::string_view may_be;
  bool (*set)(CodecSpec&, std::string_view);
  std::string (*get)(const CodecSpec&);
};

constexpr std::uint8_t bit(Kind kind) { return static_cast<std::uint8_t>(1u << int(kind)); }
constexpr std::uint8_t kTopkOnly = bit(Kind::kTopk);
constexpr std::uint8_t kQuantised = bit(Kind::kInt8) | bit(Kind::kTopk);
constexpr std::uint8_t kLossy = kQuantised | bit(Kind::kBf16) | bit(Kind::kF16) | bit(Kind::kSign);

template <class T>
bool set_choice(T& target, std::string_view text, std::string_view first, T one,
                std::string_view second, T two) {
  if (text != first && text != second) return false;
  target = text == first ? one : two;
  return true;
}

bool set_switch(bool& target, std::string_view text) {
  return set_choice(target, text, "on", true, "off", false);
}

template <class T>
bool set_number(T& target, std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return false;
  target = value;
  return true;
}

template <class T>
std::string shortest(T value) {
  std::array<char, 64> text;
  const auto done = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), done.ptr};
}

bool feedback_default(const CodecSpec& s) { return s.kind == Kind::kTopk || s.kind == Kind::kSign; }

constexpr std::array<Field, 10> kFields{{
    {"values", kTopkOnly, "f32, bf16 or int8",
     [](CodecSpec& s, std::string_view text) {
       for (const ValueType type : {ValueType::kF32, ValueType::kBf16, ValueType::kInt8}) {
         if (to_string(type) != text) continue;
         s.values = type;
         return true;
       }
       return false;
     },
     [](const CodecSpec& s) {
       return s.values == ValueType::kF32 ? "" : std::string(to_string(s.values));
     }},
    {"rounding", kQuantised, "nearest or stochastic",
     [](CodecSpec& s, std::string_view text) {
       return set_choice(s.rounding, text, "nearest", Rounding::kNearest, "stochastic",
                         Rounding::kStochastic);
     },
     [](const CodecSpec& s) {
       return std::string(s.rounding == Rounding::kNearest ? "" : "stochastic");
     }},
    {"scope", kTopkOnly, "tensor or global",
     [](CodecSpec& s, std::string_view text) {
       return set_choice(s.scope, text, "tensor", Scope::kTensor, "global", Scope::kGlobal);
     },
     [](const CodecSpec& s) { return std::string(s.scope == Scope::kTensor ? "" : "global"); }},
    {"feedback", kLossy, "on or off",
     [](CodecSpec& s, std::string_view text) { return set_switch(s.feedback.enabled, text); },
     [](const CodecSpec& s) {
       if (s.feedback.enabled == feedback_default(s)) return std::string();
       return std::string(s.feedback.enabled ? "on" : "off");
     }},
    {"momentum", kTopkOnly, "at least 0 and less than 1",
     [](CodecSpec& s, std::string_view text) {
       return set_number(s.feedback.momentum, text) && s.feedback.momentum >= 0 &&
              s.feedback.momentum < 1;
     },
     [](const CodecSpec& s) {
       return s.feedback.momentum == 0 ? std::string() : shortest(s.feedback.momentum);
     }},
    {"nesterov", kTopkOnly, "on or off",
     [](CodecSpec& s, std::string_view text) { return set_switch(s.feedback.nesterov, text); },
     [](const CodecSpec& s) { return std::string(s.feedback.nesterov ? "on" : ""); }},
    {"masking", kTopkOnly, "on or off",
     [](CodecSpec& s, std::string_view text) { return set_switch(s.feedback.masking, text); },
     [](const CodecSpec& s) { return std::string(s.feedback.masking ? "" : "off"); }},
    {"clip", kTopkOnly, "a bound of the norm, or 0 for none",
     [](CodecSpec& s, std::string_view text) {
       return set_number(s.feedback.clip, text) && s.feedback.clip >= 0 && s.feedback.clip < 1e30f;
     },
     [](const CodecSpec& s) {
       return s.feedback.clip == 0 ? std::string() : shortest(s.feedback.clip);
     }},
    {"warmup", kTopkOnly, "a number of rounds",
     [](CodecSpec& s, std::string_view text) { return set_number(s.feedback.warmup, text); },
     [](const CodecSpec& s) {
       return s.feedback.warmup == 0 ? std::string() : shortest(s.feedback.warmup);
     }},
    {"generation", kLossy, "carry or reset",
     [](CodecSpec& s, std::string_view text) {
       return set_choice(s.feedback.carry, text, "carry", true, "reset", false);
     },
     [](const CodecSpec& s) { return std::string(s.feedback.carry ? "" : "reset"); }},
}};

/// The first `count` items of a list, as texts by `name_of`: "a, b, c".
template <class List, class Name>
std::string joined(const List& list, Name name_of) {
  std::string out;
  for (const auto& item : list) {
    const std::string_view name = name_of(item);
    if (!name.empty()) (out += out.empty() ? "" : ", ") += name;
  }
  return out;
}

std::string fields_of(Kind kind) {
  const std::string names = joined(kFields, [&](const Field& f) {
    return (f.kinds & bit(kind)) != 0 ? f.name : std::string_view();
  });
  return names.empty() ? "none" : names;
}

Error bad(const std::string& what) { return {ErrorCode::kInvalidArgument, what}; }

/// "0.01", ".5", "1": decimals of [0, 1], at most nine after the point, without rounding.
Result<KeepRatio> parse_ratio(std::string_view text) {
  const Error wrong = bad("ratio \"" + printable(text) +
                          "\" is not a share from 0 to 1 with at most nine decimals, like 0.01");
  const std::size_t point = std::min(text.find('.'), text.size());
  const std::string_view integer = text.substr(0, point);
  const std::string_view part = point < text.size() ? text.substr(point + 1) : std::string_view();
  if (integer.size() + part.size() == 0 || part.size() > 9 || integer.size() > 9) return wrong;
  std::uint64_t value = 0;
  for (const char c :
       std::string(integer) + std::string(part) + std::string(9 - part.size(), '0')) {
    if (c < '0' || c > '9') return wrong;
    value = value * 10 + static_cast<std::uint64_t>(c - '0');
  }
  if (value > kWhole) return wrong;
  return KeepRatio{static_cast<std::uint32_t>(value)};
}

std::string print_ratio(KeepRatio ratio) {
  if (ratio.billionths == kWhole) return "1";
  std::string decimals = std::to_string(kWhole + ratio.billionths).substr(1);
  decimals.erase(decimals.find_last_not_of('0') + 1);
  return decimals.empty() ? "0" : "0." + decimals;
}

Status set_field(CodecSpec& spec, std::string_view item, std::bitset<kFields.size()>& seen) {
  const std::size_t equals = item.find('=');
  if (equals == std::string_view::npos || equals == 0)
    return bad("field \"" + printable(item) + "\" is not field=value");
  const std::string_view name = item.substr(0, equals);
  const auto field = std::find_if(kFields.begin(), kFields.end(), [&](const Field& f) {
    return f.name == name && (f.kinds & bit(spec.kind)) != 0;
  });
  if (field == kFields.end())
    return bad("field \"" + printable(name) + "\" is unknown, " +
               std::string(kNames[std::size_t(spec.kind)]) + " takes " + fields_of(spec.kind));
  const auto at = static_cast<std::size_t>(field - kFields.begin());
  if (seen[at]) return bad("field \"" + std::string(name) + "\" appears twice");
  seen[at] = true;
  if (!field->set(spec, item.substr(equals + 1)))
    return bad("field \"" + std::string(name) + "\" is \"" + printable(item.substr(equals + 1)) +
               "\", expected " + std::string(field->may_be));
  return {};
}

Status check_together(const CodecSpec& s) {
  if (s.rounding == Rounding::kStochastic) {
    if (s.kind == Kind::kTopk && s.values != ValueType::kInt8)
      return bad("field \"rounding\": stochastic needs values=int8");
    if (s.feedback.enabled)
      return bad(
          "field \"rounding\": stochastic needs feedback=off, because error feedback stores the "
          "remainder of rounding to nearest");
  }
  if (!s.feedback.enabled) {
    const bool has = s.feedback.momentum != 0 || s.feedback.clip != 0 || s.feedback.warmup != 0;
    if (has) return bad("field \"feedback\": momentum, clip and warmup need feedback=on");
    if (s.scope == Scope::kGlobal)
      return bad(
          "field \"scope\": global needs feedback=on; without it every chunk has its own share");
  }
  if (s.feedback.momentum == 0 && (s.feedback.nesterov || !s.feedback.masking))
    return bad(std::string("field \"") + (s.feedback.nesterov ? "nesterov" : "masking") +
               "\" needs momentum above 0");
  return {};
}

}  // namespace

std::string_view to_string(ValueType type) {
  switch (type) {
    case ValueType::kF32:
      return "f32";
    case ValueType::kBf16:
      return "bf16";
    case ValueType::kInt8:
      return "int8";
    case ValueType::kSign:
      return "sign";
  }
  return "unknown";
}

std::uint64_t KeepRatio::count_of(std::uint64_t n) const {
  if (n == 0) return 0;
  const std::uint64_t integer = n / kWhole * billionths;
  const std::uint64_t rest = n % kWhole * billionths;  // < 2^60
  return std::clamp<std::uint64_t>(integer + (rest + kWhole - 1) / kWhole, 1, n);
}

Result<CodecSpec> CodecSpec::parse(std::string_view text) {
  const auto refuse = [&](const std::string& what) {
    return bad("codec spec \"" + printable(text, 128) + "\": " + what);
  };
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const std::string known = joined(kNames, [](std::string_view n) { return n; });
  if (name.empty())
    return refuse("name is empty; expected name or name:field=value,field=value with one of " +
                  known);
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end())
    return refuse("name \"" + printable(name) + "\" is unknown; expected one of " + known);
  CodecSpec spec;
  spec.kind = static_cast<Kind>(found - kNames.begin());
  if (spec.kind == Kind::kInt8) spec.values = ValueType::kInt8;
  if (spec.kind == Kind::kSign) spec.values = ValueType::kSign;
  spec.feedback.enabled = feedback_default(spec);

  std::vector<std::string_view> items;
  for (std::size_t at = colon; at != std::string_view::npos;) {
    const std::size_t next = text.find(',', at + 1);
    items.push_back(text.substr(at + 1, next == std::string_view::npos ? next : next - at - 1));
    at = next;
  }
  std::size_t first = 0;
  if (spec.kind == Kind::kTopk) {
    if (items.empty()) return refuse("ratio is missing; expected topk:RATIO, like topk:0.01");
    auto ratio = parse_ratio(items[0]);
    if (!ratio.ok()) return refuse(ratio.error().message());
    spec.ratio = *ratio;
    first = 1;
  }
  std::bitset<kFields.size()> seen;
  for (std::size_t i = first; i < items.size(); ++i)
    if (const Status set = set_field(spec, items[i], seen); !set.ok())
      return refuse(set.error().message());
  if (const Status together = check_together(spec); !together.ok())
    return refuse(together.error().message());
  return spec;
}

std::string_view CodecSpec::name() const { return kNames[std::size_t(kind)]; }

std::string CodecSpec::to_string() const {
  std::string fields = kind == Kind::kTopk ? print_ratio(ratio) : "";
  for (const Field& field : kFields) {
    if ((field.kinds & bit(kind)) == 0) continue;
    const std::string value = field.get(*this);
    if (value.empty()) continue;
    if (!fields.empty()) fields += ',';
    fields += std::string(field.name) + "=" + value;
  }
  return std::string(name()) + (fields.empty() ? "" : ":" + fields);
}

}  // namespace centroid
