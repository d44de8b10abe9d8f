#include <algorithm>

#include "server/api/handlers.h"
#include "server/api/reply.h"

namespace centroid::server {

namespace {

/// `parts`: by tensor, from `first` on.
Json to_json_object(const ParametersView& all, std::size_t number,
                    const std::vector<std::vector<PartView>>& parts, std::size_t first) {
  const ParameterView& view = all.parameters[number];
  const auto& [name, dtype, shape, elements, bytes, nonfinite, min, max, mean, deviation, norm] =
      view;
  Json out;
  out["name"] = name;
  out["shape"] = shape;
  out["dtype"] = dtype;
  out["elements"] = elements;
  out["bytes"] = bytes;
  out["version"] = all.version;
  out["nonfinite"] = nonfinite;
  out["min"] = min;
  out["max"] = max;
  out["mean"] = mean;
  out["deviation"] = deviation;
  out["norm"] = norm;
  out["servers"] = Json::array();
  for (std::size_t i = 0; number - first < parts.size() && i < parts[number - first].size(); ++i) {
    const PartView& part = parts[number - first][i];
    Json one;
    one["name"] = part.server;
    one["bytes"] = part.bytes;
    out["servers"].push_back(std::move(one));
  }
  return out;
}

}  // namespace

Reply get_parameters(Services services, Call call) {
  CENTROID_CO_ASSIGN(const auto cursor, cursor_of(call));
  CENTROID_CO_ASSIGN(const ParametersView all, co_await services.control.parameters());
  const std::size_t count = all.parameters.size();
  const std::size_t begin = cursor ? std::min<std::size_t>(cursor->first, count) : 0;
  const std::size_t end = std::min(count, begin + call.limit);
  const auto parts = co_await services.control.tensor_parts(begin, end - begin);
  Json list = Json::array();
  for (std::size_t i = begin; i < end; ++i) list.push_back(to_json_object(all, i, parts, begin));
  Json out;
  out["version"] = all.version;
  out["is_current"] = all.is_current;
  out["measured_unix_seconds"] = all.measured_unix_seconds;
  out["parameters"] = std::move(list);
  out["next"] = end < count ? Json(next_link(call, std::to_string(end))) : Json();
  co_return json_response(out);
}

Reply get_parameter(Services services, Call call) {
  CENTROID_CO_ASSIGN(const ParametersView all, co_await services.control.parameters());
  const std::string& name = call.value("name");
  const auto found = std::ranges::find(all.parameters, name, &ParameterView::name);
  if (found == all.parameters.end())
    co_return Error(ErrorCode::kNotFound, "the model has no tensor '" + name + "'");
  const auto number = static_cast<std::size_t>(found - all.parameters.begin());
  const auto parts = co_await services.control.tensor_parts(number, 1);
  co_return json_response(to_json_object(all, number, parts, number));
}

}  // namespace centroid::server
