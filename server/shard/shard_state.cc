#include <algorithm>
#include <cmath>
#include <utility>

#include <boost/asio/post.hpp>

#include "common/base/log.h"
#include "common/checkpoint/fault_point.h"
#include "common/optim/norm.h"
#include "server/shard/placement.h"
#include "server/shard/shard.h"
#include "server/store/memory_need.h"

/// What the leader asks a shard server for: model, chunks, and the two phases of a commit.
namespace centroid::server {

namespace {

constexpr std::size_t kChunksPerTurn = 4;
constexpr std::size_t kSnapshotBudgetBytes = 64u << 20;

const trace::Lane& rounds_lane() {
  static const trace::Lane kLane("rounds");
  return kLane;
}

Error out_of_order(const std::string& what) {
  return Error(ErrorCode::kFailedPrecondition, what +
                                                   " (the leader sends Model, Place, Load and "
                                                   "Begin, then Merge and Commit by turns)");
}

}  // namespace

Status Shard::take_model(const proto::ServerModel& model) {
  CENTROID_ASSIGN(auto plan, ChunkPlan::make(model.manifest, model.chunk_bytes));
  if (plan.hash() != model.plan_hash)
    return Error(ErrorCode::kFailedPrecondition,
                 "the leader cuts the model into other chunks than this program: versions differ");
  CENTROID_ASSIGN(fragments_, FragmentPlan::make(plan, model.fragments));
  model_ = model;
  CENTROID_ASSIGN(aggregate_, AggregateRule::parse(model.aggregate));
  robust_.reset();
  if (!aggregate_.is_mean()) robust_ = std::make_unique<RobustMean>(aggregate_);
  CENTROID_ASSIGN(auto optimizer, make_optimizer(optimizer_config()));
  if (const Status fits = check_room(model, optimizer->slots()); !fits.ok()) {
    fatal_ = fits.error();
    return fits;
  }
  set_ready("the model's chunks that are to lie here are being loaded");
  if (model.keeps_journal) {
    const Status ours = look_at_journal(terms_.run_id);
    if (!ours.ok()) fatal_ = ours.error();
    CENTROID_TRY(ours);
  }
  frozen_.reset();
  merging_.reset();
  journal_.stop();  // it may be reading memory of the store
  staged_.clear();
  over_ = Round();
  keeps_.clear();
  route_ = {};
  parts_.assign(fragments_.count(), {});
  reply_reader_.reset();  // before the store that it reads
  replies_.reset();
  encoded_.clear();
  try {
    CENTROID_ASSIGN(const CodecSpec down, CodecSpec::parse(model.codec_down));
    store_ = std::make_unique<ParameterStore>(std::move(plan), std::move(optimizer),
                                              down.feedback.enabled);
    CENTROID_TRY(make_replies());
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kResourceExhausted, "no address space for a model of " +
                                                    std::to_string(model.manifest.size()) +
                                                    " tensors and its optimizer slots");
  }
  store_->set_fragments(model.fragments);
  is_mine_.assign(store_->plan().chunks().size(), false);
  return {};
}

OptimizerConfig Shard::optimizer_config() const {
  return {.name = model_.optimizer,
          .learning_rate = model_.learning_rate,
          .momentum = model_.momentum,
          .beta1 = model_.beta1,
          .beta2 = model_.beta2,
          .epsilon = model_.epsilon,
          .weight_decay = model_.weight_decay,
          .l1 = model_.l1,
          .ftrl_beta = model_.ftrl_beta,
          .schedule = model_.schedule,
          .clip_norm = model_.clip_norm};
}

/// Between rounds.
Status Shard::take_optimizer(const proto::OptimizerChange& change) {
  if (!store_ || merging_) return out_of_order("Optimizer came before Model, or within a round");
  model_.learning_rate = change.learning_rate;
  model_.schedule = change.schedule;
  CENTROID_ASSIGN(auto optimizer, make_optimizer(optimizer_config()));
  store_->set_optimizer(std::move(optimizer));
  return {};
}

/// More workers come, or a larger share of the model, than memory was reckoned with; or fewer.
Status Shard::reckon_again(const proto::Reckon& wanted) {
  if (!store_) return out_of_order("Reckon came before Model");
  proto::Reckon before;
  before.workers = std::exchange(model_.workers, wanted.workers);
  before.servers = std::exchange(model_.servers, wanted.servers);
  const Status fits = check_room(model_, store_->optimizer().slots());
  if (!fits.ok()) model_.workers = before.workers, model_.servers = before.servers;
  return fits;
}

