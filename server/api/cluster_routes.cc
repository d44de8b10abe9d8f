#include "server/api/reply.h"
#include "server/api/routes.h"

namespace centroid::server {

namespace {

/// Losses, cadence and leader.
std::vector<Field<ClusterView>> course_of_cluster() {
  using V = ClusterView;
  return {
      {"skipped_rounds", at(&V::losses, &V::Losses::skipped_rounds),
       "Rounds that committed nothing."},
      {"aborted_attempts", at(&V::losses, &V::Losses::aborted_attempts),
       "Attempts at a round that the membership or an error ended."},
      {"lost_contributions", at(&V::losses, &V::Losses::contributions),
       "Contributions that were too late or broken."},
      {"learning_rate", at(&V::learning, &V::Learning::rate),
       "Of the next step, by the schedule; 0 before there is a model.", least(0)},
      {"gradient_norm", at(&V::learning, &V::Learning::gradient_norm),
       "Of the last mean gradient, before clipping; -1: not measured (clip_norm is 0).", least(-1)},
      {"clipped_rounds", at(&V::learning, &V::Learning::clipped_rounds),
       "Rounds whose mean gradient was over clip_norm."},
      {"cadence_steps", at(&V::cadence, &V::Cadence::steps),
       "Local steps of the slowest worker in a round (docs/explanation/unequal-machines.md)."},
      {"exchange_seconds", at(&V::cadence, &V::Cadence::exchange_seconds),
       "What an average takes beside computing, smoothed; 0: not measured yet.", least(0)},
      {"exchange_overhead", at(&V::cadence, &V::Cadence::exchange_overhead),
       "The same as a part of the slowest worker's computing.", least(0)},
      {"divergence", at(&V::cadence, &V::Cadence::divergence),
       "Largest |own - mean| / |mean| of a worker's parameters at the last average (local_steps "
       "above 1).",
       least(0)},
      {"returned_samples", at(&V::losses, &V::Losses::returned_samples),
       "Samples of shares that other workers took over, because a worker was lost or excluded."},
      {"late_dropped", at(&V::losses, &V::Losses::late_dropped),
       "Contributions whose round closed without them and that did not count (policy backup, "
       "quorum)."},
      {"late_carried", at(&V::losses, &V::Losses::late_carried),
       "Contributions whose round closed without them and that counted in a later one."},
      {"role", at(&V::lead, &V::Lead::role),
       "Of this server; held: a leader that may not act, because its lease in etcd was not "
       "renewed.",
       one_of({"alone", "leader", "standby", "held"})},
      {"leader", at(&V::lead, &V::Lead::leader),
       "Name of the leader in etcd; empty: unknown, or there is one server."},
      {"leader_endpoint", at(&V::lead, &V::Lead::endpoint),
       "Where workers reach the leader; empty as leader."},
      {"leader_api", at(&V::lead, &V::Lead::api),
       "Where REST of the leader answers; empty as leader."},
      {"term", at(&V::lead, &V::Lead::term),
       "Number of the leader in etcd; grows with every new leader; 0: unknown, or there is one "
       "server."}};
}

}  // namespace

View<ClusterView> describe(const ClusterView*) {
  using V = ClusterView;
  return {
      "Cluster",
      "The cluster and its one job.",
      {{"run_id", &V::run_id, "Name of this run; a new one for every fresh start."},
       {"state", &V::state, "What the job does now.",
        one_of({"waiting", "initializing", "training", "paused", "finished", "halted", "stopping",
                "standby", "stopped"})},
       {"state_reason", &V::state_reason, "Why it is in this state; may be empty."},
       {"generation", &V::generation,
        "Number of the membership; every join, leave or death makes a new one."},
       {"world", &V::world, "Members of the present generation."},
       {"round", &V::round, "The round that is open."},
       {"version", &V::version, "Number of the committed parameters."},
       {"epoch", &V::epoch, "Passes over the data set that are complete."},
       {"offset", &V::offset, "Samples of the present epoch that are handed out."},
       {"samples_total", &V::samples_total, "Samples that committed rounds have used."},
       {"epochs", at(&V::goal, &V::Goal::epochs), "The goal in epochs; 0: none."},
       {"rounds", at(&V::goal, &V::Goal::rounds), "The goal in rounds; 0: none."},
       {"train_samples", at(&V::goal, &V::Goal::train_samples), "Size of the data set."},
       {"progress", &V::progress, "Part of the goal that is reached, 0 to 1."},
       {"samples_per_second", &V::samples_per_second, "Present rate."},
       {"loss", at(&V::learning, &V::Learning::loss),
        "Weighted mean loss of the last committed round. Null when it is not finite.", or_null()},
       {"train_accuracy", at(&V::learning, &V::Learning::train_accuracy),
        "Accuracy on the samples of the last committed round. Null when it is not finite.",
        or_null()},
       {"uptime_seconds", &V::uptime_seconds, "Since the server began."},
       {"test_accuracy", at(&V::test, &V::Test::accuracy),
        "Latest evaluation, -1 until a worker evaluated. Null when it is not finite.", or_null()},
       {"test_loss", at(&V::test, &V::Test::loss),
        "Latest evaluation, -1 until a worker evaluated. Null when it is not finite.", or_null()},
       {"test_version", at(&V::test, &V::Test::version),
        "Version of the parameters that were evaluated."},
       {"data_endpoint", at(&V::endpoints, &V::Endpoints::data), "host:port for workers."},
       {"api_endpoint", at(&V::endpoints, &V::Endpoints::api), "host:port of this interface."},
       {"policy", at(&V::terms, &V::Terms::policy), "When a round closes."},
       {"exchange", at(&V::terms, &V::Terms::exchange), "How contributions travel."},
       {"exchange_why", at(&V::terms, &V::Terms::exchange_why),
        "Exchange auto: why it is this one now. Empty if the exchange is a setting."},
       {"codec", at(&V::terms, &V::Terms::codec), "How numbers become bytes."},
       {"apply", at(&V::terms, &V::Terms::apply), "What a committed round does to the parameters."},
       {"optimizer", at(&V::terms, &V::Terms::optimizer),
        "Optimizer of the server or the workers."},
       {"model", at(&V::model, &V::Model::spec), "What is trained."},
       {"parameters", at(&V::model, &V::Model::parameters), "Numbers in the model."},
       {"chunks", at(&V::model, &V::Model::chunks), "Chunks of the plan."}},
      course_of_cluster()};
}

View<RoundView> describe(const RoundView*) {
  using V = RoundView;
  return {"Round",
          "One synchronisation.",
          {{"round", &V::round, "Its number."},
           {"attempt", &V::attempt, "Number of the attempt, from 0."},
           {"generation", &V::generation, "Membership it belongs to."},
           {"version", &V::version, "Version it committed, or began from."},
           {"samples", &V::samples, "Samples in it."},
           {"state", &V::state, "How far it is.", one_of({"open", "merging", "closed"})},
           {"outcome", &V::outcome, "How it ended; empty while it is open.",
            one_of({"", "committed", "skipped", "aborted"})},
           {"opened_unix_seconds", &V::opened_unix_seconds, "When it opened."},
           {"seconds", &V::seconds, "How long it took, or has taken so far."},
           {"loss", &V::loss, "Weighted mean loss. Null when it is not finite.", or_null()},
           {"contributors", &V::contributors, "The workers that contributed."},
           {"missing", &V::missing, "The workers whose contribution is, or was, missing."},
           {"late", &V::late,
            "The workers whose contributions to earlier rounds counted in it (policies with late "
            "contributions, asp, ssp)."},
           {"scalars", at(&V::scalars, list_of), "Over all that contributed, by name.",
            at_most_items(16)}}};
}

View<CurvesView> describe(const CurvesView*) {
  using V = CurvesView;
  return {"Curves",
          "The course of a job.",
          {{"revision", &V::revision,
            "If this number changes, earlier points have changed: read all again, without `after`. "
            "The last point may change at any time."},
           {"points", &V::points, "", at_most_items(1024)}}};
}

View<CurvePointView> describe(const CurvePointView*) {
  using V = CurvePointView;
  return {
      "CurvePoint",
      "Committed rounds that follow each other.",
      {{"first", &V::first, "Its first round."},
       {"last", &V::last, "Its last round."},
       {"rounds", &V::rounds, "Committed rounds in it."},
       {"samples", &V::samples, "Samples in them."},
       {"seconds", &V::seconds, "What the job's rounds have taken until its end.", least(0)},
       {"unix_seconds", &V::unix_seconds, "When its last round ended.", least(0)},
       {"round_seconds", &V::round_seconds, "A round, on average.", least(0)},
       {"samples_per_second", &V::samples_per_second, "On average, while rounds were open.",
        least(0)},
       {"loss", &V::loss, "Mean over the samples. Null: unknown.", or_null()},
       {"accuracy", &V::accuracy, "Accuracy on the training data. Null: unknown.", or_null()},
       {"test_loss", &V::test_loss, "The newest on held-out data. Null: no evaluation.", or_null()},
       {"test_accuracy", &V::test_accuracy, "Accuracy of the same evaluation. Null: no evaluation.",
        or_null()},
       {"learning_rate", &V::learning_rate, "Of its last step.", least(0)},
       {"gradient_norm", &V::gradient_norm,
        "Mean norm of the mean gradients, before clipping. Null: not measured (`clip_norm` is 0).",
        or_null()},
       {"workers", &V::workers, "Contributions to a round, on average.", least(0)}}};
}

View<EpochView> describe(const EpochView*) {
  using V = EpochView;
  return {
      "Epoch",
      "All data once: sums of the contributions.",
      {{"epoch", &V::epoch, "Its number, from 0."},
       {"samples", &V::samples,
        "Samples in contributions that counted; of a language model the tokens that it predicted."},
       {"trained", &V::trained, "Part of its data that was in contributions that counted; 1: all."},
       {"state", &V::state, "How far it is.", one_of({"open", "ended"})},
       {"start_unix_seconds", &V::start_unix_seconds,
        "When the round of its first contributions opened."},
       {"seconds", &V::seconds, "How long it took, or has taken so far."},
       {"loss", &V::loss, "Mean loss over its samples. Null when it is not finite.", or_null()},
       {"accuracy", &V::accuracy, "Part of its samples that were classified right."},
       {"scalars", at(&V::scalars, list_of), "Over all that contributed, by name.",
        at_most_items(16)},
       {"workers", &V::workers, "What each worker did in it, by name."}}};
}

View<EpochWorkerView> describe(const EpochWorkerView*) {
  using V = EpochWorkerView;
  return {"EpochWorker",
          "What a worker did in an epoch.",
          {{"name", &V::name, "Of the worker."},
           {"devices", &V::devices, "How many it computed on."},
           {"contributions", &V::contributions,
            "Contributions that counted, with a share that began in the epoch."},
           {"samples", &V::samples, "As those of the epoch."},
           {"loss", &V::loss, "Mean loss over its samples. Null when it is not finite.", or_null()},
           {"accuracy", &V::accuracy, "Part of its samples that were classified right."},
           {"compute_seconds", &V::compute_seconds, "Forward and backward of these samples."},
           {"samples_per_second", &V::samples_per_second, "In these seconds; 0: unknown."},
           {"share", &V::share, "Its part of the samples of the epoch."},
           {"scalars", at(&V::scalars, list_of), "What its program has recorded, by name.",
            at_most_items(16)}}};
}

View<ScalarView> describe(const ScalarView*) {
  using V = ScalarView;
  return {
      "Scalar",
      "A number that training programs name themselves (record in docs/how-to/pytorch.md).",
      {{"name", &V::name, "As the program called it.", matches("^[A-Za-z_][A-Za-z0-9_./-]{0,63}$")},
       {"mean", &V::mean, "Of all that were recorded."},
       {"count", &V::count, "How many there were.", least(1)}}};
}

View<WaitView> describe(const WaitView*) {
  using V = WaitView;
  return {"Wait",
          "A wait.",
          {{"waiter", &V::waiter, "The one that waits."},
           {"waits_for", &V::waits_for, "The one that it waits for."},
           {"what", &V::what, "For what."},
           {"seconds", &V::seconds, "How long so far."}}};
}

std::vector<ScalarView> list_of(const Scalars& scalars) {
  std::vector<ScalarView> list;
  for (const auto& [name, sum] : scalars.all()) list.push_back({name, sum.mean(), sum.count});
  return list;
}

namespace {

std::optional<std::uint64_t> disk_of(const ServerView& view, std::uint64_t bytes) {
  return view.disk_total_bytes > 0 ? std::optional(bytes) : std::nullopt;
}

}  // namespace

View<ServerView> describe(const ServerView*) {
  using V = ServerView;
  return {
      "Server",
      "A server with a part of the model, or a standby.",
      {{"name", &V::name, "Unique among the servers."},
       {"endpoint", &V::endpoint, "HOST:PORT where workers reach it."},
       {"address", &V::address, "From where it joined; empty for the leader."},
       {"state", &V::state, "What it does.",
        one_of({"leader", "joining", "serving", "draining", "awaited", "standby"})},
       {"chunks", &V::chunks, "Chunks of the parameters that lie there."},
       {"bytes", &V::bytes, "Their bytes."},
       {"moves", &V::moves, "Chunks that are still to arrive or to leave."},
       {"buckets", &V::buckets, "Buckets of keys of the tables of sparse rows that lie there.",
        between(0, 4096)},
       {"bucket_moves", &V::bucket_moves, "Buckets that are still to arrive or to leave.",
        between(0, 4096)},
       {"rows", &V::rows,
        "Rows of all tables there; of a shard server by its last report, at most a quarter of a "
        "lease old."},
       {"row_bytes", &V::row_bytes, "Memory that these tables take there."},
       {"joined_unix_seconds", &V::joined_unix_seconds, "When it joined; 0 for the leader."},
       {"memory_bytes", &V::memory_bytes,
        "Parameters, optimizer slots and the next version, as far as they lie there."},
       {"journal_bytes", &V::journal_bytes, "Size of its journal."},
       {"staged_bytes", &V::staged_bytes,
        "Contributions that it stores; 0 for the leader, as are all that follow."},
       {"bytes_in", &V::bytes_in, "From workers, since its process began."},
       {"bytes_out", &V::bytes_out, "To workers, since its process began."},
       {"workers", &V::workers, "Workers with a session there."},
       {"merge_seconds", &V::merge_seconds, "Sums, steps and journal of a round, on average.",
        least(0)},
       {"trouble", &V::trouble,
        "Why its journal cannot be written, or for what it is awaited; empty: nothing."},
       {"has_tokens", &V::has_tokens,
        "It has the present named tokens. False: it did not answer in time, and receives them "
        "again with its next report; until then it refuses newer tokens and accepts revoked ones."},
       {"version", &V::version, "Version of its program; empty: not reported."},
       {"clock_ahead_seconds", &V::clock_ahead_seconds,
        "How far its clock is ahead of the server's, within the transfer time of a heartbeat. "
        "Null: unknown.",
        or_null()},
       {"certificate_expires_unix_seconds", &V::certificate_expires_unix_seconds,
        "When the first of the certificates ends that it showed to connect. Null when it "
        "showed none, and for the leader (GET /v1/host).",
        or_null()},
       {"disk_free_bytes", [](const V& view) { return disk_of(view, view.disk_free_bytes); },
        "Of the disk with its journals. Null without journals, and for the leader (GET /v1/host)."},
       {"disk_total_bytes", [](const V& view) { return disk_of(view, view.disk_total_bytes); },
        "Size of that disk. Null as the room on it."},
       {"api", &V::api, "HOST:PORT of its REST. Empty when it has none, as a shard server."},
       {"seen_unix_seconds", null_if_zero(&V::seen_unix_seconds),
        "When its last message arrived here or, from a standby, in etcd. Null: none."}}};
}

namespace {

struct ServerAction {
  std::string action = "drain", name;
  friend View<ServerAction> describe(const ServerAction*) {
    using V = ServerAction;
    return {"ServerAction",
            "A requested change of a server.",
            {{"action", &V::action, "The action.", one_of({"drain"})},
             {"name", &V::name, "The server."}}};
  }
};

/// Of all servers, not of the page.
struct ServersView {
  std::optional<double> balance;
  friend View<ServersView> describe(const ServersView*) {
    using V = ServersView;
    return {
        "ServerList",
        "Every server.",
        {{"balance", &V::balance,
          "How evenly the parameters are placed: `bytes` of the fullest server over the mean of "
          "the leader, of serving servers and of draining ones that still have some. 1 is even; "
          "placement aims at 1.02. Of all servers, not of this page. Null without parameters.",
          least(1)}}};
  }
};

/// Bytes of the fullest server with a part of the model, over their mean; nothing: none has one.
std::optional<double> balance_of(const std::vector<ServerView>& views) {
  std::uint64_t most = 0, sum = 0, count = 0;
  for (const ServerView& view : views) {
    const bool counts = view.state == "leader" || view.state == "serving";
    if (!counts && view.bytes == 0) continue;
    most = std::max(most, view.bytes);
    sum += view.bytes;
    ++count;
  }
  if (sum == 0) return std::nullopt;
  return static_cast<double>(most) * static_cast<double>(count) / static_cast<double>(sum);
}

Reply get_cluster(Services services, Call) {
  const ClusterView view = co_await services.control.cluster();
  co_return view_response(view);
}

Reply list_servers(Services services, Call call) {
  const auto views = co_await services.control.servers();
  ServersView all;
  all.balance = balance_of(views);
  const Json more = view_of<ServersView>().to_json(all);
  co_return list_page(call, views, position_in(views), false, more);
}

Reply drain_server(Services services, Call call) {
  CENTROID_CO_TRY(co_await services.control.drain_server(call.value("name")));
  ServerAction done;
  done.name = call.value("name");
  co_return view_response(done, 202);
}

Reply list_rounds(Services services, Call call) {
  CENTROID_CO_ASSIGN(const std::optional<ListKey> cursor, cursor_of(call));
  const std::size_t most = call.limit + 1;  // one more: is there a next page
  const auto views = co_await services.control.rounds(most, cursor);
  const auto key = [](const RoundView& view) { return ListKey(view.round, view.attempt); };
  co_return list_page(call, views, key, true);
}

Reply list_epochs(Services services, Call call) {
  CENTROID_CO_ASSIGN(const std::optional<ListKey> cursor, cursor_of(call));
  const std::size_t most = call.limit + 1;  // one more: is there a next page
  const auto views = co_await services.control.epochs(most, cursor);
  const auto key = [](const EpochView& view) { return ListKey(view.epoch, 0); };
  co_return list_page(call, views, key, true);
}

Reply get_curves(Services services, Call call) {
  const auto after = argument(call, "after").get<std::uint64_t>();
  co_return view_response(co_await services.control.curves(after));
}

Reply list_waits(Services services, Call call) {
  const auto views = co_await services.control.waits();
  co_return list_page(call, views, position_in(views));
}

}  // namespace

std::vector<Route> cluster_routes() {
  return {
      {.path = "/v1/cluster",
       .id = "get_cluster",
       .handler = get_cluster,
       .summary = "The cluster and its job",
       .description = "State, role and leader, progress, loss, membership, settings in short.",
       .answer = answer<ClusterView>("The cluster.")},
      {.path = "/v1/servers",
       .id = "list_servers",
       .handler = list_servers,
       .summary = "The servers with parts of the model, and the standbys",
       .answer = page<ServerView, ServersView>("servers",
                                               "The leader, the shard servers, then the standbys. "
                                               "A standby shows the leader and the standbys.")},
      {.method = "POST",
       .path = "/v1/servers/{name}:drain",
       .id = "drain_server",
       .handler = drain_server,
       .summary = "Move the chunks of a shard server to the others, then release it",
       .description = "409 if another server has no memory for the chunks: names it, its need and "
                      "its limit; 503 if one does not answer within 5 s. Nothing has moved then.",
       .parameters = {path_part("name", "Name of the server.")},
       .answer =
           answer<ServerAction>("Accepted; the server leaves when its chunks have moved.", 202)},
      {.path = "/v1/rounds",
       .id = "list_rounds",
       .handler = list_rounds,
       .summary = "Rounds, newest first",
       .description = "The newest 4,096 of this server since its start or the last restore; fewer "
                      "where they name many workers, at least 256.",
       .answer = page<RoundView>("rounds", "The rounds.", "RoundList", "Rounds, newest first."),
       .limit = 50},
      {.path = "/v1/epochs",
       .id = "list_epochs",
       .handler = list_epochs,
       .summary = "Epochs, newest first, with what each worker did in them",
       .description = "Sums over the samples of each epoch, whenever their results arrived. An "
                      "epoch ends when all its samples are done, left out or lost. The list begins "
                      "with this server's start or the last restore: open epochs, and the last "
                      "1,024 that ended; fewer if they name more than 16,384 workers, at least 16.",
       .answer = page<EpochView>("epochs", "The epochs.", "EpochList", "Epochs, newest first."),
       .limit = 10},
      {.path = "/v1/curves",
       .id = "get_curves",
       .handler = get_curves,
       .summary = "The course of the whole job",
       .description =
           "Loss, speed and more of all committed rounds since the first, oldest first, as at most "
           "1,024 points. When there are more, neighbours are merged: a point then has 2, 4, 8, "
           "... rounds. A resumed job starts with the points of its checkpoint, at most 256; "
           "rounds "
           "that only the journal had are missing.",
       .parameters = {query<std::uint64_t>("after", "Only points with a round after this one.",
                                           Json::object(), std::uint64_t{0})},
       .answer = answer<CurvesView>("The points.")},
      {.path = "/v1/waits",
       .id = "list_waits",
       .handler = list_waits,
       .summary = "The waits: who waits, for whom, for what, how long",
       .answer = page<WaitView>("waits", "The waits.", "WaitList",
                                "The present waits; each page shows the waits of its own moment.")},
  };
}

}  // namespace centroid::server
