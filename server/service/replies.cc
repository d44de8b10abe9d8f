#include <boost/asio/post.hpp>

#include "common/base/crc32c.h"
#include "common/optim/norm.h"
#include "server/service/cluster.h"

/// Results through a codec: encoded once for all workers, and decoded here for the server's copy.
namespace centroid::server {
namespace {
/// Rounds between looks at the residual: each is a pass over it.
constexpr std::uint64_t kResidualRounds = 16;
constexpr std::size_t kChunksPerTurn = 4;

}  // namespace

Status Cluster::make_replies(JobState& into) const {
  if (!config_.compresses_results()) return {};
  CENTROID_ASSIGN(into.replies,
                  ReplyEncoder::make(config_.codec_down, into.store->plan(), config_.seed));
  into.reply_reader = std::make_unique<ReplyReader>(into.replies->codec(), *into.store);
  return {};
}

void Cluster::begin_replies() {
  if (job_.replies->resets_residual() && job_.replies_generation != open_.attempt->generation) {
    job_.store->clear_residual();
    job_.replies->set_rounds(0);
  }
  job_.replies_generation = open_.attempt->generation;
  job_.replies->begin(job_.round);
}

bool Cluster::is_residual_cleared() const {
  return job_.replies && job_.replies->resets_residual() &&
         job_.replies_generation != job_.replies_committed;
}

/// A chunk's mean is in the spare plane: hand what can be sent now to the outboxes.
void Cluster::encode_reply(ChunkId chunk) {
  ReplyEncoder::Memory memory;
  memory.means = job_.store->all_spare();
  if (job_.store->keeps_residual()) memory.residual = job_.store->residual();
  const auto emit = [this](const Chunk& of, std::vector<std::byte> payload) {
    open_.attempt->payloads.push_back(std::move(payload));
    const Bytes bytes = open_.attempt->payloads.back();
    open_.attempt->pieces.push_back({of.id, bytes, crc32c(bytes)});
  };
  const TimePoint begin = clock_.now();
  const Status encoded = job_.replies->complete(chunk, memory, emit);
  static const trace::Lane kLane("replies");
  const double took = probe_.encode().ended(kLane, begin, clock_.now(), job_.round.value);
  probe_.down(job_.replies->kind()).encoded(took);
  if (!encoded.ok()) job_.reply_failure = encoded.error().with_context("codec_down");
  outgoing_.notify_all();
}

/// The workers' step with the mean that they decode.
Status Cluster::apply_reply(const Attempt::Piece& piece) {
  return job_.reply_reader->apply(job_.store->plan().chunk(piece.chunk), piece.values);
}

/// As `measure_mean`, of what the workers decode.
Task<Status> Cluster::measure_replies() {
  open_.squares.resize(job_.store->plan().chunks().size());
  const auto attempt = open_.attempt;
  std::size_t turn = 0;
  for (const Attempt::Piece& piece : attempt->pieces) {
    const Chunk& chunk = job_.store->plan().chunk(piece.chunk);
    CENTROID_CO_ASSIGN(open_.squares[piece.chunk.value],
                       job_.reply_reader->squares(chunk, piece.values));
    if (++turn % kChunksPerTurn == 0)
      co_await boost::asio::post(executor_, boost::asio::use_awaitable);
  }
  co_return Status();
}

/// The round counts: so does what it left out.
void Cluster::commit_replies() {
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
