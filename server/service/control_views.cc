#include <algorithm>
#include <limits>

#include "common/base/log.h"
#include "common/base/version.h"
#include "server/service/control.h"
#include "server/service/replay.h"
#include "server/service/worker_view.h"
#include "server/shard/placement.h"

namespace centroid::server {

namespace {

/// By server of the route.
std::vector<ChunkShare> chunk_shares(const ChunkPlan& plan, const Spread& spread) {
  const std::size_t servers = std::max<std::size_t>(1, spread.present.size());
  std::vector<ChunkShare> shares(servers);
  const auto& owners = spread.route.owners;
  for (std::size_t i = 0; i < plan.chunks().size(); ++i) {
    const std::size_t owner = i < owners.size() ? owners[i] : 0;
    const std::size_t to = i < spread.target.size() ? spread.target[i] : owner;
    if (owner < servers) {
      ++shares[owner].chunks;
      shares[owner].bytes += plan.chunks()[i].elements * sizeof(float);
      shares[owner].moves += owner != to;
    }
    if (owner != to && to < servers) ++shares[to].moves;
  }
  return shares;
}

}  // namespace

ClusterView::Terms Control::terms() const {
  ClusterView::Terms terms;
  terms.policy = config_.policy;
  terms.apply = config_.applies_on_worker() ? "worker" : "server";
  terms.optimizer = config_.optimizer.name;
  if (!job_.agreed) return terms;
  terms.codec = job_.agreed->codec;
  terms.exchange = config_.exchange;
  if (config_.chooses_exchange()) {
    terms.exchange = open_.among_peers ? "ring" : "star";
    terms.exchange_why = open_.exchange_why;
  } else if (!config_.automatic.star_for.empty()) {
    terms.exchange_why = config_.automatic.star_for + " needs it";
  }
  return terms;
}

Task<ClusterView> Control::cluster() {
  auto read = [this] {
    ClusterView view;
    view.run_id = job_.run_id;
    view.state = kJobStates[static_cast<std::size_t>(phase_.now())];
    view.state_reason = phase_.reason();
    if (stopping_.is_requested && !stopping_.rounds_ended && !phase_.is(Phase::kStandby)) {
      view.state = kJobStates[static_cast<std::size_t>(Phase::kStopping)];
      view.state_reason =
          stopping_.reason + ": the open round is finished, then a checkpoint written";
    }
    view.generation = members_.roster.generation().value;
    view.world = members_.roster.ranked().size();
    view.round = job_.round.value;
    view.epoch = job_.epoch;
    view.offset = job_.offset;
    view.samples_total = totals_.samples;
    view.goal.epochs = config_.goal.epochs;
    view.goal.rounds = config_.goal.rounds;
    view.goal.train_samples = job_.agreed ? job_.agreed->train_samples : 0;
    if (config_.goal.epochs > 0 && job_.agreed) {
      const double position =
          static_cast<double>(job_.epoch) +
          static_cast<double>(job_.offset) / static_cast<double>(job_.agreed->train_samples);
      view.progress = std::min(1.0, position / static_cast<double>(config_.goal.epochs));
    } else if (config_.goal.rounds > 0) {
      view.progress = std::min(1.0, static_cast<double>(job_.round.value - 1) /
                                        static_cast<double>(config_.goal.rounds));
    }
    view.samples_per_second = totals_.samples_per_second;
    view.learning.loss = totals_.loss;
    view.learning.train_accuracy = totals_.train_accuracy;
    view.test.accuracy = job_.evaluation.accuracy;
    view.test.loss = job_.evaluation.loss;
    view.test.version = job_.evaluation.version.value;
    view.uptime_seconds = seconds(clock_.now() - server_.started());
    view.endpoints.data = data_endpoint_;
    view.endpoints.api = api_endpoint_;
    view.terms = terms();
    if (job_.agreed) view.model.spec = job_.agreed->model;
    if (job_.shard) {
      view.version = job_.store().version().value;
      view.model.parameters = job_.store().plan().total_elements();
      view.model.chunks = job_.store().plan().chunks().size();
      view.learning.rate =
          job_.store().optimizer().learning_rate(job_.store().optimizer_step() + 1);
    }
    view.learning.gradient_norm = totals_.gradient_norm;
    view.learning.clipped_rounds = totals_.clipped;
    const Cadence& cadence = coordinator_.cadence();
    view.cadence.steps = cadence.anchor();
    view.cadence.exchange_seconds = cadence.exchange_seconds();
    view.cadence.exchange_overhead = cadence.overhead();
    view.cadence.divergence = std::min(coordinator_.divergence(), proto::kMaxLoss);
    view.losses.returned_samples = job_.returned.returned();
    view.losses.late_dropped = totals_.late_dropped;
    view.losses.late_carried = totals_.late_carried;
    view.lead.role = !gate_.has_election()        ? "alone"
                     : phase_.is(Phase::kStandby) ? "standby"
                     : gate_.held()               ? "held"
                                                  : "leader";
    view.lead.leader = gate_.leadership().leader;
    view.lead.endpoint = gate_.leadership().data;
    view.lead.api = gate_.leadership().api;
    view.lead.term = gate_.leadership().term;
    view.losses.skipped_rounds = totals_.skipped;
    view.losses.aborted_attempts = totals_.aborted;
    view.losses.contributions = totals_.lost_contributions;
    return view;
  };
  co_return co_await run_on(executor_, std::move(read));
}

Task<void> Control::ping() {
  auto answer = [] { return true; };
  (void)co_await run_on(executor_, std::move(answer));
}

Task<std::vector<WorkerView>> Control::workers() {
  auto read = [this] {
    std::vector<WorkerView> views;
    for (const auto& [id, member] : members_.roster.members()) {
      const auto worker = members_.find(id);
      if (worker)
        views.push_back(worker_view(member, worker.get(), coordinator_, clock_.now()));
      else if (const auto gone = members_.gone.find(id); gone != members_.gone.end())
        views.push_back(gone->second);
      else
        views.push_back(worker_view(member, nullptr, coordinator_, clock_.now()));
    }
    return views;
  };
  co_return co_await run_on(executor_, std::move(read));
}

Task<std::vector<RoundView>> Control::rounds(std::size_t limit, std::optional<RoundPlace> before) {
  auto read = [this, limit, before] {
    std::vector<RoundView> views;
    const auto is_wanted = [&](std::uint64_t round, std::uint64_t attempt) {
      return !before || RoundPlace(round, attempt) < *before;
    };
    if (open_.attempt && !open_.attempt->closed &&
        is_wanted(open_.attempt->round.value, open_.attempt->number)) {
      RoundView open;
      open.round = open_.attempt->round.value;
      open.attempt = open_.attempt->number;
      open.generation = open_.attempt->generation.value;
      open.version = open_.attempt->version.value;
      open.samples = open_.samples;
      open.state = open_.machine.is_open() ? "open" : "merging";
      open.seconds = seconds(clock_.now() - open_.opened);
      open.opened_unix_seconds = clock_.unix_seconds() - open.seconds;
      for (const MemberId member : open_.machine.contributed())
        open.contributors.push_back(members_.name_of(member));
      for (const MemberId member : open_.machine.missing())
        open.missing.push_back(members_.name_of(member));
      views.push_back(std::move(open));
    }
    for (const RoundView& view : job_.history) {
      if (views.size() >= limit) break;
      if (is_wanted(view.round, view.attempt)) views.push_back(view);
    }
    return views;
  };
  co_return co_await run_on(executor_, std::move(read));
}

Task<CurvesView> Control::curves(std::uint64_t after) {
  auto read = [this, after] {
    const auto points = job_.curves.after(after);
    return CurvesView{job_.curves.revision(), {points.begin(), points.end()}};
  };
  co_return co_await run_on(executor_, std::move(read));
}

Task<std::vector<ServerView>> Control::servers() {
  auto read = [this] {
    std::vector<ServerView> views;
    std::vector<ChunkShare> shares;
    if (job_.shard) shares = chunk_shares(job_.store().plan(), spread_);
    const auto share_of = [&](std::size_t index) {
      return index < shares.size() ? shares[index] : ChunkShare();
    };
    if (!phase_.is(Phase::kStandby)) views.push_back(leader_view(share_of(0)));
    for (const auto& [name, shard] : shards_.present()) {
      const auto at = std::ranges::find(spread_.present, shard);
      const std::size_t index = at == spread_.present.end()
                                    ? kNobody
                                    : static_cast<std::size_t>(at - spread_.present.begin());
      views.push_back(shard_view(*shard, index != kNobody, share_of(index)));
    }
    if (replay_ && !replay_->waited_for().empty() && !shards_.find(replay_->waited_for())) {
      ServerView awaited;
      awaited.name = replay_->waited_for();
      awaited.state = "awaited";
      awaited.has_tokens = false;
      awaited.trouble = replay_->reason();
      views.push_back(std::move(awaited));
    }
    add_candidates(views);
    return views;
  };
  co_return co_await run_on(executor_, std::move(read));
}

/// What every server of the model has: chunks, and rows of tables.
ServerView Control::part_view(std::string name, std::string state, const ChunkShare& share) const {
  ServerView view;
  view.name = std::move(name);
  view.state = std::move(state);
  view.chunks = share.chunks;
  view.bytes = share.bytes;
  view.moves = share.moves;
  if (!table_servers_) return view;
  const auto rows = table_servers_->share_of(view.name);
  view.buckets = rows.buckets;
  view.bucket_moves = rows.moves;
  view.rows = rows.rows;
  view.row_bytes = rows.bytes;
  if (rows.buckets > 0 && view.state == "joining") view.state = "serving";
  return view;
}

ServerView Control::leader_view(const ChunkShare& share) const {
  ServerView view = part_view(config_.leader_name(), "leader", share);
  view.endpoint = data_endpoint_;
  for (const TableView& table : rows_.views()) {
    view.rows += table.rows;
    view.row_bytes += table.bytes;
  }
  view.memory_bytes = job_.shard ? view.bytes * (2 + job_.store().optimizer().slots()) : 0;
  const auto journal = journal_.state();
  view.journal_bytes = journal.bytes;
  view.trouble = journal.trouble;
  view.version = kVersion;
  view.clock_ahead_seconds = 0;
  view.api = gate_.leadership().api.empty() ? api_endpoint_ : gate_.leadership().api;
  view.seen_unix_seconds = clock_.unix_seconds();
  return view;
}

ServerView Control::shard_view(const ShardSession& shard, bool is_in_route,
                               const ChunkShare& share) const {
  ServerView view = part_view(shard.name,
                              shard.is_draining ? "draining"
                              : is_in_route     ? "serving"
                                                : "joining",
                              share);
  view.endpoint = shard.endpoint;
  view.address = shard.address;
  view.joined_unix_seconds = shard.joined_unix_seconds;
  const proto::ServerReport& told = shard.report;
  view.memory_bytes = told.memory_bytes;
  view.journal_bytes = told.journal_bytes;
  view.staged_bytes = told.staged_bytes;
  view.bytes_in = told.bytes_in;
  view.bytes_out = told.bytes_out;
  view.workers = told.workers;
  if (told.rounds > 0) view.merge_seconds = told.merge_seconds / double(told.rounds);
  view.trouble = told.trouble;
  std::vector<std::byte> tokens;
  const auto& joining = server_.parts().servers.tokens();
  if (joining) tokens = proto::encode(joining());
  view.has_tokens = shard.has_tokens && shard.tokens == tokens;
  view.version = shard.version;
  view.clock_ahead_seconds = shard.clock.ahead();
  view.disk_free_bytes = told.disk_free_bytes;
  view.disk_total_bytes = told.disk_total_bytes;
  if (shard.is_gone()) return view;
  view.certificate_expires_unix_seconds = certificate_end(*shard.session);
  const auto heard = shard.session->connection().last_received();
  view.seen_unix_seconds = clock_.unix_seconds() - seconds(clock_.now() - heard);
  return view;
}

/// Servers that stand by, and the leader where this one does.
void Control::add_candidates(std::vector<ServerView>& views) const {
  const Leadership& present = gate_.leadership();
  std::vector<Candidate> known = present.servers;
  const bool is_told = std::ranges::count(known, present.leader, &Candidate::name) > 0;
  if (!is_told && !present.leader.empty()) {
    known.emplace_back();
    known.back().name = present.leader;
    known.back().data = present.data;
    known.back().api = present.api;
  }
  for (const Candidate& one : known) {
    const bool leads = one.name == present.leader;
    if (leads && !phase_.is(Phase::kStandby)) continue;
    ServerView view;
    view.name = one.name;
    view.endpoint = one.data;
    view.api = one.api;
    view.version = one.version;
    view.state = leads ? "leader" : "standby";
    view.seen_unix_seconds = one.seen_unix_seconds;
    views.insert(leads ? views.begin() : views.end(), std::move(view));
  }
}

Task<std::vector<std::vector<PartView>>> Control::tensor_parts(std::size_t first,
                                                               std::size_t count) {
  auto read = [this, first, count] {
    std::vector<std::vector<PartView>> tensors;
    if (!job_.shard) return tensors;
    const ChunkPlan& plan = job_.store().plan();
    const proto::Route& route = spread_.route;
    const std::size_t size = plan.manifest().size();
    const std::size_t begin = std::min(first, size), end = begin + std::min(count, size - begin);
    for (std::size_t tensor = begin; tensor < end; ++tensor) {
      std::map<std::size_t, std::uint64_t> bytes;  // by server
      for (const Chunk& chunk : plan.chunks_of(TensorId(static_cast<std::uint32_t>(tensor)))) {
        const std::size_t at = chunk.id.value;
        bytes[at < route.owners.size() ? route.owners[at] : 0] += chunk.elements * sizeof(float);
      }
      auto& parts = tensors.emplace_back();
      for (const auto& [server, held] : bytes) {
        PartView& part = parts.emplace_back();
        part.server =
            server < route.servers.size() ? route.servers[server].name : config_.leader_name();
        part.bytes = held;
      }
    }
    return tensors;
  };
  co_return co_await run_on(executor_, std::move(read));
}

Task<Status> Control::drain_server(const std::string& name) {
  auto act = [](Control* self, std::string server) -> Task<Status> {
    if (self->stopping_.is_closing)
      co_return Error(ErrorCode::kCancelled, "the server is stopping");
    if (server == self->config_.leader_name())
      co_return Error(ErrorCode::kFailedPrecondition,
                      "server '" + server + "' is the leader: the job ends with it (job stop)");
    if (self->replay_ && self->replay_->waited_for() == server) {  // go on without its journal's
      self->replay_->give_up(server);
      self->changed_.notify_all();
      co_return Status();
    }
    const auto shard = self->shards_.find(server);
    if (!shard) co_return Error(ErrorCode::kNotFound, "there is no server '" + server + "'");
    co_return co_await self->server_.parts().servers.drain(shard);
  };
  co_return co_await run_on(executor_, act(this, name));
}

Task<std::vector<CheckpointView>> Control::checkpoints() {
  const auto directory = co_await checkpoint_reader();
  auto list = [directory] {
    std::vector<CheckpointView> views;  // newest first
    if (!directory) return views;
    for (const CheckpointEntry& entry : directory->list(false))
      views.push_back(checkpoint_view(entry));
    return views;
  };
  co_return co_await run_on(looks_, std::move(list));
}

Task<std::vector<TableView>> Control::tables() {
  auto read = [](Control* self) -> Task<std::vector<TableView>> {
    const auto waits = self->waits_.begin(WaitCause::kServers, "GET /v1/tables", "servers", [self] {
      return "what each has of the tables" + self->server_.parts().servers.longest_silent();
    });
    if (self->table_servers_) co_await self->table_servers_->refresh();
    std::vector<TableView> views = self->rows_.views();
    for (TableView& view : views) {
      if (self->phase_.is(Phase::kStandby)) break;
      PartView& part = view.servers.emplace_back();
      part.server = self->config_.leader_name();
      part.bytes = view.bytes;
      part.rows = view.rows;
    }
    if (self->table_servers_) self->table_servers_->add_to(views);
    co_return views;
  };
  co_return co_await run_on(executor_, read(this));
}

Task<Result<CheckpointView>> Control::make_checkpoint() {
  auto write = [](Control* self) -> Task<Result<CheckpointView>> {
    if (self->stopping_.is_closing)
      co_return Error(ErrorCode::kCancelled, "the server is stopping");
    if (const Status lead = self->gate_.check_lead(); !lead.ok()) co_return lead.error();
    const auto outcome = std::make_shared<CheckpointOutcome>();
    self->tasks_.spawn(self->server_.parts().checkpointer.checkpoint_for(outcome));
    BlockedOn on{WaitCause::kOperator, "POST /v1/checkpoints", "checkpoint",
                 [] { return "its files"; }};
    const auto is_over = [outcome] { return outcome->has_value(); };
    const bool goes_on = co_await self->until(is_over, std::move(on));
    if (!goes_on)
      co_return Error(ErrorCode::kCancelled,
                      "the call was cancelled; the checkpoint goes on being written");
    co_return std::move(**outcome);
  };
  co_return co_await run_on(executor_, write(this));
}

Task<Status> Control::drain(std::uint64_t member) {
  auto act = [this, member]() -> Status {
    const Member* const found = members_.roster.find(MemberId(member));
    if (found == nullptr)
      return Error(ErrorCode::kNotFound,
                   "there is no worker with member id " + std::to_string(member));
    if (!is_present(found->state))
      return Error(ErrorCode::kFailedPrecondition, "worker '" + found->name + "' is not present: " +
                                                       std::string(to_string(found->state)));
    members_.roster.drain(MemberId(member));
    events_.publish("member.drain_requested", {{"worker", found->name}, {"member", member}});
    changed_.notify_all();
    return {};
  };
  co_return co_await run_on(executor_, std::move(act));
}

Task<Status> Control::is_ready() {
  auto read = [this]() -> Status {
    const auto refuse = [](const std::string& why) { return Error(ErrorCode::kUnavailable, why); };
    if (gate_.is_beginning()) return refuse("not ready: " + phase_.reason());
    if (phase_.is(Phase::kStandby)) return refuse("not ready: " + gate_.leadership().to_string());
    if (const auto why = gate_.held()) return refuse("not ready: " + why->message());
    if (stopping_.is_requested) return refuse("not ready: the server takes no members now");
    return {};
  };
  co_return co_await run_on(executor_, std::move(read));
}

}  // namespace centroid::server
