#include <algorithm>
#include <cstring>

#include "common/base/log.h"
#include "server/service/cluster.h"
#include "server/shard/placement.h"

/// A model on several servers: where its chunks lie, and how a round is committed on all of them.
/// The route changes between rounds only, so within a round every server is of one version and one
/// route.
namespace centroid::server {

using proto::ServersKind;

namespace {

constexpr std::size_t kLeader = 0;
/// While a checkpoint or copies hold up a server that is to go.
constexpr std::chrono::milliseconds kDrainLook{50};

}  // namespace

const std::vector<Chunk>& Cluster::part() const {
  if (!spread_.has_others()) return fragment().chunks;
  return spread_.parts[fragments_.turn(store_->optimizer_step())];
}

Result<proto::ServerTerms> Cluster::admit_server(transport::Session& session, TaskGroup& tasks,
                                                 const proto::ServerJoin& join,
                                                 std::shared_ptr<ShardGroup::Link>& link) {
  const std::string who = "server '" + join.name + "' is refused: ";
  if (const std::string why = why_one_server(config_); !why.empty())
    return Error(ErrorCode::kFailedPrecondition, who + why);
  if (store_) {
    const Status fits = check_told_chunks(config_, store_->plan().chunks().size());
    if (!fits.ok()) return Error(ErrorCode::kFailedPrecondition, who + fits.error().message());
  }
  if (join.name == config_.leader_name())
    return Error(ErrorCode::kFailedPrecondition,
                 who + "that is the leader's name: give each server its own --name");
  const bool is_awaited = rows_servers_ && rows_servers_->awaits(join.name);
  if (!is_awaited && (phase_ == Phase::kFinished || phase_ == Phase::kHalted))
    return Error(ErrorCode::kCancelled, "the job is over: " + phase_reason_);
  if (!is_awaited && stop_requested_)
    return Error(ErrorCode::kUnavailable, "the leader is stopping: " + stop_reason_);
  if (!join.run_id.empty() && join.run_id != run_id_)
    return Error(ErrorCode::kFailedPrecondition,
                 who + "it served run '" + join.run_id + "', this one is '" + run_id_ +
                     "': start it anew to have it serve another run");
  if (shards_.present().size() + 2 > kMaxServers)
    return Error(ErrorCode::kResourceExhausted,
                 who + "a model lies on at most " + std::to_string(kMaxServers) + " servers");
  CENTROID_ASSIGN(link, shards_.join(session, tasks, join));
  proto::ServerTerms terms;
  terms.run_id = run_id_;
  terms.lease_ms = static_cast<std::uint32_t>(config_.lease.count());
  terms.credit_bytes = config_.credit_bytes;
  terms.term = leadership_.term;
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
    set_phase(Phase::kWaiting, std::to_string(here) + " of " + std::to_string(config_.servers) +
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
  }
  bool moves = spread_.has_others() && spread_.target != spread_.route.owners;
  if (moves) moves = co_await may_move();
  if (moves) {
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
    CENTROID_CO_TRY(co_await drop_server(i));
    if (!holds_rows(drained->name))
      shards_.dismiss(*drained, Error(ErrorCode::kCancelled, "drained: its chunks have moved"));
    // Rounds behind the newest checkpoint are in its journal, which goes with it.
    if (journal_.is_on() && !checkpointing_ && needs_checkpoint())
      tasks_.spawn(checkpoint_in_background());
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
  spread_.parts.assign(fragments_.count(), {});
  spread_.holders.assign(fragments_.count(), {});
  std::vector<bool> is_here(spread_.route.owners.size());
  for (std::uint32_t number = 0; number < fragments_.count(); ++number) {
    std::vector<bool> holds(spread_.links.size());
    for (const Chunk& chunk : fragments_[number].chunks) {
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
  if (spread_.moving.empty()) store_->place(spread_.is_here);
  co_return Status();
}

/// A server that holds nothing yet.
Task<Status> Cluster::add_server(std::shared_ptr<ShardGroup::Link> link) {
  if (const Status fits = check_told_chunks(config_, store_->plan().chunks().size()); !fits.ok()) {
    shards_.dismiss(*link, fits.error());
    shards_.left(link, fits.error());
    co_return fits;
  }
  const OptimizerConfig& optimizer = config_.optimizer;
  proto::ServerModel model;
  model.chunk_bytes = config_.chunk_bytes;
  model.plan_hash = store_->plan().hash();
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
  model.servers = static_cast<std::uint32_t>(
      std::max<std::uint64_t>(config_.servers, shards_.present().size() + 1));
  model.workers = static_cast<std::uint32_t>(expected_workers());
  model.is_elastic = policy_.is_elastic();
  model.refuses_nonfinite = policy_.nonfinite != NonFinitePolicy::kPropagate;
  model.codec_down = config_.codec_down;
  model.seed = config_.seed;
  model.aggregate = config_.aggregate;
  auto head = proto::encode(model);
  const auto manifest = proto::encode_manifest(store_->plan().manifest());
  const auto taken = co_await shards_.ask(link, ServersKind::kModel, std::move(head), manifest);
  if (!taken.ok()) co_return taken.error();
  link->has_model = true;
  auto links = spread_.links;
  if (links.empty()) links.push_back(nullptr);
  links.push_back(link);
  auto owners = spread_.route.owners;
  if (owners.empty()) owners.assign(store_->plan().chunks().size(), kLeader);
  CENTROID_CO_TRY(co_await adopt_route(std::move(links), std::move(owners)));
  plan_moves();
  proto::ServerState state;
  state.version = store_->version();
  state.optimizer_step = store_->optimizer_step();
  state.round = Round(round_.value - 1);
  auto begin = proto::encode(state);
  const auto begun = co_await shards_.ask(link, ServersKind::kBegin, std::move(begin));
  if (!begun.ok()) co_return begun.error();
  co_return Status();
}

/// A server on which no chunk lies leaves the route.
Task<Status> Cluster::drop_server(std::size_t index) {
  auto links = spread_.links;
  links.erase(links.begin() + static_cast<std::ptrdiff_t>(index));
  auto owners = spread_.route.owners;
  for (std::uint16_t& owner : owners) owner = static_cast<std::uint16_t>(owner - (owner > index));
  log::info("server.dropped", {{"server", spread_.links[index]->name}});
  CENTROID_CO_TRY(co_await adopt_route(std::move(links), std::move(owners)));
  plan_moves();
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
  for (const Chunk& chunk : store_->plan().chunks())
    if (replies_) units.push_back(replies_->unit_of(chunk.id).first.value);
  spread_.target = place(store_->plan(), index.size(), before, units);
  const double uneven = imbalance(store_->plan(), index.size(), spread_.target);
  if (uneven > kMaxImbalance)
    log::warn("placement.uneven",
              {{"servers", index.size()},
               {"max_over_mean", uneven},
               {"why", replies_ ? "codec_down selects within a tensor, which lies on one server: "
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
  auto link = spread_.links[spread_.route.owners[head.chunk.value]];
  if (const auto found = spread_.moving.find(head.chunk);
      found != spread_.moving.end() && !head.frozen)
    link = found->second;
  auto encoded = proto::encode(head);
  auto reply = co_await shards_.ask(link, ServersKind::kFetch, std::move(encoded));
  if (!reply.ok()) co_return std::move(reply).error();
  const std::size_t bytes = store_->plan().chunk(head.chunk).elements * sizeof(float);
  if (reply->payload.size() != bytes)
    co_return Error(ErrorCode::kInvalidArgument, "server '" + link->name + "' sent " +
                                                     std::to_string(reply->payload.size()) +
                                                     " bytes for chunk " + to_string(head.chunk) +
                                                     ", expected " + std::to_string(bytes));
  co_return std::move(reply->payload);
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
  if (attempt_ && !attempt_->closed) close_attempt(proto::Outcome::kAborted, 0, 0, why.message());
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
  for (const auto& [name, link] : shards_.present()) link->has_model = false;
}

/// Wait for the lost server, for so long as the setting says; then place all chunks anew from the
/// newest checkpoint, or from the beginning without one.
Task<Result<bool>> Cluster::recover_servers() {
  const TimePoint limit = *spread_.lost_since + config_.servers_wait;
  if (!shards_.find(spread_.lost) && clock_.now() < limit) {
    set_phase(Phase::kWaiting, "server '" + spread_.lost + "' is gone with its chunks; after " +
                                   std::to_string(config_.servers_wait.count()) +
                                   " ms (servers_wait) the others take them, from the newest "
                                   "checkpoint");
    co_await changed_.wait(limit);
    co_return false;
  }
  while (!links_.empty() || (attempt_ && attempt_.use_count() > 1) || checkpointing_ ||
         spread_.copiers > 0) {
    state_fetched_.notify_all();  // no version is kept for a checkpoint now
    if (!co_await sleep_until(clock_.now() + std::chrono::milliseconds(5))) co_return false;
  }
  attempt_.reset();
  co_await journal_.drop_attempt();
  journal_.stop();  // read, it begins anew behind the rounds that it has
  const Version lost = store_->version();
  decision_.reset();
  aggregator_.reset();  // before the buffers that it holds
  forget_servers();
  machine_ = RoundMachine(policy_);
  staged_.clear();
  late_staged_.clear();
  parts_.clear();
  image_.reset();
  measured_.reset();  // of versions that will come again
  announced_.reset();
  last_written_.reset();
  round_tally_ = epoch_tally_ = {};
  if (!checkpoints_->list(false).empty()) {
    CENTROID_CO_TRY(load_checkpoint());
    CENTROID_CO_TRY(begin_replay());
  } else {
    store_.reset();
    agreed_.reset();
    counted_.clear();
    round_ = Round(1);
    epoch_ = offset_ = steps_before_ = 0;
    returned_.clear();
    if (config_.init != "first-worker") CENTROID_CO_TRY(load_initial_file());
  }
  next_attempt_ = 0;
  await_members_again();
  log::warn("servers.state_restored", {{"lost_version", lost.value},
                                       {"version", store_ ? store_->version().value : 0},
                                       {"round", round_.value},
                                       {"servers", shards_.present().size() + 1}});
  co_return false;
}

// ---- rounds

/// All chunks of the contribution that lie elsewhere have come there, with its weight.
Result<bool> Cluster::is_whole_elsewhere(const Link& link, const proto::PushEnd& end) const {
  if (!spread_.has_others() || end.weight == 0 || is_short(end)) return true;
  const proto::ContributionKey key{link.id, end.generation, end.round, end.attempt};
  for (const ShardGroup::Link* holder :
       spread_.holders[fragments_.turn(store_->optimizer_step())]) {
    const auto found = spread_.whole.find({key, holder});
    if (found == spread_.whole.end()) return false;
    if (found->second.weight != end.weight)
      return Error(ErrorCode::kInvalidArgument,
                   "PushEnd of " + link.join.name + " in round " + to_string(end.round) +
                       " gives weight " + std::to_string(end.weight) + ", its chunks on server '" +
                       holder->name + "' gave " + std::to_string(found->second.weight));
  }
  return true;
}

/// Before the first round, or for one that is gone.
bool Cluster::waits_for_servers() const {
  return spread_.lost_since || replay_ ||
         (!spread_.were_here && config_.servers > 1 && store_ && store_->version().value > 0);
}

/// On which servers a contribution, complete for its worker, is not whole.
std::string Cluster::names_of_missing_holders(const Link& link) const {
  const proto::PushEnd& end = *link.pending_end;
  const proto::ContributionKey key{link.id, end.generation, end.round, end.attempt};
  std::string names;
  for (const ShardGroup::Link* holder : spread_.holders[fragments_.turn(store_->optimizer_step())])
    if (!spread_.whole.contains({key, holder})) names += " '" + holder->name + "'";
  return names;
}

/// Other servers drop what they keep of members that are gone, unless it is to count in a round
/// that is open or follows.
void Cluster::forget_departed() {
  const auto may_count = [this](MemberId id) {
    return std::any_of(late_staged_.begin(), late_staged_.end(),
                       [id](const Part& late) { return late.counts.key.member == id; });
  };
  for (const MemberId id : std::exchange(departed_, {})) {
    if (may_count(id))
      departed_.push_back(id);
    else
      shards_.forget(id, "its leader has given it up or heard that it left");
  }
}

/// With which its chunks came there; 0: none did.
double Cluster::weight_elsewhere(const proto::ContributionKey& key) const {
  if (!spread_.has_others()) return 0;
  for (const ShardGroup::Link* holder : spread_.holders[fragments_.turn(store_->optimizer_step())])
    if (const auto found = spread_.whole.find({key, holder}); found != spread_.whole.end())
      return found->second.weight;
  return 0;
}

void Cluster::whole_elsewhere(const ShardGroup::Link& server, const proto::Whole& whole) {
  spread_.whole[{whole.key, &server}] = whole;
  const auto link = find(whole.key.member);
  if (!link || !link->pending_end) return;
  const proto::PushEnd end = *link->pending_end;
  const Status taken = take_push_end(*link, end);
  if (!taken.ok()) link->tasks->spawn(link->session->goodbye(taken.error()));
}

/// Nothing more of a worker comes to one of the servers: nobody is to wait for its contribution,
/// whatever it says of itself here.
void Cluster::refused_elsewhere(const ShardGroup::Link& server, const proto::Refused& refused) {
  const auto link = find(refused.member);
  const auto is_it = [&](const auto& one) { return one.get() == &server; };
  if (!link || std::ranges::none_of(spread_.links, is_it)) return;
  const Error why(static_cast<ErrorCode>(refused.code),
                  "server '" + server.name + "': " + refused.why);
  if (roster_.lost(link->id, why.to_string())) {
    tell(events_, log::Level::kWarn, "member.lost",
         {{"worker", link->join.name}, {"member", link->id.value}, {"why", why}});
    probe_.member_dead();
  }
  member_gone(link->id, why);
}

/// First phase on the other servers: they sum what the decision names, and make the step unless the
/// norm of all is needed for it. Then their sums of squares go to `squares_`.
Task<Status> Cluster::merge_elsewhere(std::shared_ptr<const RoundDecision> decision) {
  proto::Merge merge;
  merge.round = attempt_->round;
  merge.attempt = attempt_->number;
  merge.version = store_->version();
  merge.total_weight = decision->total_weight;
  merge.wants_norm = config_.optimizer.clip_norm > 0;
  merge.reply_rounds = replies_ ? replies_->rounds() : 0;
  merge.clears_residual = is_residual_cleared();
  for (const MemberId member : attempt_->members)
    if (attempt_->left_out.count(member) == 0) merge.members.push_back(member);
  if (policy_.is_elastic()) {
    for (const Part& counted : parts_) merge.parts.push_back(counted.counts);
    for (const Part& late : late_staged_) merge.keeps.push_back(late.counts.key);
    for (const auto& [id, link] : links_) {
      if (!link->late || !link->late->staged || link->late->outcome) continue;
      const Attempt::Key& key = link->late->key;
      merge.keeps.push_back({id, key.generation, key.round, key.number});
    }
  } else {
    for (const MemberId member : decision->contributors) {
      proto::WeighedContribution part;
      part.key = {member, attempt_->generation, attempt_->round, attempt_->number};
      part.weight = weight_elsewhere(part.key);  // 0: it takes part without a share
      if (part.weight > 0) merge.parts.push_back(part);
    }
  }
  const auto links = spread_.others();
  auto head = proto::encode(merge);
  auto answers = co_await shards_.ask_all(links, ServersKind::kMerge, std::move(head));
  if (!answers.ok()) co_return std::move(answers).error();
  if (!merge.wants_norm) co_return Status();
  for (std::size_t i = 0; i < links.size(); ++i) {
    CENTROID_CO_ASSIGN(const auto reply, proto::decode<proto::MergeReply>((*answers)[i].head));
    std::size_t next = 0;
    for (const Chunk& chunk : fragment().chunks) {
      if (spread_.links[spread_.route.owners[chunk.id.value]] != links[i]) continue;
      if (next == reply.squares.size()) break;
      squares_[chunk.id.value] = reply.squares[next++];
    }
  }
  co_return Status();
}

/// The step that waited for the norm.
Task<Status> Cluster::step_elsewhere(float factor) {
  proto::Step step;
  step.round = attempt_->round;
  step.attempt = attempt_->number;
  step.factor = factor;
  auto head = proto::encode(step);
  const auto done = co_await shards_.ask_all(spread_.others(), ServersKind::kStep, std::move(head));
  if (!done.ok()) co_return done.error();
  co_return Status();
}

Task<void> Cluster::prepare_elsewhere(std::shared_ptr<const RoundDecision> decision, Status* done) {
  *done = co_await merge_elsewhere(std::move(decision));
}

Task<void> Cluster::prepare_elsewhere(float factor, Status* done) {
  *done = co_await step_elsewhere(factor);
}

/// A server was lost before the round could be committed: on none of the others it is.
Task<Status> Cluster::give_up_merge(Error why) {
  log::error("round.merge_failed", {{"round", round_.value}, {"why", why}});
  for (const auto& link : spread_.others())
    if (link->is_gone()) spread_.lost = link->name;
  lose_server();
  co_return Status();
}

bool Cluster::has_lost_server() const {
  const auto others = spread_.others();
  return std::ranges::any_of(others, [](const auto& link) { return link->is_gone(); });
}

/// Second phase: the round is committed here; no other begins before all servers say so.
Task<void> Cluster::commit_elsewhere() {
  proto::ServerState state;
  state.version = store_->version();
  state.optimizer_step = store_->optimizer_step();
  state.round = round_;
  auto head = proto::encode(state);
  const auto done =
      co_await shards_.ask_all(spread_.others(), ServersKind::kCommit, std::move(head));
  // What a lost server has prepared is lost with it: the next look at the servers finds it gone.
  if (!done.ok())
    log::error("round.commit_incomplete", {{"round", round_.value}, {"why", done.error()}});
}

/// What of the present version lies elsewhere. fails aborted: it is not the present one any more.
Task<Status> Cluster::fetch_image(StateImage& image) {
  for (std::size_t plane = 0; plane < image.planes.size(); ++plane)
    for (const Chunk& chunk : store_->plan().chunks()) {
      if (store_->is_here(chunk.id)) continue;
      proto::ServerChunk wanted;
      wanted.version = image.version;
      wanted.plane = static_cast<std::uint8_t>(plane);
      wanted.chunk = chunk.id;
      CENTROID_CO_ASSIGN(const auto values, co_await fetch_chunk(wanted));
      std::memcpy(image.planes[plane].data() + chunk.position, values.data(), values.size());
    }
  co_return Status();
}

}  // namespace centroid::server
