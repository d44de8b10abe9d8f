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

double norm_of(std::span<const float> plane) {
  PlaneNorm norm;
  norm.add(0, plane);
  return norm.value();
}
}  // namespace

Status Cluster::make_replies() {
  replies_.reset();
  if (!config_.compresses_results()) return {};
  CENTROID_ASSIGN(replies_, ReplyEncoder::make(config_.codec_down, store_->plan(), config_.seed));
  reply_mean_.resize(store_->plan().max_chunk_elements());
  replies_generation_ = Generation();
  replies_told_ = {};
  return {};
}

void Cluster::begin_replies() {
  if (replies_->resets_residual() && replies_generation_ != attempt_->generation) {
    store_->clear_residual();
    replies_->set_rounds(0);
  }
  replies_generation_ = attempt_->generation;
  replies_->begin(round_);
}

/// A chunk's mean is in the spare plane: hand what can be sent now to the outboxes.
void Cluster::encode_reply(ChunkId chunk) {
  ReplyEncoder::Memory memory;
  memory.means = store_->all_spare();
  if (store_->keeps_residual()) memory.residual = store_->residual();
  const auto emit = [this](const Chunk& of, std::vector<std::byte> payload) {
    attempt_->payloads.push_back(std::move(payload));
    const Bytes bytes = attempt_->payloads.back();
    attempt_->pieces.push_back({of.id, bytes, crc32c(bytes)});
  };
  const TimePoint begin = clock_.now();
  const Status encoded = replies_->complete(chunk, memory, emit);
  probe_.down(replies_->kind())
      .encoded(std::chrono::duration<double>(clock_.now() - begin).count());
  if (!encoded.ok()) reply_failure_ = encoded.error().with_context("codec_down");
  outgoing_.notify_all();
}

Status Cluster::add_to_norm(const Attempt::Piece& piece, PlaneNorm& norm) {
  const Chunk& chunk = store_->plan().chunk(piece.chunk);
  CENTROID_ASSIGN(const auto sparse, replies_->codec().sparse(piece.values, chunk.elements));
  if (sparse) {
    norm.add(chunk.position, sparse->index, sparse->value);
    norm.end_chunk();
    return {};
  }
  const std::span<float> mean = std::span(reply_mean_).first(chunk.elements);
  CENTROID_TRY(replies_->codec().decode(piece.values, mean));
  norm.add(chunk.position, mean);
  norm.end_chunk();
  return {};
}

/// The workers' step with the mean that they decode.
Status Cluster::apply_reply(const Attempt::Piece& piece) {
  const Chunk& chunk = store_->plan().chunk(piece.chunk);
  if (store_->optimizer().ignores_zeros()) {
    CENTROID_ASSIGN(const auto sparse, replies_->codec().sparse(piece.values, chunk.elements));
    if (sparse) {
      store_->shadow_apply(chunk, sparse->index, sparse->value);
      return {};
    }
  }
  const std::span<float> mean = std::span(reply_mean_).first(chunk.elements);
  CENTROID_TRY(replies_->codec().decode(piece.values, mean));
  store_->shadow_apply(chunk, mean);
  return {};
}

/// As `clip`, with the norm of what the workers decode.
Task<Status> Cluster::clip_replies() {
  if (config_.optimizer.clip_norm == 0) co_return Status();
  const auto attempt = attempt_;
  std::vector<const Attempt::Piece*> in_order(store_->plan().chunks().size());
  for (const Attempt::Piece& piece : attempt->pieces) in_order[piece.chunk.value] = &piece;
  PlaneNorm norm;
  std::size_t turn = 0;
  for (const Attempt::Piece* piece : in_order) {
    if (piece == nullptr) continue;
    CENTROID_CO_TRY(add_to_norm(*piece, norm));
    if (++turn % kChunksPerTurn == 0)
      co_await boost::asio::post(executor_, boost::asio::use_awaitable);
  }
  clip_to(norm.value());
  co_return Status();
}

/// The round counts: so does what it left out.
void Cluster::commit_replies() {
  replies_->commit();
  const ReplyEncoder::Totals now = replies_->totals();
  probe_.down(replies_->kind())
      .chunks(now.chunks - replies_told_.chunks, now.dense_chunks - replies_told_.dense_chunks);
  replies_told_ = now;
  if (store_->keeps_residual() && round_.value % kResidualRounds == 1)
    probe_.residual_down(norm_of(store_->residual()));
}

}  // namespace centroid::server
