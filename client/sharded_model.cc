#include "client/sharded_model.h"

#include <algorithm>
#include <utility>

#include "common/base/crc32c.h"
#include "common/base/log.h"
#include "common/optim/optimizer_fields.h"
#include "transport/collective/collectives.h"
#include "worker/parallel/agreement.h"
#include "worker/parallel/regroup.h"

namespace centroid::client {

using parallel::Notice;
using parallel::ShardedParameters;

namespace {

/// What all ranks need to have in common.
std::string settings_of(const ShardedModelOptions& options) {
  const parallel::ShardedSettings& division = options.division;
  std::vector<std::pair<std::string, std::string>> all = {
      {"tensors (their hash)", std::to_string(manifest_hash(options.tensors))},
      {"layers (their hash)", std::to_string(crc32c(std::as_bytes(std::span(options.layers))))},
      {"sharding", division.sharding},
      {"shard_replicas", division.replicas},
      {"codec", division.codec},
      {"codec_down", division.codec_down},
      {"checkpoint_dir", options.checkpoints.empty() ? "not set" : "set"},
      {"timeout (ms)", std::to_string(options.group.peers.timeout.count())},
  };
  for (auto& one : optimizer_values(division.optimizer)) all.push_back(std::move(one));
  std::string text;
  for (const auto& [name, value] : all) text += (text.empty() ? "" : "\t") + name + "=" + value;
  return text;
}

Status check(const ShardedModelOptions& options) {
  CENTROID_TRY(validate(options.tensors));
  for (const TensorInfo& tensor : options.tensors)
    if (is_buffer(tensor))
      return Error(ErrorCode::kInvalidArgument,
                   "tensor " + tensor.name + " is a buffer, which cannot be sharded");
  const PeerOptions& peers = options.group.peers;
  CENTROID_TRY(parallel::Sharding::parse(options.division.sharding, peers.world));
  return {};
}

}  // namespace

ShardedModel::ShardedModel(ShardedModelOptions options)
    : options_(std::move(options)), wanted_(options_.group.peers.world) {
  for (std::size_t i = 0; i < options_.tensors.size(); ++i) {
    const TensorInfo& tensor = options_.tensors[i];
    shapes_.push_back({tensor.name, tensor.elements(), options_.layers[i]});
  }
}

ShardedModel::~ShardedModel() { end_checkpoints(); }

Result<std::unique_ptr<ShardedModel>> ShardedModel::open(ShardedModelOptions options,
                                                         const Initial& initial) {
  CENTROID_TRY(check(options));
  options.group.settings = settings_of(options);
  std::unique_ptr<ShardedModel> made(new ShardedModel(std::move(options)));
  CENTROID_TRY(
      parallel::ShardLayout::make(made->shapes_, made->wanted_));  // before the others wait
  CENTROID_ASSIGN(made->ranks_, JobGroup::join(made->options_.group));
  if (made->ranks_->is_over())
    return Error(ErrorCode::kCancelled,
                 "the job at " + made->options_.group.rendezvous + " has ended");
  if (made->ranks_->is_newcomer())
    CENTROID_TRY(made->change_group(Meeting::Newcomers::kTake));
  else
    CENTROID_TRY(made->begin(initial));
  return made;
}

Status ShardedModel::begin(const Initial& initial) {
  run_ = ranks_->members().job;
  CENTROID_TRY(open_checkpoints());
  const Status restored = checkpoints_ ? restore() : Status(Error(ErrorCode::kNotFound, ""));
  if (!restored.ok() && restored.error().code() != ErrorCode::kNotFound) return restored;
  if (!restored.ok()) {
    if (checkpoints_ && group().rank() == 0)
      log::warn("checkpoint.none_found",
                {{"dir", options_.checkpoints}, {"action", "starting afresh"}});
    CENTROID_ASSIGN(const parallel::ShardedOptions options, division());
    CENTROID_ASSIGN(auto made, ShardedParameters::make(group(), shapes_, options, initial));
    prepare(std::move(made));
  }
  go_on();
  return {};
}

Result<parallel::ShardedOptions> ShardedModel::division() const {
  return options_.division.options(group().world(), group().world() == wanted_);
}

Status ShardedModel::open_checkpoints() {
  if (options_.checkpoints.empty()) return {};
  parallel::ShardedCheckpointOptions options;
  options.folder = options_.checkpoints;
  options.keep = options_.keep;
  CENTROID_ASSIGN(checkpoints_,
                  parallel::ShardedCheckpoints::open(group(), options_.tensors, options));
  return {};
}

/// Wait for the write in progress, whose failure is nobody's to return.
void ShardedModel::end_checkpoints() {
  if (const Status ended = checkpoints_ ? finish_save() : Status(); !ended.ok())
    log::error("checkpoint.failed", {{"error", ended.error()}, {"when", "in the background"}});
  checkpoints_.reset();
}

Status ShardedModel::restore() {
  CENTROID_ASSIGN(const parallel::ShardedOptions options, division());
  auto restored = checkpoints_->restore(shapes_, options);
  if (!restored.ok()) return told_apart(restored.error());
  prepare(std::move(restored->parameters));
  run_ = restored->info.run_id;
  position_ = restored->info.offset;
  return {};
}

void ShardedModel::prepare(std::unique_ptr<ShardedParameters> parameters) {
  generations_.prepare(
      {group().generation(), std::move(parameters), {0, {0, shapes_.size()}}, group().world()});
}

/// Go on in the group of which each rank has its part now.
void ShardedModel::go_on() {
  generations_.complete();
  done_ = parameters().steps();
  gathered_.clear();
  reduced_.clear();
  lost_.reset();
}

/// Keep the failure of another rank.
Status ShardedModel::noted(Status status) {
  if (!status.ok() && is_loss(status.error())) lost_ = status.error();
  return status;
}

/// A disk's error may have the code of a loss, after which a program would regroup.
Status ShardedModel::told_apart(Status of_disk) const {
  if (of_disk.ok() || !is_loss(of_disk.error()) || group().culprit()) return of_disk;
  return Error(ErrorCode::kFailedPrecondition, "checkpoint: " + of_disk.error().to_string());
}

Result<std::size_t> ShardedModel::unit_of(std::uint32_t layer) const {
  const auto found = std::ranges::find(options_.layers, layer);
  if (found == options_.layers.end())
    return Error(ErrorCode::kInvalidArgument, "no tensor is of layer " + std::to_string(layer));
  return parameters().layout().unit_of(static_cast<std::size_t>(found - options_.layers.begin()));
}

/// Whether all layers of a unit are among these, or one of them.
bool ShardedModel::is_in(const std::set<std::uint32_t>& layers, std::size_t unit, bool all) const {
  const parallel::Range tensors = parameters().layout().units()[unit].parameters;
  const auto own = std::span(options_.layers).subspan(tensors.begin, tensors.count);
  const auto has = [&](std::uint32_t layer) { return layers.contains(layer); };
  return all ? std::ranges::all_of(own, has) : std::ranges::any_of(own, has);
}

Status ShardedModel::check_ready() const {
  if (generations_.present().parameters) return {};
  return Error(ErrorCode::kFailedPrecondition, "regroup failed: " + lost_->message());
}

Status ShardedModel::prefetch(std::uint32_t layer) {
  CENTROID_ASSIGN(const std::size_t unit, unit_of(layer));
  if (parameters().is_gathered(unit) || parameters().is_prefetched(unit)) return {};
  return noted(own().prefetch(unit));
}

Status ShardedModel::gather(std::uint32_t layer) {
  CENTROID_ASSIGN(const std::size_t unit, unit_of(layer));
  CENTROID_TRY(noted(own().gather(unit)));
  gathered_.insert(layer);
  return {};
}

Status ShardedModel::release(std::uint32_t layer) {
  CENTROID_ASSIGN(const std::size_t unit, unit_of(layer));
  gathered_.erase(layer);
  return is_in(gathered_, unit, false) ? Status() : noted(own().release(unit));
}

Status ShardedModel::reduce(std::uint32_t layer) {
  CENTROID_ASSIGN(const std::size_t unit, unit_of(layer));
  reduced_.insert(layer);
  if (!is_in(reduced_, unit, true)) return {};
  for (const std::uint32_t one : std::set(reduced_))
    if (const auto of = unit_of(one); of.ok() && *of == unit) reduced_.erase(one);
  return noted(own().reduce(unit));
}

Result<std::span<const float>> ShardedModel::parameter(std::size_t tensor) const {
  return parameters().parameter(tensor);
}

Result<std::span<float>> ShardedModel::gradient(std::size_t tensor) {
  return own().gradient(tensor);
}

Result<parallel::StepReport> ShardedModel::step(std::uint64_t position) {
  next_position_ = position;
  auto made = own().step();
  if (!made.ok()) return noted(made.error()).error();
  position_ = position;
  done_ = parameters().steps();
  gathered_.clear();
  reduced_.clear();
  return made;
}

Status ShardedModel::sum(std::span<double> numbers) {
  return noted(collective::all_reduce(group(), numbers));
}

Status ShardedModel::regroup() {
  if (!lost_) {
    Notice own;
    own.numbers[0] = ranks_->meeting().newcomers();
    const auto first = parallel::announce(group(), own, options_.group.peers.timeout);
    if (first.ok() && first->numbers[0] == 0) return {};
    if (!first.ok() && !is_loss(first.error())) return first.error();
    if (!first.ok()) lost_ = first.error();
  }
  if (!lost_) return change_group(Meeting::Newcomers::kTake);
  // Some may not be in the operation that failed.
  group().abort(*lost_);
  if (checkpoints_) checkpoints_->abort(*lost_);
  return change_group(Meeting::Newcomers::kKeep);
}

Status ShardedModel::change_group(Meeting::Newcomers newcomers) {
  if (const Status status = ranks_->regroup(newcomers, [this] { return take_over(); });
      !status.ok()) {
    lost_ = status.error();
    return status;
  }
  go_on();
  return {};
}

/// Of an operation before which others may use their disks.
std::chrono::milliseconds ShardedModel::patience() const {
  const std::chrono::milliseconds timeout = options_.group.peers.timeout;
  if (options_.checkpoints.empty()) return timeout;
  return std::max(timeout, parallel::ShardedCheckpointOptions().timeout);
}

/// Make the parameters of this group, from memory or a checkpoint.
Status ShardedModel::take_over() {
  end_checkpoints();
  CENTROID_ASSIGN(const parallel::Origin origin,
                  parallel::find_origin(group(), generations_, run_, patience()));
  run_ = origin.run.empty() ? ranks_->members().job : origin.run;
  CENTROID_TRY(open_checkpoints());
  generations_.go_back(origin.generation);  // no more than one division beside the new one
  CENTROID_ASSIGN(const parallel::ShardedOptions options, division());
  const parallel::Later later{group(), {0, {0, shapes_.size()}}, options};
  auto made =
      parallel::regroup(group(), {shapes_}, options, generations_.present().earlier(), later);
  if (made.ok()) {
    prepare(std::move(made->parameters));
    return share_position(origin.rank, made->step);
  }
  if (group().culprit()) return made.error();  // another loss
  if (!checkpoints_) return std::move(made).error().with_context("there is no checkpoint_dir");
  generations_.clear();
  const Status restored = restore();
  return restored.ok() ? restored : Status(restored.error().with_context(made.error().message()));
}

/// Go on from that rank's position in the data. `step`: the last one that any rank made.
Status ShardedModel::share_position(std::uint32_t from, std::uint64_t step) {
  Notice own;
  own.numbers[0] = step > done_ ? next_position_ : position_;
  CENTROID_ASSIGN(const auto all, parallel::exchange(group(), own, patience()));
  position_ = all[from].numbers[0];
  done_ = step;
  return {};
}

Status ShardedModel::save() {
  if (!checkpoints_)
    return Error(ErrorCode::kFailedPrecondition, "save: there is no checkpoint_dir");
  CheckpointInfo info;
  info.run_id = run_;
  info.version = Version(parameters().steps() + 1);  // 1: the initial values
  info.round = Round(parameters().steps());
  info.offset = position_;
  CENTROID_TRY(finish_save());
  return told_apart(checkpoints_->begin(own(), info));
}

Status ShardedModel::finish_save() {
  const Status ended = checkpoints_ ? checkpoints_->wait() : Status();
  // That of this step is there if it was restored.
  const bool is_there = !ended.ok() && ended.error().code() == ErrorCode::kAlreadyExists;
  return is_there ? Status() : told_apart(ended);
}

Status ShardedModel::end() {
  ranks_->meeting().end();
  return finish_save();
}

}  // namespace centroid::client
