#include "server/api/handlers.h"
#include "server/api/reply.h"

namespace centroid::server {

Reply get_checkpoints(Services services, Call call) {
  const auto views = co_await services.control.checkpoints();
  const auto key = [](const CheckpointView& view) { return ListKey(view.version, 0); };
  co_return list_page(call, "checkpoints", views, key, true);
}

Reply post_checkpoint(Services services, Call) {
  CENTROID_CO_ASSIGN(const CheckpointView view, co_await services.control.make_checkpoint());
  co_return json_response(to_json_object(view), 201);
}

}  // namespace centroid::server
