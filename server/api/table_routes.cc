#include <algorithm>

#include "server/api/handlers.h"
#include "server/api/reply.h"

namespace centroid::server {

Reply get_tables(Services services, Call call) {
  const auto views = co_await services.control.tables();
  const auto key = [&views](const TableView& view) {
    return ListKey(static_cast<std::uint64_t>(&view - views.data()), 0);
  };
  co_return list_page(call, "tables", views, key);
}

Reply get_table(Services services, Call call) {
  const auto views = co_await services.control.tables();
  const auto found = std::ranges::find(views, call.value("name"), &TableView::name);
  if (found == views.end())
    co_return Error(ErrorCode::kNotFound,
                    "there is no table '" + call.value("name") +
                        "' here; `centroidctl tables` (GET /v1/tables) lists them");
  co_return json_response(to_json_object(*found));
}

}  // namespace centroid::server
