#include <algorithm>
#include <charconv>

#include "server/api/event_feed.h"
#include "server/api/handlers.h"
#include "server/api/reply.h"

namespace centroid::server {

namespace {

Result<std::uint64_t> event_id(const std::string& text, const std::string& where) {
  std::uint64_t id = 0;
  const char* const end = text.data() + text.size();
  const auto [at, failed] = std::from_chars(text.data(), end, id);
  if (failed != std::errc() || at != end)
    return Error(ErrorCode::kInvalidArgument,
                 where + ": expected the id of an event, got '" + text + "'");
  return id;
}

/// A browser's EventSource asks for nothing else; who takes JSON too gets a page.
bool wants_stream(const HttpRequest& request) {
  const std::string* const field = request.field("accept");
  const std::string accept = field == nullptr ? std::string() : to_lower(*field);
  return accept.find("text/event-stream") != std::string::npos &&
         accept.find("application/json") == std::string::npos;
}

/// Where to begin: ?cursor= or ?since=, and what a browser says when it comes back. That one asks
/// again as it did at first, so what is further on counts.
Result<std::optional<std::uint64_t>> begin_of(const Call& call) {
  std::optional<std::uint64_t> begin;
  const auto take = [&begin](const std::string* text, const std::string& where) -> Status {
    if (text == nullptr) return {};
    CENTROID_ASSIGN(const std::uint64_t id, event_id(*text, where));
    begin = std::max(begin.value_or(0), id);
    return {};
  };
  for (const char* name : {"cursor", "since"})
    CENTROID_TRY(take(call.parameter(name), std::string("query parameter '") + name + "'"));
  const std::string* const last = call.request.field("last-event-id");
  if (last != nullptr && !last->empty()) CENTROID_TRY(take(last, "field Last-Event-ID"));
  return begin;
}

/// Who did what is for those who may read the audit log.
bool is_hidden(std::string_view type, const Caller& caller) {
  return type == "audit.recorded" && caller.role < Role::kAdmin;
}

}  // namespace

Reply get_events(Services services, Call call) {
  const std::string* const type = call.parameter("type");
  CENTROID_CO_ASSIGN(auto types, event_filter(type == nullptr ? std::string_view() : *type));
  CENTROID_CO_ASSIGN(const auto begin, begin_of(call));
  if (types.empty())
    for (const std::string_view one : event_types()) types.insert(one);
  std::erase_if(types, [&call](std::string_view one) { return is_hidden(one, call.caller); });
  if (types.empty()) co_return *check_role(call.caller, Role::kAdmin, call.instance);
  EventLog& events = services.feed.events();
  if (wants_stream(call.request)) {
    HttpResponse response;
    response.content_type = "text/event-stream";
    response.stream = services.feed.stream(begin.value_or(events.last_id()), std::move(types));
    co_return response;
  }
  const auto takes = [&types](std::string_view one) { return types.contains(one); };
  const EventLog::Page page = events.read(begin.value_or(0), call.limit, takes);
  HttpResponse response;
  std::string& body = response.body = "{\"events\":[";
  for (const EventRecord& event : page.events)
    body.append(&event == page.events.data() ? "" : ",").append(to_json_text(event));
  const std::string next =
      page.has_more ? Json(next_link(call, std::to_string(page.last))).dump() : "null";
  body.append("],\"last\":").append(std::to_string(page.last));
  body.append(",\"lost\":").append(std::to_string(page.lost));
  body.append(",\"next\":").append(next).append("}");
  co_return response;
}

}  // namespace centroid::server
