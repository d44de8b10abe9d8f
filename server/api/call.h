#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api/access.h"
#include "server/api/http.h"

namespace centroid::server {

struct Route;

/// An admitted request: its route, caller and arguments.
struct Call {
  const Route* route = nullptr;
  Caller caller;
  std::string instance;    ///< the path as sent, for problems
  std::string request_id;  ///< of the client, or ours
  HttpRequest request;     ///< its body is empty or an object with fields of the route
  std::vector<std::pair<std::string_view, std::string>> values;  ///< of {...} in the path
  std::vector<std::pair<std::string, std::string>> query;
  std::size_t limit = 0;  ///< of ?limit=

  /// The part of the path for {name}; "" if the route has none.
  const std::string& value(std::string_view name) const;
  /// The same as a number, for {id}.
  std::uint64_t id() const;
  /// A query parameter; nullptr if it was not sent.
  const std::string* parameter(std::string_view name) const;
};

/// A text that is a number throughout.
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace centroid::server
