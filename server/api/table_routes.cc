#include "server/api/reply.h"
#include "server/api/routes.h"

namespace centroid::server {

View<TableView> describe(const TableView*) {
  using V = TableView;
  return {"Table",
          "A table of sparse rows.",
          {{"name", &V::name, "Its name."},
           {"optimizer", &V::optimizer, "`sgd`, `adagrad` or `ftrl`."},
           {"spec", &V::spec, "Its settings, as `tables` takes them."},
           {"dim", &V::dim, "Floats of a row."},
           {"rows", &V::rows, "Rows that are stored."},
           {"waiting", &V::waiting, "Keys that wait for admission."},
           {"bytes", &V::bytes, "Memory it takes."},
           {"payload_bytes", &V::payload_bytes, "Of that: values and optimizer state."},
           {"max_bytes", &V::max_bytes, "Bound on its memory; 0: none."},
           {"pulled", &V::pulled, "Rows pulled since the table exists."},
           {"pushed", &V::pushed, "Rows pushed; a key that appears twice in a push counts once."},
           {"admitted", &V::admitted, "Rows created."},
           {"held_back", &V::held_back, "Gradients of rows that were not yet admitted."},
           {"evicted", &V::evicted, "Rows removed for lack of memory."},
           {"expired", &V::expired, "Rows taken away by age."},
           {"servers", &V::servers, "Its servers, the leader first. None on a standby."}}};
}

View<PartView> describe(const PartView*) {
  using V = PartView;
  return {"TablePart",
          "The part of a table on one server.",
          {{"name", &V::server, "The server, as in GET /v1/servers."},
           {"rows", &V::rows, "Rows that are stored there."},
           {"bytes", &V::bytes, "Memory it takes there."}}};
}

namespace {

Reply list_tables(Services services, Call call) {
  const auto views = co_await services.control.tables();
  co_return list_page(call, views, position_in(views));
}

Reply get_table(Services services, Call call) {
  const auto views = co_await services.control.tables();
  co_return item_response(views, &TableView::name, call.value("name"),
                          "there is no table '" + call.value("name") +
                              "' here; `centroidctl tables` (GET /v1/tables) lists them");
}

}  // namespace

std::vector<Route> table_routes() {
  return {
      {.path = "/v1/tables",
       .id = "list_tables",
       .handler = list_tables,
       .summary = "Tables of sparse rows: settings, rows, memory, counts",
       .answer = page<TableView>("tables", "The tables.", "TableList", "Tables of sparse rows.")},
      {.path = "/v1/tables/{name}",
       .id = "get_table",
       .handler = get_table,
       .summary = "One of them",
       .parameters = {path_part("name", "Name of the table.")},
       .answer = answer<TableView>("The table.")},
  };
}

}  // namespace centroid::server
