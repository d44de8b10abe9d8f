#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "server/api/routes.h"
#include "server/api/view_json.h"

/// What the handlers of all families share.
namespace centroid::server {

using Json = nlohmann::ordered_json;
using Reply = Task<Result<HttpResponse>>;

HttpResponse json_response(const Json& value, unsigned status = 200);

/// 202: asked for, and done soon; the cluster's or worker's state tells when.
HttpResponse accepted(const char* action);

/// The JSON object of a request's body; `admit` has seen that it is one, and its fields known.
class Body {
 public:
  explicit Body(const Call& call);
  bool has(const char* name) const { return json_.contains(name); }
  const Json& json() const { return json_; }
  /// fails invalid_argument: missing, or no string
  Result<std::string> text(const char* name) const;
  Result<std::string> text(const char* name, std::string otherwise) const;
  /// fails invalid_argument: no number, or out of its bounds
  Result<double> number(const char* name, double otherwise, double least, double most) const;
  Result<bool> flag(const char* name, bool otherwise) const;

 private:
  Json json_;
};

/// What a person says of an act is kept and told: not a book.
/// fails  invalid_argument
Status check_reason(const std::string& why);

/// The place of an item in its list, as it stands in ?cursor=: "12" or "12.3".
using ListKey = std::pair<std::uint64_t, std::uint64_t>;
std::string to_string(const ListKey& key);
/// Of ?cursor=; nothing when it was not given.
/// fails  invalid_argument
Result<std::optional<ListKey>> cursor_of(const Call& call);
/// The same path with ?limit= and the other parameters, from behind `key` on.
std::string next_link(const Call& call, const std::string& cursor);

/// The keys of a list whose items have no numbers: their positions, from 1.
template <class View>
auto position_in(const std::vector<View>& views) {
  return [first = views.data()](const View& view) {
    return ListKey(static_cast<std::uint64_t>(&view - first) + 1, 0);
  };
}

/// One page of a list: {name: [...], "next": link or null}, and the fields of `more`. `views` are
/// in the list's order, which goes by `key`, upwards or downwards.
struct ViewToJson {
  template <class View>
  Json operator()(const View& view) const {
    return to_json_object(view);
  }
};
template <class View, class Key, class ToJson = ViewToJson>
Result<HttpResponse> list_page(const Call& call, const char* name, const std::vector<View>& views,
                               Key key, bool is_descending = false, ToJson to_json = ToJson(),
                               const Json& more = Json::object()) {
  CENTROID_ASSIGN(const std::optional<ListKey> cursor, cursor_of(call));
  Json list = Json::array();
  std::string next;
  std::optional<ListKey> last;
  for (const View& view : views) {
    const ListKey at = key(view);
    if (cursor && (is_descending ? at >= *cursor : at <= *cursor)) continue;
    if (list.size() == call.limit) {
      next = next_link(call, to_string(*last));
      break;
    }
    list.push_back(to_json(view));
    last = at;
  }
  Json out;
  out[name] = std::move(list);
  out["next"] = next.empty() ? Json() : Json(next);
  out.update(more);
  return json_response(out);
}

}  // namespace centroid::server
