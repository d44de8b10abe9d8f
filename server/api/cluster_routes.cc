#include "server/api/handlers.h"
#include "server/api/reply.h"

namespace centroid::server {

namespace {

/// Bytes of the fullest of the servers that hold the model over their mean; null: none does.
Json balance_of(const std::vector<ServerView>& views) {
  std::uint64_t most = 0, sum = 0, count = 0;
  for (const ServerView& view : views) {
    const bool is_to_hold = view.state == "leader" || view.state == "serving";
    if (!is_to_hold && view.bytes == 0) continue;
    most = std::max(most, view.bytes);
    sum += view.bytes;
    ++count;
  }
  if (sum == 0) return nullptr;
  return static_cast<double>(most) * static_cast<double>(count) / static_cast<double>(sum);
}

}  // namespace

Reply get_cluster(Services services, Call) {
  const ClusterView view = co_await services.control.cluster();
  co_return json_response(to_json_object(view));
}

Reply get_workers(Services services, Call call) {
  const auto views = co_await services.control.workers();
  const auto key = [](const WorkerView& view) { return ListKey(view.member, 0); };
  co_return list_page(call, "workers", views, key);
}

Reply get_worker(Services services, Call call) {
  const auto views = co_await services.control.workers();
  const std::uint64_t id = call.id();
  const auto is_wanted = [id](const WorkerView& view) { return view.member == id; };
  const auto at = std::find_if(views.begin(), views.end(), is_wanted);
  if (at == views.end())
    co_return Error(ErrorCode::kNotFound, "no worker with member number " + std::to_string(id));
  co_return json_response(to_json_object(*at));
}

Reply get_rounds(Services services, Call call) {
  CENTROID_CO_ASSIGN(const std::optional<ListKey> cursor, cursor_of(call));
  const std::size_t most = call.limit + 1;  // one more: is there a next page
  const auto views = co_await services.control.rounds(most, cursor);
  const auto key = [](const RoundView& view) { return ListKey(view.round, view.attempt); };
  co_return list_page(call, "rounds", views, key, true);
}

Reply get_epochs(Services services, Call call) {
  CENTROID_CO_ASSIGN(const std::optional<ListKey> cursor, cursor_of(call));
  const std::size_t most = call.limit + 1;  // one more: is there a next page
  const auto views = co_await services.control.epochs(most, cursor);
  const auto key = [](const EpochView& view) { return ListKey(view.epoch, 0); };
  co_return list_page(call, "epochs", views, key, true);
}

Reply get_curves(Services services, Call call) {
  const std::string* const text = call.parameter("after");
  const auto after = text == nullptr ? std::uint64_t{0} : parse_number<std::uint64_t>(*text);
  if (!after)
    co_return Error(ErrorCode::kInvalidArgument,
                    "query parameter 'after': expected a round, got '" + *text + "'");
  const CurvesView view = co_await services.control.curves(*after);
  co_return json_response(to_json_object(view));
}

Reply get_waits(Services services, Call call) {
  const auto views = co_await services.control.waits();
  co_return list_page(call, "waits", views, position_in(views));
}

Reply get_servers(Services services, Call call) {
  const auto views = co_await services.control.servers();
  Json balance;
  balance["balance"] = balance_of(views);
  co_return list_page(call, "servers", views, position_in(views), false, ViewToJson(), balance);
}

Reply post_drain_server(Services services, Call call) {
  CENTROID_CO_TRY(co_await services.control.drain_server(call.value("name")));
  Json out;
  out["action"] = "drain";
  out["name"] = call.value("name");
  co_return json_response(out, 202);
}

}  // namespace centroid::server
