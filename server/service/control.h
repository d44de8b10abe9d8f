#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/service/job_server.h"
#include "server/store/statistics.h"

namespace centroid::server {

/// Chunks that lie on one server, and how many are still to come or go.
struct ChunkShare {
  std::uint64_t chunks = 0, bytes = 0, moves = 0;
};

/// What REST shows of a job and does to it. It stands on the job's server, which does not know it.
/// Callable from any executor; each call does its work on the server's.
class Control final : public ControlPlane, private JobPart {
 public:
  /// `server` outlives it.
  explicit Control(JobServer& server);
  /// Where checkpoints are read and verified, so that nothing waits for one that is written: a
  /// thread each.
  void set_files(Executor looks, Executor verifies) {
    looks_ = std::move(looks), verifies_ = std::move(verifies);
  }
  void set_endpoints(std::string data, std::string api) {
    data_endpoint_ = std::move(data), api_endpoint_ = std::move(api);
  }

  Task<ClusterView> cluster() override;
  Task<std::vector<WorkerView>> workers() override;
  Task<std::vector<RoundView>> rounds(std::size_t limit, std::optional<RoundPlace>) override;
  Task<CurvesView> curves(std::uint64_t after) override;
  Task<std::vector<EpochView>> epochs(std::size_t limit, std::optional<EpochPlace>) override;
  Task<std::vector<WaitView>> waits() override;
  Task<std::vector<ServerView>> servers() override;
  Task<Status> drain_server(const std::string& name) override;
  Task<std::vector<std::string>> share_tokens() override;
  Task<std::vector<CheckpointView>> checkpoints() override;
  Task<std::vector<TableView>> tables() override;
  Task<Result<CheckpointView>> make_checkpoint() override;
  Task<Result<CheckpointView>> verify_checkpoint(std::uint64_t version) override;
  Task<Result<CheckpointView>> delete_checkpoint(std::uint64_t version) override;
  Task<Result<RestoreView>> restore_checkpoint(std::uint64_t version, bool delete_newer) override;
  Task<Result<std::vector<CheckpointFileView>>> checkpoint_files(std::uint64_t version) override;
  Task<Result<ParametersView>> parameters() override;
  Task<std::vector<std::vector<PartView>>> tensor_parts(std::size_t, std::size_t) override;
  Task<Status> drain(std::uint64_t member) override;
  Task<Result<EvictionView>> evict(std::uint64_t member, double seconds, std::string why) override;
  Task<std::vector<EvictionView>> evictions() override;
  Task<Status> allow(std::string name) override;
  Task<ScaleView> scale(double efficiency) override;
  Task<Result<ScaleView>> hint_scale(std::uint64_t workers, std::string why) override;
  Task<Result<NetworkView>> measure(std::uint64_t member, std::optional<std::uint64_t> to) override;
  Task<Result<ActView>> pause() override;
  Task<Result<ActView>> resume() override;
  Task<Result<ActView>> stop() override;
  Task<Status> is_ready() override;
  Task<void> ping() override;
  Task<std::string> config_json() override;
  Task<Result<std::string>> change_config(std::string json) override;
  EventLog& events() override { return events_; }

 private:
  ClusterView::Terms terms() const;
  using Copy = OperatorCommands::Copy;
  using PartsElsewhere = std::vector<std::optional<StatisticsPart>>;  ///< by chunk
  Task<void> save_for(std::shared_ptr<const Copy> kept,
                      std::shared_ptr<std::optional<Status>> outcome);
  static Task<Result<ActView>> act_and_keep(Control* self, Result<Copy> (*act)(Control&));
  Status check_change(const ServerConfig& before, bool needs_rounds) const;
  ScaleView scale_view(double efficiency) const;
  ServerView part_view(std::string name, std::string state, const ChunkShare& share) const;
  ServerView leader_view(const ChunkShare& share) const;
  ServerView shard_view(const ShardSession& shard, bool is_in_route, const ChunkShare& share) const;
  void add_candidates(std::vector<ServerView>& views) const;
  Task<std::optional<CheckpointDirectory>> checkpoint_reader();
  Task<Result<ParametersView>> measure_parameters();
  Task<Result<PartsElsewhere>> measure_elsewhere(Version version, TimePoint limit);

  JobServer& server_;
  Executor looks_, verifies_;
  ShardGroup& shards_;
  RowsService& rows_;
  const std::unique_ptr<TableServers>& table_servers_;
  const Coordinator& coordinator_;
  std::string data_endpoint_, api_endpoint_;
  bool is_measuring_network_ = false;
};

}  // namespace centroid::server
