#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/api/route.h"
#include "server/api/views.h"

/// Common to the handlers of all families.
namespace centroid::server {

using Reply = Task<Result<HttpResponse>>;

HttpResponse json_response(const Json& value, unsigned status = 200);

/// A view as the answer of a route.
template <class T>
HttpResponse view_response(const T& view, unsigned status = 200) {
  return json_response(view_of<T>().to_json(view), status);
}

/// A view, or the reason why there is none.
template <class T>
Result<HttpResponse> view_response(const Result<T>& view, unsigned status = 200) {
  if (!view.ok()) return view.error();
  return view_response(*view, status);
}

/// The item whose `projection` is `value`, as the answer of a route; else not_found with `missing`.
template <class Item, class Projection, class Value>
Result<HttpResponse> item_response(const std::vector<Item>& items, Projection projection,
                                   const Value& value, const std::string& missing) {
  const auto found = std::ranges::find(items, value, projection);
  if (found == items.end()) return Error(ErrorCode::kNotFound, missing);
  return view_response(*found);
}

/// Parse the body of a request; `admit` has checked that it is an object with known fields.
/// fails  invalid_argument: names the field, the expected and the received value
template <class T>
Result<T> body_of(const Call& call) {
  const std::string& text = call.request.body;
  return view_of<T>().parse(text.empty() ? Json::object() : Json::parse(text));
}

/// A query parameter, or its default; null: neither. `admit` has checked it.
Json argument(const Call& call, std::string_view name);

/// The position of an item in its list, as in ?cursor=: "12" or "12.3".
using ListKey = std::pair<std::uint64_t, std::uint64_t>;
std::string to_string(const ListKey& key);
/// Of ?cursor=; nothing if it was not sent.
/// fails  invalid_argument
Result<std::optional<ListKey>> cursor_of(const Call& call);
/// The same path with ?limit= and the other parameters, starting after `key`.
std::string next_link(const Call& call, const std::string& cursor);

/// The keys of a list whose items have no numbers: their positions, after `before`.
template <class Item>
auto position_in(const std::vector<Item>& items, std::uint64_t before = 0) {
  return [first = items.data(), before](const Item& item) {
    return ListKey(before + static_cast<std::uint64_t>(&item - first) + 1, 0);
  };
}

/// One page of a list: its items, "next": link or null, and the fields of `more`. `items` are in
/// the list's order, ascending or descending by `key`.
template <class Item, class Key>
Result<HttpResponse> list_page(const Call& call, const std::vector<Item>& items, Key key,
                               bool is_descending = false, const Json& more = Json::object()) {
  CENTROID_ASSIGN(const std::optional<ListKey> cursor, cursor_of(call));
  Json list = Json::array();
  std::string next;
  std::optional<ListKey> last;
  for (const Item& item : items) {
    const ListKey at = key(item);
    if (cursor && (is_descending ? at >= *cursor : at <= *cursor)) continue;
    if (list.size() == call.limit) {
      next = next_link(call, to_string(*last));
      break;
    }
    list.push_back(view_of<Item>().to_json(item));
    last = at;
  }
  Json out = more;
  out[call.route->answer.list] = std::move(list);
  out["next"] = next.empty() ? Json() : Json(next);
  return json_response(out);
}

}  // namespace centroid::server
