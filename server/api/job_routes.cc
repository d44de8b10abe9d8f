#include "server/api/reply.h"
#include "server/api/routes.h"

namespace centroid::server {

namespace {

struct ScaleHint {
  std::uint64_t workers = 0;
  std::string why;
  double since_unix_seconds = 0;
  friend View<ScaleHint> describe(const ScaleHint*) {
    using V = ScaleHint;
    View<V> view("ScaleHint", "The number of workers that an operator requested; null: none.",
                 {{"workers", &V::workers, "So many.", least(1)},
                  {"why", &V::why, "The operator's reason."},
                  {"since_unix_seconds", &V::since_unix_seconds, "Since when."}});
    view.json["type"] = {"object", "null"};
    return view;
  }
};

struct ScaleRequest {
  std::uint64_t workers = 0;
  std::string why;
  friend View<ScaleRequest> describe(const ScaleRequest*) {
    using V = ScaleRequest;
    return {"ScaleRequest",
            "The requested number of workers.",
            {{"workers", &V::workers,
              "Within `min_workers` and `max_workers`; 0 takes an earlier number back.",
              between(0, 1000000)},
             optional("why", &V::why, "Reported with the number.", at_most_bytes(1000))}};
  }
};

struct JobAction {
  std::string action;
  bool saved = false;
  friend View<JobAction> describe(const JobAction*) {
    using V = JobAction;
    return {"JobAction",
            "A requested change of the job.",
            {{"action", &V::action, "The action.", one_of({"pause", "resume", "stop"})},
             {"saved", &V::saved,
              "Whether it is on the disk, for a restarted server or a new leader. False: the disk "
              "has not answered within a second. The server retries; if it is killed before, the "
              "request is lost."}}};
  }
};

std::optional<ScaleHint> hint_of(const ScaleView& view) {
  if (view.hint_workers == 0) return std::nullopt;
  return ScaleHint{view.hint_workers, view.hint_why, view.hint_since_unix_seconds};
}

Result<HttpResponse> steered(const char* action, const Result<ActView>& done) {
  if (!done.ok()) return done.error();
  return view_response(JobAction{action, done->is_kept}, 202);
}

Reply get_scale(Services services, Call call) {
  const double efficiency = argument(call, "efficiency").get<double>();
  const ScaleView view = co_await services.control.scale(efficiency);
  co_return view_response(view);
}

Reply want_scale(Services services, Call call) {
  CENTROID_CO_ASSIGN(const ScaleRequest asked, body_of<ScaleRequest>(call));
  co_return view_response(co_await services.control.hint_scale(asked.workers, asked.why));
}

Reply pause_job(Services services, Call) {
  co_return steered("pause", co_await services.control.pause());
}

Reply resume_job(Services services, Call) {
  co_return steered("resume", co_await services.control.resume());
}

Reply stop_job(Services services, Call) {
  co_return steered("stop", co_await services.control.stop());
}

}  // namespace

View<ScaleView> describe(const ScaleView*) {
  using V = ScaleView;
  return {
      "Scale",
      "How many workers would help, estimated from the rounds of this generation.",
      {{"workers", &V::workers, "That took part."},
       {"useful_workers", &V::useful_workers,
        "The largest number with which workers compute in the target share of a round."},
       {"target_workers", &V::target_workers,
        "Number to scale to: the operator's, else `useful_workers` within `min_workers` and "
        "`max_workers`."},
       {"efficiency", &V::efficiency, "Share of a round in which they compute now; 0: unknown."},
       {"speedup", &V::speedup, "Of samples a second with `useful_workers`, estimated."},
       {"round_seconds", &V::round_seconds, "Mean time from commit to commit."},
       {"compute_seconds", &V::compute_seconds, "Computing of the slowest worker in a round."},
       {"overhead_seconds", &V::overhead_seconds, "The rest of a round: exchange and waits."},
       {"limited_by", &V::limited_by, "What more workers would run into; workers: nothing.",
        one_of({"nothing_known", "workers", "exchange", "straggler"})},
       {"straggler", &V::straggler, "The worker that the others wait for; empty: none."},
       {"advice", &V::advice, "The same in words."},
       {"hint", hint_of, ""}}};
}

std::vector<Route> job_routes() {
  return {
      {.path = "/v1/scale",
       .id = "get_scale",
       .handler = get_scale,
       .summary = "How many workers would help, and how many are requested",
       .parameters = {query<double>("efficiency",
                                    "Target share of a round in which workers compute.",
                                    between(0.05, 0.99), 0.5)},
       .answer = answer<ScaleView>("The estimate.")},
      {.method = "POST",
       .path = "/v1/scale",
       .id = "want_scale",
       .handler = want_scale,
       .summary = "Request a number of workers",
       .description = "The server starts no workers itself: a person, a script or an autoscaler "
                      "follows `target_workers`. The number survives a restart; 0 takes it back.",
       .body = view_of<ScaleRequest>(),
       .answer = answer<ScaleView>("The estimate, with the number.")},
      {.method = "POST",
       .path = "/v1/job:pause",
       .id = "pause_job",
       .handler = pause_job,
       .summary = "Open no new round",
       .description = "It lasts until job:resume, also over a restart or a new leader.",
       .answer = answer<JobAction>("Accepted; the cluster's state shows when it is done.", 202)},
      {.method = "POST",
       .path = "/v1/job:resume",
       .id = "resume_job",
       .handler = resume_job,
       .summary = "Open rounds again",
       .description = "After a pause, or on a server that was started again after a stop or a "
                      "halt; one in which the job halted ends, to be started again.",
       .answer = answer<JobAction>("Asked for.", 202)},
      {.method = "POST",
       .path = "/v1/job:stop",
       .id = "stop_job",
       .handler = stop_job,
       .summary = "Finish the round, write a checkpoint, end the workers, end",
       .description = "It lasts until `job:resume`, also over a restart. The answer does not wait "
                      "for the open round, and at most a second for the disk: `saved` is then "
                      "false. Meanwhile `state` of the cluster is `stopping`. 503 `unavailable`: "
                      "it stops, but could not save that; or this is a standby.",
       .answer = answer<JobAction>("Accepted; the server ends after it.", 202)},
  };
}

}  // namespace centroid::server
