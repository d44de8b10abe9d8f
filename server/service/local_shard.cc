#include "server/service/local_shard.h"

#include <utility>

#include "common/base/crc32c.h"
#include "common/optim/norm.h"
#include "server/service/turns.h"

namespace centroid::server {

namespace {

/// Rounds between looks at the residual: each is a pass over it.
constexpr std::uint64_t kResidualRounds = 16;

}  // namespace

const FragmentPlan::Fragment& LocalShard::fragment() const {
  return job_.fragments[job_.fragments.turn(job_.store->optimizer_step())];
}

bool LocalShard::has_turn(const Chunk& chunk) const {
  return job_.fragments.number_of(chunk.tensor) ==
         job_.fragments.turn(job_.store->optimizer_step());
}

bool LocalShard::is_mine(ChunkId chunk) const {
  return spread_.route.owners.empty() || spread_.route.owners[chunk.value] == 0;
}

const std::vector<Chunk>& LocalShard::part() const {
  if (!spread_.has_others()) return fragment().chunks;
  return spread_.parts[job_.fragments.turn(job_.store->optimizer_step())];
}

/// What of the norm lies here.
Task<void> LocalShard::measure_mean(double total_weight) {
  open_.squares.resize(job_.store->plan().chunks().size());
  PlaneNorm norm;
  std::size_t turn = 0;
  for (const Chunk& chunk : part()) {
    if (total_weight > 0) job_.store->scale(chunk, total_weight);
    if (!job_.store->plan().is_buffer(chunk))
      norm.add(chunk.position, std::as_const(*job_.store).spare(chunk));
    open_.squares[chunk.id.value] = norm.end_chunk();
    if (++turn % kChunksPerTurn == 0) co_await yield(executor_);
  }
}

float LocalShard::clip_measured() {
  PlaneNorm norm;
  for (const Chunk& chunk : fragment().chunks) norm.add_chunk(open_.squares[chunk.id.value]);
  return clip_to(norm.value());
}

float LocalShard::clip_to(double norm) {
  totals_.gradient_norm = norm;
  const float factor = clip_factor(norm, config_.optimizer.clip_norm);
  job_.store->set_gradient_factor(factor);
  if (factor != 1) ++totals_.clipped;
  probe_.gradient_norm(totals_.gradient_norm, factor != 1);
  return factor;
}

/// Norm clipping needs the whole mean before the first step. `total_weight`: the sums in spare are
/// to be made means first; 0: they are means.
Task<void> LocalShard::clip(double total_weight) {
  if (config_.optimizer.clip_norm == 0) co_return;
  co_await measure_mean(total_weight);
  clip_measured();
}

void LocalShard::begin_replies() {
  if (job_.replies->resets_residual() && job_.replies_generation != open_.attempt->generation) {
    job_.store->clear_residual();
    job_.replies->set_rounds(0);
  }
  job_.replies_generation = open_.attempt->generation;
  job_.replies->begin(job_.round);
}

bool LocalShard::is_residual_cleared() const {
  return job_.replies && job_.replies->resets_residual() &&
         job_.replies_generation != job_.replies_committed;
}

/// The workers' step with the mean that they decode.
Status LocalShard::apply_reply(const Attempt::Piece& piece) {
  return job_.reply_reader->apply(job_.store->plan().chunk(piece.chunk), piece.values);
}

/// As `measure_mean`, of what the workers decode.
Task<Status> LocalShard::measure_replies() {
  open_.squares.resize(job_.store->plan().chunks().size());
  const auto attempt = open_.attempt;
  std::size_t turn = 0;
  for (const Attempt::Piece& piece : attempt->pieces) {
    const Chunk& chunk = job_.store->plan().chunk(piece.chunk);
    CENTROID_CO_ASSIGN(open_.squares[piece.chunk.value],
                       job_.reply_reader->squares(chunk, piece.values));
    if (++turn % kChunksPerTurn == 0) co_await yield(executor_);
  }
  co_return Status();
}

/// The round counts: so does what it left out.
void LocalShard::commit_replies() {
  job_.replies->commit();
  job_.replies_committed = job_.replies_generation;
  const ReplyEncoder::Totals now = job_.replies->totals();
  probe_.down(job_.replies->kind())
      .chunks(now.chunks - job_.replies_counted.chunks,
              now.dense_chunks - job_.replies_counted.dense_chunks);
  job_.replies_counted = now;
  if (!job_.store->keeps_residual() || job_.round.value % kResidualRounds != 1) return;
  PlaneNorm norm;
  for (const Chunk& chunk : job_.store->plan().chunks()) {
    if (!job_.store->is_here(chunk.id)) continue;
    norm.add(chunk.position, job_.store->residual().subspan(chunk.position, chunk.elements));
    norm.end_chunk();
  }
  probe_.residual_down(norm.value());
}

}  // namespace centroid::server
