#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "server/service/model_servers.h"
#include "server/service/replay.h"
#include "server/service/round_journal.h"
#include "server/service/state_use.h"
#include "server/tables/rows_service.h"

namespace centroid::server {

/// Who waits for whom at this moment, and why: for GET /v1/waits, for metrics, and for the workers
/// themselves. Reads the state of the server and changes none of it. Of one thread.
class WaitReport {
 public:
  WaitReport(const ServerConfig& config, const Clock& clock, const RoundPolicy& policy,
             const JobState& job, const OpenRound& open, const Members& members,
             const JobPhase& phase, const LeaderGate& gate, const Waits& waits,
             const Journal& journal, const ShardGroup& shards, const Spread& spread,
             const RoundServers& round_servers, const DataShares& data, RowsService& rows,
             const std::unique_ptr<RowsServers>& rows_servers,
             const std::unique_ptr<Replay>& replay, const std::optional<Upload>& upload,
             const StateUse& use, const StopRequest& stopping, EventLog& events, Event& outgoing)
      : config_(config),
        clock_(clock),
        policy_(policy),
        job_(job),
        open_(open),
        members_(members),
        phase_(phase),
        gate_(gate),
        waits_(waits),
        journal_(journal),
        shards_(shards),
        spread_(spread),
        round_servers_(round_servers),
        data_(data),
        rows_(rows),
        rows_servers_(rows_servers),
        replay_(replay),
        upload_(upload),
        use_(use),
        stopping_(stopping),
        events_(events),
        outgoing_(outgoing) {}

  std::vector<WaitView> present_waits() const;
  std::array<std::size_t, kWaitCauses.size()> count_waits() const;
  /// What of a member's contribution waits here for those of others, or for memory.
  std::optional<Aggregator::Queued> held_up(const Link& link) const;
  /// Members without a part in the open round.
  std::vector<MemberId> unseated() const;
  /// Until the server closes: an event for each wait that lasts, and workers that wait are told
  /// why.
  Task<void> watch_waits();

 private:
  bool waits_for_servers() const;
  void round_waits(std::vector<WaitView>& views) const;
  void pace_waits(std::vector<WaitView>& views) const;
  void shard_waits(std::vector<WaitView>& views) const;
  void tell_waits(const std::vector<WaitView>& lasting);

  const ServerConfig& config_;
  const Clock& clock_;
  const RoundPolicy& policy_;
  const JobState& job_;
  const OpenRound& open_;
  const Members& members_;
  const JobPhase& phase_;
  const LeaderGate& gate_;
  const Waits& waits_;
  const Journal& journal_;
  const ShardGroup& shards_;
  const Spread& spread_;
  const RoundServers& round_servers_;
  const DataShares& data_;
  RowsService& rows_;
  const std::unique_ptr<RowsServers>& rows_servers_;
  const std::unique_ptr<Replay>& replay_;
  const std::optional<Upload>& upload_;
  const StateUse& use_;
  const StopRequest& stopping_;
  EventLog& events_;
  Event& outgoing_;
};

}  // namespace centroid::server
