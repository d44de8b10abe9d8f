#include "server/shard/shard_chunks.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"

namespace centroid::server {

Error out_of_order(const std::string& what) {
  return Error(ErrorCode::kFailedPrecondition, what +
                                                   " (the leader sends Model, Place, Load and "
                                                   "Begin, then Merge and Commit by turns)");
}

Result<ShardChunks::Layout> ShardChunks::describe(const proto::ServerModel& model) {
  if (!model.is_elastic && (model.flags & proto::ServerModel::kNamesSummed) == 0)
    return Error(
        ErrorCode::kFailedPrecondition,
        "the leader does not say whose contributions are summed: its program is older than "
        "this one; all servers of a job run the same release");
  CENTROID_ASSIGN(auto plan, ChunkPlan::make(model.manifest, model.chunk_bytes));
  if (plan.hash() != model.plan_hash)
    return Error(ErrorCode::kFailedPrecondition,
                 "the leader cuts the model into other chunks than this program: versions differ");
  CENTROID_ASSIGN(auto fragments, FragmentPlan::make(plan, model.fragments));
  model_ = model;
  CENTROID_ASSIGN(aggregate_, AggregateRule::parse(model.aggregate));
  CENTROID_ASSIGN(auto optimizer, make_optimizer(model_.optimizer));
  return Layout{std::move(plan), std::move(fragments), std::move(optimizer)};
}

Status ShardChunks::allocate(Layout layout) {
  clear();  // before the new one is allocated
  const ModelShard::Terms terms{
      .codec_down = model_.codec_down,
      .seed = model_.seed,
      .apply_on_worker = model_.apply_on_worker,
      .clip_norm = model_.optimizer.clip_norm,
      .scales_rate = (model_.flags & proto::ServerModel::kScalesRate) != 0};
  CENTROID_ASSIGN(shard_, ModelShard::make(std::move(layout.plan), std::move(layout.fragments),
                                           std::move(layout.optimizer), terms));
  shard_->assign(std::vector<bool>(plan().chunks().size(), false));
  return {};
}

void ShardChunks::clear() {
  shard_.reset();
  route_ = {};
}

Status ShardChunks::set_optimizer(const proto::OptimizerChange& change) {
  model_.optimizer.learning_rate = change.learning_rate;
  model_.optimizer.schedule = change.schedule;
  CENTROID_ASSIGN(auto optimizer, make_optimizer(model_.optimizer));
  store().set_optimizer(std::move(optimizer));
  return {};
}

proto::MemoryPlan ShardChunks::set_size(const proto::MemoryPlan& size) {
  proto::MemoryPlan before;
  before.workers = std::exchange(model_.workers, size.workers);
  before.servers = std::exchange(model_.servers, size.servers);
  return before;
}

Result<bool> ShardChunks::place(proto::Route route) {
  if (!shard_) return out_of_order("Place came before Model");
  if (route.owners.size() != plan().chunks().size())
    return Error(ErrorCode::kInvalidArgument,
                 "Place names the owners of " + std::to_string(route.owners.size()) +
                     " chunks, the model has " + std::to_string(plan().chunks().size()));
  const auto self = std::ranges::find(route.servers, server_, &proto::RouteServer::name);
  const auto index = static_cast<std::size_t>(self - route.servers.begin());
  bool is_changed = false;
  std::vector<bool> is_mine(route.owners.size());
  for (const Chunk& chunk : plan().chunks()) {
    is_mine[chunk.id.value] = route.owners[chunk.id.value] == index;
    is_changed = is_changed || is_mine[chunk.id.value] != shard_->is_mine(chunk.id);
  }
  shard_->assign(std::move(is_mine));
  route_ = std::move(route);
  log::debug("route.updated", {{"route", route_.version}, {"servers", route_.servers.size()}});
  return is_changed;
}

std::uint64_t ShardChunks::memory_bytes() const {
  if (!shard_) return 0;
  std::uint64_t elements = 0;
  for (const Chunk& chunk : plan().chunks())
    if (shard_->is_mine(chunk.id)) elements += chunk.elements;
  return elements * sizeof(float) * (1 + store().planes());
}

Status ShardChunks::load(const proto::ServerChunk& head, Bytes values) {
  if (!shard_) return out_of_order("Load came before Model");
  if (head.chunk.value >= plan().chunks().size())
    return Error(ErrorCode::kInvalidArgument,
                 "Load of chunk " + to_string(head.chunk) + ": there is no such chunk");
  const Chunk& chunk = plan().chunk(head.chunk);
  if (values.size() != chunk.elements * sizeof(float))
    return Error(ErrorCode::kInvalidArgument,
                 "Load of chunk " + to_string(head.chunk) + ": " + std::to_string(values.size()) +
                     " bytes, expected " + std::to_string(chunk.elements * sizeof(float)));
  const std::span<const float> floats(reinterpret_cast<const float*>(values.data()),
                                      chunk.elements);
  return store().load(head.plane, chunk.position, floats);
}

Result<Chunk> ShardChunks::find(const proto::ServerChunk& head) const {
  if (!shard_) return out_of_order("Fetch came before Model");
  if (head.chunk.value >= plan().chunks().size() || head.plane >= store().planes() ||
      (!store().is_here(head.chunk) && !shard_->is_mine(head.chunk)))
    return Error(ErrorCode::kInvalidArgument, "Fetch of chunk " + to_string(head.chunk) +
                                                  ", plane " + std::to_string(head.plane) +
                                                  ": it does not lie on server '" + server_ + "'");
  return plan().chunk(head.chunk);
}

}  // namespace centroid::server
