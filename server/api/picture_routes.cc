#include "server/api/handlers.h"
#include "server/api/picture.h"
#include "server/api/reply.h"

namespace centroid::server {

namespace {

HttpResponse svg_response(std::string text) {
  HttpResponse response;
  response.content_type = "image/svg+xml";
  response.body = std::move(text);
  response.fields.emplace_back("Content-Security-Policy",
                               "default-src 'none'; style-src 'unsafe-inline'; "
                               "frame-ancestors 'none'");
  return response;
}

}  // namespace

Reply get_model_picture(Services services, Call) {
  const ClusterView cluster = co_await services.control.cluster();
  CENTROID_CO_ASSIGN(const ParametersView model, co_await services.control.parameters());
  co_return svg_response(model_picture(cluster.model.spec, model));
}

}  // namespace centroid::server
