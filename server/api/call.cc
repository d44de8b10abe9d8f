#include "server/api/call.h"

namespace centroid::server {

const std::string& Call::value(std::string_view name) const {
  static const std::string kNone;
  for (const auto& [key, text] : values)
    if (key == name) return text;
  return kNone;
}

std::uint64_t Call::id() const {
  return parse_number<std::uint64_t>(value("id")).value_or(0);  // `admit` has looked
}

const std::string* Call::parameter(std::string_view name) const {
  for (const auto& [key, text] : query)
    if (key == name) return &text;
  return nullptr;
}

}  // namespace centroid::server
