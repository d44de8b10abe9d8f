#include "server/service/model_servers.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "common/base/log.h"
#include "common/checkpoint/fault_point.h"
#include "server/service/room.h"
#include "server/shard/placement.h"

namespace centroid::server {

using proto::ServersKind;

namespace {

bool is_refusal(const Error& error) { return error.code() == ErrorCode::kFailedPrecondition; }

std::string plural(std::uint32_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

/// Who makes or revokes a token waits so long for a shard server to know.
constexpr std::chrono::seconds kTokensTold{2};

}  // namespace

/// Tell all servers the route; the memory of chunks that it takes from the leader is given back,
/// unless they are still `moving`.
Task<Status> ModelServers::adopt_route(std::vector<std::shared_ptr<ShardSession>> present,
                                       std::vector<std::uint16_t> owners) {
  proto::Route route;
  route.version = spread_.route.version + 1;
  for (std::size_t i = 0; i < present.size(); ++i) {
    proto::RouteServer server;
    server.name = i == kLeaderServer ? config_.leader_name() : present[i]->name;
    if (i != kLeaderServer) server.endpoint = present[i]->endpoint;
    route.servers.push_back(std::move(server));
  }
  route.owners = std::move(owners);
  spread_.present = std::move(present);
  spread_.route = std::move(route);
  const FragmentPlan& fragments = job_.shard->fragments();
  spread_.holders.assign(fragments.count(), {});
  std::vector<bool> is_mine(spread_.route.owners.size());
  for (std::uint32_t number = 0; number < fragments.count(); ++number) {
    std::vector<bool> holds(spread_.present.size());
    for (const Chunk& chunk : fragments[number].chunks) {
      const std::uint16_t owner = spread_.route.owners[chunk.id.value];
      holds[owner] = true;
      is_mine[chunk.id.value] = owner == kLeaderServer;
    }
    for (std::size_t i = 1; i < holds.size(); ++i)
      if (holds[i]) spread_.holders[number].push_back(spread_.present[i].get());
  }
  job_.shard->assign(std::move(is_mine));
  const auto head = proto::encode(spread_.route);
  const auto told = co_await shards_.ask_all(spread_.others(), ServersKind::kPlace, head);
  if (!told.ok()) co_return told.error();
  if (journal_.is_on()) {
    auto kept = journal_route();
    co_await journal_.route(std::move(kept));
  }
  if (spread_.moving.empty()) job_.shard->apply_assignment();
  co_return Status();
}

/// Where the chunks lie, for whoever reads the journal; without servers: all were always here.
journal::Route ModelServers::journal_route() const {
  journal::Route route;
  if (spread_.route.version == 0 || !job_.shard) return route;
  if (!spread_.has_others()) {
    route.servers.push_back(config_.leader_name());
    route.owners.assign(job_.store().plan().chunks().size(), 0);
    return route;
  }
  for (const proto::RouteServer& server : spread_.route.servers)
    route.servers.push_back(server.name);
  route.owners = spread_.route.owners;
  return route;
}

/// A server that holds nothing yet.
Task<Status> ModelServers::add_server(std::shared_ptr<ShardSession> shard) {
  if (const Status fits = check_chunk_count(config_, job_.store().plan().chunks().size());
      !fits.ok()) {
    shards_.dismiss(*shard, fits.error());
    shards_.left(shard, fits.error());
    co_return fits;
  }
  proto::ServerModel model;
  model.chunk_bytes = config_.transfer.chunk_bytes;
  model.plan_hash = job_.store().plan().hash();
  model.apply_on_worker = config_.applies_on_worker();
  model.fragments = static_cast<std::uint32_t>(config_.local.fragments);
  model.optimizer = config_.optimizer;
  model.writes_journal = config_.writes_journal();
  model.journal_sync_ms = static_cast<std::uint32_t>(config_.journal.sync.count());
  // Those that are here: fewer than the setting says when one was lost.
  model.servers = shards_.count_of_staying();
  CENTROID_CO_ASSIGN(model.workers, workers_to_plan(nullptr, 1));
  shard->memory_plan.workers = model.workers;
  shard->memory_plan.servers = model.servers;
  model.is_elastic = policy_.is_elastic();
  model.refuses_nonfinite = policy_.nonfinite != NonFinitePolicy::kPropagate;
  model.codec_down = config_.transfer.codec_down;
  model.seed = config_.seed;
  model.aggregate = config_.aggregate;
  if (!policy_.is_elastic()) model.flags |= proto::ServerModel::kNamesSummed;
  if (config_.optimizer_scale_ratio > 0) model.flags |= proto::ServerModel::kScalesRate;
  auto head = proto::encode(model);
  const auto manifest = proto::encode_manifest(job_.store().plan().manifest());
  const auto taken = co_await shards_.ask(shard, ServersKind::kModel, std::move(head), manifest);
  if (!taken.ok()) co_return taken.error();
  shard->has_model = true;
  auto present = spread_.present;
  if (present.empty()) present.push_back(nullptr);
  present.push_back(shard);
  auto owners = spread_.route.owners;
  if (owners.empty()) owners.assign(job_.store().plan().chunks().size(), kLeaderServer);
  const Status told = co_await adopt_route(std::move(present), std::move(owners));
  plan_moves();
  if (shard->is_gone()) co_return told;
  if (!told.ok())  // another one is gone: this one is in the route, and is to begin like the others
    log::warn("route.propagation_failed",
              {{"why", told.error()}, {"action", "servers are looked at again"}});
  proto::ServerState state;
  state.version = job_.store().version();
  state.optimizer_step = job_.store().optimizer_step();
  state.round = Round(job_.round.value - 1);
  auto begin = proto::encode(state);
  const auto begun = co_await shards_.ask(shard, ServersKind::kBegin, std::move(begin));
  if (!begun.ok()) co_return begun.error();
  round_servers_.tell_opened();  // workers that others know already may come there next
  co_return Status();
}

/// Remove a server without chunks from the route. `resolve_servers` finds other servers that are
/// lost meanwhile.
Task<Status> ModelServers::drop_server(std::size_t index) {
  auto present = spread_.present;
  present.erase(present.begin() + static_cast<std::ptrdiff_t>(index));
  auto owners = spread_.route.owners;
  for (std::uint16_t& owner : owners) owner = static_cast<std::uint16_t>(owner - (owner > index));
  log::info("server.dropped", {{"server", spread_.present[index]->name}});
  const Status told = co_await adopt_route(std::move(present), std::move(owners));
  plan_moves();
  if (told.ok() || !has_lost_server()) co_return told;
  log::warn("route.propagation_failed",
            {{"why", told.error()}, {"action", "servers are looked at again"}});
  co_return Status();
}

/// Where the chunks are to lie with the servers that stay.
void ModelServers::plan_moves() {
  std::vector<std::uint16_t> number(spread_.present.size(), kNobody), index;
  for (std::size_t i = 0; i < spread_.present.size(); ++i) {
    if (i != kLeaderServer && spread_.present[i]->is_draining) continue;
    number[i] = static_cast<std::uint16_t>(index.size());
    index.push_back(static_cast<std::uint16_t>(i));
  }
  std::vector<std::uint16_t> before = spread_.route.owners;
  for (std::uint16_t& owner : before) owner = number[owner];
  std::vector<std::uint32_t> units;  // results that are selected together lie together
  for (const Chunk& chunk : job_.store().plan().chunks())
    if (job_.shard->encodes()) units.push_back(job_.shard->encoder().unit_of(chunk.id).first.value);
  spread_.target = place(job_.store().plan(), index.size(), before, units);
  const double uneven = imbalance(job_.store().plan(), index.size(), spread_.target);
  if (uneven > kMaxImbalance)
    log::warn("placement.unbalanced",
              {{"servers", index.size()},
               {"max_over_mean", uneven},
               {"why", job_.shard->encodes()
                           ? "codec_down selects within a tensor, which lies on one server: "
                             "its largest tensors are too large to spread it better"
                           : "the model has few chunks: a smaller chunk_bytes spreads it "
                             "better"}});
  for (std::uint16_t& owner : spread_.target) owner = index[owner];
}

/// What lay on them does not count any more: all chunks are the leader's until they are placed
/// anew.
void ModelServers::forget_servers() {
  const std::uint64_t route = spread_.route.version;
  spread_ = Spread();
  spread_.were_here = true;
  spread_.route.version = route;
  if (job_.shard) job_.shard->assign({});
  for (const auto& [name, shard] : shards_.present()) {
    shard->has_model = false;
    shard->memory_plan = proto::MemoryPlan();
  }
}

bool ModelServers::has_lost_server() const {
  const auto others = spread_.others();
  return std::ranges::any_of(others, [](const auto& shard) { return shard->is_gone(); });
}

bool ModelServers::holds_rows(const std::string& server) const {
  return table_servers_ && table_servers_->holds(server);
}

/// A shard server is to go: when its chunks have moved (`resolve_servers`), or now if it has none.
void ModelServers::let_go(ShardSession& server) {
  log::info("server.drain_started", {{"server", server.name}});
  server.is_draining = true;
  if (table_servers_) table_servers_->servers_changed();
  const auto is_it = [&](const auto& shard) { return shard.get() == &server; };
  if (!holds_rows(server.name) && std::ranges::none_of(spread_.present, is_it))
    return shards_.dismiss(server, Error(ErrorCode::kCancelled, "drained: no chunk lay here"));
  if (spread_.has_others()) plan_moves();
  changed_.notify_all();
}

/// A shard server is to go, if the others have memory for its chunks; else nothing moves. fails
/// failed_precondition: with the numbers of the one that has not; unavailable: one does not answer
Task<Status> ModelServers::drain(std::shared_ptr<ShardSession> server) {
  const ShardGroup::Wanted wanted = [&](const ShardSession& shard) {
    std::optional<proto::MemoryPlan> need;
    const auto is_it = [&](const auto& one) { return one.get() == &shard; };
    const auto workers = workers_to_plan(nullptr, 0);
    if (&shard == server.get() || shard.is_draining || !job_.shard || !workers.ok() ||
        std::ranges::none_of(spread_.present, is_it))
      return need;
    need.emplace();
    need->workers = *workers;
    need->servers = std::min(shard.memory_plan.servers, spread_.servers_without(server.get()));
    return need;
  };
  const auto goes = [&](const auto& one) { return one == server; };
  if (!server->is_draining && std::ranges::any_of(spread_.present, goes)) {
    const TimePoint limit = clock_.now() + kMemoryPlanTimeout;
    const Status fits = co_await shards_.plan_memory(wanted, limit);
    const std::string refusal = "server '" + server->name + "' is not drained, nothing has moved: ";
    if (!fits.ok() && is_refusal(fits.error()))
      co_return Error(ErrorCode::kFailedPrecondition,
                      refusal + "there is no memory for its chunks elsewhere: " +
                          fits.error().message() + "; or start another server first");
    if (!fits.ok())
      co_return Error(ErrorCode::kUnavailable,
                      refusal + "whether there is memory for its chunks elsewhere is not known: " +
                          fits.error().message());
  }
  if (server->is_gone())
    co_return Error(ErrorCode::kUnavailable, "server '" + server->name + "' has gone meanwhile");
  let_go(*server);
  co_return Status();
}

/// A server that stops waits for this as long as its own settings say.
Task<void> ModelServers::drain_leaving(std::shared_ptr<ShardSession> server) {
  std::string why = "others are asked whether they have memory for its chunks";
  const auto what = [&why] { return why; };
  const auto waits = waits_.begin(WaitCause::kServers, server->name, "servers", what);
  while (!server->is_gone()) {
    const Status drained = co_await drain(server);
    if (drained.ok() || server->is_gone()) co_return;
    if (why != drained.error().message())
      log::warn("server.drain_failed", {{"server", server->name}, {"why", drained.error()}});
    why = drained.error().message();
    if (!co_await sleep_until(clock_.now() + kRetryInterval)) co_return;  // lint-ok: a retry
  }
}

/// Behind what is asked of all servers: which of them has said nothing for the longest time. Empty:
/// there are no others.
std::string ModelServers::longest_silent() const {
  const ShardSession* silent = nullptr;
  const auto heard = [](const ShardSession& shard) {
    return shard.session->connection().last_received();
  };
  for (const auto& [name, shard] : shards_.present())
    if (silent == nullptr || heard(*shard) < heard(*silent)) silent = shard.get();
  if (silent == nullptr) return "";
  return "; server '" + silent->name + "' was heard last " +
         std::to_string(
             std::chrono::duration_cast<std::chrono::milliseconds>(clock_.now() - heard(*silent))
                 .count()) +
         " ms ago";
}

/// For which shard servers must have memory: those that are here, one that is `joining`,
/// or some `more`.
Result<std::uint32_t> ModelServers::workers_to_plan(const proto::Join* joining,
                                                    std::size_t more) const {
  std::set<std::string> codecs;
  if (job_.agreed) codecs.insert(job_.agreed->codec);
  if (joining != nullptr) codecs.insert(joining->codec);
  for (const auto& [id, worker] : members_.present) {
    codecs.insert(worker->join.codec);
    if (joining != nullptr && worker->join.name == joining->name) more = 0;
  }
  if (codecs.empty())
    codecs.insert(job_.resumed_from ? codec_in(job_.resumed_from->info) : kUnknownCodec);
  // Where nobody has said how many workers there will be, some more than are here.
  const bool is_said = config_.workers.min > 1;
  const std::uint64_t workers = expected_workers(is_said, more);
  // Sums take what workers send as it comes: what waits is bounded by credit, with any codec.
  if (!policy_.is_elastic() && aggregate_.is_mean()) return static_cast<std::uint32_t>(workers);
  return without_codec(job_.shard->plan(), job_.shard->fragments(), codecs, workers, aggregate_,
                       config_.servers);
}

/// That may bring contributions at once: those that are here and one `more`, in any case so many as
/// a job often has. Where each has a model's size (`keeps_whole`), as the settings say: each one
/// beyond is looked at when it comes.
std::uint64_t ModelServers::expected_workers(bool keeps_whole, std::size_t more) const {
  constexpr std::uint64_t kOften = 8;
  const RoundPolicy policy = policy_of(config_);
  std::uint64_t named = keeps_whole ? 1 : kOften;
  if (keeps_whole && policy.kind == PolicyKind::kQuorum) named = policy.count;
  if (keeps_whole && policy.kind == PolicyKind::kBackup) named = policy.count + 1;
  return std::min(std::max({config_.workers.min, named, members_.present.size() + more}),
                  config_.workers.max);
}

/// A chunk that lies elsewhere, as it is in this version.
Task<Result<std::vector<std::byte>>> ModelServers::fetch_chunk(proto::ServerChunk head) {
  const auto& owners = spread_.route.owners;
  if (!job_.shard ||
      head.chunk.value >= std::min(job_.store().plan().chunks().size(), owners.size()))
    co_return Error(ErrorCode::kUnavailable,
                    "the state is being brought back: `centroidctl waits` (GET /v1/waits)");
  const Chunk chunk = job_.store().plan().chunk(head.chunk);
  const std::size_t bytes = chunk.elements * sizeof(float);
  if (!head.frozen && job_.store().is_here(head.chunk)) {  // it has moved since it was asked for
    const auto values = std::as_bytes(job_.store().values(head.plane, chunk));
    co_return std::vector<std::byte>(values.begin(), values.end());
  }
  auto shard = spread_.present.at(owners[head.chunk.value]);
  if (const auto found = spread_.moving.find(head.chunk);
      found != spread_.moving.end() && !head.frozen)
    shard = found->second;
  if (!shard)
    co_return Error(ErrorCode::kUnavailable,
                    "the state is being brought back: `centroidctl waits` (GET /v1/waits)");
  auto encoded = proto::encode(head);
  auto reply = co_await shards_.ask(shard, ServersKind::kFetch, std::move(encoded));
  if (!reply.ok()) co_return std::move(reply).error();
  if (reply->payload.size() != bytes)
    co_return Error(ErrorCode::kInvalidArgument, "server '" + shard->name + "' sent " +
                                                     std::to_string(reply->payload.size()) +
                                                     " bytes for chunk " + to_string(head.chunk) +
                                                     ", expected " + std::to_string(bytes));
  co_return std::move(reply->payload);
}

/// All chunks of these planes that lie elsewhere now, in the order of planes and chunks.
std::unique_ptr<ChunkFetcher> ModelServers::fetch_elsewhere(TaskGroup& tasks, Version version,
                                                            std::size_t planes) {
  std::vector<ChunkFetcher::Wanted> wanted;
  for (std::size_t plane = 0; plane < planes && spread_.has_others(); ++plane)
    for (const Chunk& chunk : job_.store().plan().chunks()) {
      if (job_.store().is_here(chunk.id)) continue;
      ChunkFetcher::Wanted& one = wanted.emplace_back();
      one.head.version = version;
      one.head.plane = static_cast<std::uint8_t>(plane);
      one.head.chunk = chunk.id;
      one.bytes = chunk.elements * sizeof(float);
    }
  auto fetch = [this](proto::ServerChunk head) { return fetch_chunk(head); };
  return std::make_unique<ChunkFetcher>(executor_, tasks, std::move(fetch), std::move(wanted));
}

/// What of the present version lies elsewhere. fails aborted: it is not the present one any more.
Task<Status> ModelServers::fetch_image(StateImage& image) {
  const auto elsewhere = fetch_elsewhere(tasks_, image.version, image.planes.size());
  for (std::size_t plane = 0; plane < image.planes.size(); ++plane)
    for (const Chunk& chunk : job_.store().plan().chunks()) {
      if (!elsewhere->is_next(plane, chunk.id)) continue;
      CENTROID_CO_ASSIGN(const auto values, co_await elsewhere->next());
      std::memcpy(image.planes[plane].data() + chunk.position, values.data(), values.size());
    }
  co_return Status();
}

/// One of the tasks that copy what is left of `chunks`.
Task<void> ModelServers::copy_chunks(std::shared_ptr<std::vector<Chunk>> chunks) {
  while (!chunks->empty() && !spread_.copy_failure) {
    const Chunk chunk = chunks->back();
    chunks->pop_back();
    const auto from = spread_.moving.at(chunk.id);
    const auto to = spread_.present[spread_.route.owners[chunk.id.value]];
    const Status copied = co_await copy_chunk(chunk, from, to);
    if (copied.ok() || spread_.copy_failure) continue;
    spread_.copy_failure = copied.error();
    // What a server answers nothing or something else for is not what its leader takes it to have.
    for (const auto& shard : {from, to})
      if (shard && !shard->is_gone()) shards_.give_up(shard, copied.error());
  }
  if (--spread_.copiers == 0) spread_.copy_time = clock_.now() - spread_.moving_since;
  changed_.notify_all();
}

/// All planes; nullptr: the leader.
Task<Status> ModelServers::copy_chunk(Chunk chunk, std::shared_ptr<ShardSession> from,
                                      std::shared_ptr<ShardSession> to) {
  const std::size_t planes = job_.store().planes();
  for (std::size_t plane = 0; plane < planes; ++plane) {
    proto::ServerChunk head;
    head.version = job_.store().version();
    head.plane = static_cast<std::uint8_t>(plane);
    head.chunk = chunk.id;
    std::vector<std::byte> fetched;
    Bytes values;
    if (from == nullptr) {
      values =
          std::as_bytes(job_.store().values(plane, chunk));  // stay as they are until this ends
      const bool is_residual =
          plane > job_.store().optimizer().slots();  // a new generation clears it
      if (is_residual) fetched.assign(values.begin(), values.end());
      if (is_residual) values = fetched;
    } else {
      CENTROID_CO_ASSIGN(fetched, co_await fetch_chunk(head));
      values = fetched;
    }
    if (to == nullptr) {
      const std::span<const float> floats(reinterpret_cast<const float*>(values.data()),
                                          chunk.elements);
      CENTROID_CO_TRY(job_.store().load(plane, chunk.position, floats));
      continue;
    }
    auto encoded = proto::encode(head);
    const auto loaded = co_await shards_.ask(to, ServersKind::kLoad, std::move(encoded), values);
    if (!loaded.ok()) co_return loaded.error();
  }
  co_return Status();
}

/// Which named tokens let workers and clients in there. When they have changed since it was told.
void ModelServers::tell_tokens(ShardSession& server) {
  if (!joining_tokens_ || server.is_gone()) return;
  if (proto::encode(joining_tokens_()) == server.tokens) return;
  if (auto shard = shards_.find(server.name)) server.tasks->spawn(send_tokens(std::move(shard)));
}

/// Until it has them, or is slow: then it is told again with its next report.
Task<void> ModelServers::send_tokens(std::shared_ptr<ShardSession> server) {
  auto head = proto::encode(joining_tokens_());
  server->tokens = head;
  server->has_tokens = false;
  const TimePoint limit = clock_.now() + kTokensTold;
  const auto told = co_await shards_.ask(server, proto::ServersKind::kTokens, head, Bytes(), limit);
  if (server->is_gone()) co_return;
  if (told.ok()) {
    server->has_tokens = server->tokens == head;  // else others are on their way
    co_return;
  }
  server->tokens.clear();
  log::warn("tokens.propagation_failed", {{"server", server->name}, {"why", told.error()}});
}

/// Shard servers store contributions whole: a worker beyond those of their memory plan, or
/// with another codec, may bring more than they have memory for. fails resource_exhausted: names
/// worker and server; unavailable: that one does not answer
Task<Status> ModelServers::plan_worker(const proto::Join& join) {
  if (!job_.shard || epilogue_ || shards_.present().empty()) co_return Status();
  const auto is_it = [&](const auto& one) { return one.second->join.name == join.name; };
  const std::size_t more = std::ranges::any_of(members_.present, is_it) ? 0 : 1;
  const auto all = static_cast<std::uint32_t>(expected_workers(config_.workers.min > 1, more));
  const ShardGroup::Wanted wanted = [&](const ShardSession& shard) {
    std::optional<proto::MemoryPlan> need;
    const auto count = workers_to_plan(&join, 1);
    if (!job_.shard || epilogue_ || !count.ok()) return need;  // `admit` says what is wrong with it
    need = shard.memory_plan;
    need->workers = *count;
    // As the chunks lie, or will when those that go have gone.
    const bool is_settled = spread_.moving.empty() && spread_.target == spread_.route.owners;
    need->servers = is_settled ? std::max(need->servers, spread_.servers_without(nullptr))
                               : std::min(need->servers, shards_.count_of_staying());
    return need;
  };
  const TimePoint limit = clock_.now() + kMemoryPlanTimeout;
  const Status fits = co_await shards_.plan_memory(wanted, limit);
  if (fits.ok()) co_return Status();
  const std::string refusal = "worker '" + join.name + "' is refused: ";
  if (!is_refusal(fits.error()))
    co_return Error(
        ErrorCode::kUnavailable,
        refusal + "whether there is memory for it is not known: " + fits.error().message());
  co_return Error(ErrorCode::kResourceExhausted,  // it may fit when another one has left
                  refusal + "there is no memory for contributions of " + plural(all, "worker") +
                      ": " + fits.error().message());
}

Task<bool> has_room_to_move(Spread& spread, ShardGroup& shards, TimePoint limit) {
  const std::uint32_t servers = spread.servers_without(nullptr);
  for (std::size_t i = 1; i < spread.present.size(); ++i) {
    const auto shard = spread.present[i];
    if (shard->is_draining || shard->is_gone() || shard->memory_plan.servers <= servers) continue;
    const ShardGroup::Wanted wanted = [&](const ShardSession& one) {
      std::optional<proto::MemoryPlan> need;
      if (&one != shard.get()) return need;
      need = one.memory_plan;
      need->servers = std::min(servers, one.memory_plan.servers);
      return need;
    };
    const Status fits = co_await shards.plan_memory(wanted, limit);
    if (fits.ok()) continue;
    log::warn("chunks.move_failed", {{"server", shard->name}, {"why", fits.error()}});
    const bool holds = std::ranges::find(spread.route.owners, i) != spread.route.owners.end();
    if (is_refusal(fits.error()) && holds) spread.target = spread.route.owners;
    if (is_refusal(fits.error()) && !holds) {  // it says both numbers, and ends
      shards.dismiss(*shard, fits.error());
      shards.left(shard, fits.error());
    }
    co_return false;
  }
  co_return true;
}

}  // namespace centroid::server
