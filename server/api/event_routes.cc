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

/// Where to begin: ?cursor= or ?since=, or what a browser says when it comes back.
Result<std::optional<std::uint64_t>> begin_of(const Call& call) {
  for (const char* name : {"cursor", "since"}) {
    const std::string* const text = call.parameter(name);
    if (text == nullptr) continue;
    CENTROID_ASSIGN(const std::uint64_t id,
                    event_id(*text, std::string("query parameter '") + name + "'"));
    return std::optional<std::uint64_t>(id);
  }
  const std::string* const last = call.request.field("last-event-id");
  if (last == nullptr || last->empty()) return std::optional<std::uint64_t>();
  CENTROID_ASSIGN(const std::uint64_t id, event_id(*last, "field Last-Event-ID"));
  return std::optional<std::uint64_t>(id);
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
