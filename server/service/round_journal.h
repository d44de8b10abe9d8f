#pragma once

#include <string>

#include "server/config.h"
#include "server/service/data_shares.h"
#include "server/service/leader_gate.h"
#include "server/service/local_shard.h"
#include "server/service/waits.h"
#include "server/store/journal.h"

namespace centroid::server {

/// What the journal gets of each round. A round is in it before anybody hears that it is committed;
/// its numbers go there chunk by chunk while it is open. Of one thread.
class RoundJournal {
 public:
  RoundJournal(const ServerConfig& config, const Clock& clock, JobState& job, const OpenRound& open,
               const Members& members, const DataShares& data, const LocalShard& local,
               LeaderGate& gate, Journal& journal, Waits& waits, Probe& probe)
      : config_(config),
        clock_(clock),
        job_(job),
        open_(open),
        members_(members),
        data_(data),
        local_(local),
        gate_(gate),
        journal_(journal),
        waits_(waits),
        probe_(probe) {}

  journal::Base base() const;
  std::string terms() const;
  journal::Form form() const;
  void write_chunk(const Chunk& chunk);
  /// The number to give to `written`.
  std::uint64_t end_round(journal::Kind kind, const RoundDecision& decision);
  /// Wait until the journal has it; then workers may hear of the round. fails as may_commit
  Task<Status> written(std::uint64_t number);
  Task<Status> commit(const RoundDecision& decision);
  Waits::Guard begin_wait();

 private:
  const ServerConfig& config_;
  const Clock& clock_;
  JobState& job_;
  const OpenRound& open_;
  const Members& members_;
  const DataShares& data_;
  const LocalShard& local_;
  LeaderGate& gate_;
  Journal& journal_;
  Waits& waits_;
  Probe& probe_;
};

}  // namespace centroid::server
