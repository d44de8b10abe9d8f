#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "transport/http/http_client.h"

namespace centroid::client {

using Answer = transport::HttpAnswer;

/// A server's REST interface: its address, and the credentials.
struct Remote {
  transport::HttpOrigin origin = {{"127.0.0.1", 8080}};
  std::string token;
  std::string authority =
      "system";               ///< HTTPS: PEM file of the authority of the server's certificate
  std::string server_name;    ///< HTTPS: name in the certificate; "": the host
  bool is_unchecked = false;  ///< HTTPS: accept any certificate
  std::chrono::milliseconds timeout{15'000};  ///< of one complete request

  /// Set the origin from "http://HOST:PORT", "https://...", "HOST:PORT" or "[IPv6]:PORT"; returns
  /// the rest after the port ("" or "/path").
  ///
  /// fails   invalid_argument, with the expected form
  Result<std::string> set_address(const std::string& text);
};

/// One request on a connection of its own. Blocks.
///
/// fails   unavailable (not reached), deadline_exceeded, data_loss (no HTTP, or over 64 MiB)
Result<Answer> ask(const Remote& remote, const std::string& method, const std::string& path,
                   const std::string& json_body = {});

/// A stream of Server-Sent Events: `take` receives the text as it arrives, on another thread, and
/// ends it by false. The answer has a body only if it is an error. Blocks until the stream ends, or
/// is silent for a minute: the server sends something at least every 15 s.
///
/// fails   as `ask`; unavailable too if the connection is lost
Result<Answer> listen(const Remote& remote, const std::string& path,
                      const std::function<bool(std::string_view)>& take);

/// Check that a listener accepts connections there.
Status knock(const transport::Endpoint& there, std::chrono::milliseconds timeout);

}  // namespace centroid::client
