#include "server/api/reply.h"

#include <charconv>
#include <cstdio>

namespace centroid::server {

HttpResponse json_response(const Json& value, unsigned status) {
  HttpResponse response;
  response.status = status;
  response.body = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return response;
}

HttpResponse accepted(const char* action) {
  Json out;
  out["action"] = action;
  return json_response(out, 202);
}

namespace {

Error wrong(const char* name, const char* expected, const Json& got) {
  constexpr std::size_t kShown = 100;
  std::string text = got.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > kShown) text.resize(kShown), text += "...";
  return {ErrorCode::kInvalidArgument,
          std::string(name) + ": expected " + expected + ", got " + text};
}

}  // namespace

Body::Body(const Call& call)
    : json_(call.request.body.empty() ? Json::object() : Json::parse(call.request.body)) {}

Result<std::string> Body::text(const char* name) const {
  if (!has(name))
    return Error(ErrorCode::kInvalidArgument, std::string("the body has no field '") + name + "'");
  if (!json_[name].is_string()) return wrong(name, "a string", json_[name]);
  return json_[name].get<std::string>();
}

Result<std::string> Body::text(const char* name, std::string otherwise) const {
  if (!has(name)) return otherwise;
  return text(name);
}

Result<double> Body::number(const char* name, double otherwise, double least, double most) const {
  if (!has(name)) return otherwise;
  const Json& value = json_[name];
  char bounds[80];
  std::snprintf(bounds, sizeof bounds, "a number from %.12g to %.12g", least, most);
  if (!value.is_number() || !(value.get<double>() >= least && value.get<double>() <= most))
    return wrong(name, bounds, value);
  return value.get<double>();
}

Result<bool> Body::flag(const char* name, bool otherwise) const {
  if (!has(name)) return otherwise;
  if (!json_[name].is_boolean()) return wrong(name, "true or false", json_[name]);
  return json_[name].get<bool>();
}

Status check_reason(const std::string& why) {
  constexpr std::size_t kLongest = 1000;
  if (why.size() <= kLongest) return {};
  return Error(ErrorCode::kInvalidArgument,
               "why: expected at most 1000 bytes, got " + std::to_string(why.size()));
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
