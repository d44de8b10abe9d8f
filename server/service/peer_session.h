#pragma once

#include <memory>
#include <optional>

#include "server/service/job_parts.h"
#include "transport/session.h"

namespace centroid::server {

/// Frames of one session, from its first message to its end. That message says who is there: a
/// worker (Join), a shard server (ServerJoin), a client of tables (RowsOpen) or a reader (Pull). Of
/// one thread.
class PeerSession final : public transport::FrameSink {
 public:
  /// `tasks`: of the session, joined before it ends. `place`: of its connection.
  PeerSession(JobContext& context, JobParts& parts, TaskGroup& tasks,
              transport::Strangers::Place& place);

  Task<Status> on_frame(transport::Session& session, transport::InFrame frame) override;
  /// It ended before anybody knew who it was, and no line of the log says why.
  bool is_unexplained() const { return !is_known() && !is_refused_; }
  /// A session that says nothing, or whose first message takes too long, is ended.
  Task<void> expect_first_message(transport::Session& session) const;
  /// Whom it was has gone, with `cause`.
  void ended(const Error& cause);

 private:
  bool is_known() const { return worker_ || rows_ || shard_ || has_joined_ || is_pulling_; }
  Task<Status> on_shard_frame(transport::Session& session, transport::InFrame frame);
  Status pull(transport::Session& session, const transport::InFrame& frame);
  Task<Status> join(transport::Session& session, transport::InFrame frame);
  Task<Status> refuse(transport::Session& session, const transport::FrameHeader& request,
                      Error why);
  Task<Status> on_worker_frame(transport::Session& session, transport::InFrame frame);
  Task<Status> on_values(transport::Session& session, transport::InFrame frame);
  Status on_word(const transport::InFrame& frame);
  Task<Status> on_heartbeat(transport::Session& session, transport::InFrame frame);
  Task<Status> let_go(transport::Session& session, transport::FrameHeader asked,
                      std::string reason);
  Task<Status> on_leave(transport::Session& session, transport::InFrame frame);

  JobContext& ctx_;
  JobParts& parts_;
  TaskGroup& tasks_;
  std::shared_ptr<WorkerSession> worker_;  ///< a worker
  transport::Strangers::Place& place_;
  TimePoint limit_;          ///< of the first message
  std::string late_;         ///< what did not come until then
  bool has_joined_ = false;  ///< its Join is here
  bool is_refused_ = false, is_pulling_ = false;
  std::optional<RowsSession> rows_;
  std::shared_ptr<ShardSession> shard_;
};

}  // namespace centroid::server
