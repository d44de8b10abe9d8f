#include "common/tensor/text.h"

#include <cstdint>

namespace centroid {
namespace {

// Length of the well-formed character at the beginning, 0 if there is none.
std::size_t character_length(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return 1;
  const std::size_t length = (lead >> 5) == 0x6    ? 2
                             : (lead >> 4) == 0xE  ? 3
                             : (lead >> 3) == 0x1E ? 4
                                                   : 0;
  if (length == 0 || length > text.size()) return 0;
  std::uint32_t point = lead & (0x7Fu >> length);
  for (std::size_t k = 1; k < length; ++k) {
    const auto next = static_cast<unsigned char>(text[k]);
    if ((next & 0xC0u) != 0x80u) return 0;
    point = (point << 6) | (next & 0x3Fu);
  }
  constexpr std::uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = point >= 0xD800 && point < 0xE000;
  return point < kSmallest[length] || point > 0x10FFFF || is_surrogate ? 0 : length;
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = character_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string printable(std::string_view text, std::size_t limit) {
  std::string out;
  while (!text.empty()) {
    std::size_t length = character_length(text);
    const auto lead = static_cast<unsigned char>(text[0]);
    const bool is_shown = length > 0 && lead >= 0x20 && lead != 0x7F;
    if (length == 0) length = 1;
    if (out.size() + length > limit) return out + "...";
    out += is_shown ? text.substr(0, length) : std::string_view("?");
    text.remove_prefix(length);
  }
  return out;
}

}  // namespace centroid