/// Before anything is taken: what this server's share of the model is to need.
Status Shard::check_room(const proto::ServerModel& model, std::size_t slots) {
  MemoryQuestion question;
  std::uint64_t total = 0;
  for (const TensorInfo& tensor : model.manifest) total += tensor.bytes();
  CENTROID_ASSIGN(const CodecSpec down, CodecSpec::parse(model.codec_down));
  std::uint64_t unit = std::min(total, model.chunk_bytes);  // what lies on one server
  if (down.feedback.enabled && down.kind == CodecSpec::Kind::kTopk)
    for (const TensorInfo& tensor : model.manifest) unit = std::max(unit, tensor.bytes());
  const std::uint64_t even = total / std::max<std::uint32_t>(model.servers, 1);
  unit =
      std::max(unit, static_cast<std::uint64_t>(static_cast<double>(even) * (kMaxImbalance - 1)));
  const std::uint64_t share = even + unit;
  question.parameters = std::min(total, share) / sizeof(float);
  question.tensors = model.manifest.size();
  question.chunks = model.manifest.size() + total / std::max<std::uint64_t>(model.chunk_bytes, 1);
  question.slots = slots;
  question.keeps_residual = down.feedback.enabled;
  question.compresses_results = true;  // every result is a copy
  question.applies_on_worker = model.apply_on_worker;
  question.is_elastic = model.is_elastic;
  if (model.is_elastic) question.kept = kKept;
  std::uint64_t largest = 0;  // of the fragments, one a round
  for (std::uint32_t i = 0; i < fragments_.count(); ++i)
    largest = std::max(largest, fragments_[i].elements);
  question.result_bytes = std::min(question.parameters, largest) * sizeof(float);
  question.contribution_bytes = question.result_bytes;
  question.workers = model.workers;
  question.credit_bytes = UINT64_MAX;  // contributions are kept whole
  question.snapshot_bytes = std::min<std::uint64_t>(kSnapshotBudgetBytes, options_.snapshot_budget);
  question.tables_bytes = rows_.reserved_bytes();
  const MemoryNeed need = memory_need(question);
  const MemoryLimit limit = memory_limit(options_.memory_limit);
  const Status fits = check_memory(need, limit);
  if (fits.ok()) {
    // As the leader's: a round that would need more has to wait for the checkpoint's disk.
    const std::uint64_t more = std::max<std::uint64_t>(
        kSnapshotBudgetBytes, std::min(need.planes, (limit.bytes - need.total()) / 4));
    snapshot_budget_ = std::min(more, options_.snapshot_budget);
    const std::uint64_t beyond =
        snapshot_budget_ - std::min(snapshot_budget_, question.snapshot_bytes);
    rows_.set_beside(need.total() - need.tables + beyond);
    return fits;
  }
  return fits.error().with_context("server '" + options_.name + "', with its share of a model on " +
                                   std::to_string(model.servers) + " servers");
}

proto::ServerReport Shard::report() const {
  proto::ServerReport report;
  report.rounds = rounds_;
  report.merge_seconds = merge_seconds_;
  report.workers = static_cast<std::uint32_t>(workers_.size());
  transport::TrafficCounters traffic = traffic_;
  for (const auto& [id, worker] : workers_) {
    const auto now = worker->session->connection().traffic();
    traffic.bytes_in += now.bytes_in;
    traffic.bytes_out += now.bytes_out;
  }
  report.bytes_in = traffic.bytes_in;
  report.bytes_out = traffic.bytes_out;
  for (const auto& [id, kept] : staged_)
    for (const Staged& one : kept) report.staged_bytes += one.contribution->bytes();
  const auto journal = journal_.state();
  report.journal_bytes = journal.bytes;
  report.trouble = journal.trouble;
  const file::Space disk = disk_.space();
  report.disk_free_bytes = disk.free_bytes;
  report.disk_total_bytes = disk.total_bytes;
  report.busy = busy_;
  report.progress = progress_;
  if (!store_) return report;
  std::uint64_t elements = 0;
  for (const Chunk& chunk : store_->plan().chunks())
    if (is_mine_[chunk.id.value]) elements += chunk.elements;
  report.memory_bytes = elements * sizeof(float) * (1 + store_->planes());
  return report;
}

void Shard::tell_probe(const proto::ServerReport& now) {
  probe_.reported(now, static_cast<std::size_t>(std::ranges::count(is_mine_, true)));
  if (journal_.is_on()) probe_.journal(journal_.state());
}

