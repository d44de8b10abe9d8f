#include "common/base/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>

#include "common/base/clock.h"
#include "common/base/log_level.h"

namespace centroid::log {
namespace {

constexpr std::array<std::string_view, 6> kLevelNames = {"trace", "debug", "info",
                                                         "warn",  "error", "off"};

// Set by `configure`; atomics, so that a late change is no race.
std::atomic<Level> g_level{Level::kInfo};
std::atomic<Format> g_format{Format::kText};
std::atomic<int> g_file{STDERR_FILENO};

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Length of the valid UTF-8 sequence at the front of `text`; 0 when there is none.
// source  RFC 3629, section 4 (no overlong forms, no surrogates, at most U+10FFFF)
std::size_t utf8_length(std::string_view text) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = at(0);
  if (first < 0x80) return 1;
  const std::size_t n = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < n) return 0;
  for (std::size_t i = 1; i < n; ++i)
    if ((at(i) & 0xC0) != 0x80) return 0;
  const unsigned char second = at(1);
  if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F)) return 0;
  if ((first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F)) return 0;
  return n;
}

void append_escape(std::string& out, unsigned code_point) {
  constexpr std::string_view kHex = "0123456789abcdef";
  out += "\\u00";
  out += kHex[(code_point >> 4) & 15];
  out += kHex[code_point & 15];
}

// Body of a JSON string. Text lines use it between quotes too, so that no value can forge a line or
// control a terminal.
void append_escaped(std::string& out, std::string_view text) {
  while (!text.empty()) {
    const std::size_t n = utf8_length(text);
    const auto byte = static_cast<unsigned char>(text.front());
    if (n == 0) {
      out += kReplacement;
    } else if (byte == '"' || byte == '\\') {
      out += '\\';
      out += text.front();
    } else if (byte == '\n') {
      out += "\\n";
    } else if (byte == '\t') {
      out += "\\t";
    } else if (byte == '\r') {
      out += "\\r";
    } else if (byte < 0x20 || byte == 0x7F) {
      append_escape(out, byte);
    } else if (byte == 0xC2 && static_cast<unsigned char>(text[1]) < 0xA0) {
      append_escape(out, static_cast<unsigned char>(text[1]));  // C1 controls
    } else {
      out += text.substr(0, n);
    }
    text.remove_prefix(n == 0 ? 1 : n);
  }
}

void append_quoted(std::string& out, std::string_view text) {
  out += '"';
  append_escaped(out, text);
  out += '"';
}

bool is_plain(std::string_view text) {
  if (text.empty()) return false;
  for (const char c : text)
    if (c <= ' ' || c > '~' || c == '"' || c == '\\' || c == '=') return false;
  return true;
}

template <class T>
void append_number(std::string& out, T value) {
  std::array<char, 40> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  out.append(digits.data(), end);
}

void append_value(std::string& out, const Field::Value& value, Format format) {
  if (const auto* flag = std::get_if<bool>(&value)) {
    out += *flag ? "true" : "false";
  } else if (const auto* text = std::get_if<std::string>(&value)) {
    if (format == Format::kText && is_plain(*text))
      out += *text;
    else
      append_quoted(out, *text);
  } else if (const auto* real = std::get_if<double>(&value)) {
    if (std::isfinite(*real) || format == Format::kText)
      append_number(out, *real);
    else  // JSON has no such number
      out += std::isnan(*real) ? "\"nan\"" : *real > 0 ? "\"inf\"" : "\"-inf\"";
  } else if (const auto* integer = std::get_if<std::int64_t>(&value)) {
    append_number(out, *integer);
  } else {
    append_number(out, std::get<std::uint64_t>(value));
  }
}

void append_padded(std::string& out, int value, std::size_t width) {
  std::array<char, 12> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  const auto n = static_cast<std::size_t>(end - digits.data());
  if (n < width) out.append(width - n, '0');
  out.append(digits.data(), n);
}

