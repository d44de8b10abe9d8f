#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "server/service/contributions.h"
#include "server/service/initial_values.h"
#include "server/service/job_start.h"

namespace centroid::server {

/// Who may become a worker of the job, and on which terms. Of one thread.
class Admission {
 public:
  Admission(const ServerConfig& config, const Clock& clock, Probe& probe, EventLog& events,
            JobPhase& phase, StopRequest& stopping, Event& changed, LeaderGate& gate,
            OperatorCommands& commands, Members& members, RoundPolicy& policy,
            const AggregateRule& aggregate, JobState& job, ShardGroup& shards, Spread& spread,
            std::unique_ptr<Replay>& replay, std::optional<proto::Finish>& epilogue,
            ModelServers& servers, Contributions& contributions, InitialValues& initial_values,
            StateLoader& loader, StateUse& use, RoundControl& control, JobStart& start)
      : config_(config),
        clock_(clock),
        probe_(probe),
        events_(events),
        phase_(phase),
        stopping_(stopping),
        changed_(changed),
        gate_(gate),
        commands_(commands),
        members_(members),
        policy_(policy),
        aggregate_(aggregate),
        job_(job),
        shards_(shards),
        spread_(spread),
        replay_(replay),
        epilogue_(epilogue),
        servers_(servers),
        contributions_(contributions),
        initial_values_(initial_values),
        loader_(loader),
        use_(use),
        control_(control),
        start_(start) {}

  /// fails   failed_precondition: names what does not fit; unavailable: not now
  Status check_join(const transport::Session& session, const proto::Join& join);
  Result<proto::JoinReply> admit(transport::Session& session, proto::Join join);

 private:
  std::shared_ptr<Link> make_link(transport::Session& session, MemberId member, proto::Join join);
  proto::JoinReply terms_for(transport::Session& session, const Link& link,
                             std::uint64_t plan_hash);
  Status check_moment(const std::string& name);
  Status check_model(const transport::Session& session, const proto::Join& join) const;
  const ServerConfig& config_;
  const Clock& clock_;
  Probe& probe_;
  EventLog& events_;
  JobPhase& phase_;
  StopRequest& stopping_;
  Event& changed_;
  LeaderGate& gate_;
  OperatorCommands& commands_;
  Members& members_;
  RoundPolicy& policy_;
  const AggregateRule& aggregate_;
  JobState& job_;
  ShardGroup& shards_;
  Spread& spread_;
  std::unique_ptr<Replay>& replay_;
  std::optional<proto::Finish>& epilogue_;
  ModelServers& servers_;
  Contributions& contributions_;
  InitialValues& initial_values_;
  StateLoader& loader_;
  StateUse& use_;
  RoundControl& control_;
  JobStart& start_;
  const std::string node_ = transport::this_node();
};

}  // namespace centroid::server
