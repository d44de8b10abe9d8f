#pragma once

#include <memory>
#include <optional>

#include "common/async/task_group.h"
#include "server/shard/shard_rows.h"
#include "server/shard/shard_workers.h"
#include "transport/session.h"
#include "transport/strangers.h"

namespace centroid::server {

/// Handles the frames of one session at a shard server's port: Enter and contributions of a worker,
/// or requests of a client of rows.
///
/// thread  one executor
class WorkerSink final : public transport::FrameSink {
 public:
  /// `tasks`: of the session; `place`: of its connection
  WorkerSink(ShardWorkers& workers, const ShardRows& rows, TaskGroup& tasks,
             transport::Strangers::Place& place)
      : workers_(workers), rows_(rows), tasks_(tasks), place_(place) {}

  Task<Status> on_frame(transport::Session& session, transport::InFrame frame) override;

  /// Nullptr: no worker has entered.
  const std::shared_ptr<ShardWorkers::Worker>& worker() const { return worker_; }
  /// Whether the session belongs to a worker or a client of rows. The leader and RowsSessions
  /// detect dead ones.
  bool is_known() const { return worker_ || client_; }
  /// It ended before anybody knew who it was, and no line of the log says why.
  bool is_unexplained() const { return !is_known() && !is_refused_; }

 private:
  Task<Status> serve_rows(transport::Session& session, const transport::InFrame& frame);
  Task<Status> enter(transport::Session& session, transport::InFrame frame);

  ShardWorkers& workers_;
  const ShardRows& rows_;
  TaskGroup& tasks_;
  transport::Strangers::Place& place_;
  bool is_refused_ = false;
  std::shared_ptr<ShardWorkers::Worker> worker_;
  std::shared_ptr<RowsService> service_;
  std::optional<RowsSession> client_;
};

}  // namespace centroid::server
