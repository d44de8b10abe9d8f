#include "server/service/local_shard.h"

#include <algorithm>
#include <utility>

#include "common/checkpoint/fault_point.h"
#include "common/optim/norm.h"
#include "server/store/turns.h"

namespace centroid::server {

namespace {

/// Rounds between looks at the residual: each is a pass over it.
constexpr std::uint64_t kResidualRounds = 16;

}  // namespace

Task<void> LocalShard::measure(double total_weight) {
  open_.squares.resize(job_.shard->plan().chunks().size());
  std::size_t turn = 0;
  for (const Chunk& chunk : job_.shard->round_chunks()) {
    if (total_weight > 0) job_.store().scale(chunk, total_weight);
    open_.squares[chunk.id.value] = job_.shard->squares(chunk);
    if (++turn % kChunksPerTurn == 0) co_await yield(executor_);
  }
}

Task<Status> LocalShard::measure(std::shared_ptr<const Attempt> results) {
  open_.squares.resize(job_.shard->plan().chunks().size());
  std::size_t turn = 0;
  for (const Attempt::Piece& piece : results->pieces) {
    const Chunk& chunk = job_.shard->plan().chunk(piece.chunk);
    CENTROID_CO_ASSIGN(open_.squares[piece.chunk.value], job_.shard->squares(chunk, piece.values));
    if (++turn % kChunksPerTurn == 0) co_await yield(executor_);
  }
  co_return Status();
}

float LocalShard::clip_measured() {
  PlaneNorm norm;
  for (const Chunk& chunk : job_.shard->fragment().chunks)
    norm.add_chunk(open_.squares[chunk.id.value]);
  totals_.gradient_norm = norm.value();
  const float factor = clip_factor(totals_.gradient_norm, config_.optimizer.clip_norm);
  job_.store().set_gradient_factor(factor);
  open_.is_clipped = factor != 1;
  return factor;
}

Task<Result<float>> LocalShard::clip(std::shared_ptr<const Attempt> results) {
  if (job_.shard->encodes())
    CENTROID_CO_TRY(co_await measure(std::move(results)));
  else
    co_await measure(0);
  co_return clip_measured();
}

void LocalShard::look_at_sum(const Chunk& chunk) const {
  if (policy_.nonfinite == NonFinitePolicy::kPropagate || open_.overflow) return;
  const Magnitude size = job_.shard->size_of_sum(chunk);
  // The mean of small weights is larger than the sum.
  open_.has_large_sum =
      open_.has_large_sum || size != Magnitude::kModerate || open_.chunk_weight < 1;
  if (size == Magnitude::kInfinite) open_.overflow = chunk.id;
}

void LocalShard::look_at_result(const Chunk& chunk) const {
  if (policy_.nonfinite == NonFinitePolicy::kPropagate || open_.overflow) return;
  if (!job_.shard->is_result_finite(chunk, open_.has_large_sum)) open_.overflow = chunk.id;
}

bool LocalShard::may_overflow() const {
  return policy_.nonfinite != NonFinitePolicy::kPropagate &&
         job_.shard->may_overflow(open_.has_large_sum);
}

Task<Status> LocalShard::try_step(std::shared_ptr<const Attempt> results, double total_weight) {
  const bool encodes = job_.shard->encodes();
  const std::vector<Chunk>& chunks = job_.shard->round_chunks();
  Magnitude largest = Magnitude::kModerate;
  for (std::size_t turn = 0; turn < chunks.size(); ++turn) {
    const Chunk& chunk =
        encodes ? job_.shard->plan().chunk(results->pieces[turn].chunk) : chunks[turn];
    Magnitude made = Magnitude::kModerate;
    if (total_weight > 0) job_.store().scale(chunk, total_weight);
    if (encodes) {
      CENTROID_CO_ASSIGN(made, job_.shard->try_step(chunk, results->pieces[turn].values));
    } else {
      made = job_.shard->try_step(chunk);
    }
    largest = std::max(largest, made);
    if (made == Magnitude::kInfinite) {
      open_.overflow = chunk.id;
      co_return Status();
    }
    if ((turn + 1) % kChunksPerTurn == 0) co_await yield(executor_);
  }
  fault::point("trial.leader");
  job_.shard->tried(largest);
  co_return Status();
}

Task<Status> LocalShard::follow(std::shared_ptr<const Attempt> results) {
  const bool encodes = job_.shard->encodes();
  const std::vector<Chunk>& chunks = job_.shard->round_chunks();
  for (std::size_t turn = 0; turn < chunks.size(); ++turn) {
    const Chunk& chunk =
        encodes ? job_.shard->plan().chunk(results->pieces[turn].chunk) : chunks[turn];
    if (encodes)
      CENTROID_CO_TRY(job_.shard->apply(chunk, results->pieces[turn].values));
    else
      job_.shard->apply(chunk);
    look_at_result(chunk);
    if ((turn + 1) % kChunksPerTurn == 0) co_await yield(executor_);
  }
  job_.shard->commit();
  if (encodes) job_.replies_committed = job_.replies_generation;
  co_return Status();
}

void LocalShard::begin_results(Generation generation) {
  ReplyEncoder& encoder = job_.shard->encoder();
  if (encoder.resets_residual() && job_.replies_generation != generation)
    job_.shard->clear_residual();
  job_.replies_generation = generation;
  encoder.begin(job_.round);
}

bool LocalShard::is_residual_cleared() const {
  return job_.shard->encodes() && job_.shard->encoder().resets_residual() &&
         job_.replies_generation != job_.replies_committed;
}

void LocalShard::count_results() {
  const ReplyEncoder& encoder = job_.shard->encoder();
  const ReplyEncoder::Totals now = encoder.totals();
  probe_.down(encoder.kind())
      .chunks(now.chunks - job_.replies_counted.chunks,
              now.dense_chunks - job_.replies_counted.dense_chunks);
  job_.replies_counted = now;
  if (!job_.store().stores_residual() || job_.round.value % kResidualRounds != 1) return;
  PlaneNorm norm;
  for (const Chunk& chunk : job_.shard->plan().chunks()) {
    if (!job_.store().is_here(chunk.id)) continue;
    norm.add(chunk.position, job_.store().residual().subspan(chunk.position, chunk.elements));
    norm.end_chunk();
  }
  probe_.residual_down(norm.value());
}

}  // namespace centroid::server
