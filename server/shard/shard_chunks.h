#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/proto/servers.h"
#include "common/tensor/chunk_plan.h"
#include "common/tensor/fragments.h"
#include "server/aggregate/robust.h"
#include "server/shard/model_shard.h"

namespace centroid::server {

/// Error: the leader's messages came in an invalid order.
Error out_of_order(const std::string& what);

/// The model as described by the leader, the route, and this server's shard of the model. The route
/// determines this server's chunks.
///
/// thread  one
class ShardChunks {
 public:
  /// `server`: its name in routes.
  explicit ShardChunks(std::string server) : server_(std::move(server)) {}

  /// Input of `allocate`.
  struct Layout {
    ChunkPlan plan;
    FragmentPlan fragments;
    std::unique_ptr<Optimizer> optimizer;
  };
  /// Set the description of a model; chunks on this server stay.
  /// fails  failed_precondition: another chunk plan than the leader's; as the parsers of its fields
  Result<Layout> describe(const proto::ServerModel& model);
  /// Allocate address space for that model, initially without chunks.
  /// fails  resource_exhausted
  Status allocate(Layout layout);
  /// Drop the model.
  void clear();
  /// Call only between rounds.
  Status set_optimizer(const proto::OptimizerChange& change);
  /// Set the numbers of workers and servers for the memory estimate. Returns the earlier ones.
  proto::MemoryPlan set_size(const proto::MemoryPlan& size);

  bool has_model() const { return shard_ != nullptr; }
  const proto::ServerModel& model() const { return model_; }
  const proto::Route& route() const { return route_; }
  // valid only with a model
  ModelShard& shard() const { return *shard_; }
  ParameterStore& store() const { return shard_->store(); }
  const ChunkPlan& plan() const { return shard_->plan(); }
  const std::vector<Chunk>& round_chunks() const { return shard_->round_chunks(); }

  /// Set the route. Returns whether this server's chunks changed.
  Result<bool> place(proto::Route route);
  std::size_t count_of_mine() const { return shard_ ? shard_->count_of_mine() : 0; }
  std::uint64_t memory_bytes() const;

  Status load(const proto::ServerChunk& head, Bytes values);
  /// The chunk that a Fetch names.
  /// fails  invalid_argument: it is not on this server
  Result<Chunk> find(const proto::ServerChunk& head) const;

  const AggregateRule& aggregate() const { return aggregate_; }

 private:
  const std::string server_;
  proto::ServerModel model_;
  AggregateRule aggregate_;
  std::unique_ptr<ModelShard> shard_;
  proto::Route route_;
};

}  // namespace centroid::server
