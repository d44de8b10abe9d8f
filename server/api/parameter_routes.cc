#include <algorithm>

#include "server/api/picture.h"
#include "server/api/reply.h"
#include "server/api/routes.h"

namespace centroid::server {

View<ParametersView> describe(const ParametersView*) {
  using V = ParametersView;
  return {"ParameterList",
          "Every tensor, in the order of the model. Measured at most once a second; other answers "
          "repeat the last measurement.",
          {{"version", &V::version, "Version of these values."},
           {"is_current", &V::is_current,
            "False if the workers have newer ones (exchanges ring and hierarchical)."},
           {"measured_unix_seconds", &V::measured_unix_seconds, "When."}}};
}

namespace {

struct TensorPart {
  std::string name;
  std::uint64_t bytes = 0;
  friend View<TensorPart> describe(const TensorPart*) {
    using V = TensorPart;
    return {"TensorPart",
            "The part of a tensor on one server.",
            {{"name", &V::name, "The server, as in GET /v1/servers."},
             {"bytes", &V::bytes, "Of the tensor, that lie there."}}};
  }
};

struct Tensor : ParameterView {
  std::uint64_t version = 0;
  std::vector<TensorPart> servers;
  friend View<Tensor> describe(const Tensor*) {
    using V = Tensor;
    return {"Parameter",
            "One tensor of the parameters, with statistics.",
            {{"name", &V::name, "Its name."},
             {"shape", &V::shape, "Its dimensions; none for a scalar."},
             {"dtype", &V::dtype, "Type of its elements, such as f32."},
             {"elements", &V::elements, "How many."},
             {"bytes", &V::bytes, "In memory."},
             {"version", &V::version, "Version of these values."},
             {"nonfinite", &V::nonfinite, "NaN and infinities: left out of what follows."},
             {"min", &V::min, "Least."},
             {"max", &V::max, "Largest."},
             {"mean", &V::mean, "Mean."},
             {"deviation", &V::deviation, "Standard deviation (of the population)."},
             {"norm", &V::norm, "Euclidean norm."},
             {"servers", &V::servers,
              "Its present servers, the leader first: more than one if its chunks are on several. "
              "None for a tensor without elements."}}};
  }
};

const std::vector<PartView> kNowhere;

/// `parts`: its part on each server.
Tensor tensor_of(const ParametersView& all, std::size_t number,
                 const std::vector<PartView>& parts) {
  Tensor tensor{all.parameters[number], all.version, {}};
  for (const PartView& part : parts) tensor.servers.push_back({part.server, part.bytes});
  return tensor;
}

Reply list_parameters(Services services, Call call) {
  CENTROID_CO_ASSIGN(const auto cursor, cursor_of(call));
  CENTROID_CO_ASSIGN(const ParametersView all, co_await services.control.parameters());
  const std::size_t count = all.parameters.size();
  const std::size_t begin = cursor ? std::min<std::size_t>(cursor->first, count) : 0;
  const std::size_t end =
      std::min(count, begin + call.limit + 1);  // one more: is there a next page
  const auto parts = co_await services.control.tensor_parts(begin, end - begin);
  std::vector<Tensor> tensors;
  for (std::size_t i = begin; i < end; ++i)
    tensors.push_back(tensor_of(all, i, i - begin < parts.size() ? parts[i - begin] : kNowhere));
  const Json more = view_of<ParametersView>().to_json(all);
  co_return list_page(call, tensors, position_in(tensors, begin), false, more);
}

Reply get_parameter(Services services, Call call) {
  CENTROID_CO_ASSIGN(const ParametersView all, co_await services.control.parameters());
  const std::string& name = call.value("name");
  const auto found = std::ranges::find(all.parameters, name, &ParameterView::name);
  if (found == all.parameters.end())
    co_return Error(ErrorCode::kNotFound, "the model has no tensor '" + name + "'");
  const auto number = static_cast<std::size_t>(found - all.parameters.begin());
  const auto parts = co_await services.control.tensor_parts(number, 1);
  co_return view_response(tensor_of(all, number, parts.empty() ? kNowhere : parts[0]));
}

Reply get_model_picture(Services services, Call) {
  const ClusterView cluster = co_await services.control.cluster();
  CENTROID_CO_ASSIGN(const ParametersView model, co_await services.control.parameters());
  HttpResponse response;
  response.content_type = "image/svg+xml";
  response.body = model_picture(cluster.model.spec, model);
  response.fields.emplace_back("Content-Security-Policy",
                               "default-src 'none'; style-src 'unsafe-inline'; "
                               "frame-ancestors 'none'");
  co_return response;
}

}  // namespace

std::vector<Route> parameter_routes() {
  return {
      {.path = "/v1/parameters",
       .id = "list_parameters",
       .handler = list_parameters,
       .summary = "Every tensor with statistics of its values",
       .answer = page<Tensor, ParametersView>("parameters", "The tensors.")},
      {.path = "/v1/parameters/{name}",
       .id = "get_parameter",
       .handler = get_parameter,
       .summary = "One of them",
       .parameters = {path_part("name", "Its name.")},
       .answer = answer<Tensor>("The tensor.")},
      {.path = "/v1/model.svg",
       .id = "get_model_picture",
       .handler = get_model_picture,
       .summary = "The model's layers as a picture",
       .description = "Tensors, shapes, numbers of parameters and each layer's part of them.",
       .answer = {.text = "Layers with their tensors, shapes and numbers of parameters, as SVG.",
                  .media = "image/svg+xml"}},
  };
}

}  // namespace centroid::server
