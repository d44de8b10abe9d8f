#include "server/api/handlers.h"
#include "server/api/reply.h"

namespace centroid::server {

Reply get_config(Services services, Call) {
  HttpResponse response;
  response.body = services.control.config_json();
  co_return response;
}

Reply post_pause(Services services, Call) {
  CENTROID_CO_TRY(co_await services.control.pause());
  co_return accepted("pause");
}

Reply post_resume(Services services, Call) {
  CENTROID_CO_TRY(co_await services.control.resume());
  co_return accepted("resume");
}

Reply post_stop(Services services, Call) {
  CENTROID_CO_TRY(co_await services.control.stop());
  co_return accepted("stop");
}

}  // namespace centroid::server