Status Shard::take_place(proto::Route route) {
  if (!store_) return out_of_order("Place came before Model");
  if (route.owners.size() != store_->plan().chunks().size())
    return Error(ErrorCode::kInvalidArgument,
                 "Place names the owners of " + std::to_string(route.owners.size()) +
                     " chunks, the model has " + std::to_string(store_->plan().chunks().size()));
  const auto self = std::ranges::find(route.servers, options_.name, &proto::RouteServer::name);
  const auto index = static_cast<std::size_t>(self - route.servers.begin());
  std::vector<bool> is_mine(route.owners.size());
  for (std::size_t i = 0; i < is_mine.size(); ++i) is_mine[i] = route.owners[i] == index;
  for (std::uint32_t number = 0; number < fragments_.count(); ++number) {
    parts_[number].clear();
    for (const Chunk& chunk : fragments_[number].chunks)
      if (is_mine[chunk.id.value]) parts_[number].push_back(chunk);
  }
  if (is_mine != is_mine_) staged_.clear();  // what came was cut by another route
  is_mine_ = std::move(is_mine);
  route_ = std::move(route);
  log::debug("route.told", {{"route", route_.version}, {"servers", route_.servers.size()}});
  return {};
}

Status Shard::take_chunk(const proto::ServerChunk& head, Bytes values) {
  if (!store_) return out_of_order("Load came before Model");
  if (head.chunk.value >= store_->plan().chunks().size())
    return Error(ErrorCode::kInvalidArgument,
                 "Load of chunk " + to_string(head.chunk) + ": there is no such chunk");
  const Chunk& chunk = store_->plan().chunk(head.chunk);
  if (values.size() != chunk.elements * sizeof(float))
    return Error(ErrorCode::kInvalidArgument,
                 "Load of chunk " + to_string(head.chunk) + ": " + std::to_string(values.size()) +
                     " bytes, expected " + std::to_string(chunk.elements * sizeof(float)));
  const std::span<const float> floats(reinterpret_cast<const float*>(values.data()),
                                      chunk.elements);
  return store_->load(head.plane, chunk.position, floats);
}

Status Shard::begin(const proto::ServerState& state) {
  if (!store_ || route_.version == 0) return out_of_order("Begin came before Model and Place");
  store_->restore(state.version, state.optimizer_step);
  staged_.clear();
  over_ = Round();
  keeps_.clear();
  merging_.reset();
  if (model_.keeps_journal) CENTROID_TRY(open_journal(state));
  if (!leaving_) set_ready("");
  log::info("state.loaded", {{"version", state.version.value},
                             {"route", route_.version},
                             {"servers", route_.servers.size()}});
  return {};
}

Result<std::vector<float>> Shard::read_chunk(const proto::ServerChunk& head) {
  if (!store_) return out_of_order("Fetch came before Model");
  const std::string what = "Fetch of chunk " + to_string(head.chunk);
  if (head.chunk.value >= store_->plan().chunks().size() || head.plane >= store_->planes() ||
      (!store_->is_here(head.chunk) && !is_mine_[head.chunk.value]))
    return Error(ErrorCode::kInvalidArgument, what + ", plane " + std::to_string(head.plane) +
                                                  ": it does not lie on server '" + options_.name +
                                                  "'");
  const Chunk& chunk = store_->plan().chunk(head.chunk);
  if (head.frozen) {
    if (!frozen_ || frozen_->version() != head.version)
      return Error(ErrorCode::kAborted,
                   what + ": version " + to_string(head.version) + " is not kept here");
    std::vector<float> values(chunk.elements);
    CENTROID_TRY(frozen_->read(head.plane, chunk.position, values));
    return values;
  }
  if (head.version != store_->version() || merging_)
    return Error(ErrorCode::kAborted,
                 what + ": version " + to_string(head.version) + " is not the present one, " +
                     to_string(store_->version()) + (merging_ ? ", or a round is merged" : ""));
  const auto values = store_->values(head.plane, chunk);
  return std::vector<float>(values.begin(), values.end());
}

/// Version 0: nothing is to be kept any more; with a round: it is in a checkpoint.
Status Shard::freeze(const proto::ServerState& state) {
  frozen_.reset();
  if (state.version == Version()) {
    if (state.round != Round()) checkpointed(state.round);
    return {};
  }
  if (!store_ || state.version != store_->version() || merging_)
    return Error(ErrorCode::kAborted,
                 "Freeze of version " + to_string(state.version) + ": it is not the present one");
  settle();
  frozen_ = store_->begin_snapshot(snapshot_budget_);
  if (!frozen_) return out_of_order("Freeze came in the middle of a round");
  journal_.checkpoint_begins(state.round);
  return {};
}

