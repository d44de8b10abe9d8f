#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/proto/servers.h"
#include "common/tensor/chunk_plan.h"
#include "common/tensor/fragments.h"
#include "server/aggregate/reply_encoder.h"
#include "server/aggregate/robust.h"
#include "server/shard/reply_reader.h"
#include "server/store/parameter_store.h"

namespace centroid::server {

/// The leader's messages came in an order that they must not have.
Error out_of_order(const std::string& what);

/// The model as the leader describes it, and the chunks of it that lie on this server.
///
/// place   the route says which chunks are this server's. The store follows with `apply_route`:
///         until then what comes is being loaded, and what goes is being fetched
/// thread  one
class ShardChunks {
 public:
  /// `server`: its name in routes.
  explicit ShardChunks(std::string server) : server_(std::move(server)) {}

  /// What `allocate` needs of a model.
  struct Layout {
    ChunkPlan plan;
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
  proto::Reckon set_size(const proto::Reckon& size);

  bool has_model() const { return store_ != nullptr; }
  const proto::ServerModel& model() const { return model_; }
  const FragmentPlan& fragments() const { return fragments_; }
  const proto::Route& route() const { return route_; }
  // while it has a model
  ParameterStore& store() const { return *store_; }
  const ChunkPlan& plan() const { return store_->plan(); }

  /// Returns whether other chunks than before are this server's.
  Result<bool> place(proto::Route route);
  /// All chunks have come that the route gives to this server: no others lie here from now on.
  void apply_route();
  bool is_mine(ChunkId chunk) const { return is_mine_[chunk.value]; }
  std::size_t count_of_mine() const;
  /// Of the round that is open: its chunks that lie here.
  const std::vector<Chunk>& round_chunks() const;
  bool is_of_round(ChunkId chunk) const;
  std::uint64_t memory_bytes() const;

  Status load(const proto::ServerChunk& head, Bytes values);
  /// The chunk that a Fetch names.
  /// fails  invalid_argument: it does not lie here
  Result<Chunk> find(const proto::ServerChunk& head) const;
  /// The round's step is made on every chunk of the round.
  void commit();

  // with codec_down
  /// Nullptr: results are not encoded.
  ReplyEncoder* encoder() const { return encoder_.get(); }
  ReplyReader* reader() const { return reader_.get(); }

  const AggregateRule& aggregate() const { return aggregate_; }

 private:
  OptimizerConfig optimizer_config() const;

  const std::string server_;
  proto::ServerModel model_;
  FragmentPlan fragments_;
  AggregateRule aggregate_;
  std::unique_ptr<ParameterStore> store_;
  std::unique_ptr<ReplyEncoder> encoder_;
  std::unique_ptr<ReplyReader> reader_;
  proto::Route route_;
  std::vector<std::vector<Chunk>> parts_;  ///< by fragment: what lies here
  std::vector<bool> is_mine_;              ///< by chunk: it is this server's by the route
};

}  // namespace centroid::server
