#include "server/api/reply.h"

#include <charconv>

namespace centroid::server {

HttpResponse json_response(const Json& value, unsigned status) {
  HttpResponse response;
  response.status = status;
  response.body = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return response;
}

Json argument(const Call& call, std::string_view name) {
  const Json& schema = call.route->find_query(name)->schema;
  const std::string* const text = call.parameter(name);
  if (text == nullptr) return schema.value("default", Json());
  return schema["type"] == "string" ? Json(*text) : Json::parse(*text);
}

std::string to_string(const ListKey& key) {
  std::string text = std::to_string(key.first);
  if (key.second != 0) text.append(".").append(std::to_string(key.second));
  return text;
}

Result<std::optional<ListKey>> cursor_of(const Call& call) {
  const std::string* const text = call.parameter("cursor");
  if (text == nullptr) return std::optional<ListKey>();
  ListKey key;
  const char* const end = text->data() + text->size();
  auto [at, failed] = std::from_chars(text->data(), end, key.first);
  if (failed == std::errc() && at != end && *at == '.') {
    const auto second = std::from_chars(at + 1, end, key.second);
    at = second.ptr;
    failed = second.ec;
  }
  if (failed != std::errc() || at != end)
    return Error(ErrorCode::kInvalidArgument, "query parameter 'cursor': '" + *text +
                                                  "' is none of this list's; follow its 'next'");
  return std::optional<ListKey>(key);
}

std::string next_link(const Call& call, const std::string& cursor) {
  std::string link = call.instance + "?cursor=" + cursor;
  for (const auto& [name, value] : call.query)
    if (name != "cursor" && name != "since")
      link.append("&").append(name).append("=").append(value);
  return link;
}

}  // namespace centroid::server
