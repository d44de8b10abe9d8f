#include <algorithm>
#include <cstring>

#include "common/base/log.h"
#include "server/service/chunk_fetcher.h"
#include "server/service/cluster.h"
#include "server/shard/placement.h"

/// A model on several servers: where its chunks lie. The route changes between rounds only, so
/// within a round every server is of one version and one route.
namespace centroid::server {

using proto::ServersKind;

namespace {

constexpr std::size_t kLeader = 0;
/// While a checkpoint or copies hold up a server that is to go.
constexpr std::chrono::milliseconds kDrainLook{50};
/// Chunks that are to move wait so long for servers to say that they have memory for them.

}  // namespace

bool Cluster::holds_rows(const std::string& server) const {
  return rows_servers_ && rows_servers_->holds(server);
}

bool Cluster::is_mine(ChunkId chunk) const {
  return spread_.route.owners.empty() || spread_.route.owners[chunk.value] == 0;
}

const std::vector<Chunk>& Cluster::part() const {
  if (!spread_.has_others()) return fragment().chunks;
  return spread_.parts[job_.fragments.turn(job_.store->optimizer_step())];
}

Result<proto::ServerTerms> Cluster::admit_server(transport::Session& session, TaskGroup& tasks,
                                                 const proto::ServerJoin& join,
                                                 std::shared_ptr<ShardGroup::Link>& link) {
  CENTROID_TRY(gate_.check_lead());
  const std::string who = "server '" + join.name + "' is refused: ";
  if (const std::string why = why_one_server(config_); !why.empty())
    return Error(ErrorCode::kFailedPrecondition, who + why);
  if (job_.store) {
    const Status fits = check_told_chunks(config_, job_.store->plan().chunks().size());
    if (!fits.ok()) return Error(ErrorCode::kFailedPrecondition, who + fits.error().message());
  }
  if (join.name == config_.leader_name())
    return Error(ErrorCode::kFailedPrecondition,
                 who + "that is the leader's name: give each server its own --name");
  const bool is_awaited = rows_servers_ && rows_servers_->awaits(join.name);
  const bool has_rows = rows_servers_ && rows_servers_->serves(join.name);  // past the model's goal
  if (!is_awaited && !has_rows && (phase_.is(Phase::kFinished) || phase_.is(Phase::kHalted)))
    return Error(ErrorCode::kCancelled, "the job is over: " + phase_.reason());
  if (!is_awaited && stopping_.is_requested)
    return Error(ErrorCode::kUnavailable, "the leader is stopping: " + stopping_.reason);
  if (!join.run_id.empty() && join.run_id != job_.run_id)
    return Error(ErrorCode::kFailedPrecondition,
                 who + "it served run '" + join.run_id + "', this one is '" + job_.run_id +
                     "': start it anew to have it serve another run");
  if (shards_.present().size() + 2 > kMaxServers)
    return Error(ErrorCode::kResourceExhausted,
                 who + "a model lies on at most " + std::to_string(kMaxServers) + " servers");
  CENTROID_ASSIGN(link, shards_.join(session, tasks, join));
  proto::ServerTerms terms;
  terms.run_id = job_.run_id;
  terms.lease_ms = static_cast<std::uint32_t>(config_.lease.count());
  terms.credit_bytes = config_.credit_bytes;
  terms.term = gate_.leadership().term;
  return terms;
}

/// Between rounds: the chunks lie where they are to lie, or a step is made towards it. False: look
/// again, for something has changed or is still missing.
Task<Result<bool>> Cluster::settle_servers() {
  if (shards_.present().empty() && !spread_.has_others() && config_.servers <= 1 &&
      !spread_.lost_since)
    co_return true;
  if (spread_.lost_since) co_return co_await recover_servers();
  const Status copied = co_await finish_moves();
  if (!copied.ok()) {
    (void)co_await give_up_merge(copied.error());
    co_return false;
  }
  for (std::size_t i = 1; i < spread_.links.size(); ++i) {
    if (!spread_.links[i]->is_gone()) continue;
    const bool has_chunks =
        std::ranges::find(spread_.route.owners, i) != spread_.route.owners.end();
    spread_.lost = spread_.links[i]->name;
    if (has_chunks) {
      lose_server();
      co_return false;
    }
    CENTROID_CO_TRY(co_await drop_server(i));
    co_return false;
  }
  const std::size_t here = shards_.present().size() + 1;
  if (here < config_.servers && !spread_.were_here) {
    phase_.set(Phase::kWaiting, std::to_string(here) + " of " + std::to_string(config_.servers) +
                                    " servers are here (servers)");
    co_await changed_.wait(TimePoint::max());
    co_return false;
  }
  spread_.were_here = true;
  for (const auto& [name, link] : std::map(shards_.present())) {
    if (link->is_draining || link->is_gone() ||
        std::ranges::find(spread_.links, link) != spread_.links.end())
      continue;
    const Status added = co_await add_server(link);
    if (!added.ok()) {
      log::warn("server.not_added", {{"server", name}, {"why", added.error()}});
      co_return false;  // its session has ended, or ends now
    }
    if (has_lost_server()) co_return false;
  }
  bool moves = spread_.has_others() && spread_.target != spread_.route.owners;
  if (moves) moves = co_await may_move();
  if (moves) {
    const bool has_room = co_await has_room_to_move(spread_, shards_, clock_.now() + kReckoned);
    const bool changes = spread_.target == spread_.route.owners || has_lost_server();
    if (!has_room && !changes)  // one does not answer, or its session has ended
      co_await changed_.wait(clock_.now() + kAskAgain);
    if (!has_room) co_return false;
    const Status moved = co_await move_some();
    if (!moved.ok()) log::warn("chunks.not_moved", {{"why", moved.error()}});
    if (!moved.ok() || is_first_placement()) co_return false;
  }
  if (!spread_.moving.empty()) co_return true;  // it is drained when what it gives is copied
  for (std::size_t i = 1; i < spread_.links.size(); ++i) {
    if (!spread_.links[i]->is_draining ||
        std::ranges::find(spread_.route.owners, i) != spread_.route.owners.end())
      continue;
    const auto drained = spread_.links[i];
    const Status dropped = co_await drop_server(i);
    if (!holds_rows(drained->name))
      shards_.dismiss(*drained, Error(ErrorCode::kCancelled, "drained: its chunks have moved"));
    CENTROID_CO_TRY(dropped);
    // Rounds behind the newest checkpoint are in its journal, which goes with it.
    if (journal_.is_on() && !checkpointing_ && needs_checkpoint())
      tasks_.spawn(checkpoint_in_background(false));
    co_return false;
  }
  co_return true;
}

/// Before the job's first round nobody is held up: everything moves at once.
bool Cluster::is_first_placement() const { return trained_rounds_ == 0; }

/// Tell all servers the route; the memory of chunks that it takes from the leader is given back,
/// unless they are still `moving`.
Task<Status> Cluster::adopt_route(std::vector<std::shared_ptr<ShardGroup::Link>> links,
                                  std::vector<std::uint16_t> owners) {
  proto::Route route;
  route.version = spread_.route.version + 1;
  for (std::size_t i = 0; i < links.size(); ++i) {
    proto::RouteServer server;
    server.name = i == kLeader ? config_.leader_name() : links[i]->name;
    if (i != kLeader) server.endpoint = links[i]->endpoint;
    route.servers.push_back(std::move(server));
  }
  route.owners = std::move(owners);
  spread_.links = std::move(links);
  spread_.route = std::move(route);
  spread_.parts.assign(job_.fragments.count(), {});
  spread_.holders.assign(job_.fragments.count(), {});
  std::vector<bool> is_here(spread_.route.owners.size());
  for (std::uint32_t number = 0; number < job_.fragments.count(); ++number) {
    std::vector<bool> holds(spread_.links.size());
    for (const Chunk& chunk : job_.fragments[number].chunks) {
      const std::uint16_t owner = spread_.route.owners[chunk.id.value];
      holds[owner] = true;
      if (owner != kLeader) continue;
      spread_.parts[number].push_back(chunk);
      is_here[chunk.id.value] = true;
    }
    for (std::size_t i = 1; i < holds.size(); ++i)
      if (holds[i]) spread_.holders[number].push_back(spread_.links[i].get());
  }
  const auto head = proto::encode(spread_.route);
  const auto told = co_await shards_.ask_all(spread_.others(), ServersKind::kPlace, head);
  if (!told.ok()) co_return told.error();
  if (journal_.is_on()) {
    auto kept = journal_route();
    co_await journal_.route(std::move(kept));
  }
  spread_.is_here = std::move(is_here);
  if (spread_.moving.empty()) job_.store->place(spread_.is_here);
  co_return Status();
}

/// A server that holds nothing yet.
Task<Status> Cluster::add_server(std::shared_ptr<ShardGroup::Link> link) {
  if (const Status fits = check_told_chunks(config_, job_.store->plan().chunks().size());
      !fits.ok()) {
    shards_.dismiss(*link, fits.error());
    shards_.left(link, fits.error());
    co_return fits;
  }
  const OptimizerConfig& optimizer = config_.optimizer;
  proto::ServerModel model;
  model.chunk_bytes = config_.chunk_bytes;
  model.plan_hash = job_.store->plan().hash();
  model.apply_on_worker = config_.applies_on_worker();
  model.fragments = static_cast<std::uint32_t>(config_.fragments);
  model.optimizer = optimizer.name;
  model.learning_rate = optimizer.learning_rate;
  model.momentum = optimizer.momentum;
  model.beta1 = optimizer.beta1;
  model.beta2 = optimizer.beta2;
  model.epsilon = optimizer.epsilon;
  model.weight_decay = optimizer.weight_decay;
  model.l1 = optimizer.l1;
  model.ftrl_beta = optimizer.ftrl_beta;
  model.schedule = optimizer.schedule;
  model.clip_norm = optimizer.clip_norm;
  model.keeps_journal = config_.keeps_journal();
  model.journal_sync_ms = static_cast<std::uint32_t>(config_.journal_sync.count());
  // Those that are here: fewer than the setting says when one was lost.
  model.servers = shards_.count_of_staying();
  CENTROID_CO_ASSIGN(model.workers, workers_to_reckon(nullptr, 1));
  link->reckoned.workers = model.workers;
  link->reckoned.servers = model.servers;
  model.is_elastic = policy_.is_elastic();
  model.refuses_nonfinite = policy_.nonfinite != NonFinitePolicy::kPropagate;
  model.codec_down = config_.codec_down;
  model.seed = config_.seed;
  model.aggregate = config_.aggregate;
  auto head = proto::encode(model);
  const auto manifest = proto::encode_manifest(job_.store->plan().manifest());
  const auto taken = co_await shards_.ask(link, ServersKind::kModel, std::move(head), manifest);
  if (!taken.ok()) co_return taken.error();
  link->has_model = true;
  auto links = spread_.links;
  if (links.empty()) links.push_back(nullptr);
  links.push_back(link);
  auto owners = spread_.route.owners;
  if (owners.empty()) owners.assign(job_.store->plan().chunks().size(), kLeader);
  const Status told = co_await adopt_route(std::move(links), std::move(owners));
  plan_moves();
  if (link->is_gone()) co_return told;
  if (!told.ok())  // another one is gone: this one is in the route, and is to begin like the others
    log::warn("route.not_told", {{"why", told.error()}, {"action", "servers are looked at again"}});
  proto::ServerState state;
  state.version = job_.store->version();
  state.optimizer_step = job_.store->optimizer_step();
  state.round = Round(job_.round.value - 1);
  auto begin = proto::encode(state);
  const auto begun = co_await shards_.ask(link, ServersKind::kBegin, std::move(begin));
  if (!begun.ok()) co_return begun.error();
  tell_opened();  // workers that others know already may come there next
  co_return Status();
}

/// A server on which no chunk lies leaves the route. Another one that is gone meanwhile does not
/// hear of it: `settle_servers` finds it.
Task<Status> Cluster::drop_server(std::size_t index) {
  auto links = spread_.links;
  links.erase(links.begin() + static_cast<std::ptrdiff_t>(index));
  auto owners = spread_.route.owners;
  for (std::uint16_t& owner : owners) owner = static_cast<std::uint16_t>(owner - (owner > index));
  log::info("server.dropped", {{"server", spread_.links[index]->name}});
  const Status told = co_await adopt_route(std::move(links), std::move(owners));
  plan_moves();
  if (told.ok() || !has_lost_server()) co_return told;
  log::warn("route.not_told", {{"why", told.error()}, {"action", "servers are looked at again"}});
  co_return Status();
}

/// Where the chunks are to lie with the servers that stay.
void Cluster::plan_moves() {
  std::vector<std::uint16_t> number(spread_.links.size(), kNobody), index;
  for (std::size_t i = 0; i < spread_.links.size(); ++i) {
    if (i != kLeader && spread_.links[i]->is_draining) continue;
    number[i] = static_cast<std::uint16_t>(index.size());
    index.push_back(static_cast<std::uint16_t>(i));
  }
  std::vector<std::uint16_t> before = spread_.route.owners;
  for (std::uint16_t& owner : before) owner = number[owner];
  std::vector<std::uint32_t> units;  // results that are selected together lie together
  for (const Chunk& chunk : job_.store->plan().chunks())
    if (job_.replies) units.push_back(job_.replies->unit_of(chunk.id).first.value);
  spread_.target = place(job_.store->plan(), index.size(), before, units);
  const double uneven = imbalance(job_.store->plan(), index.size(), spread_.target);
  if (uneven > kMaxImbalance)
    log::warn(
        "placement.uneven",
        {{"servers", index.size()},
         {"max_over_mean", uneven},
         {"why", job_.replies ? "codec_down selects within a tensor, which lies on one server: "
                                "its largest tensors are too large to spread it better"
                              : "the model has few chunks: a smaller chunk_bytes spreads it "
                                "better"}});
  for (std::uint16_t& owner : spread_.target) owner = index[owner];
}

/// A shard server is to go: when its chunks have moved (`settle_servers`), or now if it has none.
void Cluster::let_go(ShardGroup::Link& server) {
  log::info("server.draining", {{"server", server.name}});
  server.is_draining = true;
  const auto is_it = [&](const auto& link) { return link.get() == &server; };
  if (!holds_rows(server.name) && std::ranges::none_of(spread_.links, is_it))
    return shards_.dismiss(server, Error(ErrorCode::kCancelled, "drained: no chunk lay here"));
  if (spread_.has_others()) plan_moves();
  changed_.notify_all();
}

/// No round holds up the chunks that a server gives away, and none waits for them; else wait for
/// something to change.
Task<Status> Cluster::drain_while_paused() {
  const auto drains = [](const auto& link) {
    return link && !link->is_gone() && link->is_draining;
  };
  TimePoint limit = TimePoint::max();
  if (std::ranges::any_of(spread_.links, drains) && !replay_ && !spread_.lost_since &&
      !has_lost_server()) {
    CENTROID_CO_ASSIGN(const bool is_settled, co_await settle_servers());
    if (!is_settled) co_return Status();
    limit = clock_.now() + kDrainLook;
  }
  co_await changed_.wait(limit);
  co_return Status();
}

/// A chunk that lies elsewhere, as it is in this version.
Task<Result<std::vector<std::byte>>> Cluster::fetch_chunk(proto::ServerChunk head) {
  const auto& owners = spread_.route.owners;
  if (!job_.store ||
      head.chunk.value >= std::min(job_.store->plan().chunks().size(), owners.size()))
    co_return Error(ErrorCode::kUnavailable,
                    "the state is being brought back: `centroidctl waits` (GET /v1/waits)");
  const Chunk chunk = job_.store->plan().chunk(head.chunk);
  const std::size_t bytes = chunk.elements * sizeof(float);
  if (!head.frozen && job_.store->is_here(head.chunk)) {  // it has moved since it was asked for
    const auto values = std::as_bytes(head.plane == 0 ? job_.store->params(chunk)
                                                      : job_.store->slot(head.plane - 1u, chunk));
    co_return std::vector<std::byte>(values.begin(), values.end());
  }
  auto link = spread_.links.at(owners[head.chunk.value]);
  if (const auto found = spread_.moving.find(head.chunk);
      found != spread_.moving.end() && !head.frozen)
    link = found->second;
  if (!link)
    co_return Error(ErrorCode::kUnavailable,
                    "the state is being brought back: `centroidctl waits` (GET /v1/waits)");
  auto encoded = proto::encode(head);
  auto reply = co_await shards_.ask(link, ServersKind::kFetch, std::move(encoded));
  if (!reply.ok()) co_return std::move(reply).error();
  if (reply->payload.size() != bytes)
    co_return Error(ErrorCode::kInvalidArgument, "server '" + link->name + "' sent " +
                                                     std::to_string(reply->payload.size()) +
                                                     " bytes for chunk " + to_string(head.chunk) +
                                                     ", expected " + std::to_string(bytes));
  co_return std::move(reply->payload);
}

/// All chunks of these planes that lie elsewhere now, in the order of planes and chunks.
std::unique_ptr<ChunkFetcher> Cluster::fetch_elsewhere(TaskGroup& tasks, Version version,
                                                       std::size_t planes) {
  std::vector<ChunkFetcher::Wanted> wanted;
  for (std::size_t plane = 0; plane < planes && spread_.has_others(); ++plane)
    for (const Chunk& chunk : job_.store->plan().chunks()) {
      if (job_.store->is_here(chunk.id)) continue;
      ChunkFetcher::Wanted& one = wanted.emplace_back();
      one.head.version = version;
      one.head.plane = static_cast<std::uint8_t>(plane);
      one.head.chunk = chunk.id;
      one.bytes = chunk.elements * sizeof(float);
    }
  auto fetch = [this](proto::ServerChunk head) { return fetch_chunk(head); };
  return std::make_unique<ChunkFetcher>(executor_, tasks, std::move(fetch), std::move(wanted));
}

// ---- a server that is gone with its chunks

void Cluster::lose_server() {
  if (spread_.lost_since) return;
  spread_.lost_since = clock_.now();
  const Error why(ErrorCode::kUnavailable, "server '" + spread_.lost +
                                               "' is gone with its chunks: the job goes back to "
                                               "its newest checkpoint");
  log::error("servers.chunks_lost", {{"server", spread_.lost}, {"action", "workers join again"}});
  probe_.state_lost();
  if (open_.attempt && !open_.attempt->closed)
    close_attempt(proto::Outcome::kAborted, 0, 0, why.message());
  for (const auto& [id, link] : links_) link->tasks->spawn(link->session->goodbye(why));
  changed_.notify_all();
}

/// What lay on them does not count any more: all chunks are the leader's until they are placed
/// anew.
void Cluster::forget_servers() {
  const std::uint64_t route = spread_.route.version;
  spread_ = Spread();
  spread_.were_here = true;
  spread_.route.version = route;
  for (const auto& [name, link] : shards_.present()) {
    link->has_model = false;
    link->reckoned = proto::Reckon();
  }
}

/// Wait for the lost server, for so long as the setting says; then place all chunks anew from the
/// newest checkpoint, or from the beginning without one.
Task<Result<bool>> Cluster::recover_servers() {
  const TimePoint limit = *spread_.lost_since + config_.servers_wait;
  if (!shards_.find(spread_.lost) && clock_.now() < limit) {
    phase_.set(Phase::kWaiting, "server '" + spread_.lost + "' is gone with its chunks; after " +
                                    std::to_string(config_.servers_wait.count()) +
                                    " ms (servers_wait) the others take them, from the newest "
                                    "checkpoint");
    co_await changed_.wait(limit);
    co_return false;
  }
  std::optional<Waits::Guard> waits;
  while (!links_.empty() || (open_.attempt && open_.attempt.use_count() > 1) || checkpointing_ ||
         spread_.copiers > 0) {
    if (!waits)
      waits_.begin(waits, WaitCause::kServers, "job", "workers", [this] {
        return "server '" + spread_.lost +
               "' is gone with its chunks: the end of the workers' connections, and of what reads "
               "the state that is given up";
      });
    state_fetched_.notify_all();  // no version is kept for a checkpoint now
    if (!co_await sleep_until(clock_.now() + std::chrono::milliseconds(5))) co_return false;
  }
  const Version lost = job_.version();
  const std::uint64_t lost_round = job_.round.value - 1;
  open_ = OpenRound(policy_);
  co_await journal_.drop_attempt();
  journal_.stop();                              // read, it begins anew behind the rounds it has
  const Raised loading(is_loading_, changed_);  // what is left of the store is of no version
  forget_servers();
  job_.drop_model();  // chunks of it are lost
  if (has_checkpoint()) {
    CENTROID_CO_ASSIGN(JobState newest, co_await load_checkpoint());
    go_on_from(std::move(newest));
    CENTROID_CO_TRY(begin_replay());
  } else if (config_.init != "first-worker") {
    CENTROID_CO_ASSIGN(JobState initial, co_await load_initial_file());
    go_on_from(std::move(initial));
  } else {
    go_on_from(JobState());
  }
  await_members_again();
  log::warn("servers.state_restored", {{"lost_version", lost.value},
                                       {"version", job_.store ? job_.store->version().value : 0},
                                       {"round", job_.round.value},
                                       {"servers", shards_.present().size() + 1}});
  if (job_.round.value == 1 && lost_round > 0)
    tell(events_, log::Level::kWarn, "job.begun_again",
         {{"lost_round", lost_round},
          {"why", "a server was lost with its chunks, and there is no checkpoint"}});
  co_return false;
}

/// What of the present version lies elsewhere. fails aborted: it is not the present one any more.
Task<Status> Cluster::fetch_image(StateImage& image) {
  const auto elsewhere = fetch_elsewhere(tasks_, image.version, image.planes.size());
  for (std::size_t plane = 0; plane < image.planes.size(); ++plane)
    for (const Chunk& chunk : job_.store->plan().chunks()) {
      if (!elsewhere->is_next(plane, chunk.id)) continue;
      CENTROID_CO_ASSIGN(const auto values, co_await elsewhere->next());
      std::memcpy(image.planes[plane].data() + chunk.position, values.data(), values.size());
    }
  co_return Status();
}

}  // namespace centroid::server
