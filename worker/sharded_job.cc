#include "worker/sharded_job.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/memory_limit.h"
#include "common/checkpoint/fault_point.h"
#include "transport/collective/collectives.h"
#include "worker/node/job_memory.h"
#include "worker/parallel/agreement.h"
#include "worker/parallel/regroup.h"

namespace centroid::worker {

using parallel::Notice;
using parallel::ShardedMemory;
using parallel::ShardedOptions;
using transport::Endpoint;

namespace {

/// Whether an operation ended because of another rank.
bool is_loss(const Error& error) {
  return error.code() == ErrorCode::kUnavailable || error.code() == ErrorCode::kDeadlineExceeded ||
         error.code() == ErrorCode::kAborted;
}

std::string text_of(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

/// What all workers of a job need to have in common: it decides what is trained.
std::string settings_of(const WorkerConfig& config, const Model& model, const DataSplit& data) {
  const OptimizerConfig& o = config.optimizer;
  const std::pair<const char*, std::string> all[] = {
      {"--model", model.spec()},
      {"--data (its hash)", std::to_string(data.train.fingerprint())},
      {"--batch", std::to_string(config.batch)},
      {"--seed", std::to_string(config.seed)},
      {"--epochs", std::to_string(config.epochs)},
      {"--rounds", std::to_string(config.rounds)},
      {"--sharding", config.sharded.sharding},
      {"--shard-replicas", config.sharded.replicas},
      {"--parallel", config.sharded.parallel},
      {"--micro-batches", std::to_string(config.sharded.micro_batches)},
      {"--schedule", config.sharded.schedule},
      {"--codec", config.codec},
      {"--codec-down", config.sharded.codec_down},
      {"--optimizer", o.name},
      {"--lr", text_of(o.learning_rate)},
      {"--lr-schedule", o.schedule},
      {"--momentum", text_of(o.momentum)},
      {"--weight-decay", text_of(o.weight_decay)},
      {"--clip-norm", text_of(o.clip_norm)},
      {"--join-timeout (ms)", std::to_string(config.join_timeout.count())},
      {"--checkpoint.dir", config.checkpoint.dir.empty() ? "not set" : "set"},
      {"--checkpoint.every-rounds", std::to_string(config.checkpoint.every_rounds)},
  };
  std::string text;
  for (const auto& [name, value] : all)
    text += (text.empty() ? "" : "\t") + std::string(name) + "=" + value;
  return text;
}

}  // namespace

Result<std::unique_ptr<client::PeerGroup>> join_ranks(const WorkerConfig& config,
                                                      bool may_be_newcomer) {
  client::PeerOptions options;
  options.rank = static_cast<std::uint32_t>(config.sharded.rank);
  options.world = static_cast<std::uint32_t>(config.sharded.world);
  options.token = config.token;
  options.timeout = config.join_timeout;
  options.may_be_newcomer = may_be_newcomer;
  return client::PeerGroup::join(options, config.sharded.rendezvous);
}

Status check_same_settings(const collective::Group& group, const WorkerConfig& config,
                           const Model& model, const DataSplit& data) {
  Notice own;
  own.text = settings_of(config, model, data);
  CENTROID_ASSIGN(const auto all, parallel::exchange(group, own, config.join_timeout));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const std::string other = client::difference(all[0].text, all[rank].text);
    if (!other.empty())
      return Error(ErrorCode::kInvalidArgument, "rank " + std::to_string(rank) + ": " + other);
  }
  return {};
}

Result<ShardedOptions> sharded_options(const WorkerConfig& config, std::uint32_t world) {
  ShardedOptions options;
  auto sharding = parallel::Sharding::parse(config.sharded.sharding, world);
  if (!sharding.ok() && world != config.sharded.world)  // hybrid:K of a number that K divides not
    sharding = parallel::Sharding::parse("full", world);
  CENTROID_ASSIGN(options.sharding, std::move(sharding));
  options.optimizer = config.optimizer;
  CENTROID_ASSIGN(options.codec, parallel::PartCodec::parse("codec", config.codec));
  CENTROID_ASSIGN(options.codec_down,
                  parallel::PartCodec::parse("codec_down", config.sharded.codec_down));
  const std::string& replicas = config.sharded.replicas;
  options.replicas = (replicas == "1" && world > 1) || (replicas == "auto" && world > 2) ? 1 : 0;
  return options;
}

Result<ShardedMemory> check_sharded_memory(const WorkerConfig& config, const Model& model,
                                           const DataSplit& data, const ShardedOptions& options,
                                           std::uint32_t world) {
  CENTROID_ASSIGN(const ShardedMemory need, job_memory(model, options, world, config.batch, data));
  CENTROID_TRY(check_limit(config, need));
  return need;
}

Status check_limit(const WorkerConfig& config, const ShardedMemory& need) {
  const MemoryLimit limit = memory_limit(config.memory_limit);
  const std::uint64_t all = need.total();
  if (all <= limit.bytes) return {};
  const auto text = [](std::uint64_t bytes) { return std::to_string(bytes); };
  return Error(ErrorCode::kFailedPrecondition,
               "this rank needs " + text(all) + " bytes, " + limit.source + " allows " +
                   text(limit.bytes) + ": " + text(need.parameters) + " for parameters, " +
                   text(need.gradients) + " for gradients, " + text(need.state) +
                   " for the optimizer, " + text(need.other) +
                   " for data, batch and activations. Start more ranks, or lower --batch; "
                   "--sharding full with --shard-replicas 0 needs the least");
}

Status ShardedJob::begin() {
  const auto world = static_cast<std::uint32_t>(config_.sharded.world);
  CENTROID_ASSIGN(options_, sharded_options(config_, world));
  CENTROID_ASSIGN(planned_, check_sharded_memory(config_, model_, data_, options_, world));
  training_.batch = config_.batch;
  training_.seed = config_.seed;
  training_.epochs = config_.epochs;
  training_.steps = config_.rounds;
  const Deadline deadline = centroid::now() + config_.join_timeout;
  for (Endpoint leader;;) {
    meeting_.reset();  // members must not take the place of an earlier try for a live worker's
    CENTROID_ASSIGN(peers_, join_ranks(config_, true));
    const Status opened = open_meeting();
    if (peers_->is_connected()) return begin_with_others(opened);
    CENTROID_TRY(opened);
    if (leader != peers_->running())
      log::info("sharded.newcomer_waiting", {{"leader", peers_->running().to_string()}});
    leader = peers_->running();
    auto members = meeting_->join(leader, peers_->address(), deadline);
    if (members.ok()) return enter(std::move(*members));
    const bool is_elsewhere = members.error().code() == ErrorCode::kUnavailable;
    if (!is_elsewhere || centroid::now() >= deadline) return std::move(members).error();
  }
}

Status ShardedJob::open_meeting() {
  client::MeetingOptions options;
  options.token = config_.token;
  options.patience = config_.join_timeout;
  options.settings = settings_of(config_, model_, data_);
  CENTROID_ASSIGN(options.rendezvous, Endpoint::parse(config_.sharded.rendezvous));
  options.is_host = config_.sharded.rank == 0;
  CENTROID_ASSIGN(meeting_, client::Meeting::open(peers_->host(), std::move(options)));
  return {};
}

/// `opened`: whether this rank has a place for meetings.
Status ShardedJob::begin_with_others(const Status& opened) {
  Notice own;
  own.status = opened;
  if (opened.ok()) own.text = meeting_->place().to_string() + " " + peers_->address();
  CENTROID_ASSIGN(const auto all, parallel::exchange(group(), own, config_.join_timeout));
  CENTROID_TRY(parallel::first_failure(all));
  CENTROID_TRY(check_same_settings(group(), config_, model_, data_));
  members_.job = peers_->job();
  members_.generation = group().generation();
  members_.next = group().world();
  for (std::uint32_t rank = 0; rank < all.size(); ++rank) {
    const std::size_t end = all[rank].text.find(' ');
    client::Member& member = members_.members.emplace_back();
    member.number = rank;
    CENTROID_ASSIGN(member.place, Endpoint::parse(all[rank].text.substr(0, end)));
    member.address = all[rank].text.substr(end + 1);
  }
  meeting_->begin(members_);
  CENTROID_TRY(open_checkpoints({}));
  if (checkpoints_ && checkpoints_->resumes()) {
    CENTROID_TRY(restore());
    return show(replica_->parameters());
  }
  CENTROID_ASSIGN(replica_, ShardedReplica::make(group(), model_, config_.seed, options_));
  replica_world_ = group().world();
  replica_generation_ = complete_generation_ = group().generation();
  return show(replica_->parameters());
}

/// Exchange with the others what each has.
Status ShardedJob::show(const parallel::ShardedParameters& parameters) {
  GroupShape shape;
  CENTROID_ASSIGN(shape.mesh, parallel::Mesh::parse("", group().world()));
  shape.sharding = options_.sharding.text();
  for (const client::Member& one : members_.members) shape.numbers.push_back(one.number);
  shape.own = part_of(parameters);
  return monitor_.begin_group(group(), std::move(shape));
}

Status ShardedJob::open_checkpoints(const std::string& run) {
  if (config_.checkpoint.dir.empty()) return {};
  CENTROID_ASSIGN(checkpoints_, JobCheckpoints::open(config_, model_, data_, group(), run));
  return {};
}

Status ShardedJob::train(const ShardedObserver& observer) {
  while (true) {
    Result<bool> changes = true;
    monitor_.enter(ShardedMonitor::Phase::kTraining);
    if (Status trained = train_group(observer); !trained.ok())
      changes = std::move(trained).error();
    else if (summary_.is_paused)
      changes = has_room_for_newcomers();
    else
      break;
    using Newcomers = client::Meeting::Newcomers;
    const Newcomers newcomers = changes.ok() ? Newcomers::kTake : Newcomers::kKeep;
    if (!changes.ok()) {
      if (!survives(changes.error())) return std::move(changes).error();
      log::warn("sharded.rank_lost", {{"step", summary_.steps}, {"error", changes.error()}});
    } else if (!*changes) {
      continue;
    }
    monitor_.enter(ShardedMonitor::Phase::kRegrouping);
    CENTROID_ASSIGN(auto members, meeting_->meet(newcomers));
    CENTROID_TRY(enter(std::move(members)));
  }
  meeting_->end();
  return {};
}

Status ShardedJob::train_group(const ShardedObserver& observer) {
  ShardedObserver own = observer;
  own.stepped = [&](const ShardedSummary& now, const StepTimes& times) {
    if (observer.stepped) observer.stepped(now, times);
    if (checkpoints_) checkpoints_->stepped(replica_->parameters(), now, planned_);
  };
  own.has_newcomers = [&] { return meeting_->newcomers() > 0; };
  const ShardedObserver seen = monitor_.observe(own, *replica_, group());
  CENTROID_TRY(train_sharded(*replica_, group(), data_, training_, summary_, seen));
  if (checkpoints_ && !summary_.is_paused) checkpoints_->finish(replica_->parameters(), summary_);
  return {};
}

bool ShardedJob::survives(const Error& error) const {
  return !summary_.is_halted && is_loss(error) && (options_.replicas > 0 || checkpoints_);
}

Result<ShardedMemory> ShardedJob::plan(std::uint32_t world) const {
  CENTROID_ASSIGN(const ShardedOptions options, sharded_options(config_, world));
  return check_sharded_memory(config_, model_, data_, options, world);
}

/// Whether newcomers wait and every rank has memory for its part of the group with them. If one has
/// none they are refused.
Result<bool> ShardedJob::has_room_for_newcomers() {
  Notice own;
  own.numbers[0] = meeting_->newcomers();
  CENTROID_ASSIGN(const Notice leader, parallel::announce(group(), own, config_.join_timeout));
  if (leader.numbers[0] == 0) return false;  // they have left
  const auto memory = plan(group().world() + static_cast<std::uint32_t>(leader.numbers[0]));
  if (!memory.ok()) own.status = memory.error();
  CENTROID_ASSIGN(const auto all, parallel::exchange(group(), own, config_.join_timeout));
  const Status fits = parallel::first_failure(all);
  if (fits.ok()) return true;
  log::warn("sharded.newcomers_refused", {{"error", fits.error()}});
  meeting_->refuse_newcomers("with one more worker " + fits.error().message());
  return false;
}

/// Be in the group of these members, with a replica; also if more are lost meanwhile. When two
/// tries fail, newcomers leave and the others go on without them.
Status ShardedJob::enter(client::Membership next) {
  constexpr int kTries = 6;
  const auto begin = std::chrono::steady_clock::now();
  const client::Membership before = members_;
  for (int tries = 1;; ++tries) {
    members_ = std::move(next);
    std::vector<std::string> addresses;
    for (const client::Member& one : members_.members) addresses.push_back(one.address);
    const Status joined = peers_->regroup(members_.job, addresses, members_.generation);
    const Result<const char*> from =
        joined.ok() ? take_over() : Result<const char*>(joined.error());
    if (from.ok()) {
      const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
      tell_change(before, *from, time.count());
      return {};
    }
    const bool is_lost = is_loss(from.error()) && (!joined.ok() || group().culprit());
    const bool may_do_without = !before.members.empty() && members_.next > before.next;
    if (tries == kTries || (!is_lost && (tries > 1 || !may_do_without))) return from.error();
    log::warn("sharded.regroup_failed", {{"generation", members_.generation},
                                         {"world", addresses.size()},
                                         {"error", from.error()}});
    if (!is_lost && peers_->is_connected()) group().abort(from.error());
    using Newcomers = client::Meeting::Newcomers;
    const Newcomers newcomers = tries > 1 ? Newcomers::kRefuse : Newcomers::kKeep;
    CENTROID_ASSIGN(next, meeting_->meet(newcomers));
  }
}

void ShardedJob::tell_change(const client::Membership& before, const char* from, double seconds) {
  const auto less = [](const client::Membership& all, const client::Membership& those) {
    std::vector<std::uint32_t> numbers;
    for (const client::Member& one : all.members)
      if (!those.has(one.number)) numbers.push_back(one.number);
    return numbers;
  };
  const auto listed = [](const std::vector<std::uint32_t>& numbers) {
    std::string text;
    for (const std::uint32_t one : numbers)
      text += (text.empty() ? "" : ", ") + std::to_string(one);
    return text;
  };
  const bool is_newcomer = before.members.empty();
  GroupChange change;
  change.generation = members_.generation;
  change.step = summary_.steps;
  change.world = group().world();
  change.lost = less(before, members_);
  if (!is_newcomer) change.joined = less(members_, before);
  change.from = from;
  change.seconds = seconds;
  const log::Fields fields{{"lost", listed(change.lost)},
                           {"joined", listed(change.joined)},
                           {"generation", change.generation},
                           {"rank", group().rank()},
                           {"world", change.world},
                           {"sharding", options_.sharding.text()},
                           {"step", change.step},
                           {"from", from},
                           {"seconds", seconds}};
  if (is_newcomer)
    log::info("sharded.joined", fields);
  else if (change.lost.empty())
    log::info("sharded.regrouped", fields);
  else
    log::warn("sharded.regrouped", fields);
  monitor_.changed(std::move(change));
}

/// The parameters that this rank has of a group; nullptr: none.
parallel::ShardedParameters* ShardedJob::earlier(std::uint64_t generation) {
  if (replica_ && replica_generation_ == generation) return &replica_->parameters();
  return made_ && made_generation_ == generation ? made_.get() : nullptr;
}

/// Make the replica of this group, from "memory" or "checkpoint".
Result<const char*> ShardedJob::take_over() {
  if (checkpoints_) run_ = checkpoints_->run();
  if (run_.empty()) run_ = members_.job;  // a newcomer, whose first group did not last
  checkpoints_.reset();                   // ends the write in progress
  fault::point("sharded.grouped");
  const std::uint32_t world = group().world();
  Notice own;
  own.numbers[0] = complete_generation_;
  CENTROID_ASSIGN(options_, sharded_options(config_, world));
  const auto memory = plan(world);
  if (memory.ok())
    planned_ = *memory;
  else
    own.status = memory.error();
  CENTROID_ASSIGN(const auto all, parallel::exchange(group(), own, config_.join_timeout));
  CENTROID_TRY(parallel::first_failure(all));
  CENTROID_TRY(open_checkpoints(run_));
  CENTROID_ASSIGN(auto shapes, parameter_shapes(model_));
  // The newest group that was complete on some rank, then all its ranks have its parameters.
  const auto newest =
      std::ranges::max_element(all, {}, [](const Notice& notice) { return notice.numbers[0]; });
  parallel::ShardedParameters* const old = earlier(newest->numbers[0]);
  complete_generation_ = old ? newest->numbers[0] : 0;
  // No more than one division beside the new one.
  if (!replica_ || old != &replica_->parameters()) replica_.reset();
  if (old != made_.get()) made_.reset();
  auto made = parallel::regroup(group(), std::move(shapes), options_, old);
  if (!made.ok()) {
    if (group().culprit()) return made.error();  // another loss
    if (!checkpoints_)
      return std::move(made).error().with_context("there are no checkpoints (--checkpoint.dir)");
    replica_.reset();
    made_.reset();
    CENTROID_TRY(restore());
    CENTROID_TRY(show(replica_->parameters()));
    CENTROID_TRY(collective::barrier(group()));
    meeting_->complete();
    return "checkpoint";
  }
  made_ = std::move(*made);
  made_generation_ = group().generation();
  fault::point("sharded.divided");
  CENTROID_TRY(share_position(static_cast<std::uint32_t>(newest - all.begin())));
  CENTROID_TRY(show(*made_));
  CENTROID_TRY(collective::barrier(group()));  // every rank has its part now
  meeting_->complete();
  replica_ = std::make_unique<ShardedReplica>(group(), model_, std::move(made_));
  replica_world_ = world;
  replica_generation_ = complete_generation_ = made_generation_;
  return "memory";
}

/// Be where that rank is in the data, at the step of the parameters that were made.
Status ShardedJob::share_position(std::uint32_t from) {
  ShardedSummary& s = summary_;
  if (group().rank() == from) {
    // The last step may have ended without its loss being known.
    while (s.steps < made_->steps())
      count_step(s, next_samples(s, training_, data_.train.samples, replica_world_),
                 data_.train.samples);
  }
  std::array<std::uint64_t*, 4> counts = {&s.steps, &s.epochs, &s.samples, &s.offset};
  std::array<double*, 5> values = {&s.loss, &s.accuracy, &s.gradient_norm, &s.test_loss,
                                   &s.test_accuracy};
  std::array<double, 9> all;
  for (std::size_t i = 0; i < counts.size(); ++i) all[i] = static_cast<double>(*counts[i]);
  for (std::size_t i = 0; i < values.size(); ++i) all[counts.size() + i] = *values[i];
  collective::CallOptions call;
  call.timeout = config_.join_timeout;
  CENTROID_TRY(collective::broadcast(group(), std::span<double>(all), from, call));
  for (std::size_t i = 0; i < counts.size(); ++i) *counts[i] = static_cast<std::uint64_t>(all[i]);
  for (std::size_t i = 0; i < values.size(); ++i) *values[i] = all[counts.size() + i];
  return {};
}

Status ShardedJob::restore() {
  CENTROID_ASSIGN(auto restored, checkpoints_->restore(options_, summary_));
  replica_ = std::make_unique<ShardedReplica>(group(), model_, std::move(restored));
  replica_world_ = group().world();
  replica_generation_ = complete_generation_ = group().generation();
  return {};
}

}  // namespace centroid::worker
