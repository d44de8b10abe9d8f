#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/result.h"

namespace centroid::server {

/// A parsed request target.
struct Target {
  std::string authority;              ///< of the absolute form; else empty
  std::string path;                   ///< as sent, without the query; "*" for the server as a whole
  std::vector<std::string> segments;  ///< percent-decoded; none for "/"
  std::vector<std::pair<std::string, std::string>> query;  ///< percent-decoded, in order

  /// fails   invalid_argument: neither "/...", "http://host/..." nor "*"; bad percent-encoding;
  ///         control characters
  /// source  RFC 9112, section 3.2; RFC 3986, sections 2.1 and 3.3
  static Result<Target> parse(std::string_view text);
};

/// fails   invalid_argument: "%" without two hex digits, or a control character results
Result<std::string> percent_decode(std::string_view text);

}  // namespace centroid::server
