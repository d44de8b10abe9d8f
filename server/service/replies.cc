#include "common/base/crc32c.h"
#include "common/base/log.h"
#include "server/service/cluster.h"

/// Results through a codec: encoded once for all workers, and decoded here for the server's copy.
namespace centroid::server {

Status Cluster::make_replies() {
  replies_.reset();
  if (!config_.compresses_results()) return {};
  CENTROID_ASSIGN(replies_, ReplyEncoder::make(config_.codec_down, store_->plan(), config_.seed));
  reply_mean_.resize(store_->plan().max_chunk_elements());
  replies_generation_ = Generation();
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
  const Status encoded = replies_->complete(chunk, memory, emit);
  if (!encoded.ok()) reply_failure_ = encoded.error().with_context("codec_down");
  outgoing_.notify_all();
}

/// The workers' step with the mean that they decode.
Status Cluster::apply_reply(const Attempt::Piece& piece) {
  const Chunk& chunk = store_->plan().chunk(piece.chunk);
  const std::span<float> mean = std::span(reply_mean_).first(chunk.elements);
  CENTROID_TRY(replies_->codec().decode(piece.values, mean));
  store_->shadow_apply(chunk, mean);
  return {};
}

}  // namespace centroid::server
