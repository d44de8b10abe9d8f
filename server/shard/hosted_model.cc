#include "server/shard/hosted_model.h"

#include <utility>

#include "common/base/log.h"
#include "common/checkpoint/fault_point.h"
#include "server/store/turns.h"

namespace centroid::server {

HostedModel::HostedModel(ShardContext& context, ShardRows& rows, Send send,
                         RoundSums::Release release)
    : context_(context),
      send_(std::move(send)),
      release_(std::move(release)),
      chunks_(context.options.name),
      memory_(context, rows),
      sums_(
          chunks_, release_,
          [this](std::function<void()> work, std::function<void()> then) {
            context_.combining.run(
                context_.probe.timed_aggregate(sums_.round().value, std::move(work)),
                std::move(then));
          },
          [this] { room_.notify_all(); }),
      room_(context.executor),
      journal_(context, chunks_) {}

bool HostedModel::expect(const proto::ContributionKey& key,
                         const std::shared_ptr<const Codec>& codec) {
  if (!chunks_.model().is_elastic) return sums_.expects(key);
  return staged_.stage(key, chunks_.plan(), codec, chunks_.round_chunks().size());
}

bool HostedModel::is_expected(const proto::ContributionKey& key) const {
  return chunks_.model().is_elastic ? staged_.find(key) != nullptr : sums_.expects(key);
}

Result<std::optional<proto::Whole>> HostedModel::take(const proto::ContributionKey& key,
                                                      const std::shared_ptr<const Codec>& codec,
                                                      const proto::Push& push, Buffer payload,
                                                      std::size_t bytes) {
  if (!chunks_.model().is_elastic) {
    CENTROID_TRY(sums_.add(key, codec, push, std::move(payload), bytes));
    return sums_.whole(key);
  }
  release_(key.member, bytes);
  const auto staged = staged_.find(key);
  CENTROID_TRY(staged->put(push.chunk, push.weight, std::move(payload), bytes));
  if (!staged->is_complete()) return std::optional<proto::Whole>();
  proto::Whole whole;
  whole.key = key;
  whole.weight = staged->weight();
  whole.squares = staged->squares();
  return std::make_optional(whole);
}

void HostedModel::open(const proto::Opened& opened) {
  if (!chunks_.model().is_elastic) sums_.open(opened);
}

Task<Status> HostedModel::take_model(proto::ServerModel model) {
  CENTROID_CO_ASSIGN(auto layout, chunks_.describe(model));
  const Status fits = memory_.check(model, layout.fragments, layout.optimizer->slots());
  if (!fits.ok()) {
    context_.leader.set_fatal(fits.error());
    co_return fits;
  }
  context_.readiness.set_not_ready("the model's chunks that are to lie here are being loaded");
  if (model.writes_journal) {
    const Status ours = co_await journal_.check_owner();
    if (!ours.ok()) context_.leader.set_fatal(ours.error());
    CENTROID_CO_TRY(ours);
  }
  frozen_.reset();
  drop_round();
  sums_.close();
  co_await journal_.stop();  // it may be reading memory of the store
  staged_.reset();
  co_return chunks_.allocate(std::move(layout));
}

void HostedModel::drop_round() {
  if (round_) round_->drop();
  round_.reset();
  room_.notify_all();
}

Status HostedModel::resize(const proto::MemoryPlan& wanted) {
  if (!chunks_.has_model()) return out_of_order("MemoryPlan came before Model");
  const proto::MemoryPlan before = chunks_.set_size(wanted);
  const Status fits = memory_.check(chunks_.model(), chunks_.shard().fragments(),
                                    chunks_.store().optimizer().slots());
  if (!fits.ok()) chunks_.set_size(before);
  return fits;
}

Status HostedModel::set_optimizer(const proto::OptimizerChange& change) {
  if (!chunks_.has_model() || round_)
    return out_of_order("Optimizer came before Model, or within a round");
  return chunks_.set_optimizer(change);
}

Status HostedModel::place(proto::Route route) {
  CENTROID_ASSIGN(const bool is_changed, chunks_.place(std::move(route)));
  if (!is_changed) return {};
  staged_.clear();  // staged contributions belong to the earlier route
  sums_.restart();
  return {};
}

Task<Status> HostedModel::begin(proto::ServerState state) {
  if (!chunks_.has_model() || chunks_.route().version == 0)
    co_return out_of_order("Begin came before Model and Place");
  chunks_.store().restore(state.version, state.optimizer_step);
  staged_.reset();
  sums_.restart();
  drop_round();
  if (chunks_.model().writes_journal) CENTROID_CO_TRY(co_await journal_.start(state));
  context_.readiness.set_ready();
  log::info("state.loaded", {{"version", state.version.value},
                             {"route", chunks_.route().version},
                             {"servers", chunks_.route().servers.size()}});
  co_return Status();
}

Result<std::vector<float>> HostedModel::read_chunk(const proto::ServerChunk& head) {
  CENTROID_ASSIGN(const Chunk chunk, chunks_.find(head));
  const std::string what = "Fetch of chunk " + to_string(head.chunk);
  if (head.frozen) {
    if (!frozen_ || frozen_->version() != head.version)
      return Error(ErrorCode::kAborted,
                   what + ": version " + to_string(head.version) + " is not kept here");
    std::vector<float> values(chunk.elements);
    CENTROID_TRY(frozen_->read(head.plane, chunk.position, values));
    room_.notify_all();
    return values;
  }
  const ParameterStore& store = chunks_.store();
  if (head.version != store.version() || round_)
    return Error(ErrorCode::kAborted, what + ": version " + to_string(head.version) +
                                          " is not the present one, " + to_string(store.version()) +
                                          (round_ ? ", or a round is merged" : ""));
  const auto values = store.values(head.plane, chunk);
  return std::vector<float>(values.begin(), values.end());
}

/// The leader has refused a round whose sums are not finite. Where nothing of it is in the state,
/// the next one follows.
void HostedModel::drop_refused() {
  if (round_ && !round_->has_changed_state()) drop_round();
}

Task<Status> HostedModel::freeze(proto::ServerState state) {
  frozen_.reset();
  room_.notify_all();
  if (state.version != Version()) drop_refused();
  if (state.version == Version()) {
    if (state.round != Round()) co_await journal_.checkpointed(state.round);
    co_return Status();
  }
  if (!chunks_.has_model() || state.version != chunks_.store().version() || round_)
    co_return Error(ErrorCode::kAborted, "Freeze of version " + to_string(state.version) +
                                             ": it is not the present one");
  chunks_.shard().apply_assignment();
  frozen_ = chunks_.store().begin_snapshot(memory_.snapshot_budget());
  if (!frozen_) co_return out_of_order("Freeze came in the middle of a round");
  journal_.writer().checkpoint_begins(state.round);
  co_return Status();
}

/// Shared, because their workers may leave during the merge.
Result<ShardRound::Contributions> HostedModel::contributions_of(const proto::Merge& merge,
                                                                const std::string& what) const {
  const bool has_part = !chunks_.round_chunks().empty();
  ShardRound::Contributions contributions;
  for (const proto::WeighedContribution& one : merge.parts) {
    std::shared_ptr<const StagedContribution> staged;
    if (has_part) staged = staged_.find(one.key);
    if (has_part && (staged == nullptr || !staged->is_complete()))
      return Error(ErrorCode::kFailedPrecondition,
                   what + ": the contribution of member " + to_string(one.key.member) +
                       " is not whole on server '" + context_.options.name + "'");
    contributions.push_back(std::move(staged));
  }
  return contributions;
}

Task<Result<proto::MergeReply>> HostedModel::merge(proto::Merge merge) {
  const std::string what = "Merge of round " + to_string(merge.round);
  if (round_ && round_->is_before(merge.round)) drop_refused();
  if (!chunks_.has_model() || round_) co_return out_of_order(what + ": another round is merged");
  const Version present = chunks_.store().version();
  if (merge.version != present)
    co_return Error(ErrorCode::kAborted, what + " is for version " + to_string(merge.version) +
                                             ", server '" + context_.options.name + "' has " +
                                             to_string(present));
  ShardRound::Contributions contributions;
  if (chunks_.model().is_elastic) {
    CENTROID_CO_ASSIGN(contributions, contributions_of(merge, what));
  }
  chunks_.shard().apply_assignment();
  const ShardRound::Parts parts{chunks_, staged_, sums_, room_, journal_, send_};
  const auto round = std::make_shared<ShardRound>(context_, parts, std::move(merge));
  round_ = round;
  co_return co_await round->merge(std::move(contributions));
}

Task<Result<proto::MergeReply>> HostedModel::step(proto::Step step) {
  const auto round = round_;
  if (!round || !round->is_attempt(step.round, step.attempt) || !round->awaits_step())
    co_return out_of_order("Step of round " + to_string(step.round) + ": it is not merged");
  co_return co_await round->step(step);
}

Task<Status> HostedModel::commit(proto::ServerState state) {
  const std::string what = "Commit of version " + to_string(state.version);
  if (!chunks_.has_model()) co_return out_of_order(what);
  const Version present = chunks_.store().version();
  const auto round = round_;
  if (state.version == present) {  // the round is skipped, or this comes again: nothing to do
    if (!round || !round->is_of(state.round)) co_return Status();
    drop_refused();
    if (round_) co_return out_of_order(what);
    co_return Status();
  }
  if (!round || !round->is_prepared() || state.version != present.next())
    co_return out_of_order(what);
  CENTROID_CO_TRY(co_await round->follow());
  chunks_.shard().commit();
  const double seconds = std::chrono::duration<double>(round->time()).count();
  drop_round();
  ++rounds_;
  merge_seconds_ += seconds;
  context_.probe.merged(seconds);
  fault::point("servers.part_committed");
  co_return Status();
}

Task<Result<std::vector<StatisticsPart>>> HostedModel::statistics(proto::Statistics wanted) {
  const std::string what = "Statistics of version " + to_string(wanted.version);
  if (!chunks_.has_model() || wanted.version != chunks_.store().version() || round_)
    co_return Error(ErrorCode::kAborted, what + ": it is not the present one");
  chunks_.shard().apply_assignment();
  auto snapshot = chunks_.store().begin_snapshot(kShardCopyBytes);
  if (!snapshot)
    co_return Error(ErrorCode::kUnavailable, what + ": a checkpoint is being read here");
  auto parts = co_await read_statistics(*snapshot);
  snapshot.reset();
  room_.notify_all();
  co_return parts;
}

Task<Result<std::vector<StatisticsPart>>> HostedModel::read_statistics(Snapshot& snapshot) const {
  std::vector<Chunk> chunks;
  for (const Chunk& chunk : chunks_.plan().chunks())
    if (chunks_.shard().is_mine(chunk.id)) chunks.push_back(chunk);
  std::vector<StatisticsPart> parts;
  std::vector<float> values;
  for (const Chunk& chunk : chunks) {
    values.resize(chunk.elements);
    CENTROID_CO_TRY(snapshot.read(0, chunk.position, values));
    StatisticsSum sum;
    sum.add(values);
    parts.push_back(sum.part());
    if (parts.size() % kChunksPerTurn == 0) co_await yield(context_.executor);
  }
  co_return parts;
}

Task<void> HostedModel::forget() {
  co_await journal_.forget();  // it may be reading memory of the store
  staged_.clear();
  sums_.close();
  drop_round();
  frozen_.reset();
  chunks_.clear();
}

void HostedModel::add_to(proto::ServerReport& report) const {
  report.rounds = rounds_;
  report.merge_seconds = merge_seconds_;
  report.staged_bytes = staged_.bytes() + sums_.bytes();
  report.memory_bytes = chunks_.memory_bytes();
  journal_.add_to(report);
}

void HostedModel::show(const proto::ServerReport& report) const {
  context_.probe.reported(report, chunks_.count_of_mine());
  if (journal_.writer().is_on()) context_.probe.journal(journal_.writer().state());
}

}  // namespace centroid::server
