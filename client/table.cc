#include "client/table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace centroid::client {

namespace {

/// Columns on the terminal: bytes that begin a character of UTF-8.
std::size_t width(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

bool is_number(const std::string& text) {
  return !text.empty() && (text[0] == '-' || (text[0] >= '0' && text[0] <= '9'));
}

template <class... Values>
std::string format(const char* pattern, Values... values) {
  char text[64];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

}  // namespace

std::string cleaned(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  // Of U+0080 to U+009F, U+200E, U+200F, U+202A to U+202E and U+2066 to U+2069, which control a
  // terminal or reverse what it shows.
  for (std::size_t i = 0; i + 1 < text.size(); ++i) {
    const auto at = [&](std::size_t k) {
      return i + k < text.size() ? static_cast<unsigned char>(text[i + k]) : 0u;
    };
    if (at(0) == 0xc2 && at(1) < 0xa0) text.replace(i, 2, 1, '?');
    const bool is_mark = at(1) == 0x80 && (at(2) == 0x8e || at(2) == 0x8f);
    const bool is_turn = at(1) == 0x80 && at(2) >= 0xaa && at(2) <= 0xae;
    const bool is_isolate = at(1) == 0x81 && at(2) >= 0xa6 && at(2) <= 0xa9;
    if (at(0) == 0xe2 && (is_mark || is_turn || is_isolate)) text.replace(i, 3, 1, '?');
  }
  return text;
}

std::string paint(const Style& style, Colour colour, const std::string& text) {
  static constexpr const char* kCodes[] = {"", "\033[32m", "\033[33m", "\033[1;31m", "\033[2m"};
  if (!style.has_colour || colour == Colour::kPlain) return text;
  return kCodes[static_cast<std::size_t>(colour)] + text + "\033[0m";
}

std::string table(const std::vector<std::string>& header,
                  const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  std::vector<bool> is_right(header.size(), !rows.empty());
  for (const std::string& cell : header) widths.push_back(width(cell));
  for (const auto& row : rows)
    for (std::size_t i = 0; i < header.size(); ++i) {
      widths[i] = std::max(widths[i], width(row[i]));
      if (!is_number(row[i])) is_right[i] = false;
    }
  std::string out;
  const auto add = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (std::size_t i = 0; i < header.size(); ++i) {
      const std::string cell = cleaned(cells[i]);
      const std::string space(widths[i] - width(cell), ' ');
      line += (i > 0 ? "  " : "") + (is_right[i] ? space + cell : cell + space);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  };
  add(header);
  for (const auto& row : rows) add(row);
  return out;
}

std::string size_text(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit < 4; ++unit) bytes /= 1024;
  return format(unit == 0 ? "%.0f %s" : "%.1f %s", bytes, kUnits[unit]);
}

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds)) return "-";
  if (seconds < 1e-3) return format("%.0f us", 1e6 * seconds);
  if (seconds < 1) return format("%.1f ms", 1000 * seconds);
  if (seconds < 60) return format("%.1f s", seconds);
  const auto total = static_cast<long long>(seconds);
  if (total < 3600) return format("%lld min %02lld s", total / 60, total % 60);
  return format("%lld h %02lld min", total / 3600, total / 60 % 60);
}

std::string share_text(double share) { return format("%.1f %%", 100 * share); }

std::string number_text(double value) {
  if (!std::isfinite(value)) return "-";
  const bool is_large = std::abs(value) >= 1e4 && std::abs(value) < 1e15;
  return format(is_large ? "%.0f" : "%.4g", value);
}

}  // namespace centroid::client
