#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "server/service/contributions.h"
#include "server/service/initial_values.h"
#include "server/service/job_part.h"
#include "server/service/job_start.h"

namespace centroid::server {

/// Who may become a worker of the job, and on which terms. Of one thread.
class Admission : private JobPart {
 public:
  Admission(JobContext& context, ShardGroup& shards, ModelServers& servers,
            Contributions& contributions, InitialValues& initial_values, StateLoader& loader,
            RoundControl& control, JobStart& start)
      : JobPart(context),
        shards_(shards),
        servers_(servers),
        contributions_(contributions),
        initial_values_(initial_values),
        loader_(loader),
        control_(control),
        start_(start) {}

  /// While the state is read a worker waits here, for 400 ms at most: sent away it would come
  /// again after a pause, later than it can.
  Task<void> await_state() const;
  /// Before check_join: forget the model of a worker that has left if nothing has come of it, and
  /// `join` is of another one.
  /// fails   unavailable: something still uses it
  Status make_way(const transport::Session& session, const proto::Join& join);
  /// fails   failed_precondition: names what does not fit; unavailable: not now
  Status check_join(const transport::Session& session, const proto::Join& join);
  Result<proto::JoinReply> admit(transport::Session& session, proto::Join join);

 private:
  void fence(const std::string& name, MemberId older, const std::string& by);
  std::shared_ptr<WorkerSession> make_session(transport::Session& session, MemberId member,
                                              proto::Join join);
  proto::JoinReply terms_for(transport::Session& session, const WorkerSession& worker,
                             std::uint64_t plan_hash);
  bool is_undecided() const;
  void forget_model();
  Status check_moment(const std::string& name);
  Status check_model(const transport::Session& session, const proto::Join& join) const;
  ShardGroup& shards_;
  ModelServers& servers_;
  Contributions& contributions_;
  InitialValues& initial_values_;
  StateLoader& loader_;
  RoundControl& control_;
  JobStart& start_;
  const std::string node_ = transport::this_node();
};

}  // namespace centroid::server
