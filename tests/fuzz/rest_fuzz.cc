#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "server/api/access.h"
#include "server/api/event_feed.h"
#include "server/api/file_stream.h"
#include "server/api/rate_table.h"
#include "server/api/reply.h"
#include "server/api/routes.h"
#include "server/api/target.h"
#include "tests/fuzz/fuzzer.h"

namespace {

using namespace centroid::server;

/// Up to the next zero byte.
std::string take(std::string_view& rest) {
  const auto end = rest.find('\0');
  std::string part(rest.substr(0, end));
  rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  return part;
}

bool is_clean(std::string_view text) {
  for (const char c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
  return true;
}

}  // namespace

/// What the REST server makes of a request before anything is done: method, target, fields and body
/// as a client sends them. Whatever they hold, the answer is a problem or a call with values that
/// are safe to be told and logged.
CENTROID_FUZZER(rest)(const std::uint8_t* data, std::size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  static constexpr const char* kFields[] = {"host",         "authorization", "origin",
                                            "content-type", "x-request-id",  "content-encoding"};
  HttpRequest request;
  request.method = take(rest);
  request.target = take(rest);
  for (const char* name : kFields)
    if (std::string value = take(rest); !value.empty()) request.fields.emplace_back(name, value);
  const std::string field = take(rest);
  request.body = std::string(rest);
  request.address = "127.0.0.1:1";
  AccessPolicy policy;
  policy.is_loopback = size % 2 == 0;
  if (size % 3 == 0) policy.token = "secret";

  const CheckedRequest checked = admit(policy, request);
  if (checked.response.has_value() == checked.call.has_value()) std::abort();
  if (checked.response)
    for (const auto& [name, value] : checked.response->fields)
      if (!is_clean(value)) std::abort();
  if (checked.call) {
    const Call& call = *checked.call;
    if (call.route->role > call.caller.role) std::abort();
    for (const auto& [name, value] : call.values)
      if (value.empty() || !is_clean(value)) std::abort();
    for (const auto& [name, value] : call.query)
      if (!is_clean(value)) std::abort();
    if (!is_clean(call.request_id)) std::abort();
    (void)cursor_of(call);
    (void)call.id();
    const std::string& body = call.request.body;
    const Schema& known = call.route->body;
    if (!body.empty() && known.json.contains("properties"))
      for (const auto& [name, schema] : known.json["properties"].items())
        (void)check_value(name, Json::parse(body).value(name, Json()), schema);
    for (const auto& [name, value] : call.query) (void)argument(call, name);
  }

  const std::uint64_t bytes = size * 977;
  ByteRange range;
  if (parse_range(field, bytes, range) == RangeVerdict::kPart &&
      (range.count == 0 || range.begin >= bytes || range.count > bytes - range.begin))
    std::abort();
  (void)event_filter(field);
  (void)host_name(field);
  (void)client_of(field);
  if (const auto text = percent_decode(field); text.ok() && !is_clean(*text)) std::abort();
  return 0;
}
