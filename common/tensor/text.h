#pragma once

#include <string>
#include <string_view>

namespace centroid {

/// True when `text` is well-formed UTF-8 (no overlong forms, no surrogates).
bool is_utf8(std::string_view text);

/// Foreign text for a message: at most `limit` bytes, control characters and invalid UTF-8 replaced
/// by '?'.
std::string printable(std::string_view text, std::size_t limit = 64);

}  // namespace centroid