/// All chunks have come that the route gives to this server: it has no others from now on.
void Shard::settle() {
  bool is_same = true;
  for (std::size_t i = 0; i < is_mine_.size(); ++i)
    is_same = is_same && is_mine_[i] == store_->is_here(ChunkId(static_cast<std::uint32_t>(i)));
  if (!is_same) store_->place(is_mine_);
}

/// Of the round that is open.
const std::vector<Chunk>& Shard::part() const {
  return parts_[fragments_.turn(store_->optimizer_step())];
}

Task<Result<proto::MergeReply>> Shard::merge(proto::Merge merge) {
  const std::string what = "Merge of round " + to_string(merge.round);
  if (!store_ || merging_) co_return out_of_order(what + ": another round is merged");
  if (merge.version != store_->version())
    co_return Error(ErrorCode::kAborted, what + " is for version " + to_string(merge.version) +
                                             ", server '" + options_.name + "' has " +
                                             to_string(store_->version()));
  std::vector<std::shared_ptr<const StagedContribution>> parts;  // their workers may go meanwhile
  for (const proto::WeighedContribution& one : merge.parts) {
    std::shared_ptr<const StagedContribution> kept;
    if (!part().empty()) kept = staged(one.key);
    if (!part().empty() && (kept == nullptr || !kept->is_whole()))
      co_return Error(ErrorCode::kFailedPrecondition,
                      what + ": the contribution of member " + to_string(one.key.member) +
                          " is not whole on server '" + options_.name + "'");
    parts.push_back(std::move(kept));
  }
  settle();
  merging_ = std::move(merge);
  store_->set_rate_factor(merging_->rate_factor);
  if (replies_) begin_replies();
  const TimePoint begin = clock_.now();
  const Busy busy(*this, what + ": sums " + std::to_string(parts.size()) + " contributions", false);
  if (store_->snapshot_is_full()) {
    // A checkpoint that is still being read keeps copies; past its budget the round waits for it.
    const Busy waits(*this, what + ": waits until the leader has written a checkpoint", true);
    while (is_led() && store_->snapshot_is_full())
      if (!co_await sleep_until(clock_.now() + std::chrono::milliseconds(2))) break;
  }
  if (!is_led()) co_return Error(ErrorCode::kCancelled, what + ": the leader was lost");
  const std::string disk = what + ": waits for its journal's disk";
  if (journal_.is_on()) {
    const Busy waits(*this, disk, true);
    co_await journal_.begin_attempt(journal_base(Round(merging_->round.value - 1)));
    if (!is_led()) co_return Error(ErrorCode::kCancelled, what + ": the leader was lost");
    journal_.begin(merging_->round, merging_->attempt);
  }
  proto::MergeReply reply;
  std::size_t turn = 0;
  PlaneNorm norm;
  const journal::Form form = journal_form();
  std::vector<RobustMean::Encoded> rows;
  const auto sum_up = [&](const Chunk& chunk) {
    const TimePoint since = clock_.now();
    const std::span<float> sum = store_->spare(chunk);
    rows.clear();
    for (const auto& one : parts)
      if (robust_) rows.push_back(one->encoded(chunk.id));
    if (robust_) robust_->combine(rows, sum);
    for (std::size_t i = 0; i < parts.size() && !robust_; ++i)
      parts[i]->add_to(sum, chunk.id, merging_->parts[i].weight, i == 0);
    probe_.aggregate().ended(rounds_lane(), since, clock_.now(), merging_->round.value);
  };
  // The journal reads the sums before they become means; without one it is done in one go.
  const bool keeps_sums = journal_.is_on() && form == journal::Form::kSum;
  if (keeps_sums) {
    for (const Chunk& chunk : part()) {
      sum_up(chunk);
      journal_.chunk(chunk.id, form, std::as_bytes(std::as_const(*store_).spare(chunk)));
      ++progress_;
      if (++turn % kChunksPerTurn != 0) continue;
      co_await boost::asio::post(executor_, boost::asio::use_awaitable);
      if (!is_led()) co_return Error(ErrorCode::kCancelled, what + ": the leader was lost");
    }
    const Busy waits(*this, disk, true);
    co_await journal_.drained();
    if (!is_led()) co_return Error(ErrorCode::kCancelled, what + ": the leader was lost");
  }
  std::uint64_t copied = 0;  // for the journal, and not yet written
  for (const Chunk& chunk : part()) {
    if (!keeps_sums) sum_up(chunk);
    store_->scale(chunk, merging_->total_weight);
    const std::span<const float> mean = std::as_const(*store_).spare(chunk);
    if (form == journal::Form::kMean && replies_)  // the codec's residual grows in this memory
      journal_.chunk_copy(chunk.id, form, std::as_bytes(mean));
    else if (form == journal::Form::kMean)
      journal_.chunk(chunk.id, form, std::as_bytes(mean));
    if (replies_) {
      CENTROID_CO_TRY(encode_reply(chunk));
    } else if (merging_->wants_norm) {
      if (!store_->plan().is_buffer(chunk)) norm.add(chunk.position, mean);
      reply.squares.push_back(norm.end_chunk());
    }
    if (model_.apply_on_worker && !replies_) emit(chunk, std::as_bytes(mean));
    copied += journal_.is_on() && replies_ ? mean.size_bytes() : 0;
    if (copied > kSnapshotBudgetBytes) {
      copied = 0;
      const Busy waits(*this, disk, true);
      co_await journal_.drained();
      if (!is_led()) co_return Error(ErrorCode::kCancelled, what + ": the leader was lost");
    }
    ++progress_;
    if (++turn % kChunksPerTurn == 0) {
      co_await boost::asio::post(executor_, boost::asio::use_awaitable);
      if (!is_led()) co_return Error(ErrorCode::kCancelled, what + ": the leader was lost");
    }
  }
  if (replies_ && merging_->wants_norm) {
    const Status measured = co_await measure_replies(&reply.squares);
    if (!measured.ok()) co_return measured.error();
    if (!is_led()) co_return Error(ErrorCode::kCancelled, what + ": the leader was lost");
  }
  for (double& squares : reply.squares)
    if (!std::isfinite(squares)) squares = HUGE_VAL;  // NaN has no form
  drop_all_but(*merging_);
  if (!merging_->wants_norm) {
    proto::Step all;
    all.round = merging_->round;
    all.attempt = merging_->attempt;
    merged_time_ = {};
    CENTROID_CO_TRY(co_await step(all));
  }
  merged_time_ = clock_.now() - begin;  // with the step, unless that waits for the norm
  co_return reply;
}

