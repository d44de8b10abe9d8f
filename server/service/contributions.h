#pragma once

#include <string>

#include "common/async/task.h"
#include "server/service/elastic_round.h"
#include "server/service/job_part.h"
#include "server/service/round_control.h"
#include "transport/session.h"
#include "transport/stranger_budget.h"

namespace centroid::server {

/// What workers bring to a round: fenced, checked, and given to the sums. Of one thread.
class Contributions : private JobPart {
 public:
  Contributions(JobContext& context, DataShares& data, const LocalShard& local,
                RoundServers& round_servers, ElasticRound& elastic, RoundControl& control)
      : JobPart(context),
        data_(data),
        local_(local),
        round_servers_(round_servers),
        elastic_(elastic),
        control_(control) {}

  Task<Status> take_push(transport::Session& session, std::shared_ptr<WorkerSession> worker,
                         proto::Push head, std::uint64_t bytes);
  Status take_push_end(WorkerSession& worker, const proto::PushEnd& end);
  Status take_report(WorkerSession& worker, const proto::Report& report);
  /// All of a contribution that goes to `server` is there.
  void whole_elsewhere(const ShardSession& server, const proto::Whole& whole);
  /// The last round in which a contribution of this name counted, or will when the round closes.
  Round counted_of(const std::string& name) const;

 private:
  Status check_chunk(const WorkerSession& worker, const proto::Push& head,
                     std::uint64_t bytes) const;
  Status check_key(const WorkerSession& worker, const char* what, const Attempt::Key& key) const;
  Status check_not_ended(const WorkerSession& worker, const char* what,
                         const Attempt::Key& key) const;
  Status end_contribution(WorkerSession& worker, const proto::PushEnd& end);
  Status check_weight(const WorkerSession& worker, double weight) const;
  Status check_end(const WorkerSession& worker, const proto::PushEnd& end, std::uint64_t received,
                   double weight, std::uint64_t chunks) const;
  void count_end(WorkerSession& worker, const proto::PushEnd& end);
  ReportedShare told_of(WorkerSession& worker, const proto::PushEnd& end, const DataPart& share);
  Status stage_end(WorkerSession& worker, const proto::PushEnd& end);
  void tell_codecs(WorkerSession& worker, const proto::PushEnd& end);
  void exclude(const WorkerSession& worker, const proto::PushEnd& end);

  DataShares& data_;
  const LocalShard& local_;
  RoundServers& round_servers_;
  ElasticRound& elastic_;
  RoundControl& control_;
  KnownScalars known_scalars_;
};

}  // namespace centroid::server
