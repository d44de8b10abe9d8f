#include <cmath>

#include "server/api/handlers.h"
#include "server/api/reply.h"

namespace centroid::server {

namespace {

constexpr double kMostWorkers = 1e6;

Json to_json_object(const ScaleView& view) {
  Json out;
  out["workers"] = view.workers;
  out["useful_workers"] = view.useful_workers;
  out["target_workers"] = view.target_workers;
  out["efficiency"] = view.efficiency;
  out["speedup"] = view.speedup;
  out["round_seconds"] = view.round_seconds;
  out["compute_seconds"] = view.compute_seconds;
  out["overhead_seconds"] = view.overhead_seconds;
  out["limited_by"] = view.limited_by;
  out["straggler"] = view.straggler;
  out["advice"] = view.advice;
  out["hint"] = nullptr;
  if (view.hint_workers == 0) return out;
  Json hint;
  hint["workers"] = view.hint_workers;
  hint["why"] = view.hint_why;
  hint["since_unix_seconds"] = view.hint_since_unix_seconds;
  out["hint"] = std::move(hint);
  return out;
}

HttpResponse steered(const char* action, const ActView& view) {
  Json out;
  out["action"] = action;
  out["kept"] = view.is_kept;
  return json_response(out, 202);
}

}  // namespace

Reply get_config(Services services, Call) {
  HttpResponse response;
  response.body = co_await services.control.config_json();
  co_return response;
}

Reply patch_config(Services services, Call call) {
  if (call.request.body.empty())
    co_return Error(ErrorCode::kInvalidArgument,
                    "expected a JSON object of settings, such as {\"checkpoint.keep\": 5}");
  CENTROID_CO_ASSIGN(std::string text, co_await services.control.change_config(call.request.body));
  HttpResponse response;
  response.body = std::move(text);
  co_return response;
}

Reply get_scale(Services services, Call call) {
  double efficiency = 0.5;
  if (const std::string* const text = call.parameter("efficiency")) {
    const auto value = Json::parse(*text, nullptr, false);
    if (value.is_number()) efficiency = value.get<double>();
    if (!value.is_number() || !(efficiency >= 0.05 && efficiency <= 0.99))
      co_return Error(ErrorCode::kInvalidArgument,
                      "query parameter 'efficiency': expected 0.05 to 0.99, got '" + *text + "'");
  }
  const ScaleView view = co_await services.control.scale(efficiency);
  co_return json_response(to_json_object(view));
}

Reply post_scale(Services services, Call call) {
  const Body body(call);
  if (!body.has("workers"))
    co_return Error(ErrorCode::kInvalidArgument,
                    "expected how many workers are wanted, such as {\"workers\": 6}; 0 takes an "
                    "earlier number back");
  CENTROID_CO_ASSIGN(const double workers, body.number("workers", 0, 0, kMostWorkers));
  if (workers != std::floor(workers))
    co_return Error(ErrorCode::kInvalidArgument, "workers: expected a whole number");
  CENTROID_CO_ASSIGN(const std::string why, body.text("why", ""));
  CENTROID_CO_TRY(check_reason(why));
  CENTROID_CO_ASSIGN(const ScaleView view, co_await services.control.hint_scale(
                                               static_cast<std::uint64_t>(workers), why));
  co_return json_response(to_json_object(view));
}

Reply post_pause(Services services, Call) {
  CENTROID_CO_ASSIGN(const ActView view, co_await services.control.pause());
  co_return steered("pause", view);
}

Reply post_resume(Services services, Call) {
  CENTROID_CO_ASSIGN(const ActView view, co_await services.control.resume());
  co_return steered("resume", view);
}

Reply post_stop(Services services, Call) {
  CENTROID_CO_ASSIGN(const ActView view, co_await services.control.stop());
  co_return steered("stop", view);
}

}  // namespace centroid::server
