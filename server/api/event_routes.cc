#include <algorithm>
#include <charconv>

#include "server/api/event_feed.h"
#include "server/api/reply.h"
#include "server/api/routes.h"
#include "server/events/event_types.h"

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

/// A browser's EventSource accepts nothing else; a client that accepts JSON too gets a page.
bool wants_stream(const HttpRequest& request) {
  const std::string* const field = request.field("accept");
  const std::string accept = field == nullptr ? std::string() : to_lower(*field);
  return accept.find("text/event-stream") != std::string::npos &&
         accept.find("application/json") == std::string::npos;
}

/// The start: ?cursor= or ?since=, and a browser's Last-Event-ID. A browser that reconnects repeats
/// its first request, so the later of the two counts.
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

/// Audit events are for readers of the audit log only.
bool is_hidden(std::string_view type, const Caller& caller) {
  return type == "audit.recorded" && caller.role < Role::kAdmin;
}

Json schema_of(const EventField& field) {
  using Kind = EventField::Kind;
  Json json;
  if (field.kind == Kind::kText)
    json["type"] = "string";
  else if (field.kind == Kind::kCount)
    json = {{"type", "integer"}, {"minimum", field.least}};
  else if (field.kind == Kind::kNumber)
    json["type"] = "number";
  else
    json = or_null();
  json["description"] = field.text;
  return json;
}

/// "member.excluded": EventMemberExcluded.
std::string schema_name(std::string_view type) {
  std::string name = "Event";
  bool is_first = true;
  for (const char c : type) {
    const bool is_letter = c != '.' && c != '_';
    if (is_letter) name.push_back(is_first ? static_cast<char>(c - 'a' + 'A') : c);
    is_first = !is_letter;
  }
  return name;
}

Schema schema_of(const EventType& type, bool has_time) {
  std::vector<EventField> fields = {
      {"id", EventField::Kind::kCount, "Id of the event; grows, also over restarts."},
      {"type", EventField::Kind::kText, "What happened."}};
  if (has_time) fields.push_back({"unix_seconds", EventField::Kind::kNumber, "When."});
  fields.insert(fields.end(), type.fields.begin(), type.fields.end());
  Json json = {{"type", "object"}, {"description", type.text}, {"additionalProperties", false}};
  for (const EventField& field : fields) {
    json["required"].push_back(field.name);
    json["properties"][std::string(field.name)] = schema_of(field);
  }
  json["properties"]["type"]["const"] = type.name;
  return {.name = schema_name(type.name), .json = std::move(json)};
}

/// Of any event: one of all types.
const Schema& event_schema() {
  static const Schema kEvent = [] {
    static std::vector<Schema> types;
    for (const EventType& type : described_events()) types.push_back(schema_of(type, true));
    types.push_back(schema_of(lost_events(), false));
    Schema event{.name = "Event", .json = {{"description", "One thing that happened."}}};
    Json mapping;
    for (const Schema& type : types) {
      event.parts.push_back(&type);
      event.json["oneOf"].push_back(reference_to(type));
      const std::string name = type.json["properties"]["type"]["const"];
      mapping[name] = "#/components/schemas/" + type.name;
    }
    event.json["discriminator"] = {{"propertyName", "type"}, {"mapping", std::move(mapping)}};
    return event;
  }();
  return kEvent;
}

/// The other responses.
Json stream_responses() {
  Json out;
  out["200"]["content"]["text/event-stream"]["schema"] = {
      {"type", "string"},
      {"description",
       "Server-Sent Events: `id`, `event` (the type) and `data` (an Event as JSON); comments keep "
       "the connection alive."}};
  out["403"]["$ref"] = "#/components/responses/ForbiddenToAskForIt";
  return out;
}

/// Further fields of a page of events.
struct EventList {
  std::uint64_t last = 0, lost = 0;
  friend View<EventList> describe(const EventList*) {
    using V = EventList;
    return {
        "EventList",
        "Events, oldest first.",
        {{"last", &V::last, "Id of the last event read: pass it as `since` for later events."},
         {"lost", &V::lost, "Least number of events after `since` that are no longer retained."}}};
  }
};

Reply list_events(Services services, Call call) {
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

}  // namespace

std::vector<Route> event_routes() {
  return {
      {.path = "/v1/events",
       .id = "list_events",
       .handler = list_events,
       .summary = "What happened lately",
       .description = "A page, or with `Accept: text/event-stream` a stream without end.",
       .parameters =
           {query<std::uint64_t>(
                "since",
                "Only events after this id. Without it, and without the field Last-Event-ID, a "
                "stream begins with the next event, a page with the oldest retained event."),
            query<std::string>("type",
                               "Only these types, separated by commas; `member` selects every type "
                               "that begins with `member.`."),
            header<std::uint64_t>("Last-Event-ID", "As `since`; sent by browsers that reconnect.")},
       .answer = make_page(
           "events",
           "Events: a page of them, or with `Accept: text/event-stream` a stream without end.",
           event_schema(), view_of<EventList>()),
       .limit = 100,
       .responses = stream_responses()},
  };
}

}  // namespace centroid::server
