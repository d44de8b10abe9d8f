#include "worker/sharded_job.h"

#include <algorithm>
#include <chrono>

#include "common/base/log.h"
#include "common/base/memory_limit.h"
#include "common/base/random.h"
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

}  // namespace

Result<std::unique_ptr<client::PeerGroup>> join_ranks(const WorkerConfig& config) {
  client::PeerOptions options;
  options.rank = static_cast<std::uint32_t>(config.sharded.rank);
  options.world = static_cast<std::uint32_t>(config.sharded.world);
  options.token = config.token;
  options.timeout = config.join_timeout;
  return client::PeerGroup::join(options, config.sharded.rendezvous);
}

Result<ShardedOptions> sharded_options(const WorkerConfig& config, std::uint32_t world) {
  ShardedOptions options;
  auto sharding = parallel::Sharding::parse(config.sharded.sharding, world);
  if (!sharding.ok() && world < config.sharded.world)  // hybrid:K of a number that K divides not
    sharding = parallel::Sharding::parse("full", world);
  CENTROID_ASSIGN(options.sharding, std::move(sharding));
  options.optimizer = config.optimizer;
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
  CENTROID_ASSIGN(peers_, join_ranks(config_));
  CENTROID_TRY(open_meeting());
  CENTROID_TRY(open_checkpoints({}));
  if (checkpoints_ && checkpoints_->resumes()) return restore();
  CENTROID_ASSIGN(replica_, ShardedReplica::make(group(), model_, config_.seed, options_));
  replica_world_ = group().world();
  return {};
}

/// Open the place of this rank, and learn those of the others.
Status ShardedJob::open_meeting() {
  Notice own;
  own.text = std::to_string(random_seed());
  CENTROID_ASSIGN(const Notice job, parallel::announce(group(), own, config_.join_timeout));
  client::MeetingOptions options;
  options.rank = group().rank();
  options.job = job.text;
  options.token = config_.token;
  options.patience = config_.join_timeout;
  auto opened = client::Meeting::open(peers_->host(), options);
  if (opened.ok()) {
    meeting_ = std::move(*opened);
    own.text = meeting_->place().to_string();
  } else {
    own.status = opened.error();
  }
  CENTROID_ASSIGN(const auto all, parallel::exchange(group(), own, config_.join_timeout));
  CENTROID_TRY(parallel::first_failure(all));
  for (std::uint32_t rank = 0; rank < all.size(); ++rank) {
    CENTROID_ASSIGN(places_[rank], Endpoint::parse(all[rank].text));
  }
  return {};
}

Status ShardedJob::open_checkpoints(const std::string& run) {
  if (config_.checkpoint.dir.empty()) return {};
  CENTROID_ASSIGN(checkpoints_, JobCheckpoints::open(config_, model_, data_, group(), run));
  return {};
}

Status ShardedJob::train(const ShardedObserver& observer) {
  while (true) {
    Status result = train_group(observer);
    if (result.ok() || !survives(result.error())) return result;
    CENTROID_TRY(regroup(result.error()));
  }
}

Status ShardedJob::train_group(const ShardedObserver& observer) {
  ShardedObserver own = observer;
  own.stepped = [&](const ShardedSummary& now) {
    if (observer.stepped) observer.stepped(now);
    if (checkpoints_) checkpoints_->stepped(replica_->parameters(), now, planned_);
  };
  CENTROID_TRY(train_sharded(*replica_, group(), data_, training_, summary_, own));
  if (checkpoints_) checkpoints_->finish(replica_->parameters(), summary_);
  return {};
}

bool ShardedJob::survives(const Error& error) const {
  return !summary_.is_halted && is_loss(error) && (options_.replicas > 0 || checkpoints_);
}

/// Go on with those that are left; also if more are lost meanwhile.
Status ShardedJob::regroup(const Error& cause) {
  const auto begin = std::chrono::steady_clock::now();
  log::warn("sharded.rank_lost", {{"step", summary_.steps}, {"error", cause}});
  const auto before = places_;
  while (true) {
    CENTROID_ASSIGN(const std::vector<std::uint32_t> ranks, meet());
    const Status joined = peers_->regroup(ranks, generation_);
    const Result<const char*> from =
        joined.ok() ? take_over() : Result<const char*>(joined.error());
    if (!from.ok() && is_loss(from.error()) && group().culprit()) continue;
    if (!from.ok()) return from.error();
    std::string lost;
    for (const auto& [rank, place] : before)
      if (!places_.contains(rank)) lost += (lost.empty() ? "" : ", ") + std::to_string(rank);
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    log::warn("sharded.regrouped", {{"lost", lost},
                                    {"rank", group().rank()},
                                    {"world", group().world()},
                                    {"sharding", options_.sharding.text()},
                                    {"step", summary_.steps},
                                    {"from", *from},
                                    {"seconds", time.count()}});
    return {};
  }
}

/// The ranks of the group that are left.
Result<std::vector<std::uint32_t>> ShardedJob::meet() {
  CENTROID_ASSIGN(const client::Survivors left, meeting_->meet(places_, generation_));
  std::vector<std::uint32_t> ranks;
  std::uint32_t index = 0;
  std::map<std::uint32_t, Endpoint> places;
  for (const auto& [rank, place] : places_) {
    if (std::ranges::find(left.ranks, rank) != left.ranks.end()) {
      ranks.push_back(index);
      places[rank] = place;
    }
    ++index;
  }
  places_ = std::move(places);
  generation_ = left.generation;
  return ranks;
}

/// Make the replica of this group, from "memory" or "checkpoint".
Result<const char*> ShardedJob::take_over() {
  const std::string run = checkpoints_ ? checkpoints_->run() : "";
  checkpoints_.reset();                                          // ends the write in progress
  if (replica_) replica_->parameters().buffers().drop_spares();  // room for the new shards
  const std::uint32_t world = group().world();
  Notice own;
  CENTROID_ASSIGN(options_, sharded_options(config_, world));
  const auto memory = check_sharded_memory(config_, model_, data_, options_, world);
  if (memory.ok())
    planned_ = *memory;
  else
    own.status = memory.error();
  CENTROID_ASSIGN(const auto all, parallel::exchange(group(), own, config_.join_timeout));
  CENTROID_TRY(parallel::first_failure(all));
  CENTROID_TRY(open_checkpoints(run));
  CENTROID_ASSIGN(auto shapes, parameter_shapes(model_));
  parallel::ShardedParameters* const old = replica_ ? &replica_->parameters() : nullptr;
  auto made = parallel::regroup(group(), std::move(shapes), options_, old);
  if (made.ok()) {
    // The last step may have ended without its loss being known.
    while (summary_.steps < (*made)->steps())
      count_step(summary_, next_samples(summary_, training_, data_.train.samples, replica_world_),
                 data_.train.samples);
    replica_ = std::make_unique<ShardedReplica>(group(), model_, std::move(*made));
    replica_world_ = world;
    return "memory";
  }
  if (group().culprit()) return made.error();  // another loss
  if (!checkpoints_)
    return std::move(made).error().with_context("there are no checkpoints (--checkpoint.dir)");
  replica_.reset();
  CENTROID_TRY(restore());
  return "checkpoint";
}

Status ShardedJob::restore() {
  CENTROID_ASSIGN(auto restored, checkpoints_->restore(options_, summary_));
  replica_ = std::make_unique<ShardedReplica>(group(), model_, std::move(restored));
  replica_world_ = group().world();
  return {};
}

}  // namespace centroid::worker
