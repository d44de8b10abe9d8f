#include "server/api/target.h"

#include "server/api/http.h"

namespace centroid::server {

namespace {

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool is_printable_ascii(std::string_view text) {
  for (const char c : text)
    if (c < 0x21 || c > 0x7e) return false;
  return true;
}

Status split_path(std::string_view path, std::vector<std::string>& segments) {
  if (path == "/") return {};
  for (path.remove_prefix(1);;) {
    const auto slash = path.find('/');
    CENTROID_ASSIGN(auto segment, percent_decode(path.substr(0, slash)));
    segments.push_back(std::move(segment));
    if (slash == std::string_view::npos) return {};
    path.remove_prefix(slash + 1);
  }
}

Status split_query(std::string_view query, std::vector<std::pair<std::string, std::string>>& out) {
  while (!query.empty()) {
    const auto end = query.find('&');
    const auto item = query.substr(0, end);
    query.remove_prefix(end == std::string_view::npos ? query.size() : end + 1);
    if (item.empty()) continue;
    const auto equals = item.find('=');
    CENTROID_ASSIGN(auto name, percent_decode(item.substr(0, equals)));
    const auto raw =
        equals == std::string_view::npos ? std::string_view() : item.substr(equals + 1);
    CENTROID_ASSIGN(auto value, percent_decode(raw));
    out.emplace_back(std::move(name), std::move(value));
  }
  return {};
}

}  // namespace

Result<std::string> percent_decode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      const int high = i + 2 < text.size() ? hex_value(text[i + 1]) : -1;
      const int low = i + 2 < text.size() ? hex_value(text[i + 2]) : -1;
      if (high < 0 || low < 0)
        return Error(ErrorCode::kInvalidArgument,
                     "expected two hex digits after '%' in '" + std::string(text) + "'");
      c = static_cast<char>(high * 16 + low);
      i += 2;
    }
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      return Error(ErrorCode::kInvalidArgument, "control character in '" + std::string(text) + "'");
    out.push_back(c);
  }
  return out;
}

Result<Target> Target::parse(std::string_view text) {
  Target target;
  if (text == "*") {
    target.path = "*";
    return target;
  }
  if (!is_printable_ascii(text) || text.find('#') != std::string_view::npos)
    return Error(ErrorCode::kInvalidArgument,
                 "request target: expected printable ASCII without '#'");
  constexpr std::string_view kScheme = "http://";
  if (to_lower(text.substr(0, kScheme.size())) == kScheme) {
    text.remove_prefix(kScheme.size());
    const auto end = text.find_first_of("/?");
    target.authority = text.substr(0, end);
    if (target.authority.empty())
      return Error(ErrorCode::kInvalidArgument, "request target: no host after http://");
    text.remove_prefix(end == std::string_view::npos ? text.size() : end);
  } else if (text.empty() || text.front() != '/') {
    return Error(ErrorCode::kInvalidArgument,
                 "request target: expected a path that begins with '/'");
  }
  const auto mark = text.find('?');
  const auto path = text.substr(0, mark);
  target.path = path.empty() ? "/" : std::string(path);
  CENTROID_TRY(split_path(target.path, target.segments));
  if (mark != std::string_view::npos)
    CENTROID_TRY(split_query(text.substr(mark + 1), target.query));
  return target;
}

}  // namespace centroid::server
