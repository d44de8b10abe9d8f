#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/base/result.h"

// Values of configuration fields: types, units, bounds. Private to config.
namespace centroid::config::detail {

/// The value of one field; the alternative is the field's type.
using Value =
    std::variant<bool, std::int64_t, std::uint64_t, double, std::string, std::chrono::milliseconds>;

/// An object or array in the place of a plain value.
struct Compound {
  bool is_array = false;
};

/// A leaf of the JSON file, before its field is known.
using Scalar =
    std::variant<std::nullptr_t, bool, std::int64_t, std::uint64_t, double, std::string, Compound>;

/// What a field accepts.
struct Rule {
  Value initial;  ///< also defines the type
  std::string unit;
  std::optional<Value> min;
  std::optional<Value> max;
  std::vector<std::string> choices;
  bool is_secret = false;
};

/// "an integer from 1 to 100", "one of bsp, asp"
std::string expected(const Rule& rule);

/// Read a value as on a command line or in a variable. The message names the received and the
/// expected value.
Result<Value> from_text(const Rule& rule, std::string_view text);

/// Read a value as in JSON.
Result<Value> from_scalar(const Rule& rule, const Scalar& scalar);

/// For people; secrets are "***".
std::string to_text(const Rule& rule, const Value& value);

}  // namespace centroid::config::detail
