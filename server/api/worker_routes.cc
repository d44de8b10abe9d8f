#include "server/api/handlers.h"
#include "server/api/reply.h"

/// What is done with one worker.
namespace centroid::server {

namespace {

constexpr double kLongestEviction = 365 * 86400.0;
constexpr double kLargestNumber = 9007199254740992.0;  // 2^53: JSON numbers are exact up to it

Json to_json_object(const EvictionView& view) {
  Json out;
  out["name"] = view.name;
  out["why"] = view.why;
  out["since_unix_seconds"] = view.since_unix_seconds;
  out["until_unix_seconds"] = view.until_unix_seconds == 0 ? Json() : Json(view.until_unix_seconds);
  return out;
}

}  // namespace

Reply post_drain(Services services, Call call) {
  CENTROID_CO_TRY(co_await services.control.drain(call.id()));
  Json out;
  out["action"] = "drain";
  out["member"] = call.id();
  co_return json_response(out, 202);
}

Reply post_evict(Services services, Call call) {
  const Body body(call);
  CENTROID_CO_ASSIGN(const double seconds, body.number("seconds", 0, 0, kLongestEviction));
  CENTROID_CO_ASSIGN(const std::string why, body.text("why", ""));
  CENTROID_CO_TRY(check_reason(why));
  CENTROID_CO_ASSIGN(const EvictionView view,
                     co_await services.control.evict(call.id(), seconds, why));
  co_return json_response(to_json_object(view));
}

Reply post_measure(Services services, Call call) {
  const Body body(call);
  std::optional<std::uint64_t> to;
  if (body.has("to")) {
    CENTROID_CO_ASSIGN(const double number, body.number("to", 0, 0, kLargestNumber));
    to = static_cast<std::uint64_t>(number);
    if (static_cast<double>(*to) != number)
      co_return Error(ErrorCode::kInvalidArgument, "to: expected a member number");
  }
  CENTROID_CO_ASSIGN(const NetworkView view, co_await services.control.measure(call.id(), to));
  Json out;
  out["member"] = view.member;
  out["name"] = view.name;
  out["to"] = view.to ? Json(*view.to) : Json();
  out["to_name"] = view.to ? Json(view.to_name) : Json();
  out["round_trips"] = view.round_trips;
  out["median_seconds"] = view.median_seconds;
  out["p99_seconds"] = view.p99_seconds;
  out["bytes_per_second_to"] = view.bytes_per_second_to;
  out["bytes_per_second_from"] = view.bytes_per_second_from;
  co_return json_response(out);
}

Reply get_evictions(Services services, Call call) {
  CENTROID_CO_ASSIGN(const auto cursor, cursor_of(call));
  const auto all = co_await services.control.evictions();
  const std::size_t begin = cursor ? std::min<std::size_t>(cursor->first, all.size()) : 0;
  const std::size_t end = std::min(all.size(), begin + call.limit);
  Json list = Json::array();
  for (std::size_t i = begin; i < end; ++i) list.push_back(to_json_object(all[i]));
  Json out;
  out["evictions"] = std::move(list);
  out["next"] = end < all.size() ? Json(next_link(call, std::to_string(end))) : Json();
  co_return json_response(out);
}

Reply delete_eviction(Services services, Call call) {
  const std::string name = call.value("name");
  CENTROID_CO_TRY(co_await services.control.allow(name));
  Json out;
  out["action"] = "allow";
  out["name"] = name;
  co_return json_response(out);
}

}  // namespace centroid::server
