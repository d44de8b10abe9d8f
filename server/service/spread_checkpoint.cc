#include <algorithm>
#include <cstring>

#include <boost/asio/co_spawn.hpp>

#include "common/async/wait_on.h"
#include "common/base/log.h"
#include "server/service/cluster.h"

/// Checkpoints of a model that lies on several servers: all keep one version aside, from which the
/// leader writes the files.
namespace centroid::server {

using proto::ServersKind;

namespace {
constexpr std::size_t kLeader = 0;
}  // namespace

/// Between two rounds: keep the present version on all servers for a checkpoint.
Task<Status> Cluster::freeze_servers() {
  CENTROID_CO_TRY(co_await finish_moves());
  proto::ServerState state;
  state.version = job_.store->version();
  state.optimizer_step = job_.store->optimizer_step();
  state.round = Round(job_.round.value - 1);
  auto head = proto::encode(state);
  const auto kept =
      co_await shards_.ask_all(spread_.others(), ServersKind::kFreeze, std::move(head));
  if (!kept.ok()) co_return kept.error();
  spread_.frozen = job_.store->begin_snapshot(snapshot_budget_);
  if (!spread_.frozen) co_return Error(ErrorCode::kInternal, "no snapshot between two rounds");
  spread_.frozen_info = checkpoint_info();
  co_return Status();
}

/// The version that is kept on all servers for a checkpoint, or nullptr: not yet, or there is one
/// server only. While rounds are made their loop keeps it between two of them.
Task<std::shared_ptr<Snapshot>> Cluster::frozen_servers() {
  if (!spread_.has_others()) co_return nullptr;
  while (measuring_) {  // a version is kept aside for statistics, which end by their deadline
    if (!co_await sleep_until(clock_.now() + std::chrono::milliseconds(5))) co_return nullptr;
  }
  if (rounds_ended_ || is_loop_writing_) {
    const Status kept = co_await freeze_servers();
    if (!kept.ok()) log::warn("checkpoint.not_frozen", {{"why", kept.error()}});
  } else {
    const auto waits = waits_.begin(WaitCause::kCheckpoint, "checkpoint", "round loop", [this] {
      return "the end of " + present_round(job_) +
             ": a version is kept on all servers between rounds";
    });
    ++spread_.freezes;
    changed_.notify_all();
    (void)co_await state_fetched_.wait(TimePoint::max());
  }
  co_return std::exchange(spread_.frozen, nullptr);
}

/// From the round loop, for whoever writes a checkpoint.
Task<Status> Cluster::freeze_for_checkpoint() {
  if (spread_.frozen && spread_.frozen->version() != job_.store->version()) spread_.frozen.reset();
  if (!spread_.frozen) {
    const Status kept = co_await freeze_servers();
    if (!kept.ok()) log::warn("checkpoint.not_frozen", {{"why", kept.error()}});
    if (!kept.ok()) spread_.frozen.reset();
  }
  spread_.freezes = 0;
  state_fetched_.notify_all();
  co_return Status();
}

/// The kept version, chunk by chunk wherever it lies. Runs on the blocking thread.
class Cluster::SpreadReader {
 public:
  SpreadReader(Cluster& cluster, std::shared_ptr<Snapshot> mine)
      : cluster_(cluster),
        plan_(cluster.job_.store->plan()),
        owners_(cluster.spread_.route.owners),
        mine_(std::move(mine)) {}

  Status read(std::size_t plane, std::uint64_t offset, std::span<float> into) {
    const auto chunks = plan_.chunks();
    auto chunk = std::partition_point(chunks.begin(), chunks.end(), [&](const Chunk& one) {
      return one.position + one.elements <= offset;
    });
    for (; !into.empty(); ++chunk) {
      const std::uint64_t skip = offset - chunk->position;
      const auto count =
          static_cast<std::size_t>(std::min<std::uint64_t>(into.size(), chunk->elements - skip));
      const bool is_mine = owners_.empty() || owners_[chunk->id.value] == kLeader;
      if (is_mine) {
        CENTROID_TRY(mine_->read(plane, offset, into.first(count)));
      } else {
        CENTROID_TRY(fetch(plane, *chunk));
        std::memcpy(into.data(), values_.data() + skip * sizeof(float), count * sizeof(float));
      }
      into = into.subspan(count);
      offset += count;
    }
    return {};
  }

 private:
  Status fetch(std::size_t plane, const Chunk& chunk) {
    if (held_ == std::pair(plane, chunk.id)) return {};
    proto::ServerChunk head;
    head.version = mine_->version();
    head.plane = static_cast<std::uint8_t>(plane);
    head.chunk = chunk.id;
    head.frozen = true;
    auto fetched = wait_on(cluster_.executor_, cluster_.servers_.fetch_chunk(head));
    if (!fetched.ok()) return fetched.error();
    values_ = std::move(fetched).value();
    held_ = std::pair(plane, chunk.id);
    return {};
  }

  Cluster& cluster_;
  const ChunkPlan plan_;
  const std::vector<std::uint16_t> owners_;
  std::shared_ptr<Snapshot> mine_;
  std::optional<std::pair<std::size_t, ChunkId>> held_;
  std::vector<std::byte> values_;
};

std::function<Status(std::size_t, std::uint64_t, std::span<float>)> Cluster::snapshot_reader(
    std::shared_ptr<Snapshot> snapshot) {
  auto reader = std::make_shared<SpreadReader>(*this, std::move(snapshot));
  return [reader](std::size_t plane, std::uint64_t offset, std::span<float> into) {
    return reader->read(plane, offset, into);
  };
}

}  // namespace centroid::server
