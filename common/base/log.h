#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <variant>

#include "common/base/result.h"

namespace centroid::log {

enum class Level : std::uint8_t { kTrace, kDebug, kInfo, kWarn, kError, kOff };
enum class Format : std::uint8_t { kText, kJson };

/// One named value of an event.
struct Field {
  using Value = std::variant<bool, std::int64_t, std::uint64_t, double, std::string>;
  std::string_view name;
  Value value;
  Field(std::string_view n, bool v) : name(n), value(v) {}
  Field(std::string_view n, double v) : name(n), value(v) {}
  Field(std::string_view n, std::string v) : name(n), value(std::move(v)) {}
  Field(std::string_view n, std::string_view v) : name(n), value(std::string(v)) {}
  Field(std::string_view n, const char* v) : name(n), value(std::string(v)) {}
  Field(std::string_view n, const Error& e) : name(n), value(e.to_string()) {}
  template <class T>
    requires(std::is_integral_v<T> && !std::is_same_v<T, bool>)
  Field(std::string_view n, T v) : name(n) {
    if constexpr (std::is_signed_v<T>)
      value = static_cast<std::int64_t>(v);
    else
      value = static_cast<std::uint64_t>(v);
  }
};
using Fields = std::initializer_list<Field>;

/// Set once at start, before other threads log. `path` empty: standard error.
Status configure(Level level, Format format, const std::string& path = {});
bool is_enabled(Level level);

/// Write one line: time, level, event (`area.past_tense`), fields. Thread-safe; one write(2) per
/// line.
void write(Level level, std::string_view event, Fields fields);

inline void debug(std::string_view event, Fields fields = {}) {
  write(Level::kDebug, event, fields);
}
inline void info(std::string_view event, Fields fields = {}) { write(Level::kInfo, event, fields); }
inline void warn(std::string_view event, Fields fields = {}) { write(Level::kWarn, event, fields); }
inline void error(std::string_view event, Fields fields = {}) {
  write(Level::kError, event, fields);
}

Result<Level> parse_level(std::string_view text);
Result<Format> parse_format(std::string_view text);

}  // namespace centroid::log
