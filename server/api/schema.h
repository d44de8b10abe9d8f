#pragma once

#include <concepts>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/result.h"

/// The JSON objects of REST, each described once. A struct with `View<T> describe(const T*)` beside
/// it is a view. `describe` lists its fields: name, member, text, bounds. The JSON of an answer,
/// the schema in the OpenAPI document and the parser of a request's body use this list.
namespace centroid::server {

using Json = nlohmann::ordered_json;

/// An entry of the OpenAPI document's components/schemas.
struct Schema {
  std::string name = {};
  Json json = {};
  std::vector<const Schema*> parts = {};  ///< to which `json` refers
};

Json reference_to(const Schema& schema);

template <class T>
class View;

/// The description of a view.
template <class T>
const View<T>& view_of() {
  static const View<T> kView = describe(static_cast<const T*>(nullptr));
  return kView;
}

// The schema's part besides type and text.
Json least(const Json& value);
Json between(const Json& least, const Json& most);
Json one_of(const std::vector<std::string>& words);
Json at_most_bytes(std::size_t count);
Json matches(const char* pattern);
Json at_most_items(std::size_t count);
Json or_null();  ///< a number that may be NaN

/// Check a value against its schema: type, bounds, length, choices.
///
/// fails  invalid_argument: "`where`: expected ..., got ..."
Status check_value(const std::string& where, const Json& value, const Json& schema);

namespace detail {

template <class T>
concept Described = requires(const T* view) { describe(view); };

template <class T>
concept Plain = std::is_arithmetic_v<T> || std::same_as<T, std::string>;

template <class T>
struct Wrapped {
  using Value = void;
};
template <class T>
struct Wrapped<std::optional<T>> {
  using Value = T;
};
template <class T>
using Optional = Wrapped<T>::Value;  ///< the wrapped type; void: `T` is no optional

/// The schema of a type; the views that it refers to are added to `parts`.
template <class T>
Json schema_of(std::vector<const Schema*>& parts) {
  if constexpr (Described<T>) {
    parts.push_back(&view_of<T>());
    return reference_to(view_of<T>());
  } else if constexpr (!std::is_void_v<Optional<T>>) {
    Json schema = schema_of<Optional<T>>(parts);
    if (schema.contains("type")) schema["type"] = Json::array({schema["type"], "null"});
    return schema;
  } else if constexpr (std::same_as<T, Json>) {
    return Json::object();
  } else if constexpr (std::same_as<T, bool>) {
    return {{"type", "boolean"}};
  } else if constexpr (std::is_floating_point_v<T>) {
    return {{"type", "number"}};
  } else if constexpr (std::is_unsigned_v<T>) {
    return {{"type", "integer"}, {"minimum", 0}};
  } else if constexpr (std::is_integral_v<T>) {
    return {{"type", "integer"}};
  } else if constexpr (std::same_as<T, std::string>) {
    return {{"type", "string"}};
  } else {
    return {{"type", "array"}, {"items", schema_of<typename T::value_type>(parts)}};
  }
}

template <class T>
Json json_of(const T& value) {
  if constexpr (Described<T>) {
    return view_of<T>().to_json(value);
  } else if constexpr (!std::is_void_v<Optional<T>>) {
    return value ? json_of(*value) : Json();
  } else if constexpr (Plain<T> || std::same_as<T, Json>) {
    return Json(value);
  } else {
    Json list = Json::array();
    for (const auto& item : value) list.push_back(json_of(item));
    return list;
  }
}

}  // namespace detail

/// One field of a view, whatever its type: compiled once.
struct AnyField {
  /// `schema_of` makes the schema of its values, and adds the views that it refers to.
  AnyField(std::string field, std::string_view text, const Json& more,
           Json (*schema_of)(std::vector<const Schema*>& parts));

  std::string name;
  Json schema;
  std::vector<const Schema*> parts;
  std::function<Json(const void* view)> read;
  std::function<void(void* view, const Json&)> write;  ///< empty: the field is in answers only
  bool is_required = true;
};

/// One field of a view.
template <class T>
struct Field : AnyField {
  /// `get`: a member, or a function of the view. `more`: further parts of the schema.
  template <class Get>
  Field(std::string field, Get get, std::string_view text, const Json& more = Json::object())
      : AnyField(std::move(field), text, more, detail::schema_of<ValueOf<Get>>) {
    using Value = ValueOf<Get>;
    read = [get](const void* view) {
      return detail::json_of<Value>(std::invoke(get, *static_cast<const T*>(view)));
    };
    if constexpr (std::is_member_object_pointer_v<Get>) {
      if constexpr (detail::Plain<Value>)
        write = [get](void* view, const Json& json) { json.get_to(static_cast<T*>(view)->*get); };
      else if constexpr (detail::Plain<detail::Optional<Value>>)
        write = [get](void* view, const Json& json) {
          static_cast<T*>(view)->*get = json.get<detail::Optional<Value>>();
        };
    }
  }

 private:
  template <class Get>
  using ValueOf = std::remove_cvref_t<std::invoke_result_t<const Get&, const T&>>;
};

/// A field that a request's body may omit.
template <class T, class Value>
Field<T> optional(std::string name, Value T::* member, std::string_view text,
                  const Json& more = Json::object()) {
  Field<T> field(std::move(name), member, text, more);
  field.is_required = false;
  if (field.schema["type"].is_array()) field.schema["type"] = Json(field.schema["type"][0]);
  return field;
}

/// A member of a member, or a function of a member.
template <class Outer, class Inner>
auto at(Outer outer, Inner inner) {
  return [outer, inner](const auto& view) { return std::invoke(inner, std::invoke(outer, view)); };
}

/// A member for which 0 means "none".
template <class T, class Value>
auto null_if_zero(Value T::* member) {
  return [member](const T& view) {
    return view.*member == 0 ? std::optional<Value>() : std::optional<Value>(view.*member);
  };
}

/// What is the same for views of every type.
class AnyView : public Schema {
 protected:
  AnyView(std::string title, std::string_view text, std::vector<AnyField> fields);
  Json json_of(const void* view) const;
  Status parse_into(void* view, const Json& object) const;

 private:
  std::vector<AnyField> fields_;
};

template <class T>
class View : public AnyView {
 public:
  View(std::string title, std::string_view text, const std::vector<Field<T>>& fields,
       const std::vector<Field<T>>& more = {})
      : AnyView(std::move(title), text, joined(fields, more)) {}

  /// Numbers that are not finite become null.
  Json to_json(const T& view) const { return json_of(&view); }

  /// Missing fields keep their default value.
  /// fails  invalid_argument: names the field, the expected and the received value
  Result<T> parse(const Json& object) const {
    T view;
    CENTROID_TRY(parse_into(&view, object));
    return view;
  }

 private:
  static std::vector<AnyField> joined(const std::vector<Field<T>>& fields,
                                      const std::vector<Field<T>>& more) {
    std::vector<AnyField> all;
    all.reserve(fields.size() + more.size());
    for (const AnyField& field : fields) all.push_back(field);
    for (const AnyField& field : more) all.push_back(field);
    return all;
  }
};

}  // namespace centroid::server
