#include "common/base/config_value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

namespace centroid::config::detail {
namespace {

using std::chrono::milliseconds;

struct Unit {
  std::string_view name;
  std::uint64_t scale;
};
constexpr std::array<Unit, 4> kTimeUnits = {
    {{"ms", 1}, {"s", 1'000}, {"m", 60'000}, {"h", 3'600'000}}};
constexpr std::array<Unit, 11> kByteUnits = {{{"B", 1},
                                              {"KiB", 1ULL << 10},
                                              {"MiB", 1ULL << 20},
                                              {"GiB", 1ULL << 30},
                                              {"TiB", 1ULL << 40},
                                              {"kB", 1'000},
                                              {"KB", 1'000},
                                              {"MB", 1'000'000},
                                              {"GB", 1'000'000'000},
                                              {"TB", 1'000'000'000'000},
                                              {"", 1}}};

template <class T>
std::string number_text(T value) {
  std::array<char, 40> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  return {digits.data(), end};
}

// All of `text` as a number, or nothing.
template <class T>
std::optional<T> parse_integer(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// The suffix as a multiple of the base unit; 0: the field has no such suffix.
std::uint64_t scale_of(const Rule& rule, std::string_view suffix) {
  if (suffix.empty()) return 1;
  if (rule.unit == "ms")
    for (const Unit& unit : kTimeUnits)
      if (unit.name == suffix) return unit.scale;
  if (rule.unit == "bytes")
    for (const Unit& unit : kByteUnits)
      if (unit.name == suffix) return unit.scale;
  return 0;
}

// A double as an integer type, if it is one exactly. Beyond 2^53 a double is no longer exact.
template <class T>
std::optional<T> exact(double value) {
  constexpr double kLimit = 9007199254740992.0;
  if (!(std::abs(value) <= kLimit) || value != std::floor(value)) return std::nullopt;
  if (std::is_unsigned_v<T> && value < 0) return std::nullopt;
  return static_cast<T>(value);
}

// "1.5s" -> 1500 for a field in ms. Integers stay exact up to the type's end.
template <class T>
std::optional<T> scaled_integer(const Rule& rule, std::string_view text) {
  const auto digits = std::min(text.find_first_not_of("+-.0123456789"), text.size());
  const std::uint64_t scale = scale_of(rule, text.substr(digits));
  const std::string_view number = text.substr(0, digits);
  if (scale == 0 || number.empty()) return std::nullopt;
  if (const auto count = parse_integer<T>(number)) {
    T product{};
    if (__builtin_mul_overflow(*count, scale, &product)) return std::nullopt;
    return product;
  }
  const auto real = parse_integer<double>(number);
  if (!real) return std::nullopt;
  return exact<T>(std::round(*real * static_cast<double>(scale) * 1e6) / 1e6);
}

Result<Value> refused(const Rule& rule, std::string_view got) {
  return Error(ErrorCode::kInvalidArgument,
               "got " + (rule.is_secret ? std::string("***") : std::string(got)) + ", expected " +
                   expected(rule));
}

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (out.size() >= 80) return out + "...\"";
    out += static_cast<unsigned char>(c) < ' ' ? '?' : c;
  }
  return out + "\"";
}

Result<Value> checked(const Rule& rule, Value value, std::string_view got) {
  if ((rule.min && value < *rule.min) || (rule.max && *rule.max < value)) return refused(rule, got);
  if (const auto* text = std::get_if<std::string>(&value);
      text != nullptr && !rule.choices.empty() &&
      std::find(rule.choices.begin(), rule.choices.end(), *text) == rule.choices.end())
    return refused(rule, got);
  return value;
}

std::optional<bool> read_bool(std::string_view text) {
  if (text == "true" || text == "1" || text == "yes" || text == "on") return true;
  if (text == "false" || text == "0" || text == "no" || text == "off") return false;
  return std::nullopt;
}

template <class T>
std::optional<Value> lift(const std::optional<T>& value) {
  return value ? std::optional<Value>(*value) : std::nullopt;
}

std::optional<Value> parse(const Rule& rule, std::string_view text) {
  if (std::holds_alternative<bool>(rule.initial)) return lift(read_bool(text));
  if (std::holds_alternative<std::string>(rule.initial)) return std::string(text);
  if (std::holds_alternative<std::int64_t>(rule.initial))
    return lift(scaled_integer<std::int64_t>(rule, text));
  if (std::holds_alternative<std::uint64_t>(rule.initial))
    return lift(scaled_integer<std::uint64_t>(rule, text));
  if (std::holds_alternative<milliseconds>(rule.initial)) {
    const auto count = scaled_integer<std::int64_t>(rule, text);
    return count ? std::optional<Value>(milliseconds(*count)) : std::nullopt;
  }
  const auto real = parse_integer<double>(text);
  return real && std::isfinite(*real) ? std::optional<Value>(*real) : std::nullopt;
}

std::string type_text(const Rule& rule) {
  if (std::holds_alternative<bool>(rule.initial)) return "true or false";
  if (std::holds_alternative<std::string>(rule.initial)) return "a string";
  if (std::holds_alternative<double>(rule.initial)) return "a number";
  if (rule.unit == "ms") return "a time (250 or \"250ms\", \"30s\", \"5m\", \"1h\")";
  if (rule.unit == "bytes") return "a size (4096 or \"64KiB\", \"1MiB\", \"2GB\")";
  return std::holds_alternative<std::uint64_t>(rule.initial) ? "an integer >= 0" : "an integer";
}

std::string scalar_text(const Scalar& scalar) {
  return std::visit(
      []<class T>(const T& value) -> std::string {
        if constexpr (std::is_same_v<T, std::nullptr_t>)
          return "null";
        else if constexpr (std::is_same_v<T, bool>)
          return value ? "true" : "false";
        else if constexpr (std::is_same_v<T, std::string>)
          return in_quotes(value);
        else if constexpr (std::is_same_v<T, Compound>)
          return value.is_array ? "an array" : "an object";
        else
          return number_text(value);
      },
      scalar);
}

}  // namespace

std::string expected(const Rule& rule) {
  if (!rule.choices.empty()) {
    std::string out = "one of ";
    for (const std::string& choice : rule.choices) {
      if (&choice != &rule.choices.front()) out += ", ";
      out += choice.empty() ? "\"\"" : choice;
    }
    return out;
  }
  std::string out = type_text(rule);
  if (rule.min && rule.max)
    return out + " from " + to_text(rule, *rule.min) + " to " + to_text(rule, *rule.max);
  if (rule.min) {
    if (out.ends_with(" >= 0")) out.resize(out.size() - 5);
    return out + " >= " + to_text(rule, *rule.min);
  }
  if (rule.max) return out + " <= " + to_text(rule, *rule.max);
  return out;
}

Result<Value> from_text(const Rule& rule, std::string_view text) {
  const auto value = parse(rule, text);
  if (!value) return refused(rule, in_quotes(text));
  return checked(rule, *value, in_quotes(text));
}

Result<Value> from_scalar(const Rule& rule, const Scalar& scalar) {
  const std::string got = scalar_text(scalar);
  const bool wants_text = std::holds_alternative<std::string>(rule.initial);
  const bool wants_bool = std::holds_alternative<bool>(rule.initial);
  if (const auto* text = std::get_if<std::string>(&scalar)) {
    if (wants_text) return checked(rule, *text, got);
    const bool has_suffixes = rule.unit == "ms" || rule.unit == "bytes";
    if (wants_bool || !has_suffixes) return refused(rule, got);
    const auto value = parse(rule, *text);
    return value ? checked(rule, *value, got) : refused(rule, got);
  }
  if (const auto* flag = std::get_if<bool>(&scalar))
    return wants_bool ? checked(rule, *flag, got) : refused(rule, got);
  const bool is_number = std::holds_alternative<std::int64_t>(scalar) ||
                         std::holds_alternative<std::uint64_t>(scalar) ||
                         std::holds_alternative<double>(scalar);
  if (!is_number || wants_text || wants_bool) return refused(rule, got);
  if (const auto* real = std::get_if<double>(&scalar)) {  // 1e6 is a valid integer
    std::optional<Value> value;
    if (std::holds_alternative<std::int64_t>(rule.initial))
      value = lift(exact<std::int64_t>(*real));
    if (std::holds_alternative<std::uint64_t>(rule.initial))
      value = lift(exact<std::uint64_t>(*real));
    if (std::holds_alternative<double>(rule.initial)) value = *real;
    if (std::holds_alternative<milliseconds>(rule.initial))
      if (const auto count = exact<std::int64_t>(*real)) value = milliseconds(*count);
    return value ? checked(rule, *value, got) : refused(rule, got);
  }
  const auto value = parse(rule, got);
  return value ? checked(rule, *value, got) : refused(rule, got);
}

std::string to_text(const Rule& rule, const Value& value) {
  return std::visit(
      [&]<class T>(const T& v) -> std::string {
        if constexpr (std::is_same_v<T, bool>)
          return v ? "true" : "false";
        else if constexpr (std::is_same_v<T, std::string>)
          return rule.is_secret && !v.empty() ? "***" : v;
        else if constexpr (std::is_same_v<T, milliseconds>)
          return number_text(v.count());
        else
          return number_text(v);
      },
      value);
}

}  // namespace centroid::config::detail
