#include "server/api/route.h"

#include <algorithm>

namespace centroid::server {

Parameter path_part(std::string name, std::string text) {
  Json schema = {{"type", "string"}};
  if (name == "id") schema = {{"type", "integer"}, {"minimum", 0}};
  return {"path", std::move(name), std::move(text), std::move(schema)};
}

Answer make_page(std::string list, std::string text, const Schema& item, Schema page) {
  Json properties;
  properties[list] = {{"type", "array"}, {"items", reference_to(item)}};
  properties["next"] = {{"type", {"string", "null"}},
                        {"description", "Path of the next page; null on the last."}};
  if (page.json.contains("properties")) properties.update(page.json["properties"]);
  page.json["required"] = Json::array();
  for (const auto& [name, schema] : properties.items()) page.json["required"].push_back(name);
  page.json["properties"] = std::move(properties);
  page.json["additionalProperties"] = false;
  page.parts.push_back(&item);
  return {.text = std::move(text), .schema = std::move(page), .list = std::move(list)};
}

const Parameter* Route::find_query(std::string_view name) const {
  const auto is_it = [name](const Parameter& one) { return one.in == "query" && one.name == name; };
  const auto found = std::find_if(parameters.begin(), parameters.end(), is_it);
  return found == parameters.end() ? nullptr : &*found;
}

}  // namespace centroid::server
