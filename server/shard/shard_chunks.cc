#include "server/shard/shard_chunks.h"

#include <algorithm>
#include <new>
#include <utility>

#include "common/base/log.h"

namespace centroid::server {

Error out_of_order(const std::string& what) {
  return Error(ErrorCode::kFailedPrecondition, what +
                                                   " (the leader sends Model, Place, Load and "
                                                   "Begin, then Merge and Commit by turns)");
}

Result<ShardChunks::Layout> ShardChunks::describe(const proto::ServerModel& model) {
  if (!model.is_elastic && !model.names_summed)
    return Error(
        ErrorCode::kFailedPrecondition,
        "the leader does not say whose contributions are summed: its program is older than "
        "this one; all servers of a job run the same release");
  CENTROID_ASSIGN(auto plan, ChunkPlan::make(model.manifest, model.chunk_bytes));
  if (plan.hash() != model.plan_hash)
    return Error(ErrorCode::kFailedPrecondition,
                 "the leader cuts the model into other chunks than this program: versions differ");
  CENTROID_ASSIGN(fragments_, FragmentPlan::make(plan, model.fragments));
  model_ = model;
  CENTROID_ASSIGN(aggregate_, AggregateRule::parse(model.aggregate));
  CENTROID_ASSIGN(auto optimizer, make_optimizer(optimizer_config()));
  return Layout{std::move(plan), std::move(optimizer)};
}

Status ShardChunks::allocate(Layout layout) {
  route_ = {};
  parts_.assign(fragments_.count(), {});
  reader_.reset();  // before the store that it reads
  encoder_.reset();
  try {
    CENTROID_ASSIGN(const CodecSpec down, CodecSpec::parse(model_.codec_down));
    store_ = std::make_unique<ParameterStore>(std::move(layout.plan), std::move(layout.optimizer),
                                              down.feedback.enabled);
    if (model_.codec_down != "f32") {
      CENTROID_ASSIGN(encoder_, ReplyEncoder::make(model_.codec_down, store_->plan(), model_.seed));
      reader_ = std::make_unique<ReplyReader>(encoder_->codec(), *store_);
    }
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kResourceExhausted, "no address space for a model of " +
                                                    std::to_string(model_.manifest.size()) +
                                                    " tensors and its optimizer slots");
  }
  store_->set_fragments(model_.fragments);
  is_mine_.assign(store_->plan().chunks().size(), false);
  return {};
}

void ShardChunks::clear() {
  reader_.reset();
  encoder_.reset();
  store_.reset();
  route_ = {};
  parts_.clear();
}

OptimizerConfig ShardChunks::optimizer_config() const {
  return {.name = model_.optimizer,
          .learning_rate = model_.learning_rate,
          .momentum = model_.momentum,
          .beta1 = model_.beta1,
          .beta2 = model_.beta2,
          .epsilon = model_.epsilon,
          .weight_decay = model_.weight_decay,
          .l1 = model_.l1,
          .ftrl_beta = model_.ftrl_beta,
          .schedule = model_.schedule,
          .clip_norm = model_.clip_norm};
}

Status ShardChunks::set_optimizer(const proto::OptimizerChange& change) {
  model_.learning_rate = change.learning_rate;
  model_.schedule = change.schedule;
  CENTROID_ASSIGN(auto optimizer, make_optimizer(optimizer_config()));
  store_->set_optimizer(std::move(optimizer));
  return {};
}

proto::Reckon ShardChunks::set_size(const proto::Reckon& size) {
  proto::Reckon before;
  before.workers = std::exchange(model_.workers, size.workers);
  before.servers = std::exchange(model_.servers, size.servers);
  return before;
}

