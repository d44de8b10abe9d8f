#include "server/api/handlers.h"
#include "server/api/reply.h"

namespace centroid::server {

namespace {

Json to_json_object(const ParameterView& view, const ParametersView& all) {
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
  return out;
}

}  // namespace

Reply get_parameters(Services services, Call call) {
  CENTROID_CO_ASSIGN(const auto cursor, cursor_of(call));
  CENTROID_CO_ASSIGN(const ParametersView all, co_await services.control.parameters());
  const std::size_t count = all.parameters.size();
  const std::size_t begin = cursor ? std::min<std::size_t>(cursor->first, count) : 0;
  const std::size_t end = std::min(count, begin + call.limit);
  Json list = Json::array();
  for (std::size_t i = begin; i < end; ++i) list.push_back(to_json_object(all.parameters[i], all));
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
  for (const ParameterView& one : all.parameters)
    if (one.name == name) co_return json_response(to_json_object(one, all));
  co_return Error(ErrorCode::kNotFound, "the model has no tensor '" + name + "'");
}

}  // namespace centroid::server
