#include "transport/http/http.h"

#include <array>

namespace centroid::transport {

std::string_view http_reason(unsigned status) {
  using Pair = std::pair<unsigned, std::string_view>;
  static constexpr auto kReasons = std::to_array<Pair>({
      {200, "OK"},
      {201, "Created"},
      {202, "Accepted"},
      {204, "No Content"},
      {206, "Partial Content"},
      {304, "Not Modified"},
      {400, "Bad Request"},
      {401, "Unauthorized"},
      {403, "Forbidden"},
      {404, "Not Found"},
      {405, "Method Not Allowed"},
      {409, "Conflict"},
      {412, "Precondition Failed"},
      {413, "Content Too Large"},
      {415, "Unsupported Media Type"},
      {416, "Range Not Satisfiable"},
      {421, "Misdirected Request"},
      {422, "Unprocessable Content"},
      {429, "Too Many Requests"},
      {431, "Request Header Fields Too Large"},
      {500, "Internal Server Error"},
      {501, "Not Implemented"},
      {503, "Service Unavailable"},
      {504, "Gateway Timeout"},
      {505, "HTTP Version Not Supported"},
  });
  const auto is_it = [status](const Pair& one) { return one.first == status; };
  const auto at = std::find_if(kReasons.begin(), kReasons.end(), is_it);
  return at == kReasons.end() ? "Error" : at->second;
}

}  // namespace centroid::transport
