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

/// A server that holds some chunks of a model and does what its leader says: it stages the
/// contributions that workers send, sums those that the leader's decision names, makes the step
/// and sends the results.
///
/// state   lives as long as the session with the leader: who lost it begins empty with the next. So
///         nothing that an old leader, or a leader that has given this server up, still does can
///         reach a job
/// journal where the leader keeps one, so does each server, of its own chunks: what is prepared is
///         on disk before the leader hears of it, so a round that the leader has committed can be
///         recalled from here, also after a restart. What it has not is never asked for
/// thread  one executor
class Shard {
 public:
  /// `files`: of a thread that waits for the disk.
  Shard(Executor executor, Executor files, transport::Transport& transport, ShardOptions options,
        const Clock& clock, metrics::Registry& registry);
  ~Shard();

  /// Serve until the leader says that the job is over or this server drained.
  /// fails unavailable (no leader within join_timeout), or as the leader refuses.
  Task<Status> run(transport::Listener& listener);
  /// Give its chunks to the other servers, at most `drain_timeout` long, then end.
  void request_stop(const std::string& why);
  /// It has a leader, and of that one's model what lies here.
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
  Task<void> accept_loop(transport::Listener& listener);
  Task<void> expect_enter(transport::Session& session, const WorkerSink& sink);
  Task<void> serve_worker(std::unique_ptr<transport::Connection> connection);
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
