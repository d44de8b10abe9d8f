#include "server/service/chunk_moves.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "server/shard/placement.h"

namespace centroid::server {

using proto::ServersKind;

namespace {

/// What copies may hold up a merge, where a round takes no time at all.
constexpr std::chrono::milliseconds kMovePause{100};
/// Chunks under way at once.
constexpr std::size_t kCopiers = 4;

}  // namespace

/// Give some chunks to the servers that are to have them, as many as can be copied in the pause
/// that a round may make, and begin to copy them.
Task<Status> ChunkMoves::move_some(bool is_first) {
  const TimePoint begin = clock_.now();
  for (const auto& [id, worker] :
       members_.present)  // what is under way was cut by the route that ends
    if (worker->late && !worker->late->outcome)
      elastic_.resolve_late(*worker, proto::Outcome::kLate);
  spread_.whole.clear();
  const auto budget = static_cast<std::uint64_t>(spread_.copy_rate * seconds(kMovePause));
  auto owners = spread_.route.owners;
  const auto chunks = std::make_shared<std::vector<Chunk>>();
  spread_.moving_bytes = 0;
  const auto all = job_.store().plan().chunks();
  for (std::size_t first = 0, last = 0; first < all.size(); first = last) {
    last = job_.shard->encodes() ? job_.shard->encoder().unit_of(all[first].id).second.value
                                 : first + 1;
    if (owners[first] == spread_.target[first]) continue;
    const auto unit = all.subspan(first, last - first);
    std::uint64_t bytes = 0;
    for (const Chunk& chunk : unit) bytes += chunk.elements * sizeof(float) * job_.store().planes();
    if (!is_first && !chunks->empty() && spread_.moving_bytes + bytes > budget) continue;
    spread_.moving_bytes += bytes;
    for (const Chunk& chunk : unit) {
      spread_.moving[chunk.id] = spread_.present[owners[chunk.id.value]];
      owners[chunk.id.value] = spread_.target[chunk.id.value];
      chunks->push_back(chunk);
    }
  }
  auto present = spread_.present;
  const Status told = co_await servers_.adopt_route(std::move(present), std::move(owners));
  if (!told.ok()) spread_.copy_failure = told.error();
  spread_.moving_since = clock_.now();
  spread_.held = clock_.now() - begin;
  std::ranges::reverse(*chunks);  // taken from the back
  const std::size_t copiers = told.ok() ? kCopiers : 0;
  spread_.copiers = copiers;  // who finds nothing to do ends before the next begins
  for (std::size_t i = 0; i < copiers; ++i) tasks_.spawn(servers_.copy_chunks(chunks));
  if (is_first) co_return co_await finish_moves();
  co_return told;
}

/// Before a round is merged, or the route or the servers change: all chunks are where the route
/// says. fails with what the copies failed with: a server is gone then.
Task<Status> ChunkMoves::finish_moves() {
  const TimePoint begin = clock_.now();
  const auto what = [this] {
    return std::to_string(spread_.moving.size()) + " chunks that move, with " +
           std::to_string(spread_.moving_bytes) + " bytes, of which " +
           std::to_string(spread_.copiers) + " are being copied";
  };
  BlockedOn on{WaitCause::kServers, present_round(job_), "servers", what};
  const auto is_copied = [this] { return spread_.copiers == 0; };
  (void)co_await until(is_copied, on);
  const auto waits = waits_.begin(on);
  if (spread_.copy_failure) co_return *spread_.copy_failure;
  if (spread_.moving.empty()) co_return Status();
  const double copied = seconds(std::max(spread_.copy_time, Duration(1)));
  spread_.copy_rate = std::clamp(static_cast<double>(spread_.moving_bytes) / copied,
                                 spread_.copy_rate / 4, spread_.copy_rate * 2);
  const auto is_being_sent = [this](const auto& one) {
    return one.second == nullptr &&
           (job_.store().params_are_read(one.first) || job_.store().spare_is_read(one.first));
  };
  const auto are_free = [this, is_being_sent] {
    // Between rounds, as while the job is paused, the last attempt is here, and nobody sends of it.
    if (open_.attempt && open_.attempt->closed && open_.attempt.use_count() == 1)
      open_.attempt->release(std::exchange(open_.attempt->holds, {}));
    return std::ranges::none_of(spread_.moving, is_being_sent);  // results of the last round
  };
  const bool goes_on = co_await until(are_free, kShownElsewhere);
  if (!goes_on) co_return Error(ErrorCode::kCancelled, "the server is stopping");
  CENTROID_CO_TRY(co_await images_.until_copied());  // it reads chunks wherever they lie
  job_.shard->apply_assignment();
  const std::size_t moved = spread_.moving.size();
  spread_.moving.clear();
  changed_.notify_all();
  if (local_.is_residual_cleared()) job_.store().clear_residual();  // of what has come, too
  const auto waiting = std::exchange(spread_.summed, {});
  const bool counts = !open_.attempt || !open_.attempt->closed ||
                      open_.attempt->closed->outcome == proto::Outcome::kCommitted;
  for (const auto& [chunk, weight] : waiting)
    if (counts) control_.chunk_complete(chunk, weight);  // else the round was skipped or given up
  std::size_t left = 0;
  for (std::size_t i = 0; i < spread_.target.size(); ++i)
    left += spread_.target[i] != spread_.route.owners[i] ? 1 : 0;
  spread_.held += clock_.now() - begin;
  log::info("chunks.moved", {{"chunks", moved},
                             {"bytes", spread_.moving_bytes},
                             {"left", left},
                             {"route", spread_.route.version},
                             {"servers", spread_.present.size()},
                             {"seconds", copied},
                             {"held_seconds", seconds(spread_.held)}});
  co_return Status();
}

}  // namespace centroid::server
