#include "server/service/local_shard.h"

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
  if (factor != 1) ++totals_.clipped;
  probe_.gradient_norm(totals_.gradient_norm, factor != 1);
  return factor;
}

Task<void> LocalShard::clip(double total_weight) {
  if (config_.optimizer.clip_norm == 0) co_return;
  co_await measure(total_weight);
  clip_measured();
}

Task<Status> LocalShard::follow(std::shared_ptr<const Attempt> results) {
  const bool encodes = job_.shard->encodes();
  const std::vector<Chunk>& chunks = job_.shard->round_chunks();
  for (std::size_t turn = 0; turn < chunks.size(); ++turn) {
    if (encodes) {
      const Attempt::Piece& piece = results->pieces[turn];
      CENTROID_CO_TRY(job_.shard->apply(job_.shard->plan().chunk(piece.chunk), piece.values));
    } else {
      job_.shard->apply(chunks[turn]);
    }
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
