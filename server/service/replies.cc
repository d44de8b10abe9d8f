#include <boost/asio/post.hpp>

#include "common/base/crc32c.h"
#include "common/optim/norm.h"
#include "server/service/cluster.h"

/// Results through a codec: encoded once for all workers, and decoded here for the server's copy.
namespace centroid::server {
namespace {
constexpr std::size_t kChunksPerTurn = 4;

}  // namespace

Status Cluster::make_replies(JobState& into) const {
  if (!config_.compresses_results()) return {};
  CENTROID_ASSIGN(into.replies,
                  ReplyEncoder::make(config_.codec_down, into.store->plan(), config_.seed));
  into.reply_reader = std::make_unique<ReplyReader>(into.replies->codec(), *into.store);
  return {};
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

}  // namespace centroid::server
