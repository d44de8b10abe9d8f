#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "server/service/job_part.h"
#include "server/service/model_servers.h"
#include "server/service/round_journal.h"
#include "server/tables/rows_service.h"

namespace centroid::server {

/// Who waits for whom at this moment, and why: for GET /v1/waits, for metrics, and for the workers
/// themselves. Reads the state of the server and changes none of it. Of one thread.
class WaitReport : private JobPart {
 public:
  WaitReport(JobContext& context, const ShardGroup& shards, const RoundServers& round_servers,
             const DataShares& data, RowsService& rows,
             const std::unique_ptr<TableServers>& table_servers,
             const std::optional<Upload>& upload)
      : JobPart(context),
        shards_(shards),
        round_servers_(round_servers),
        data_(data),
        rows_(rows),
        table_servers_(table_servers),
        upload_(upload) {}

  std::vector<WaitView> present_waits() const;
  std::array<std::size_t, kWaitCauses.size()> count_waits() const;
  /// What of a member's contribution waits here for those of others, or for memory.
  std::optional<Aggregator::Queued> held_up(const WorkerSession& worker) const;
  /// Members without a part in the open round.
  std::vector<MemberId> unseated() const;
  /// Until the server closes: an event for each wait that lasts, and workers that wait are told
  /// why.
  Task<void> watch_waits();

 private:
  bool waits_for_servers() const;
  void round_waits(std::vector<WaitView>& views) const;
  void pace_waits(std::vector<WaitView>& views) const;
  std::optional<ShardSession::Work> pending_request(const ShardSession& shard) const;
  void shard_waits(std::vector<WaitView>& views) const;
  void tell_waits(const std::vector<WaitView>& lasting);

  const ShardGroup& shards_;
  const RoundServers& round_servers_;
  const DataShares& data_;
  RowsService& rows_;
  const std::unique_ptr<TableServers>& table_servers_;
  const std::optional<Upload>& upload_;
};

}  // namespace centroid::server
