#include "worker/sharded_monitor.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/base/memory_limit.h"
#include "common/base/trace_events.h"
#include "worker/console_pages.h"
#include "worker/metrics_port.h"
#include "worker/parallel/agreement.h"

namespace centroid::worker {

namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr auto kPeriod = std::chrono::seconds(1);  ///< between two exchanges of numbers
constexpr std::size_t kChanges = 16;

double seconds_since(Clock::time_point then) {
  return std::chrono::duration<double>(Clock::now() - then).count();
}

const char* to_string(ShardedMonitor::Phase phase) {
  using Phase = ShardedMonitor::Phase;
  switch (phase) {
    case Phase::kJoining:
      return "joining";
    case Phase::kWaiting:
      return "waiting";
    case Phase::kTraining:
      return "training";
    case Phase::kRegrouping:
      return "regrouping";
    case Phase::kSaving:
      return "saving";
    case Phase::kEnded:
      return "ended";
  }
  return "";
}

std::size_t missing_of(const WorkerConfig& config, std::size_t ranks) {
  const std::size_t wanted = config.sharded.world;
  return wanted - std::min(wanted, ranks);
}

parallel::Notice notice_of(const std::string& name, const RankPart& part) {
  parallel::Notice out;
  out.text = name;
  out.numbers = {part.elements, std::uint64_t{part.shard} << 32 | part.shards,
                 part.copied ? *part.copied + std::uint64_t{1} : 0, part.layers.begin,
                 part.layers.count};
  return out;
}

RankPart part_of(const parallel::Notice& notice) {
  RankPart out;
  out.elements = notice.numbers[0];
  out.shard = static_cast<std::uint32_t>(notice.numbers[1] >> 32);
  out.shards = static_cast<std::uint32_t>(notice.numbers[1]);
  if (notice.numbers[2] > 0) out.copied = static_cast<std::uint32_t>(notice.numbers[2] - 1);
  out.layers = {notice.numbers[3], notice.numbers[4]};
  return out;
}

Json json_of(const RankPart& part) {
  Json out = {{"shard", part.shard}, {"shards", part.shards}, {"elements", part.elements}};
  out["copied_shard"] = part.copied ? Json(*part.copied) : Json();
  if (part.layers.count > 0) {
    out["first_layer"] = part.layers.begin;
    out["layers"] = part.layers.count;
  }
  return out;
}

/// Where a rank is; it waits if the mesh has fewer ranks.
Json json_of(const parallel::Mesh& mesh, std::uint32_t rank) {
  const bool waits = rank >= mesh.world();
  const parallel::Place place = mesh.place_of(rank);
  const auto shown = [waits](std::uint32_t index) { return waits ? Json() : Json(index); };
  return {{"waits", waits},
          {"data_rank", shown(place.data)},
          {"stage", shown(place.pipeline)},
          {"tensor_rank", shown(place.tensor)}};
}

constexpr std::array<const char*, kOperations> kNames = {"gather", "reduce", "copy", "activations",
                                                         "agree"};

Json json_of(const std::array<double, kOperations>& values) {
  Json out;
  for (std::size_t i = 0; i < kOperations; ++i) out[kNames[i]] = values[i];
  return out;
}

Json json_of(const RankNumbers& n) {
  return {{"steps", n.steps},
          {"samples", n.samples},
          {"seconds", n.seconds},
          {"compute_seconds", n.computing},
          {"wait_seconds", json_of(n.waited)},
          {"received_bytes", json_of(n.received)},
          {"bytes_in", n.in},
          {"bytes_out", n.out},
          {"memory_bytes",
           {{"parameters", n.parameters},
            {"gradients", n.gradients},
            {"state", n.state},
            {"activations", n.activations},
            {"process", n.process}}},
          {"bubble_ratio", n.bubble}};
}

Json json_of(const GroupChange& change) {
  return {{"unix_seconds", change.at}, {"generation", change.generation},
          {"step", change.step},       {"world", change.world},
          {"lost", change.lost},       {"joined", change.joined},
          {"from", change.from},       {"seconds", change.seconds}};
}

}  // namespace

RankPart part_of(const parallel::ShardedParameters& parameters) {
  RankPart out;
  out.shard = parameters.shard_rank();
  out.shards = parameters.layout().ranks();
  out.elements = parameters.layout().shard_elements(out.shard);
  if (parameters.has_copy()) out.copied = parameters.copied_rank();
  return out;
}

