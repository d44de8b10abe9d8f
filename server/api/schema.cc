#include "server/api/schema.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace centroid::server {

namespace {

constexpr double kMostExact = 9007199254740992.0;  ///< 2^53: doubles are exact up to it

std::string text_of(const Json& value) {
  constexpr std::size_t kShown = 100;
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > kShown) text.resize(kShown), text += "...";
  return text;
}

std::string bounds_of(const Json& schema) {
  const auto number = [&schema](const char* name) {
    char text[40];
    std::snprintf(text, sizeof text, "%.12g", schema.value(name, 0.0));
    return std::string(text);
  };
  if (schema.contains("maximum")) return " from " + number("minimum") + " to " + number("maximum");
  return schema.contains("minimum") ? " of at least " + number("minimum") : std::string();
}

bool is_within(const Json& value, const Json& schema, bool is_complete) {
  if (!value.is_number()) return false;
  const double number = value.get<double>();
  if (is_complete && value.is_number_float())
    if (number != std::floor(number) || std::abs(number) > kMostExact) return false;
  return number >= schema.value("minimum", number) && number <= schema.value("maximum", number);
}

std::string choices_of(const Json& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i)
    text.append(i == 0                  ? ""
                : i + 1 == words.size() ? " or "
                                        : ", ")
        .append(words[i].get<std::string>());
  return text;
}

}  // namespace

Json reference_to(const Schema& schema) {
  return {{"$ref", "#/components/schemas/" + schema.name}};
}

Json least(const Json& value) { return {{"minimum", value}}; }
Json between(const Json& least, const Json& most) {
  return {{"minimum", least}, {"maximum", most}};
}
Json one_of(const std::vector<std::string>& words) { return {{"enum", words}}; }
Json at_most_bytes(std::size_t count) { return {{"maxLength", count}}; }
Json matches(const char* pattern) { return {{"pattern", pattern}}; }
Json at_most_items(std::size_t count) { return {{"maxItems", count}}; }
Json or_null() { return {{"type", {"number", "null"}}}; }

Status check_value(const std::string& where, const Json& value, const Json& schema) {
  const std::string type = schema.value("type", "");
  std::string expected;
  if (type == "boolean" && !value.is_boolean()) {
    expected = "true or false";
  } else if (type == "integer" && !is_within(value, schema, true)) {
    expected = "an integer" + bounds_of(schema);
  } else if (type == "number" && !is_within(value, schema, false)) {
    expected = "a number" + bounds_of(schema);
  } else if (type == "string" && !value.is_string()) {
    expected = "a string";
  } else if (schema.contains("enum")) {
    const Json& words = schema["enum"];
    if (std::find(words.begin(), words.end(), value) == words.end()) expected = choices_of(words);
  } else if (schema.contains("maxLength")) {
    const std::size_t most = schema["maxLength"], size = value.get_ref<const std::string&>().size();
    if (size > most)
      return Error(ErrorCode::kInvalidArgument, where + ": expected at most " +
                                                    std::to_string(most) + " bytes, got " +
                                                    std::to_string(size));
  }
  if (expected.empty()) return {};
  return Error(ErrorCode::kInvalidArgument,
               where + ": expected " + expected + ", got " + text_of(value));
}

AnyField::AnyField(std::string field, std::string_view text, const Json& more,
                   Json (*schema_of)(std::vector<const Schema*>& parts))
    : name(std::move(field)) {
  schema = schema_of(parts);
  if (!text.empty()) schema["description"] = text;
  schema.update(more);
}

AnyView::AnyView(std::string title, std::string_view text, std::vector<AnyField> fields)
    : fields_(std::move(fields)) {
  name = std::move(title);
  json = {{"type", "object"}, {"description", text}, {"additionalProperties", false}};
  for (const AnyField& field : fields_) {
    if (field.is_required) json["required"].push_back(field.name);
    json["properties"][field.name] = field.schema;
    parts.insert(parts.end(), field.parts.begin(), field.parts.end());
  }
}

Json AnyView::json_of(const void* view) const {
  Json out = Json::object();
  for (const AnyField& field : fields_) out[field.name] = field.read(view);
  return out;
}

Status AnyView::parse_into(void* view, const Json& object) const {
  for (const AnyField& field : fields_) {
    const auto found = object.find(field.name);
    if (found != object.end()) {
      CENTROID_TRY(check_value(field.name, *found, field.schema));
      if (field.write) field.write(view, *found);
    } else if (field.is_required) {
      return Error(ErrorCode::kInvalidArgument,
                   "there is no field '" + field.name +
                       "': " + field.schema.value("description", std::string("it is required")));
    }
  }
  return {};
}

}  // namespace centroid::server
