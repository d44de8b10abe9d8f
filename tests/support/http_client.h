#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace centroid::test {

struct HttpReply {
  int status = 0;
  std::map<std::string, std::string> fields;  ///< names in lower case
  std::string body;
};

/// Blocking HTTP/1.1 client on a plain socket, free of the server's libraries. Every wait ends
/// within `patience`.
class HttpClient {
 public:
  explicit HttpClient(std::uint16_t port,
                      std::chrono::milliseconds patience = std::chrono::seconds(30));
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  bool is_connected() const { return socket_ >= 0; }
  /// Send bytes, also of a partial request. False: the server has closed.
  bool send(std::string_view bytes);
  /// The next response with its body; none: the server closed or `patience` ended.
  std::optional<HttpReply> receive(bool is_head = false);
  /// After the head of a chunked response: its next chunk; "" for the last; none: no chunk arrived.
  std::optional<std::string> receive_chunk();
  /// Wait until the server closes; false: `patience` ended. Drops received bytes.
  bool wait_closed();

  /// Send one request with Host and length and receive the response; status 0: no response.
  HttpReply request(std::string_view method, std::string_view target, std::string_view fields = {},
                    std::string_view body = {});

 private:
  bool fill();
  int socket_ = -1;
  std::chrono::milliseconds patience_;
  std::string buffer_;
};

/// The text of such a request; `fields` are complete lines that end in CRLF and may have another
/// Host.
std::string http_request_text(std::string_view method, std::string_view target,
                              std::string_view fields = {}, std::string_view body = {});

}  // namespace centroid::test