ShardedMonitor::Meters::Meters(metrics::Registry& r) : probe(r) {
  for (std::size_t i = 0; i < kOperations; ++i) {
    waited[i] = r.counter("centroid_worker_sharded_wait_seconds_total",
                          "Time in which this rank waited for others.", {{"operation", kNames[i]}});
    if (i != kAgree)
      received[i] = r.counter("centroid_worker_sharded_received_bytes_total",
                              "Numbers from other ranks.", {{"operation", kNames[i]}});
  }
  const auto most = [&](const char* kind) {
    return r.gauge("centroid_worker_sharded_memory_bytes",
                   "The most at once; activations are estimated.", {{"kind", kind}});
  };
  parameters = most("parameters");
  gradients = most("gradients");
  state = most("state");
  activations = most("activations");
  bubble = r.gauge("centroid_worker_sharded_bubble_ratio",
                   "Part of its passes in which a stage waited for others.");
  elements = r.gauge("centroid_worker_sharded_shard_elements",
                     "Parameters that this rank updates, without copies.");
  generation = r.gauge("centroid_worker_sharded_generation_number", "Number of the group.");
  missing = r.gauge("centroid_worker_sharded_missing_ranks", "Ranks fewer than world.");
  age = r.gauge("centroid_worker_sharded_step_age_seconds",
                "Since the last step, or the start; 0 after the end.");
  const auto members = [&](const char* change) {
    return r.counter("centroid_worker_sharded_members_total", "Ranks that were lost or joined.",
                     {{"change", change}});
  };
  lost = members("lost");
  joined = members("joined");
}

ShardedMonitor::ShardedMonitor(const WorkerConfig& config) : config_(config) {
  state_.stepped = state_.exchanged = Clock::now();
}

ShardedMonitor::~ShardedMonitor() { trace::finish(); }

Result<std::unique_ptr<ShardedMonitor>> ShardedMonitor::start(const WorkerConfig& config) {
  std::unique_ptr<ShardedMonitor> out(new ShardedMonitor(config));
  if (config.metrics.listen.empty()) return out;
  CENTROID_TRY(begin_measuring(config, out->registry_));
  out->meters_.missing.set(static_cast<double>(config.sharded.world));  // as long as it joins
  out->registry_.on_collect([self = out.get()] {
    const std::scoped_lock lock(self->mutex_);
    const State& state = self->state_;
    self->meters_.age.set(state.phase == Phase::kEnded ? 0 : seconds_since(state.stepped));
  });
  std::vector<transport::MetricsView> views;
  views.push_back({"/v1/sharded", [self = out.get()] { return self->json(); }});
  const auto add = [&](const char* path, std::string_view text, const char* type) {
    views.push_back({path, [text] { return std::string(text); }, type});
  };
  add("/", console_index_html(), "text/html; charset=utf-8");
  add("/console/app.css", console_app_css(), "text/css; charset=utf-8");
  add("/console/app.js", console_app_js(), "text/javascript; charset=utf-8");
  CENTROID_ASSIGN(out->listener_,
                  listen_for_metrics(config, out->registry_, out->is_member_, std::move(views)));
  return out;
}

void ShardedMonitor::enter(Phase phase, const std::string& end) {
  const std::scoped_lock lock(mutex_);
  state_.phase = phase;
  state_.end = end;
  is_member_ = phase != Phase::kJoining && phase != Phase::kRegrouping;
}

Status ShardedMonitor::begin_group(const collective::Group& group, GroupShape shape) {
  CENTROID_ASSIGN(const auto all, parallel::exchange(group, notice_of(config_.name, shape.own),
                                                     config_.join_timeout));
  CENTROID_TRY(parallel::first_failure(all));
  costs_ = {};
  traffic_ = {};
  std::vector<Row> rows(all.size());
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    rows[rank].name = all[rank].text;
    rows[rank].number = shape.numbers[rank];
    rows[rank].part = part_of(all[rank]);
  }
  rows[group.rank()].numbers = total_;
  meters_.elements.set(static_cast<double>(shape.own.elements));
  meters_.generation.set(static_cast<double>(group.generation()));
  meters_.missing.set(static_cast<double>(missing_of(config_, rows.size())));
  const std::scoped_lock lock(mutex_);
  state_.generation = group.generation();
  state_.rank = group.rank();
  state_.mesh = shape.mesh;
  state_.sharding = std::move(shape.sharding);
  state_.waiting = std::move(shape.waiting);
  state_.rows = std::move(rows);
  return {};
}

void ShardedMonitor::changed(GroupChange change) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  change.at = now.count();
  meters_.lost.add(static_cast<double>(change.lost.size()));
  meters_.joined.add(static_cast<double>(change.joined.size()));
  const std::scoped_lock lock(mutex_);
  state_.changes.push_back(std::move(change));
  if (state_.changes.size() > kChanges) state_.changes.pop_front();
}

ShardedObserver ShardedMonitor::observe(const ShardedObserver& observer,
                                        const DividedReplica& replica,
                                        const collective::Group& group) {
  ShardedObserver out = observer;
  out.stepped = [this, &observer, &replica](const ShardedSummary& now, const StepTimes& times) {
    add(replica.costs());
    measure(now, times);
    if (observer.stepped) observer.stepped(now, times);
  };
  out.wants_numbers = [this] { return listener_ && Clock::now() - exchanged_ >= kPeriod; };
  out.numbers = [this, &group] { return numbers(group); };
  out.has_numbers = [this](std::span<const RankNumbers> all) {
    exchanged_ = Clock::now();
    const std::scoped_lock lock(mutex_);
    state_.exchanged = exchanged_;
    for (std::size_t rank = 0; rank < all.size(); ++rank) state_.rows[rank].numbers = all[rank];
  };
  return out;
}

