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

Status Cluster::make_replies() {
  reply_reader_.reset();
  replies_.reset();
  if (!config_.compresses_results()) return {};
  CENTROID_ASSIGN(replies_, ReplyEncoder::make(config_.codec_down, store_->plan(), config_.seed));
  reply_reader_ = std::make_unique<ReplyReader>(replies_->codec(), *store_);
  replies_generation_ = replies_committed_ = Generation();
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

bool Cluster::is_residual_cleared() const {
  return replies_ && replies_->resets_residual() && replies_generation_ != replies_committed_;
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
  static const trace::Lane kLane("replies");
  const double took = probe_.encode().ended(kLane, begin, clock_.now(), round_.value);
  probe_.down(replies_->kind()).encoded(took);
  if (!encoded.ok()) reply_failure_ = encoded.error().with_context("codec_down");
  outgoing_.notify_all();
}

/// The workers' step with the mean that they decode.
Status Cluster::apply_reply(const Attempt::Piece& piece) {
  return reply_reader_->apply(store_->plan().chunk(piece.chunk), piece.values);
}

/// As `measure_mean`, of what the workers decode.
Task<Status> Cluster::measure_replies() {
  squares_.resize(store_->plan().chunks().size());
  const auto attempt = attempt_;
  std::size_t turn = 0;
  for (const Attempt::Piece& piece : attempt->pieces) {
    const Chunk& chunk = store_->plan().chunk(piece.chunk);
    CENTROID_CO_ASSIGN(squares_[piece.chunk.value], reply_reader_->squares(chunk, piece.values));
    if (++turn % kChunksPerTurn == 0)
      co_await boost::asio::post(executor_, boost::asio::use_awaitable);
  }
  co_return Status();
}

/// The round counts: so does what it left out.
void Cluster::commit_replies() {
  replies_->commit();
  replies_committed_ = replies_generation_;
  const ReplyEncoder::Totals now = replies_->totals();
  probe_.down(replies_->kind())
      .chunks(now.chunks - replies_told_.chunks, now.dense_chunks - replies_told_.dense_chunks);
  replies_told_ = now;
  if (!store_->keeps_residual() || round_.value % kResidualRounds != 1) return;
  PlaneNorm norm;
  for (const Chunk& chunk : store_->plan().chunks()) {
    if (!store_->is_here(chunk.id)) continue;
    norm.add(chunk.position, store_->residual().subspan(chunk.position, chunk.elements));
    norm.end_chunk();
  }
  probe_.residual_down(norm.value());
}

}  // namespace centroid::server
