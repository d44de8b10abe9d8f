#pragma once

#include <optional>

#include "server/service/round_attempts.h"

namespace centroid::server {

/// What the end of a member means for the round that it takes part in, for its samples and for what
/// other servers keep of it. Of one thread.
class Departures {
 public:
  Departures(const ServerConfig& config, const Clock& clock, Probe& probe, EventLog& events,
             Event& changed, Members& members, RoundPolicy& policy, JobState& job, OpenRound& open,
             JobTotals& totals, Event& outgoing, DataShares& data, RoundServers& round_servers,
             RoundAttempts& attempts)
      : config_(config),
        clock_(clock),
        probe_(probe),
        events_(events),
        changed_(changed),
        members_(members),
        policy_(policy),
        job_(job),
        open_(open),
        totals_(totals),
        outgoing_(outgoing),
        data_(data),
        round_servers_(round_servers),
        attempts_(attempts) {}

  /// `tell`: with this, where it does not know.
  void member_gone(MemberId member, std::optional<Error> tell);

 private:
  const ServerConfig& config_;
  const Clock& clock_;
  Probe& probe_;
  EventLog& events_;
  Event& changed_;
  Members& members_;
  RoundPolicy& policy_;
  JobState& job_;
  OpenRound& open_;
  JobTotals& totals_;
  Event& outgoing_;
  DataShares& data_;
  RoundServers& round_servers_;
  RoundAttempts& attempts_;
};

}  // namespace centroid::server
