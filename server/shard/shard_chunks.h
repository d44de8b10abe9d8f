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

/// The leader's messages came in an order that they must not have.
Error out_of_order(const std::string& what);

/// The model as the leader describes it, the route, and the shard of the model that lies on this
/// server. The route says which chunks are this server's.
///
/// thread  one
class ShardChunks {
 public:
  /// `server`: its name in routes.
  explicit ShardChunks(std::string server) : server_(std::move(server)) {}

  /// What `allocate` needs of a model.
  struct Layout {
    ChunkPlan plan;
    FragmentPlan fragments;
    std::unique_ptr<Optimizer> optimizer;
  };
  /// Take over the description of a model; what lies here stays.
  /// fails  failed_precondition: another chunk plan than the leader's; as the parsers of its fields
  Result<Layout> describe(const proto::ServerModel& model);
  /// Take address space for that model; no chunk of it lies here yet.
  /// fails  resource_exhausted
  Status allocate(Layout layout);
  /// No model lies here any more.
  void clear();
  /// Between rounds.
  Status set_optimizer(const proto::OptimizerChange& change);
  /// By how many workers and servers memory is estimated. Returns what it was by.
  proto::MemoryPlan set_size(const proto::MemoryPlan& size);

  bool has_model() const { return shard_ != nullptr; }
  const proto::ServerModel& model() const { return model_; }
  const proto::Route& route() const { return route_; }
  // while it has a model
  ModelShard& shard() const { return *shard_; }
  ParameterStore& store() const { return shard_->store(); }
  const ChunkPlan& plan() const { return shard_->plan(); }
  const std::vector<Chunk>& round_chunks() const { return shard_->round_chunks(); }

  /// Returns whether other chunks than before are this server's.
  Result<bool> place(proto::Route route);
  std::size_t count_of_mine() const { return shard_ ? shard_->count_of_mine() : 0; }
  std::uint64_t memory_bytes() const;

  Status load(const proto::ServerChunk& head, Bytes values);
  /// The chunk that a Fetch names.
  /// fails  invalid_argument: it does not lie here
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
