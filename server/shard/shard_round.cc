#include "server/shard/shard_round.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/crc32c.h"
#include "common/checkpoint/fault_point.h"
#include "server/shard/shard_memory.h"
#include "server/store/turns.h"

namespace centroid::server {

namespace {

const trace::Lane& rounds_lane() {
  static const trace::Lane kLane("rounds");
  return kLane;
}

Bytes spare_of(const ParameterStore& store, const Chunk& chunk) {
  return std::as_bytes(store.spare(chunk));
}

}  // namespace

ShardRound::ShardRound(ShardContext& context, const Parts& parts, proto::Merge merge)
    : context_(context),
      chunks_(parts.chunks),
      staged_(parts.staged),
      sums_(parts.sums),
      room_(parts.room),
      journal_(parts.journal),
      send_(parts.send),
      merge_(std::move(merge)) {}

Status ShardRound::check_led() const {
  if (is_led()) return {};
  return Error(ErrorCode::kCancelled, what_ + ": the leader was lost");
}

bool ShardRound::ends_turn() {
  context_.progress.advance();
  return ++turn_ % kChunksPerTurn == 0;
}

Task<Status> ShardRound::yield() {
  co_await server::yield(context_.executor);
  co_return check_led();
}

Task<Result<proto::MergeReply>> ShardRound::merge(Contributions contributions) {
  contributions_ = std::move(contributions);
  for (std::size_t i = 0; i < contributions_.size(); ++i)
    parts_.push_back({contributions_[i].get(), merge_.parts[i].weight});
  what_ = "Merge of round " + to_string(merge_.round);
  chunks_.store().set_rate_factor(merge_.rate_factor);
  if (has_codec()) begin_encoding();
  const TimePoint begin = context_.clock.now();
  const ShardProgress::Activity sums(
      context_.progress,
      what_ + ": means of " + std::to_string(merge_.parts.size()) + " contributions", false);
  CENTROID_CO_TRY(co_await await_snapshot());
  if (!chunks_.model().is_elastic) CENTROID_CO_TRY(co_await finish_sums());
  CENTROID_CO_TRY(co_await begin_journal());
  // The journal reads the sums before they become means; without a journal one pass is enough.
  const bool keeps_sums = journal_.writer().is_on() && shard().form() == journal::Form::kSum;
  if (keeps_sums) CENTROID_CO_TRY(co_await journal_sums());
  proto::MergeReply reply;
  CENTROID_CO_TRY(co_await make_means(keeps_sums, reply.squares));
  if (overflow_) co_return refusal();
  if (has_codec() && merge_.needs_norm) CENTROID_CO_TRY(co_await measure(reply.squares));
  for (double& squares : reply.squares)
    if (!std::isfinite(squares)) squares = HUGE_VAL;  // NaN cannot be encoded
  parts_.clear();
  contributions_.clear();
  staged_.drop_all_but(merge_);
  if (!merge_.needs_norm) {
    proto::Step all;
    all.round = merge_.round;
    all.attempt = merge_.attempt;
    time_ = {};
    CENTROID_CO_TRY(co_await make_step(all));
  }
  time_ = context_.clock.now() - begin;  // with the step, unless that waits for the norm
  if (overflow_) co_return refusal();
  stage_ = merge_.needs_norm ? Stage::kMerged : Stage::kPrepared;
  co_return reply;
}

proto::MergeReply ShardRound::refusal() const {
  proto::MergeReply reply;
  reply.overflow = overflow_->value + 1;
  return reply;
}

Task<Result<proto::MergeReply>> ShardRound::step(proto::Step step) {
  stage_ = Stage::kRunning;
  CENTROID_CO_TRY(co_await make_step(step));
  if (overflow_) co_return refusal();
  stage_ = Stage::kPrepared;
  co_return proto::MergeReply();
}

/// A checkpoint that is being read makes copies; if they exceed its budget, the round waits for it.
Task<Status> ShardRound::await_snapshot() {
  if (chunks_.store().snapshot_is_full()) {
    const ShardProgress::Activity waits(
        context_.progress, what_ + ": waits until the leader has written a checkpoint", true);
    const auto has_room = [this] { return !is_led() || !chunks_.store().snapshot_is_full(); };
    (void)co_await until(room_, has_room);
  }
  co_return check_led();
}

/// Other threads may still combine the last chunks.
Task<Status> ShardRound::finish_sums() {
  Status summed = sums_.finish(merge_);
  if (sums_.is_combining()) {
    const ShardProgress::Activity waits(context_.progress, what_ + ": chunks are being combined",
                                        true);
    const auto are_combined = [this] { return !is_led() || !sums_.is_combining(); };
    (void)co_await until(room_, are_combined);
    CENTROID_CO_TRY(check_led());
    summed = sums_.finish(merge_);
  }
  co_return summed;
}

Task<Status> ShardRound::begin_journal() {
  Journal& journal = journal_.writer();
  if (!journal.is_on()) co_return Status();
  const ShardProgress::Activity waits(context_.progress, what_ + ": waits for its journal's disk",
                                      true);
  co_await journal.begin_attempt(journal_.base(Round(merge_.round.value - 1)));
  CENTROID_CO_TRY(check_led());
  journal.begin(merge_.round, merge_.attempt);
  co_return Status();
}

Task<Status> ShardRound::drain_journal() {
  const ShardProgress::Activity waits(context_.progress, what_ + ": waits for its journal's disk",
                                      true);
  co_await journal_.writer().drained();
  co_return check_led();
}

/// Sum stored contributions; others were summed on arrival.
void ShardRound::add_up(const Chunk& chunk) {
  if (parts_.empty()) return;
  const TimePoint since = context_.clock.now();
  shard().add_up(chunk, parts_);
  context_.probe.aggregate().ended(rounds_lane(), since, context_.clock.now(), merge_.round.value);
}

Task<Status> ShardRound::journal_sums() {
  for (const Chunk& chunk : chunks_.round_chunks()) {
    add_up(chunk);
    journal_.writer().chunk(chunk.id, shard().form(), spare_of(chunks_.store(), chunk));
    if (ends_turn()) CENTROID_CO_TRY(co_await yield());
  }
  co_return co_await drain_journal();
}

Task<Status> ShardRound::make_means(bool has_sums, std::vector<double>& squares) {
  std::uint64_t copied = 0;  // bytes for the journal, not yet written
  for (const Chunk& chunk : chunks_.round_chunks()) {
    if (!has_sums) add_up(chunk);
    chunks_.store().scale(chunk, merge_.total_weight);
    const Magnitude size = refuses_nonfinite() ? shard().size_of_sum(chunk) : Magnitude::kModerate;
    has_large_mean_ = has_large_mean_ || size != Magnitude::kModerate;
    if (size == Magnitude::kInfinite) {
      overflow_ = chunk.id;  // nothing is made of it, and no residual is spoilt
      co_return Status();
    }
    const std::span<const float> mean = std::as_const(chunks_.store()).spare(chunk);
    journal_mean(chunk.id, std::as_bytes(mean));
    if (has_codec()) {
      CENTROID_CO_TRY(encode(chunk));
    } else if (merge_.needs_norm) {
      squares.push_back(shard().squares(chunk));
    }
    if (chunks_.model().apply_on_worker && !has_codec()) emit(chunk, std::as_bytes(mean));
    copied += journal_.writer().is_on() && has_codec() ? mean.size_bytes() : 0;
    if (copied > kShardCopyBytes) {
      copied = 0;
      CENTROID_CO_TRY(co_await drain_journal());
    }
    if (ends_turn()) CENTROID_CO_TRY(co_await yield());
  }
  co_return Status();
}

void ShardRound::journal_mean(ChunkId chunk, Bytes mean) {
  if (shard().form() != journal::Form::kMean) return;
  if (has_codec())  // the codec's residual is written to this memory
    journal_.writer().chunk_copy(chunk, journal::Form::kMean, mean);
  else
    journal_.writer().chunk(chunk, journal::Form::kMean, mean);
}

Task<Status> ShardRound::make_step(proto::Step step) {
  what_ = "Step of round " + to_string(step.round);
  const ShardProgress::Activity steps(context_.progress, what_, false);
  chunks_.store().set_gradient_factor(static_cast<float>(step.factor));
  const TimePoint begin = context_.clock.now();
  turn_ = 0;
  if (!chunks_.model().apply_on_worker)
    CENTROID_CO_TRY(co_await apply_all());
  else if (refuses_nonfinite() && shard().may_overflow(has_large_mean_))
    CENTROID_CO_TRY(co_await try_all());
  if (overflow_) co_return Status();
  const ShardProgress::Activity waits(context_.progress, what_ + ": waits for its journal's disk",
                                      true);
  CENTROID_CO_TRY(co_await end_journal());
  context_.probe.apply().ended(rounds_lane(), begin, context_.clock.now(), step.round.value);
  time_ += context_.clock.now() - begin;
  co_return Status();
}

Task<Status> ShardRound::apply_all() {
  has_stepped_ = true;
  for (const Chunk& chunk : chunks_.round_chunks()) {
    apply(chunk);
    if (refuses_nonfinite() && !shard().is_result_finite(chunk, has_large_mean_)) {
      overflow_ = chunk.id;
      co_return Status();
    }
    if (ends_turn()) CENTROID_CO_TRY(co_await yield());
  }
  co_return Status();
}

/// The workers' step, before any server makes it.
Task<Status> ShardRound::try_all() {
  Magnitude largest = Magnitude::kModerate;
  for (const Chunk& chunk : chunks_.round_chunks()) {
    Magnitude made = Magnitude::kModerate;
    if (has_codec()) {
      CENTROID_CO_ASSIGN(made, shard().try_step(chunk, *encoded_.at(chunk.id)));
    } else {
      made = shard().try_step(chunk);
    }
    largest = std::max(largest, made);
    if (made == Magnitude::kInfinite) {
      overflow_ = chunk.id;
      co_return Status();
    }
    if (ends_turn()) CENTROID_CO_TRY(co_await yield());
  }
  fault::point("trial.shard");
  shard().tried(largest);
  co_return Status();
}

Task<Status> ShardRound::follow() {
  stage_ = Stage::kRunning;
  if (!chunks_.model().apply_on_worker) co_return Status();
  what_ = "Commit of round " + to_string(merge_.round);
  const ShardProgress::Activity steps(context_.progress, what_, false);
  has_stepped_ = true;
  const TimePoint begin = context_.clock.now();
  turn_ = 0;
  for (const Chunk& chunk : chunks_.round_chunks()) {
    if (has_codec())
      CENTROID_CO_TRY(shard().apply(chunk, *encoded_.at(chunk.id)));
    else
      shard().apply(chunk);
    if (refuses_nonfinite()) (void)shard().is_result_finite(chunk, has_large_mean_);
    if (ends_turn()) CENTROID_CO_TRY(co_await yield());
  }
  time_ += context_.clock.now() - begin;
  co_return Status();
}

void ShardRound::apply(const Chunk& chunk) {
  shard().apply(chunk);
  const Bytes result = spare_of(chunks_.store(), chunk);
  if (shard().form() == journal::Form::kParameters)
    journal_.writer().chunk(chunk.id, journal::Form::kParameters, result);
  emit(chunk, result);
}

/// Write the end of the round to the journal after its chunks, before the leader gets an answer.
Task<Status> ShardRound::end_journal() {
  Journal& journal = journal_.writer();
  if (!journal.is_on()) co_return Status();
  journal::Commit commit;
  commit.version = chunks_.store().version().next();
  commit.optimizer_step = chunks_.store().optimizer_step() + 1;
  commit.weight = merge_.total_weight;
  commit.chunks = static_cast<std::uint32_t>(chunks_.round_chunks().size());
  commit.unix_seconds = context_.clock.unix_seconds();
  const std::uint64_t number = journal.end_round(journal::Kind::kCommit, std::move(commit));
  const TimePoint begin = context_.clock.now();
  co_await journal.done(number);
  static const trace::Lane kLane("journal");
  context_.probe.journal_stage().ended(kLane, begin, context_.clock.now(), merge_.round.value);
  CENTROID_CO_TRY(check_led());
  if (const auto state = journal.state(); state.is_broken)
    co_return Error(ErrorCode::kResourceExhausted,
                    "round " + to_string(merge_.round) + " on server '" + context_.options.name +
                        "' is not in its journal, which is broken: " + state.trouble);
  fault::point("servers.part_prepared");
  co_return Status();
}

/// A prepared round that was not committed has no effect.
void ShardRound::begin_encoding() {
  if (merge_.clears_residual) shard().clear_residual();
  shard().encoder().set_rounds(merge_.reply_rounds);
  shard().encoder().begin(merge_.round);
}

/// A chunk's mean is in the spare plane: send what can be sent now.
Status ShardRound::encode(const Chunk& chunk) {
  const auto send = [this](const Chunk& of, std::vector<std::byte> payload) { emit(of, payload); };
  const TimePoint begin = context_.clock.now();
  const Status encoded = shard().encode(chunk, send);
  static const trace::Lane kLane("replies");
  context_.probe.encode().ended(kLane, begin, context_.clock.now(), merge_.round.value);
  if (encoded.ok()) return encoded;
  return encoded.error().with_context("codec_down on server '" + context_.options.name + "'");
}

/// Send the result of a chunk to the workers. It is a copy, so that a slow reader does not block a
/// later round.
void ShardRound::emit(const Chunk& chunk, Bytes values) {
  ShardResult result;
  result.head.round = merge_.round;
  result.head.attempt = merge_.attempt;
  result.head.chunk = chunk.id;
  result.values = std::make_shared<const std::vector<std::byte>>(values.begin(), values.end());
  result.crc = crc32c(*result.values);
  if (has_codec()) encoded_[chunk.id] = result.values;
  send_(merge_.members, result);
}

/// Sums of squares of the means as workers decode them, by chunk.
Task<Status> ShardRound::measure(std::vector<double>& squares) {
  for (const Chunk& chunk : chunks_.round_chunks()) {
    const auto of = shard().squares(chunk, *encoded_.at(chunk.id));
    if (!of.ok()) co_return of.error();
    squares.push_back(*of);
    if (squares.size() % kChunksPerTurn == 0) CENTROID_CO_TRY(co_await yield());
  }
  co_return Status();
}

}  // namespace centroid::server
