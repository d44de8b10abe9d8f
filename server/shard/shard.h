#pragma once

#include <memory>
#include <optional>
#include <string>

#include "common/async/task_group.h"
#include "common/base/clock.h"
#include "common/proto/servers.h"
#include "server/shard/hosted_model.h"
#include "server/shard/shard_context.h"
#include "server/shard/shard_rows.h"
#include "server/shard/shard_workers.h"
#include "server/shard/worker_sink.h"
#include "transport/connector.h"
#include "transport/session.h"

namespace centroid::server {

/// A server with some chunks of a model. It receives the workers' contributions, and on the
/// leader's requests sums them, makes the step and sends the results.
///
/// state    exists as long as the session with the leader; the next session begins empty. So an old
///          leader, or one that dropped this server, cannot affect a job
/// journal  if the leader writes a journal, each server writes one of its own chunks. A prepared
///          round is on disk before the leader gets the answer, so rounds that the leader has
///          committed can be recalled, also after a restart. Other rounds are never recalled
/// thread   one executor
class Shard {
 public:
  /// `files`: of a thread that waits for the disk.
  Shard(Executor executor, Executor files, transport::Transport& transport, ShardOptions options,
        const Clock& clock, metrics::Registry& registry);
  ~Shard();

  /// Serve until the leader ends the job or this server has drained.
  /// fails  unavailable (no leader within join_timeout), or the leader's refusal.
  Task<Status> run(transport::Listener& listener);
  /// Move its chunks to the other servers, for at most `drain_timeout`, then end.
  void request_stop(const std::string& why);
  /// Whether it has a leader, and its chunks of the leader's model are loaded.
  /// fails  unavailable: why not
  /// thread  any
  Status is_ready() const { return context_.readiness.check(); }

 private:
  // the leader
  Task<Status> follow_leader();
  Task<Error> serve_next();
  std::optional<Status> result_of(const Error& failure) const;
  Task<Error> serve_leader(transport::Session& session);
  Task<Status> join_leader(transport::Session& session);
  Task<void> heartbeats(transport::Session& session);
  Task<void> leave(transport::Session& session);
  Task<void> forget_everything(Error why);
  proto::ServerReport report() const;

  // workers, and clients of rows
  Task<void> expect_enter(transport::Session& session, const WorkerSink& sink);
  Task<void> serve_worker(std::unique_ptr<transport::Connection> connection,
                          std::unique_ptr<transport::Strangers::Place> place);
  void log_refused(const std::string& peer, const Error& why);
  transport::Greeting greeting() const;

  ShardContext context_;
  transport::Transport& transport_;
  transport::Connector connector_;
  bool is_stopping_ = false;
  std::string stop_reason_;
  ShardRows rows_;
  HostedModel model_;
  ShardWorkers workers_;
  TaskGroup tasks_;
};

}  // namespace centroid::server
