#pragma once

#include <string>
#include <string_view>

namespace centroid::server {

/// SHA-256 in hexadecimal digits.
/// source  FIPS 180-4; OpenSSL
std::string sha256(std::string_view text);

}  // namespace centroid::server
