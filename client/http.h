#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace centroid::client {

/// A server's REST interface: where it is, and how to be let in.
struct Remote {
  std::string host = "127.0.0.1", port = "8080";
  std::string token;
  bool is_https = false;
  std::string authority = "system";  ///< HTTPS: PEM file of who signs the server's certificate
  std::string server_name;           ///< HTTPS: what it must be for; "": the host
  bool is_unchecked = false;         ///< HTTPS: whatever certificate it shows
  std::chrono::milliseconds timeout{15'000};  ///< of one whole request

  /// Set host and port from "http://HOST:PORT", "https://...", "HOST:PORT" or "[IPv6]:PORT"; what
  /// follows the port comes back ("" or "/path").
  ///
  /// fails   invalid_argument, with what was expected
  Result<std::string> set_address(const std::string& text);
  bool is_loopback() const;
  std::string to_string() const;
  std::string authority_text() const;  ///< HOST:PORT, with brackets about IPv6
};

struct Answer {
  unsigned status = 0;
  std::string body;
  std::string date;  ///< the field Date as sent
  bool is_good() const { return status >= 200 && status < 300; }
};

/// One request on a connection of its own. Blocks.
///
/// fails   unavailable (not reached), deadline_exceeded, data_loss (no HTTP, or over 64 MiB)
Result<Answer> ask(const Remote& remote, const std::string& method, const std::string& path,
                   const std::string& json_body = {});

/// A stream of Server-Sent Events: `take` gets the text as it comes, and ends it by false. The
/// answer has a body only when it is an error. Blocks until the stream ends.
///
/// fails   as `ask`; unavailable too when the connection is lost
Result<Answer> listen(const Remote& remote, const std::string& path,
                      const std::function<bool(std::string_view)>& take);

/// Whether something listens there.
Status knock(const std::string& host, const std::string& port, std::chrono::milliseconds timeout);

}  // namespace centroid::client
