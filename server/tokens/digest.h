#pragma once

#include <span>
#include <string>
#include <string_view>

namespace centroid::server {

/// SHA-256 in hexadecimal digits.
/// source  FIPS 180-4; OpenSSL
std::string sha256(std::string_view text);

/// What suffices to know a token when it is shown; not the token.
struct TokenDigest {
  std::string id;                   ///< a part of the token that is no secret
  std::string salt, hash;           ///< hash: sha256 of salt, ":" and the token
  double expires_unix_seconds = 0;  ///< 0: never
};

/// Whether `secret` is one of these tokens and has not expired at `now` (Unix seconds). Takes the
/// same time for every wrong secret of a known token.
bool opens(std::span<const TokenDigest> tokens, std::string_view secret, double now);

}  // namespace centroid::server
