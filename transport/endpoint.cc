#include <charconv>
#include <utility>

#include "transport/transport.h"

namespace centroid::transport {

std::string Endpoint::to_string() const {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

bool Endpoint::is_loopback() const {
  return host == "localhost" || host == "::1" || host.starts_with("127.") ||
         host.starts_with("::ffff:127.");
}

Result<Endpoint> Endpoint::parse(std::string_view text) {
  auto wrong = [text](std::string_view why) {
    return Error(ErrorCode::kInvalidArgument,
                 "endpoint \"" + std::string(text) + "\": " + std::string(why) +
                     "; expected host:port or [ipv6]:port, for example 127.0.0.1:7070");
  };
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos) return wrong("no port");
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  if (host.starts_with('[')) {
    if (!host.ends_with(']')) return wrong("no ] before the port");
    host = host.substr(1, host.size() - 2);
    if (host.find_first_of("[]") != std::string_view::npos) return wrong("nested brackets");
  } else if (host.find(':') != std::string_view::npos) {
    return wrong("an IPv6 address needs brackets");
  } else if (host.find_first_of("[]") != std::string_view::npos) {
    return wrong("misplaced brackets");
  }
  if (host.empty()) return wrong("no host");
  if (host.find_first_of(" \t\r\n/") != std::string_view::npos)
    return wrong("bad character in the host");
  Endpoint out;
  out.host = host;
  const char* const end = digits.data() + digits.size();
  const auto [stop, ec] = std::from_chars(digits.data(), end, out.port);
  if (digits.empty() || ec != std::errc{} || stop != end)
    return wrong("the port is no number from 0 to 65535");
  return out;
}

Task<Result<std::vector<Endpoint>>> Transport::resolve(Endpoint endpoint) {
  std::vector<Endpoint> own;
  own.push_back(std::move(endpoint));
  co_return own;
}

}  // namespace centroid::transport
