#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/async/task.h"
#include "common/base/result.h"

namespace centroid::transport {

using HttpFields = std::vector<std::pair<std::string, std::string>>;

/// Value of the first field of that (lower-case) name; nullptr if there is none.
inline const std::string* find_field(const HttpFields& fields, std::string_view name) {
  const auto is_named = [name](const auto& entry) { return entry.first == name; };
  const auto at = std::find_if(fields.begin(), fields.end(), is_named);
  return at == fields.end() ? nullptr : &at->second;
}

/// A complete request, free of any HTTP library.
struct HttpRequest {
  std::string method;  ///< "GET"
  std::string target;  ///< as sent: origin form, absolute form or "*"
  HttpFields fields;   ///< names in lower case, from a client
  std::string body;
  unsigned version = 11;
  std::string address = {};  ///< of the client, HOST:PORT

  const std::string* field(std::string_view name) const { return find_field(fields, name); }
};

/// A body that is sent piece by piece, each after the client has received the one before.
class BodyStream {
 public:
  virtual ~BodyStream() = default;
  /// The next piece; empty: the end. An error cuts the response off.
  virtual Task<Result<std::string>> next() = 0;
  /// Total bytes; nothing: until it ends.
  virtual std::optional<std::uint64_t> length() const { return std::nullopt; }
};

/// A response to send; the server adds length, date and the security fields.
struct HttpResponse {
  unsigned status = 200;
  std::string content_type = "application/json";  ///< empty: no content
  std::string body;
  HttpFields fields;
  std::shared_ptr<BodyStream> stream = nullptr;  ///< in the place of `body`
  std::string_view text = {};            ///< likewise: a constant of the program, not copied
  std::shared_ptr<void> hold = nullptr;  ///< released when it has been sent
};

/// A response that a client received.
struct HttpAnswer {
  unsigned status = 0;
  HttpFields fields;  ///< names in lower case
  std::string body;
  const std::string* field(std::string_view name) const { return find_field(fields, name); }
  bool is_success() const { return status >= 200 && status < 300; }
};

/// Reason phrase of the statuses that servers of Centroid send.
std::string_view http_reason(unsigned status);

inline std::string to_lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

}  // namespace centroid::transport
