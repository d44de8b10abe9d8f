#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/async/pulse.h"
#include "common/async/task.h"
#include "common/base/metrics.h"
#include "server/api/call.h"
#include "server/api/schema.h"
#include "server/api/view.h"

namespace centroid::server {

class AuditLog;
class EventFeed;

/// Files of the machine that an operator needs to know.
struct HostFiles {
  std::string run_dir;                    ///< empty: none
  std::vector<std::string> certificates;  ///< PEM files that the server shows
};

/// Services of the handlers.
struct Services {
  ControlPlane& control;
  metrics::Registry& registry;
  EventFeed& feed;
  TokenStore& tokens;
  AuditLog& audit;
  Executor blocking;  ///< for blocking file operations
  bool& is_tracing;   ///< a trace is being written
  Pulse& pulse;
  const HostFiles& files;
};

enum class Span : std::uint8_t { kQuick, kCheckpoint };  ///< which deadline holds

/// A value in a request's path, query or fields.
struct Parameter {
  std::string in;  ///< path | query | header
  std::string name;
  std::string text;
  Json schema;
};

/// In a path "{id}" is a number, any other "{...}" a name.
Parameter path_part(std::string name, std::string text);

template <class T>
Parameter header(std::string name, std::string text) {
  std::vector<const Schema*> none;
  return {"header", std::move(name), std::move(text), detail::schema_of<T>(none)};
}

/// `more`: its bounds or choices. `otherwise`: its default value.
template <class T>
Parameter query(std::string name, std::string text, const Json& more = Json::object(),
                const Json& otherwise = nullptr) {
  std::vector<const Schema*> none;
  Parameter parameter{"query", std::move(name), std::move(text), detail::schema_of<T>(none)};
  parameter.schema.update(more);
  if (!otherwise.is_null()) parameter.schema["default"] = otherwise;
  return parameter;
}

/// The answer of a route after success.
struct Answer {
  std::string text = {};
  unsigned status = 200;
  std::string media = "application/json";
  Schema schema = {};     ///< of JSON; without a name: not described further
  std::string list = {};  ///< of a page, the field with its items
};

template <class T>
Answer answer(std::string text, unsigned status = 200) {
  return {.text = std::move(text), .status = status, .schema = view_of<T>()};
}

/// A page of a list: {list: [items], "next": link or null}, and the fields of `page`.
Answer make_page(std::string list, std::string text, const Schema& item, Schema page);

template <class Item>
Answer page(std::string list, std::string text, std::string name, const std::string& about) {
  Schema page_schema{.name = std::move(name), .json = {{"type", "object"}, {"description", about}}};
  return make_page(std::move(list), std::move(text), view_of<Item>(), std::move(page_schema));
}
/// With the fields of the view `More`; name and text are its own.
template <class Item, class More>
Answer page(std::string list, std::string text) {
  return make_page(std::move(list), std::move(text), view_of<Item>(), view_of<More>());
}

using Handler = Task<Result<HttpResponse>> (*)(Services services, Call call);

inline constexpr std::size_t kMaxLimit = 1000;

/// One method of one path: its handler, and its entry in the OpenAPI document.
struct Route {
  std::string_view method = "GET";
  std::string_view path = {};  ///< "{id}:verb" acts on it
  std::string_view id = {};
  Handler handler = nullptr;
  /// The least role that may call it.
  Role role = method == "GET" ? Role::kViewer : Role::kAdmin;
  std::string_view summary = {}, description = {};
  std::vector<Parameter> parameters = {};  ///< those of a page are added
  Schema body = {};                        ///< of POST and PATCH; without a name: no fields
  Answer answer = {};
  std::size_t limit = answer.list.empty() ? 0 : kMaxLimit;  ///< default of ?limit=
  Json responses = nullptr;  ///< merged into those of the document (RFC 7396)
  Span span = Span::kQuick;
  std::string_view tag = {};  ///< of its family

  /// nullptr: unknown
  const Parameter* find_query(std::string_view name) const;
};

/// Routes that belong together: a tag of the OpenAPI document.
struct Family {
  std::string_view tag, text;
  std::vector<Route> routes;
};

}  // namespace centroid::server
