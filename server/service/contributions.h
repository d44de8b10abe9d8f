#pragma once

#include <string>

#include "common/async/task.h"
#include "server/service/elastic_round.h"
#include "server/service/round_control.h"
#include "transport/session.h"

namespace centroid::server {

/// What workers bring to a round: fenced, checked, and given to the sums. Of one thread.
class Contributions {
 public:
  Contributions(const ServerConfig& config, const Clock& clock, const RoundPolicy& policy,
                const AggregateRule& aggregate, JobState& job, OpenRound& open, Members& members,
                Spread& spread, DataShares& data, const LocalShard& local,
                const RoundServers& round_servers, ElasticRound& elastic, RoundControl& control,
                Probe& probe, EventLog& events, Event& changed)
      : config_(config),
        clock_(clock),
        policy_(policy),
        aggregate_(aggregate),
        job_(job),
        open_(open),
        members_(members),
        spread_(spread),
        data_(data),
        local_(local),
        round_servers_(round_servers),
        elastic_(elastic),
        control_(control),
        probe_(probe),
        events_(events),
        changed_(changed) {}

  Task<Status> take_push(transport::Session& session, std::shared_ptr<Link> link, proto::Push head,
                         std::uint64_t bytes);
  Status take_push_end(Link& link, const proto::PushEnd& end);
  Status take_report(Link& link, const proto::Report& report);
  /// All of a contribution that goes to `server` is there.
  void whole_elsewhere(const ShardGroup::Link& server, const proto::Whole& whole);
  /// The last round in which a contribution of this name counted, or will when the round closes.
  Round counted_of(const std::string& name) const;

 private:
  Status check_chunk(const Link& link, const std::string& where, const proto::Push& head,
                     std::uint64_t bytes) const;
  Status check_key(const Link& link, const char* what, const Attempt::Key& key) const;
  Status check_weight(const Link& link, const std::string& where, double weight) const;
  Status check_end(const Link& link, const proto::PushEnd& end, std::uint64_t received,
                   double weight, std::uint64_t chunks) const;
  void count_end(Link& link, const proto::PushEnd& end);
  ToldShare told_of(Link& link, const proto::PushEnd& end, const DataPart& share);
  Status stage_end(Link& link, const proto::PushEnd& end);
  void tell_codecs(Link& link, const proto::PushEnd& end);

  const ServerConfig& config_;
  const Clock& clock_;
  const RoundPolicy& policy_;
  const AggregateRule& aggregate_;
  JobState& job_;
  OpenRound& open_;
  Members& members_;
  Spread& spread_;
  DataShares& data_;
  const LocalShard& local_;
  const RoundServers& round_servers_;
  ElasticRound& elastic_;
  RoundControl& control_;
  Probe& probe_;
  EventLog& events_;
  Event& changed_;
  KnownScalars known_scalars_;
};

}  // namespace centroid::server
