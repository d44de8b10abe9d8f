#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/service/chunk_fetcher.h"
#include "server/service/job_part.h"
#include "server/service/round_servers.h"
#include "server/table_servers/table_servers.h"

namespace centroid::server {

/// The servers on which the model lies, and the route: which chunk is where. The route changes
/// between rounds only, so that within a round every server is of one version and one route. Of one
/// thread.
class ModelServers : private JobPart {
 public:
  ModelServers(JobContext& context, ShardGroup& shards, RoundServers& round_servers,
               const std::unique_ptr<TableServers>& table_servers)
      : JobPart(context),
        shards_(shards),
        round_servers_(round_servers),
        table_servers_(table_servers) {}

  // the route
  Task<Status> adopt_route(std::vector<std::shared_ptr<ShardSession>> present,
                           std::vector<std::uint16_t> owners);
  journal::Route journal_route() const;
  Task<Status> add_server(std::shared_ptr<ShardSession> shard);
  Task<Status> drop_server(std::size_t index);
  void plan_moves();
  void forget_servers();
  bool has_lost_server() const;
  bool holds_rows(const std::string& server) const;
  Task<Status> drain(std::shared_ptr<ShardSession> server);
  Task<void> drain_leaving(std::shared_ptr<ShardSession> server);

  /// For waits: which of the others has said nothing for the longest time; empty: there are none.
  std::string longest_silent() const;

  // memory
  std::uint64_t expected_workers(bool keeps_whole, std::size_t more = 1) const;
  Task<Status> plan_worker(const proto::Join& join);

  // values that lie elsewhere
  Task<Result<std::vector<std::byte>>> fetch_chunk(proto::ServerChunk head);
  std::unique_ptr<ChunkFetcher> fetch_elsewhere(TaskGroup& tasks, Version, std::size_t planes);
  Task<Status> fetch_image(StateImage& image);
  Task<void> copy_chunks(std::shared_ptr<std::vector<Chunk>> chunks);

  // who may come there
  void set_tokens(std::function<proto::Tokens()> tokens) { joining_tokens_ = std::move(tokens); }
  const std::function<proto::Tokens()>& tokens() const { return joining_tokens_; }
  void tell_tokens(ShardSession& server);
  Task<void> send_tokens(std::shared_ptr<ShardSession> server);

 private:
  void let_go(ShardSession& server);
  Result<std::uint32_t> workers_to_plan(const proto::Join* joining, std::size_t more) const;
  Task<Status> copy_chunk(Chunk chunk, std::shared_ptr<ShardSession> from,
                          std::shared_ptr<ShardSession> to);

  ShardGroup& shards_;
  RoundServers& round_servers_;
  const std::unique_ptr<TableServers>& table_servers_;
  std::function<proto::Tokens()> joining_tokens_;  ///< named tokens that let workers in
};

}  // namespace centroid::server
