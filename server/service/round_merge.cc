#include "server/service/round_merge.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "common/base/crc32c.h"
#include "common/base/log.h"
#include "common/base/trace_events.h"
#include "common/checkpoint/fault_point.h"
#include "common/optim/norm.h"
#include "server/store/turns.h"

/// The end of a round: from its sums to the next version.
namespace centroid::server {

namespace {

/// Fast rounds share one event.
constexpr std::chrono::milliseconds kRoundEvents{250};

}  // namespace

/// It is committed on no server: one was lost before it could be.
bool RoundMerge::give_up(const Error& why) {
  attempts_.give_up_merge(why);
  return false;
}

Task<void> RoundMerge::skip() {
  if (spread_.has_others()) co_await round_servers_.end_elsewhere();
}

Task<Result<bool>> RoundMerge::merge(RoundDecision decision) {
  if (!aggregate_.is_mean()) decision.total_weight = 1;  // there are no sums to divide
  const Status copied = co_await moves_.finish_moves();
  if (!copied.ok()) co_return give_up(copied.error());
  const std::size_t contributors = decision.contributors.size() + decision.late.size();
  job_.store().set_rate_factor(rate_factor_of(contributors, config_.optimizer_scale_ratio));
  if (policy_.is_elastic()) {
    elastic_.collect_parts(decision);
    co_await sum_parts(decision.total_weight);
  }
  CENTROID_CO_TRY(co_await await_chunks());
  if (job_.reply_failure) co_return *job_.reply_failure;
  if (open_.overflow) co_return false;
  if (!job_.shard->is_early() && !job_.shard->encodes()) {  // the sums change now
    const auto waits = round_journal_.begin_wait();
    co_await journal_.drained();
  }
  Merging round(executor_, std::move(decision));
  round.is_spread = spread_.has_others();
  // Behind a step that may overflow: a round that is skipped is in no journal.
  const bool writes_now = !config_.applies_on_worker() && !round.is_spread &&
                          (job_.shard->is_early() || !local_.may_overflow());
  if (writes_now) round.written = round_journal_.end_round(journal::Kind::kCommit, round.decision);
  const TimePoint begin = clock_.now();
  CENTROID_CO_TRY(co_await images_.until_copied());
  const Raised merging(use_.is_merging, changed_);
  if (round.is_spread) {
    open_.squares.resize(job_.store().plan().chunks().size());
    auto named = std::make_shared<const RoundDecision>(round.decision);
    round.elsewhere.spawn(round_servers_.prepare_elsewhere(std::move(named), &round.prepared));
  }
  if (open_.among_peers) {
    if (!round.is_spread) CENTROID_CO_TRY(co_await write_commit(round));
    close(round);
    job_.store().commit_elsewhere();
  } else if (config_.applies_on_worker()) {
    CENTROID_CO_ASSIGN(const bool is_prepared, co_await step_as_workers(round));
    if (!is_prepared && open_.overflow) co_return false;
    if (!is_prepared) co_return give_up(round.prepared.error());
  } else {
    CENTROID_CO_ASSIGN(const bool is_prepared, co_await step_here(round));
    if (!is_prepared && open_.overflow) co_return false;
    if (!is_prepared) co_return give_up(round.prepared.error());
  }
  if (round.is_spread) fault::point("servers.committed");
  if (round.is_spread) co_await round_servers_.end_elsewhere();
  static const trace::Lane kLane("rounds");
  probe_.apply().ended(kLane, begin, clock_.now(), job_.round.value);
  static const trace::EventLane kRounds("periods");
  kRounds.period(trace::Period::kRound, open_.opened, clock_.now(), job_.round.value);
  count_round(round);
  changed_.notify_all();
  fault::point("round.committed");
  co_return true;
}

/// Until all chunks of this server are summed.
Task<Status> RoundMerge::await_chunks() {
  const std::size_t chunks = open_.among_peers ? 0 : job_.shard->round_chunks().size();
  const auto missing = [this, chunks](const char* why) {
    return std::to_string(chunks - open_.complete_chunks) + " of " + std::to_string(chunks) +
           " chunks " + why;
  };
  while (open_.complete_chunks < chunks) {
    const bool combines = job_.aggregator->is_at_work();
    BlockedOn on{WaitCause::kCredit, present_round(job_), "workers", [missing] {
                   return missing(
                       "wait for memory: until slower workers have read the results before, or "
                       "the journal's disk has taken what came");
                 }};
    if (combines)
      on = {WaitCause::kAggregate, present_round(job_), "aggregate " + aggregate_.to_string(),
            [missing] { return missing("are being combined"); }};
    const auto moves = [this, chunks, combines] {
      attempts_.results_taken();
      return open_.complete_chunks >= chunks || job_.aggregator->is_at_work() != combines;
    };
    const bool goes_on = co_await until(moves, std::move(on));
    if (!goes_on) co_return Error(ErrorCode::kCancelled, "the server is stopping");
  }
  co_return Status();
}

/// With one server.
Task<Status> RoundMerge::write_commit(Merging& round) {
  round.written = round_journal_.end_round(journal::Kind::kCommit, round.decision);
  co_return co_await round_journal_.written(round.written);
}

void RoundMerge::close(const Merging& round) {
  attempts_.close_attempt(proto::Outcome::kCommitted, round.decision.total_weight,
                          round.contributors, "");
  // A worker that joins from now on learns that its contribution counts.
  for (const MemberId member : round.decision.contributors)
    job_.counted.add(members_.name_of(member), job_.round);
}

/// The workers apply the mean themselves: try the step where it may overflow, commit the round, and
/// make the same step, on all servers. False: another one could not prepare it, or a number is not
/// finite.
Task<Result<bool>> RoundMerge::step_as_workers(Merging& round) {
  const bool clips = config_.optimizer.clip_norm > 0;
  co_await round.elsewhere.join();
  if (open_.overflow || !round.prepared.ok()) co_return false;  // nobody has made the step
  const bool tries = local_.may_overflow();
  const bool clips_first = clips && (tries || round.is_spread);
  if (clips_first) {
    CENTROID_CO_ASSIGN(const float factor, co_await local_.clip(open_.attempt));
    if (round.is_spread) round.prepared = co_await round_servers_.step_elsewhere(factor);
    if (!round.prepared.ok()) co_return false;
  }
  if (tries && !open_.overflow) CENTROID_CO_TRY(co_await local_.try_step(open_.attempt));
  if (open_.overflow) co_return false;
  if (round.is_spread)
    CENTROID_CO_TRY(co_await round_journal_.commit(round.decision));
  else
    CENTROID_CO_TRY(co_await write_commit(round));
  close(round);
  if (clips && !clips_first) CENTROID_CO_TRY(co_await local_.clip(open_.attempt));
  CENTROID_CO_TRY(co_await local_.follow(open_.attempt));
  if (open_.overflow) co_return halt_on_overflow(round);
  if (job_.shard->encodes()) local_.count_results();
  co_return true;
}

/// Part of the round is in the state already, which cannot be undone.
Error RoundMerge::halt_on_overflow(Merging& round) {
  open_.is_spoilt = true;
  explain_overflow(round.decision);
  return {ErrorCode::kFailedPrecondition, "JIDOKA HALT: " + round.decision.text};
}

/// The server applies the mean, and sends parameters. False: another server could not prepare it,
/// or a number is not finite and no state has changed.
Task<Result<bool>> RoundMerge::step_here(Merging& round) {
  const bool clips = config_.optimizer.clip_norm > 0;
  const double weight = round.decision.total_weight;
  const std::vector<Chunk>& mine = job_.shard->round_chunks();
  // Slots change in place. Other servers make their part without waiting for a trial here.
  const bool tries =
      !round.is_spread && job_.store().optimizer().slots() > 0 && local_.may_overflow();
  if (clips) {
    co_await local_.measure(weight);
    co_await round.elsewhere.join();
    if (!round.prepared.ok() || open_.overflow) co_return false;
    const float factor = local_.clip_measured();
    if (round.is_spread)
      round.elsewhere.spawn(round_servers_.prepare_elsewhere(factor, &round.prepared));
  }
  if (tries) CENTROID_CO_TRY(co_await local_.try_step(open_.attempt, clips ? 0 : weight));
  if (tries && open_.overflow) co_return false;
  std::size_t turn = 0;
  for (const Chunk& chunk : mine) {
    if (job_.shard->is_early()) break;  // applied and sent when it was complete
    if (!clips && !tries) job_.store().scale(chunk, weight);
    job_.shard->apply(chunk);
    local_.look_at_result(chunk);
    emit(chunk);
    if (++turn % kChunksPerTurn == 0) co_await yield(executor_);
  }
  co_await round.elsewhere.join();
  if (!round.prepared.ok()) co_return false;
  if (open_.overflow && job_.store().optimizer().slots() == 0) co_return false;
  if (open_.overflow) co_return halt_on_overflow(round);
  if (round.is_spread)
    CENTROID_CO_TRY(co_await round_journal_.commit(round.decision));
  else if (round.written > 0)
    CENTROID_CO_TRY(co_await round_journal_.written(round.written));
  else
    CENTROID_CO_TRY(co_await write_commit(round));
  job_.shard->commit();
  fault::point("round.before_close");
  close(round);
  co_return true;
}

/// What epochs, metrics and events hear of a committed round.
void RoundMerge::count_round(const Merging& round) {
  const double elapsed = seconds(clock_.now() - open_.opened);
  if (open_.tally.samples > 0) totals_.loss = open_.tally.loss();
  const double rate = static_cast<double>(open_.tally.samples) / std::max(elapsed, 1e-9);
  totals_.samples_per_second =
      totals_.samples_per_second == 0 ? rate : 0.9 * totals_.samples_per_second + 0.1 * rate;
  totals_.samples += open_.tally.samples;
  job_.steps_before += open_.tally.steps;
  if (open_.is_clipped) ++totals_.clipped;
  if (totals_.gradient_norm >= 0) probe_.gradient_norm(totals_.gradient_norm, open_.is_clipped);
  add_to_curves(round, elapsed);
  for (const ReportedShare& told : open_.shares)
    job_.epochs.add(told, job_.agreed->train_samples, clock_.unix_seconds() - elapsed);
  probe_.round_committed(elapsed, open_.tally.samples, totals_.loss);
  for (const auto& [name, sum] : open_.tally.scalars.all()) probe_.scalar(name, sum.mean());
  double residual = 0;
  for (const auto& [id, worker] : members_.present)
    residual = std::max(residual, worker->measured.residual_norm);
  probe_.residual_up(residual);
  log::debug("round.committed", {{"round", job_.round.value},
                                 {"version", job_.store().version().value},
                                 {"seconds", elapsed},
                                 {"loss", totals_.loss}});
  ++totals_.rounds_unreported;
  if (clock_.now() - totals_.round_published >= kRoundEvents) {
    totals_.round_published = clock_.now();
    events_.publish("round.committed", {{"round", job_.round.value},
                                        {"version", job_.store().version().value},
                                        {"generation", members_.roster.generation().value},
                                        {"contributors", round.contributors},
                                        {"samples", open_.tally.samples},
                                        {"seconds", elapsed},
                                        {"loss", totals_.loss},
                                        {"rounds", std::exchange(totals_.rounds_unreported, 0)}});
  }
  for (std::size_t i = 0; i < round.decision.contributors.size(); ++i) probe_.staleness(0);
  elastic_.late_counted(round.decision);
}

void RoundMerge::add_to_curves(const Merging& round, double elapsed) {
  CurvePointView point;
  point.first = job_.round.value;
  point.unix_seconds = clock_.unix_seconds();
  point.round_seconds = elapsed;
  point.samples = open_.tally.samples;
  point.samples_per_second = static_cast<double>(point.samples) / std::max(elapsed, 1e-9);
  if (point.samples > 0) point.loss = open_.tally.loss();
  if (point.samples > 0) point.accuracy = open_.tally.accuracy();
  point.learning_rate = job_.store().optimizer().learning_rate(job_.store().optimizer_step());
  probe_.learning_rate(point.learning_rate);
  if (config_.optimizer.clip_norm > 0 && totals_.gradient_norm >= 0)
    point.gradient_norm = totals_.gradient_norm;
  point.workers = round.contributors;
  job_.curves.add(point);
}

void RoundMerge::explain_overflow(RoundDecision& decision) const {
  double largest = -1;
  const auto weigh = [&](const proto::ContributionKey& key, double squares_here) {
    const double squares = squares_here + round_servers_.squares_elsewhere(key);
    if (squares > largest) largest = squares, decision.culprit = key.member;
  };
  const Attempt& attempt = *open_.attempt;
  for (const StagedPart& part : open_.parts) weigh(part.counts.key, part.squares);
  for (const MemberId member : decision.contributors)
    if (const auto rank = attempt.rank_of(member); rank && !policy_.is_elastic())
      weigh({member, attempt.generation, attempt.round, attempt.number},
            job_.aggregator->squares(*rank));
  const ChunkPlan& plan = job_.store().plan();
  const TensorId tensor = plan.chunk(*open_.overflow).tensor;
  decision.text = "the sum or result of tensor " + plan.manifest()[tensor.value].name +
                  " is not finite in round " + to_string(job_.round) +
                  ", though every contribution is";
  if (largest < 0) return;
  char norm[32];
  std::snprintf(norm, sizeof norm, "%.3g", std::sqrt(largest));
  decision.text += "; the largest, with norm " + std::string(norm) + ", is of " +
                   members_.name_of(decision.culprit);
}

void RoundMerge::chunk_complete(ChunkId id, double total_weight) {
  const Chunk& chunk = job_.store().plan().chunk(id);
  open_.chunk_weight = total_weight;
  local_.look_at_sum(chunk);
  const bool is_early = job_.shard->is_early(), encodes = job_.shard->encodes();
  const bool applies = is_early && !config_.applies_on_worker();
  if ((encodes || applies) && spread_.moving.contains(id)) {
    spread_.summed.emplace_back(id, total_weight);  // its parameters or residual are yet to come
    return;
  }
  if (encodes || is_early) job_.store().scale(chunk, total_weight);
  if (applies) job_.shard->apply(chunk);
  if (applies) local_.look_at_result(chunk);
  if (encodes && open_.overflow) {  // nothing is made of it, and no residual is spoilt
    if (++open_.complete_chunks == job_.shard->round_chunks().size()) changed_.notify_all();
    return;
  }
  if (journal_.is_on()) round_journal_.write_chunk(chunk);
  if (encodes)
    encode_reply(id);
  else if (is_early)
    emit(chunk);
  if (++open_.complete_chunks == job_.shard->round_chunks().size()) changed_.notify_all();
}

/// The chunk's memory in the spare plane is its result: hand it to the outboxes.
void RoundMerge::emit(const Chunk& chunk) {
  if (policy_.is_elastic() && !open_.machine.has_contributions()) return;  // nobody waits for it
  Bytes values = std::as_bytes(std::as_const(job_.store()).spare(chunk));
  const auto is_summed = [](const auto& worker) {
    return !worker.second->session->sends_unsummed();
  };
  std::optional<std::uint32_t> crc;  // now, while the chunk is in the cache
  if (std::any_of(members_.present.begin(), members_.present.end(), is_summed))
    crc = crc32c(values);
  if (policy_.is_elastic()) {  // a slow reader must not keep the next rounds from this memory
    open_.attempt->payloads.emplace_back(values.begin(), values.end());
    values = open_.attempt->payloads.back();
    open_.attempt->pieces.push_back({chunk.id, values, crc});
    members_.wake(open_.attempt->members);
    return;
  }
  open_.attempt->pieces.push_back({chunk.id, values, crc});
  open_.attempt->holds.push_back(job_.store().hold_spare(chunk.id));
  members_.wake(open_.attempt->members);
}

/// A chunk's mean is in the spare plane: hand what can be sent now to the outboxes.
void RoundMerge::encode_reply(ChunkId chunk) {
  const auto emit = [this](const Chunk& of, std::vector<std::byte> payload) {
    open_.attempt->payloads.push_back(std::move(payload));
    const Bytes bytes = open_.attempt->payloads.back();
    open_.attempt->pieces.push_back({of.id, bytes, crc32c(bytes)});
  };
  const TimePoint begin = clock_.now();
  const Status encoded = job_.shard->encode(job_.shard->plan().chunk(chunk), emit);
  static const trace::Lane kLane("replies");
  const double took = probe_.encode().ended(kLane, begin, clock_.now(), job_.round.value);
  probe_.down(job_.shard->encoder().kind()).encoded(took);
  if (!encoded.ok()) job_.reply_failure = encoded.error().with_context("codec_down");
  members_.wake(open_.attempt->members);
}

/// All parts of a chunk at once, while its sum is in the cache.
Task<void> RoundMerge::sum_parts(double total_weight) {
  std::vector<WeighedPart> parts;
  for (const StagedPart& part : open_.parts)
    parts.push_back({part.staged.get(), part.counts.weight});
  std::size_t turn = 0;
  for (const Chunk& chunk : job_.shard->round_chunks()) {
    if (job_.shard->encodes() && !journal_.has_room()) {
      const auto waits = round_journal_.begin_wait();
      co_await journal_.room();
    }
    job_.shard->add_up(chunk, parts);
    chunk_complete(chunk.id, total_weight);
    if (++turn % kChunksPerTurn == 0) co_await yield(executor_);
  }
  for (StagedPart& part : open_.parts) part.squares = part.staged ? part.staged->squares() : 0;
  for (StagedPart& part : open_.parts)
    part.staged.reset();  // what counts is still to be told to other servers
}

Task<void> RoundMerge::snapshot_room() {
  // A checkpoint that is still being written keeps copies of what changes; past its budget the
  // round waits for it.
  BlockedOn on{WaitCause::kCheckpoint, present_round(job_), "checkpoint", [] {
                 return "its files: there is no memory for more copies of what they still lack, "
                        "and run_dir's disk is slower than the rounds";
               }};
  const auto has_room = [this] { return !job_.store().snapshot_is_full(); };
  (void)co_await until(has_room, std::move(on));
}

}  // namespace centroid::server