Task<Status> Shard::step(proto::Step step) {
  if (!merging_ || merging_->round != step.round || merging_->attempt != step.attempt)
    co_return out_of_order("Step of round " + to_string(step.round) + ": it is not merged");
  const std::string what = "Step of round " + to_string(step.round);
  const Busy busy(*this, what, false);
  store_->set_gradient_factor(static_cast<float>(step.factor));
  const TimePoint begin = clock_.now();
  std::size_t turn = 0;
  for (const Chunk& chunk : part()) {
    if (replies_) {
      CENTROID_CO_TRY(apply_reply(chunk));
    } else if (model_.apply_on_worker) {
      store_->shadow_apply(chunk);
    } else {
      store_->apply(chunk);
      if (journal_form() == journal::Form::kParameters)
        journal_.chunk(chunk.id, journal_form(),
                       std::as_bytes(std::as_const(*store_).spare(chunk)));
      emit(chunk, std::as_bytes(std::as_const(*store_).spare(chunk)));
    }
    ++progress_;
    if (++turn % kChunksPerTurn == 0) {
      co_await boost::asio::post(executor_, boost::asio::use_awaitable);
      if (!is_led()) co_return Error(ErrorCode::kCancelled, "the leader was lost");
    }
  }
  const Busy waits(*this, what + ": waits for its journal's disk", true);
  CENTROID_CO_TRY(co_await end_journal_round());
  probe_.apply().ended(rounds_lane(), begin, clock_.now(), step.round.value);
  merged_time_ += clock_.now() - begin;
  co_return Status();
}

Status Shard::commit(const proto::ServerState& state) {
  if (!merging_ || state.version != store_->version().next())
    return out_of_order("Commit of version " + to_string(state.version));
  const std::vector<Chunk> chunks = part();
  if (model_.apply_on_worker)
    store_->commit_in_place(chunks);
  else
    store_->commit_swap(chunks);
  if (replies_) replies_->commit();
  encoded_.clear();
  merging_.reset();
  ++rounds_;
  const double seconds = std::chrono::duration<double>(merged_time_).count();
  merge_seconds_ += seconds;
  probe_.merged(seconds);
  fault::point("servers.part_committed");
  return {};
}

void Shard::forget(const proto::Forget& gone) {
  members_.erase(gone.member);
  changed_.notify_all();
  staged_.erase(gone.member);
  away_.erase(gone.member);
  const auto found = workers_.find(gone.member);
  if (found == workers_.end()) return;
  const Error fenced(ErrorCode::kAborted, "fenced: " + gone.reason + "; join again");
  const auto worker = found->second;
  workers_.erase(found);
  worker->tasks->spawn(worker->session->goodbye(fenced));
}

}  // namespace centroid::server