/// Count what is new since the last step.
void ShardedMonitor::add(const RankCosts& now) {
  for (std::size_t i = 0; i < kOperations; ++i) {
    const parallel::Transfers &after = now.transfers[i], &before = costs_.transfers[i];
    const auto bytes = static_cast<double>(after.bytes - before.bytes);
    total_.waited[i] += after.seconds - before.seconds;
    total_.received[i] += bytes;
    meters_.waited[i].add(after.seconds - before.seconds);
    meters_.received[i].add(bytes);
  }
  const auto most = [](double& value, std::uint64_t bytes, const metrics::Gauge& gauge) {
    value = std::max(value, static_cast<double>(bytes));
    gauge.set(value);
  };
  most(total_.parameters, now.memory.parameters, meters_.parameters);
  most(total_.gradients, now.memory.gradients, meters_.gradients);
  most(total_.state, now.memory.state, meters_.state);
  most(total_.activations, now.activation_bytes, meters_.activations);
  total_.bubble = now.pipeline.bubble().of_total;
  meters_.bubble.set(total_.bubble);
  costs_ = now;
}

/// A step has ended.
void ShardedMonitor::measure(const ShardedSummary& summary, const StepTimes& times) {
  const double computing = times.seconds - times.waiting - times.agreeing;
  total_.steps += 1;
  total_.samples += static_cast<double>(times.samples);
  total_.seconds += times.seconds;
  total_.computing += computing;
  total_.waited[kAgree] += times.agreeing;
  meters_.waited[kAgree].add(times.agreeing);
  const std::scoped_lock lock(mutex_);
  Share share;
  share.rank = Rank(state_.rank);
  share.world = static_cast<std::uint32_t>(state_.rows.size());
  StepStats stats;
  stats.samples = times.samples;
  stats.loss_sum = summary.loss * static_cast<double>(times.samples);
  stats.compute_seconds = computing;
  stats.exchange_seconds = times.waiting + times.agreeing;
  stats.gradient_norm = summary.gradient_norm;
  RoundReport report;
  report.version = Version(summary.steps);
  report.wait_seconds = times.waiting + times.agreeing;
  meters_.probe.round_ended(share, stats, report);
  meters_.probe.evaluated(summary.test_accuracy, summary.test_loss);
  state_.summary = summary;
  state_.stepped = Clock::now();
}

RankNumbers ShardedMonitor::numbers(const collective::Group& group) {
  const transport::TrafficCounters now = group.traffic();
  total_.in += static_cast<double>(now.bytes_in - traffic_.bytes_in);
  total_.out += static_cast<double>(now.bytes_out - traffic_.bytes_out);
  traffic_ = now;
  total_.process = static_cast<double>(peak_memory());
  ExchangeTraffic all;
  all.bytes_in = static_cast<std::uint64_t>(total_.in);
  all.bytes_out = static_cast<std::uint64_t>(total_.out);
  meters_.probe.traffic(all);
  return total_;
}

std::string ShardedMonitor::json() {
  State now;
  {
    const std::scoped_lock lock(mutex_);
    now = state_;
  }
  const ShardedSummary& s = now.summary;
  Json ranks = Json::array(), changes = Json::array();
  for (std::uint32_t rank = 0; rank < now.rows.size(); ++rank) {
    const Row& row = now.rows[rank];
    Json one = {{"rank", rank}, {"worker", row.number}, {"name", row.name}};
    one.update(json_of(now.mesh, rank));
    one.update(json_of(row.part));
    one.update(json_of(row.numbers));
    ranks.push_back(std::move(one));
  }
  for (const GroupChange& change : now.changes) changes.push_back(json_of(change));
  const bool has_ended = now.phase == Phase::kEnded;
  const Json out = {{"exchange", "sharded"},
                    {"state", to_string(now.phase)},
                    {"end", now.end},
                    {"name", config_.name},
                    {"rank", now.rank},
                    {"world", now.rows.size()},
                    {"missing", missing_of(config_, now.rows.size())},
                    {"generation", now.generation},
                    {"mesh", now.mesh.text()},
                    {"sharding", now.sharding},
                    {"waiting_for", now.waiting},
                    {"step", s.steps},
                    {"epoch", s.epochs},
                    {"samples", s.samples},
                    {"loss", s.loss},
                    {"accuracy", s.accuracy},
                    {"gradient_norm", s.gradient_norm},
                    {"test_loss", s.test_loss},
                    {"test_accuracy", s.test_accuracy},
                    {"step_age_seconds", has_ended ? 0 : seconds_since(now.stepped)},
                    {"numbers_age_seconds", seconds_since(now.exchanged)},
                    {"ranks", std::move(ranks)},
                    {"changes", std::move(changes)}};
  return out.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace centroid::worker
