#include "worker/sharded_job.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "common/checkpoint/fault_point.h"
#include "common/optim/optimizer_fields.h"
#include "transport/collective/collectives.h"
#include "worker/sharded_save.h"
#include "worker/tls_layer.h"

namespace centroid::worker {

using parallel::Notice;

namespace {

/// What all workers of a job need to have in common: it decides what is trained.
std::string settings_of(const WorkerConfig& config, const Model& model, const DataSplit& data) {
  std::vector<std::pair<std::string, std::string>> all = {
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
      {"--join-timeout (ms)", std::to_string(config.join_timeout.count())},
      {"--checkpoint.dir", config.checkpoint.dir.empty() ? "not set" : "set"},
      {"--checkpoint.every-rounds", std::to_string(config.checkpoint.every_rounds)},
  };
  for (auto& [name, value] : optimizer_values(config.optimizer)) {
    std::ranges::replace(name, '_', '-');
    all.emplace_back("--" + name, std::move(value));
  }
  std::string text;
  for (const auto& [name, value] : all) text += (text.empty() ? "" : "\t") + name + "=" + value;
  return text;
}

Result<client::JobGroupOptions> group_options(const WorkerConfig& config, const Model& model,
                                              const DataSplit& data) {
  client::JobGroupOptions out;
  CENTROID_ASSIGN(out.peers.layer, tls_layer(config, true));
  out.peers.shared_memory = config.peer.shared_memory;
  out.peers.rank = static_cast<std::uint32_t>(config.sharded.rank);
  out.peers.world = static_cast<std::uint32_t>(config.sharded.world);
  out.peers.token = config.token;
  out.peers.timeout = config.join_timeout;
  out.rendezvous = config.sharded.rendezvous;
  out.settings = settings_of(config, model, data);
  return out;
}

}  // namespace

Status ShardedJob::begin() {
  CENTROID_TRY(division_.check());
  training_.batch = config_.batch;
  training_.seed = config_.seed;
  training_.epochs = config_.epochs;
  training_.steps = config_.rounds;
  CENTROID_ASSIGN(auto options, group_options(config_, model_, data_));
  auto joined = client::JobGroup::join(std::move(options));
  if (!joined.ok()) {
    const Error& error = joined.error();
    // Those that do not come may have ended with the job. Other reasons are this worker's.
    is_over_ = client::is_loss(error) && JobCheckpoints::show_the_goal(config_, model_);
    if (is_over_) log::warn("sharded.not_joined", {{"error", error}});
    return is_over_ ? Status() : Status(error);
  }
  ranks_ = std::move(*joined);
  is_over_ = ranks_->is_over();
  if (is_over_) return {};
  if (ranks_->is_newcomer()) return regroup(client::Meeting::Newcomers::kTake);
  return explain(begin_with_others());
}

/// Rank 0 may have a file for the model, which it writes behind hours of training.
Status ShardedJob::check_save() const {
  const std::filesystem::path path = config_.sharded.save;
  Notice own;
  if (group().rank() == 0 && !path.empty()) {
    own.status = check_unwritten(path);
    if (!own.status.ok()) own.status = own.status.error().with_context("--save " + path.string());
  }
  CENTROID_ASSIGN(const Notice first, parallel::announce(group(), own, patience()));
  return first.status;
}

Status ShardedJob::begin_with_others() {
  CENTROID_TRY(check_save());
  CENTROID_TRY(division_.measure(group()));
  CENTROID_TRY(division_.divide(group()));
  CENTROID_ASSIGN(checkpoints_, division_.open_checkpoints({}));
  if (checkpoints_ && checkpoints_->resumes()) {
    CENTROID_TRY(restore());
    go_on();
  } else {
    CENTROID_ASSIGN(MadeReplica made, division_.begin());
    generations_.prepare(held(std::move(made.parameters)));
    generations_.complete();
    replica_ = std::move(made.replica);
  }
  return show(parameters());
}

/// Exchange with the others what each has.
Status ShardedJob::show(const parallel::ShardedParameters* parameters) {
  GroupShape shape = division_.shape(parameters);
  for (const client::Member& one : ranks_->members().members) shape.numbers.push_back(one.number);
  return monitor_.begin_group(group(), std::move(shape));
}

Status ShardedJob::train(const ShardedObserver& observer) {
  using Newcomers = client::Meeting::Newcomers;
  using Phase = ShardedMonitor::Phase;
  while (true) {
    Result<bool> changes = true;
    monitor_.enter(division_.waits() ? Phase::kWaiting : Phase::kTraining);
    if (Status trained = train_group(observer); !trained.ok())
      changes = std::move(trained).error();
    else if (summary_.is_paused)
      changes = has_room_for_newcomers();
    else
      break;
    if (changes.ok() && !*changes) continue;
    const std::string lost = lost_rank();
    if (!changes.ok()) {
      if (!survives(changes.error())) return explain(changes.error());
      log::warn("sharded.rank_lost", {{"step", summary_.steps}, {"error", changes.error()}});
    }
    monitor_.enter(Phase::kRegrouping);
    Status regrouped = regroup(changes.ok() ? Newcomers::kTake : Newcomers::kKeep);
    if (!regrouped.ok() && !lost.empty()) return regrouped.error().with_context(lost);
    CENTROID_TRY(regrouped);
  }
  if (kept_.ok()) ranks_->meeting().end();
  return {};
}

Status ShardedJob::train_group(const ShardedObserver& observer) {
  ShardedObserver own = observer;
  kept_ = {};
  own.stepped = [&](const ShardedSummary& now, const StepTimes& times) {
    if (observer.stepped) observer.stepped(now, times);
    if (checkpoints_) checkpoints_->stepped(*parameters(), now, division_.planned());
  };
  own.is_stopping = [&] { return stops_ || (observer.is_stopping && observer.is_stopping()); };
  own.has_newcomers = [&] { return ranks_->meeting().newcomers() > 0; };
  const ShardedObserver seen = monitor_.observe(own, *replica_, group());
  Status trained = train_sharded(*replica_, group(), data_, training_, summary_, seen);
  stops_ = stops_ || summary_.is_stopped;
  if (trained.ok() && checkpoints_ && !summary_.is_paused) {
    kept_ = checkpoints_->finish(*parameters(), summary_);
    // Those that are left write it. A disk's error may look like a loss.
    if (!kept_.ok() && client::is_loss(kept_.error()) && group().culprit()) trained = kept_;
  }
  if (!trained.ok()) {
    // Some may not be in the groups that failed. A halt every rank finds by itself.
    if (!summary_.is_halted) {
      group().abort(trained.error());
      if (checkpoints_) checkpoints_->abort(trained.error());
    }
    return trained;
  }
  return {};
}

/// With parts the survivors find out whether they have all of them.
bool ShardedJob::survives(const Error& error) const {
  return !summary_.is_halted && client::is_loss(error) &&
         (division_.has_parts() || division_.has_copies() || checkpoints_);
}

std::string ShardedJob::lost_rank() const {
  if (!division_.has_parts() || !group().culprit()) return "";
  return division_.place_of(*group().culprit()) + ", was lost; start all ranks again, " +
         (config_.checkpoint.dir.empty() ? "from the beginning"
                                         : "with --resume, to go on from the newest checkpoint");
}

Status ShardedJob::explain(const Status& result) const {
  const std::string lost = result.ok() ? "" : lost_rank();
  return lost.empty() ? result : Status(result.error().with_context(lost));
}

/// Whether newcomers wait and every rank has memory for its part of the group with them. If one has
/// none they are refused.
Result<bool> ShardedJob::has_room_for_newcomers() {
  Notice own;
  own.numbers[0] = ranks_->meeting().newcomers();
  CENTROID_ASSIGN(const Notice leader, parallel::announce(group(), own, patience()));
  if (leader.numbers[0] == 0) return false;  // they have left
  // Until all have their new shards they keep the present ones.
  const auto memory =
      division_.plan(group().rank(),
                     group().world() + static_cast<std::uint32_t>(leader.numbers[0]), parameters());
  if (!memory.ok()) own.status = memory.error();
  CENTROID_ASSIGN(const auto all, parallel::exchange(group(), own, patience()));
  const Status fits = parallel::first_failure(all);
  if (fits.ok()) return true;
  log::warn("sharded.newcomers_refused", {{"error", fits.error()}});
  ranks_->meeting().refuse_newcomers("with one more worker " + fits.error().message());
  return false;
}

/// Be in the next group, with a replica.
Status ShardedJob::regroup(client::Meeting::Newcomers newcomers) {
  const auto begin = std::chrono::steady_clock::now();
  client::Membership before;
  if (!ranks_->is_newcomer()) before = ranks_->members();
  bool is_from_memory = false;
  CENTROID_TRY(ranks_->regroup(newcomers, [&] { return take_over(is_from_memory); }));
  go_on();
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  tell_change(before, is_from_memory ? "memory" : "checkpoint", time.count());
  return {};
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
  const client::Membership& now = ranks_->members();
  change.generation = now.generation;
  change.step = summary_.steps;
  change.world = group().world();
  change.lost = less(before, now);
  if (!is_newcomer) change.joined = less(now, before);
  change.from = from;
  change.seconds = seconds;
  const log::Fields fields{{"lost", listed(change.lost)},
                           {"joined", listed(change.joined)},
                           {"generation", change.generation},
                           {"rank", group().rank()},
                           {"world", change.world},
                           {"mesh", division_.mesh().text()},
                           {"sharding", division_.sharding()},
                           {"step", change.step},
                           {"from", from},
                           {"seconds", seconds}};
  if (is_newcomer)
    log::info("sharded.joined", fields);
  else if (change.lost.empty())
    log::info("sharded.regrouped", fields);
  else
    log::warn("sharded.regrouped", fields);
  if (division_.waits())
    log::info("sharded.waiting", {{"for", division_.waiting()}, {"mesh", division_.mesh().text()}});
  monitor_.changed(std::move(change));
}

/// Go on in the group of which each rank has its part now.
void ShardedJob::go_on() {
  generations_.complete();
  replica_ = division_.make(generations_.present().parameters);
}

/// Of an operation before which others may use their disks.
std::chrono::milliseconds ShardedJob::patience() const {
  if (division_.waits()) return kIdlePatience;
  if (config_.checkpoint.dir.empty()) return config_.join_timeout;
  return std::max(config_.join_timeout, parallel::ShardedCheckpointOptions().timeout);
}

/// Also a rank that waits knows that a group is complete.
parallel::Held ShardedJob::held(std::shared_ptr<parallel::ShardedParameters> parameters) const {
  return {group().generation(), std::move(parameters), division_.portion(), division_.data_world()};
}

/// Make this rank's part of this group, from memory or a checkpoint.
Status ShardedJob::take_over(bool& is_from_memory) {
  if (checkpoints_) run_ = checkpoints_->run();
  checkpoints_.reset();  // ends the write in progress
  fault::point("sharded.grouped");
  CENTROID_ASSIGN(const parallel::Origin origin,
                  parallel::find_origin(group(), generations_, run_, patience()));
  run_ = origin.run.empty() ? ranks_->members().job : origin.run;
  CENTROID_TRY(divide(origin.rank));
  // No more than one division beside the new one.
  if (generations_.present().generation != origin.generation) replica_.reset();
  generations_.go_back(origin.generation);
  auto made = division_.regroup(group(), generations_.present().earlier());
  is_from_memory = made.ok();
  if (!made.ok()) {
    if (group().culprit()) return made.error();  // another loss
    if (config_.checkpoint.dir.empty())
      return std::move(made).error().with_context("there are no checkpoints (--checkpoint.dir)");
    return take_from_checkpoint();
  }
  generations_.prepare(held(std::move(made->parameters)));
  fault::point("sharded.divided");
  CENTROID_TRY(share_position(origin.rank, made->step, generations_.present().data_world));
  return show(generations_.next().parameters.get());
}

/// Divide the job among this group as rank `from` would, if each has the memory for its part.
Status ShardedJob::divide(std::uint32_t from) {
  CENTROID_TRY(division_.share_costs(group(), from));
  const auto memory = division_.plan(group().rank(), group().world());
  Notice own;
  if (!memory.ok()) own.status = memory.error();
  CENTROID_ASSIGN(const auto all, parallel::exchange(group(), own, config_.join_timeout));
  CENTROID_TRY(parallel::first_failure(all));
  CENTROID_TRY(division_.divide(group()));
  CENTROID_ASSIGN(checkpoints_, division_.open_checkpoints(run_));
  if (division_.waiting().empty()) return {};
  collective::CallOptions call;
  call.timeout = patience();
  return collective::barrier(group(), call);
}

Status ShardedJob::take_from_checkpoint() {
  replica_.reset();
  generations_.clear();
  CENTROID_TRY(restore());
  if (!division_.waiting().empty()) CENTROID_TRY(share_position(0, summary_.steps, 1));
  return show(generations_.next().parameters.get());
}

/// Be where that rank is in the data, at this step. It was one of so many data parallel ranks.
Status ShardedJob::share_position(std::uint32_t from, std::uint64_t step,
                                  std::uint32_t data_world) {
  ShardedSummary& s = summary_;
  if (group().rank() == from) {
    // The last step may have ended without its loss being known.
    const std::uint64_t samples = data_.train.samples;
    while (s.steps < step) count_step(s, next_samples(s, training_, samples, data_world), samples);
  }
  std::array<std::uint64_t*, 4> counts = {&s.steps, &s.epochs, &s.samples, &s.offset};
  std::array<double*, 5> values = {&s.loss, &s.accuracy, &s.gradient_norm, &s.test_loss,
                                   &s.test_accuracy};
  std::array<double, 9> all;
  for (std::size_t i = 0; i < counts.size(); ++i) all[i] = static_cast<double>(*counts[i]);
  for (std::size_t i = 0; i < values.size(); ++i) all[counts.size() + i] = *values[i];
  collective::CallOptions call;
  call.timeout = patience();
  CENTROID_TRY(collective::broadcast(group(), std::span<double>(all), from, call));
  for (std::size_t i = 0; i < counts.size(); ++i) *counts[i] = static_cast<std::uint64_t>(all[i]);
  for (std::size_t i = 0; i < values.size(); ++i) *values[i] = all[counts.size() + i];
  return {};
}

/// Have this rank's part, if it does not wait, from a checkpoint.
Status ShardedJob::restore() {
  std::shared_ptr<parallel::ShardedParameters> restored;
  if (!division_.waits()) {
    CENTROID_ASSIGN(restored, division_.restore(*checkpoints_, summary_));
  }
  generations_.prepare(held(std::move(restored)));
  return {};
}

}  // namespace centroid::worker