Result<bool> ShardChunks::place(proto::Route route) {
  if (!store_) return out_of_order("Place came before Model");
  if (route.owners.size() != store_->plan().chunks().size())
    return Error(ErrorCode::kInvalidArgument,
                 "Place names the owners of " + std::to_string(route.owners.size()) +
                     " chunks, the model has " + std::to_string(store_->plan().chunks().size()));
  const auto self = std::ranges::find(route.servers, server_, &proto::RouteServer::name);
  const auto index = static_cast<std::size_t>(self - route.servers.begin());
  std::vector<bool> is_mine(route.owners.size());
  for (std::size_t i = 0; i < is_mine.size(); ++i) is_mine[i] = route.owners[i] == index;
  for (std::uint32_t number = 0; number < fragments_.count(); ++number) {
    parts_[number].clear();
    for (const Chunk& chunk : fragments_[number].chunks)
      if (is_mine[chunk.id.value]) parts_[number].push_back(chunk);
  }
  const bool is_changed = is_mine != is_mine_;
  is_mine_ = std::move(is_mine);
  route_ = std::move(route);
  log::debug("route.told", {{"route", route_.version}, {"servers", route_.servers.size()}});
  return is_changed;
}

void ShardChunks::apply_route() {
  bool is_same = true;
  for (std::size_t i = 0; i < is_mine_.size(); ++i)
    is_same = is_same && is_mine_[i] == store_->is_here(ChunkId(static_cast<std::uint32_t>(i)));
  if (!is_same) store_->place(is_mine_);
}

std::size_t ShardChunks::count_of_mine() const {
  return static_cast<std::size_t>(std::ranges::count(is_mine_, true));
}

const std::vector<Chunk>& ShardChunks::round_chunks() const {
  return parts_[fragments_.turn(store_->optimizer_step())];
}

bool ShardChunks::is_of_round(ChunkId chunk) const {
  const TensorId tensor = store_->plan().chunk(chunk).tensor;
  return fragments_.number_of(tensor) == fragments_.turn(store_->optimizer_step());
}

std::uint64_t ShardChunks::memory_bytes() const {
  if (!store_) return 0;
  std::uint64_t elements = 0;
  for (const Chunk& chunk : store_->plan().chunks())
    if (is_mine_[chunk.id.value]) elements += chunk.elements;
  return elements * sizeof(float) * (1 + store_->planes());
}

Status ShardChunks::load(const proto::ServerChunk& head, Bytes values) {
  if (!store_) return out_of_order("Load came before Model");
  if (head.chunk.value >= store_->plan().chunks().size())
    return Error(ErrorCode::kInvalidArgument,
                 "Load of chunk " + to_string(head.chunk) + ": there is no such chunk");
  const Chunk& chunk = store_->plan().chunk(head.chunk);
  if (values.size() != chunk.elements * sizeof(float))
    return Error(ErrorCode::kInvalidArgument,
                 "Load of chunk " + to_string(head.chunk) + ": " + std::to_string(values.size()) +
                     " bytes, expected " + std::to_string(chunk.elements * sizeof(float)));
  const std::span<const float> floats(reinterpret_cast<const float*>(values.data()),
                                      chunk.elements);
  return store_->load(head.plane, chunk.position, floats);
}

Result<Chunk> ShardChunks::find(const proto::ServerChunk& head) const {
  if (!store_) return out_of_order("Fetch came before Model");
  if (head.chunk.value >= store_->plan().chunks().size() || head.plane >= store_->planes() ||
      (!store_->is_here(head.chunk) && !is_mine_[head.chunk.value]))
    return Error(ErrorCode::kInvalidArgument, "Fetch of chunk " + to_string(head.chunk) +
                                                  ", plane " + std::to_string(head.plane) +
                                                  ": it does not lie on server '" + server_ + "'");
  return store_->plan().chunk(head.chunk);
}

void ShardChunks::commit() {
  const std::vector<Chunk> chunks = round_chunks();
  if (model_.apply_on_worker)
    store_->commit_in_place(chunks);
  else
    store_->commit_swap(chunks);
  if (encoder_) encoder_->commit();
}

}  // namespace centroid::server