// Text lines carry the local time of day, JSON lines the whole UTC time (RFC 3339).
void append_time(std::string& out, Format format) {
  const auto micros = static_cast<std::int64_t>(unix_seconds() * 1e6);
  const auto seconds = static_cast<std::time_t>(micros / 1'000'000);
  const auto fraction = static_cast<int>(micros % 1'000'000);
  std::tm parts{};
  if (format == Format::kText)
    localtime_r(&seconds, &parts);
  else
    gmtime_r(&seconds, &parts);
  if (format == Format::kJson) {
    append_padded(out, parts.tm_year + 1900, 4);
    out += '-';
    append_padded(out, parts.tm_mon + 1, 2);
    out += '-';
    append_padded(out, parts.tm_mday, 2);
    out += 'T';
  }
  append_padded(out, parts.tm_hour, 2);
  out += ':';
  append_padded(out, parts.tm_min, 2);
  out += ':';
  append_padded(out, parts.tm_sec, 2);
  out += '.';
  if (format == Format::kText) {
    append_padded(out, fraction / 1000, 3);
  } else {
    append_padded(out, fraction, 6);
    out += 'Z';
  }
}

std::string text_line(Level level, std::string_view event, Fields fields) {
  std::string line;
  line.reserve(256);
  append_time(line, Format::kText);
  line += ' ';
  const std::string_view name = kLevelNames[static_cast<std::size_t>(level)];
  line += name;
  line.append(6 - name.size(), ' ');
  append_escaped(line, event);
  for (const Field& field : fields) {
    line += ' ';
    append_escaped(line, field.name);
    line += '=';
    append_value(line, field.value, Format::kText);
  }
  return line;
}

std::string json_line(Level level, std::string_view event, Fields fields) {
  std::string line;
  line.reserve(256);
  line += "{\"time\":\"";
  append_time(line, Format::kJson);
  line += "\",\"level\":\"";
  line += kLevelNames[static_cast<std::size_t>(level)];
  line += "\",\"event\":";
  append_quoted(line, event);
  for (const Field& field : fields) {
    line += ',';
    append_quoted(line, field.name);
    line += ':';
    append_value(line, field.value, Format::kJson);
  }
  line += '}';
  return line;
}

}  // namespace

void set_level(Level level) { g_level = level; }

Status configure(Level level, Format format, const std::string& path) {
  int file = STDERR_FILENO;
  if (!path.empty()) {
    file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (file < 0)
      return Error(ErrorCode::kInvalidArgument,
                   "log file \"" + path + "\" cannot be opened: " + std::strerror(errno));
  }
  const int before = g_file.exchange(file);
  if (before != STDERR_FILENO) ::close(before);
  g_level = level;
  g_format = format;
  return {};
}

bool is_enabled(Level level) {
  return level != Level::kOff && level >= g_level.load(std::memory_order_relaxed);
}

void write(Level level, std::string_view event, Fields fields) {
  if (!is_enabled(level)) return;
  const Format format = g_format.load(std::memory_order_relaxed);
  std::string line =
      format == Format::kJson ? json_line(level, event, fields) : text_line(level, event, fields);
  line += '\n';
  std::string_view rest = line;
  while (!rest.empty()) {  // one write; more only after a signal or on a full pipe
    const auto n = ::write(g_file.load(std::memory_order_relaxed), rest.data(), rest.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // nowhere to report it
    rest.remove_prefix(static_cast<std::size_t>(n));
  }
}

Result<Level> parse_level(std::string_view text) {
  for (std::size_t i = 0; i < kLevelNames.size(); ++i)
    if (text == kLevelNames[i]) return static_cast<Level>(i);
  return Error(ErrorCode::kInvalidArgument,
               "log level \"" + std::string(text) +
                   "\" is unknown; expected trace, debug, info, warn, error or off");
}

Result<Format> parse_format(std::string_view text) {
  if (text == "text") return Format::kText;
  if (text == "json") return Format::kJson;
  return Error(ErrorCode::kInvalidArgument,
               "log format \"" + std::string(text) + "\" is unknown; expected text or json");
}

}  // namespace centroid::log
