#include "server/api/reply.h"
#include "server/api/routes.h"

namespace centroid::server {

View<WorkerView> describe(const WorkerView*) {
  using V = WorkerView;
  return {
      "Worker",
      "One admission of one worker.",
      {{"member", &V::member, "Number of the admission; never used again."},
       {"name", &V::name, "The worker's own name."},
       {"address", &V::address, "host:port it connected from."},
       {"state", &V::state, "Its state.",
        one_of({"joining", "syncing", "active", "draining", "left", "dead", "fenced"})},
       {"rank", &V::rank, "Position in the present generation; -1 when it is not in it.",
        least(-1)},
       {"devices", &V::devices, "Its devices."},
       {"samples", &V::samples, "Samples it contributed."},
       {"rounds", &V::rounds, "Rounds it contributed to."},
       {"bytes_in", &V::bytes_in, "Bytes received from it."},
       {"bytes_out", &V::bytes_out, "Bytes sent to it."},
       {"joined_unix_seconds", &V::joined_unix_seconds, "When it joined."},
       {"silent_seconds", &V::silent_seconds, "Since its last message."},
       {"step_seconds", &V::step_seconds, "It computed in its last round."},
       {"compute_seconds", &V::compute_seconds, "It computed, in all its rounds."},
       {"wait_seconds", &V::wait_seconds, "It waited for the cluster, in all its rounds."},
       {"encode_seconds", &V::encode_seconds, "In its codec, encoding gradients, in all.",
        least(0)},
       {"decode_seconds", &V::decode_seconds, "In its codec, decoding results, in all.", least(0)},
       {"send_seconds", &V::send_seconds,
        "It sent chunks to the servers, with waiting for credit, in all; 0 where workers exchange "
        "among themselves.",
        least(0)},
       {"exchange_seconds", &V::exchange_seconds,
        "In additions with other workers, in all; 0 with exchange star.", least(0)},
       {"apply_seconds", &V::apply_seconds,
        "Results became its parameters, by its optimizer where workers apply, in all.", least(0)},
       {"receive_seconds", &V::receive_seconds,
        "The server read chunks of it, in all; 0 where workers exchange among themselves.",
        least(0)},
       {"last_loss", &V::last_loss, "Loss of its last contribution. Null when it is not finite.",
        or_null()},
       {"local_steps", &V::local_steps, "Batches of its last share."},
       {"pace_seconds", &V::pace_seconds, "Of a step, smoothed; 0: unknown.", least(0)},
       {"share_ratio", &V::share_ratio, "Its part of the samples of its last round.", least(0)},
       {"divergence", &V::divergence,
        "|own - mean| / |mean| of its parameters at its last average; -1: not measured.",
        least(-1)},
       {"parameter_norm", &V::parameter_norm,
        "Euclidean norm of its parameters, measured in every 16th round; -1: not yet, or an "
        "external program.",
        least(-1)},
       {"scalars", at(&V::scalars, list_of), "Of its last contribution with any, by name.",
        at_most_items(16)},
       {"reason", &V::reason, "Why it left, died or was fenced; else empty."},
       {"version", &V::version, "Version of its program; empty: not reported."},
       {"clock_ahead_seconds", &V::clock_ahead_seconds,
        "How far its clock is ahead of the server's, within the transfer time of a heartbeat. "
        "Null: unknown.",
        or_null()},
       {"certificate_expires_unix_seconds", &V::certificate_expires_unix_seconds,
        "When the first certificate of its connection expires (docs/how-to/secure.md). Null: none, "
        "or it left.",
        or_null()}}};
}

View<EvictionView> describe(const EvictionView*) {
  using V = EvictionView;
  return {"Eviction",
          "A worker's name that may not join.",
          {{"name", &V::name, "The name."},
           {"why", &V::why, "The operator's reason."},
           {"since_unix_seconds", &V::since_unix_seconds, "Since when."},
           {"until_unix_seconds", null_if_zero(&V::until_unix_seconds),
            "Until when; null: until it is allowed."}}};
}

View<NetworkView> describe(const NetworkView*) {
  using V = NetworkView;
  return {"Network",
          "The network between the server and a worker, or from one worker to another, measured "
          "while they train.",
          {{"member", &V::member, "Its member number."},
           {"name", &V::name, "Its name."},
           {"to", &V::to, "Member number of the other worker; null: the server measured."},
           {"to_name",
            [](const V& view) { return view.to ? std::optional(view.to_name) : std::nullopt; },
            "Its name."},
           {"round_trips", &V::round_trips, "Empty messages that returned."},
           {"median_seconds", &V::median_seconds, "Of a round trip."},
           {"p99_seconds", &V::p99_seconds, "The same, of the slowest 1 %."},
           {"bytes_per_second_to", &V::bytes_per_second_to,
            "From the server to the worker, or from the worker to the other one, beside what "
            "training sends."},
           {"bytes_per_second_from", &V::bytes_per_second_from, "The other way."}}};
}

namespace {

struct Evict {
  double seconds = 0;
  std::string why;
  friend View<Evict> describe(const Evict*) {
    using V = Evict;
    return {
        "Evict",
        "How a worker is evicted.",
        {optional("seconds", &V::seconds,
                  "How long its name is refused; 0 or absent: until it is allowed.",
                  between(0, 31536000)),
         optional("why", &V::why, "For the log, the events and the worker.", at_most_bytes(1000))}};
  }
};

struct Measure {
  std::optional<std::uint64_t> to;
  friend View<Measure> describe(const Measure*) {
    using V = Measure;
    return {"Measure",
            "Which way to measure.",
            {optional("to", &V::to,
                      "Member number of another worker: the first one measures its way to it. "
                      "Without it the server measures its way to the first one.")}};
  }
};

struct DrainAction {
  std::string action = "drain";
  std::uint64_t member = 0;
  friend View<DrainAction> describe(const DrainAction*) {
    using V = DrainAction;
    return {"DrainAction",
            "A requested change of a worker.",
            {{"action", &V::action, "The action.", one_of({"drain"})},
             {"member", &V::member, "The worker."}}};
  }
};

struct EvictionAction {
  std::string action = "allow", name;
  friend View<EvictionAction> describe(const EvictionAction*) {
    using V = EvictionAction;
    return {"EvictionAction",
            "What was done.",
            {{"action", &V::action, "The name may join again.", one_of({"allow"})},
             {"name", &V::name, "The name."}}};
  }
};

Reply get_worker(Services services, Call call) {
  const auto views = co_await services.control.workers();
  co_return item_response(views, &WorkerView::member, call.id(),
                          "no worker with member number " + std::to_string(call.id()));
}

Reply list_workers(Services services, Call call) {
  const auto views = co_await services.control.workers();
  const auto key = [](const WorkerView& view) { return ListKey(view.member, 0); };
  co_return list_page(call, views, key);
}

Reply drain_worker(Services services, Call call) {
  CENTROID_CO_TRY(co_await services.control.drain(call.id()));
  DrainAction done;
  done.member = call.id();
  co_return view_response(done, 202);
}

Reply evict_worker(Services services, Call call) {
  CENTROID_CO_ASSIGN(const Evict asked, body_of<Evict>(call));
  co_return view_response(co_await services.control.evict(call.id(), asked.seconds, asked.why));
}

Reply measure_worker(Services services, Call call) {
  CENTROID_CO_ASSIGN(const Measure asked, body_of<Measure>(call));
  co_return view_response(co_await services.control.measure(call.id(), asked.to));
}

Reply list_evictions(Services services, Call call) {
  const auto views = co_await services.control.evictions();
  co_return list_page(call, views, position_in(views));
}

Reply allow_worker(Services services, Call call) {
  EvictionAction done;
  done.name = call.value("name");
  CENTROID_CO_TRY(co_await services.control.allow(done.name));
  co_return view_response(done);
}

}  // namespace

std::vector<Route> worker_routes() {
  return {
      {.path = "/v1/workers",
       .id = "list_workers",
       .handler = list_workers,
       .summary = "Every admission, those that left too",
       .answer = page<WorkerView>("workers", "The workers.", "WorkerList",
                                  "All workers of this run, those that left too.")},
      {.path = "/v1/workers/{id}",
       .id = "get_worker",
       .handler = get_worker,
       .summary = "One of them, by member number",
       .parameters = {path_part("id", "Member number of the worker.")},
       .answer = answer<WorkerView>("The worker.")},
      {.method = "POST",
       .path = "/v1/workers/{id}:drain",
       .id = "drain_worker",
       .handler = drain_worker,
       .summary = "Finish the round of a worker, then release it",
       .parameters = {path_part("id", "Member number of the worker.")},
       .answer = answer<DrainAction>("Accepted; the worker's state shows when it is done.", 202)},
      {.method = "POST",
       .path = "/v1/workers/{id}:evict",
       .id = "evict_worker",
       .handler = evict_worker,
       .summary = "End its membership now and refuse its name",
       .description = "For `seconds`, or without them until the eviction is deleted.",
       .parameters = {path_part("id", "Member number of the worker.")},
       .body = view_of<Evict>(),
       .answer = answer<EvictionView>("It is no member any more.")},
      {.method = "POST",
       .path = "/v1/workers/{id}:measure",
       .id = "measure_worker",
       .handler = measure_worker,
       .summary = "Measure the network between the server and it, or from it to another worker",
       .description = "While they train: round trips and both directions, 0.3 s. From worker to "
                      "worker only where they listen to each other (exchange ring or "
                      "hierarchical), at that port; one measurement at a time.",
       .parameters = {path_part("id", "Member number of the worker.")},
       .body = view_of<Measure>(),
       .answer = answer<NetworkView>("What was measured.")},
      {.path = "/v1/evictions",
       .id = "list_evictions",
       .handler = list_evictions,
       .summary = "Names that may not join",
       .answer =
           page<EvictionView>("evictions", "The evictions.", "EvictionList", "Evictions by name.")},
      {.method = "DELETE",
       .path = "/v1/evictions/{name}",
       .id = "allow_worker",
       .handler = allow_worker,
       .summary = "Permit a name to join again",
       .parameters = {path_part("name", "The worker's name.")},
       .answer = answer<EvictionAction>("It may join again.")},
  };
}

}  // namespace centroid::server
