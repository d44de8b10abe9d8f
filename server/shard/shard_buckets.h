#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/async/task_group.h"
#include "common/proto/tables.h"
#include "server/tables/rows_service.h"
#include "transport/session.h"

namespace centroid::server {

/// Moves buckets of tables to and from a shard server while they are in use. The leader requests
/// each step and waits for it.
///
/// thread  one executor
class ShardBuckets {
 public:
  using Service = std::shared_ptr<RowsService>;
  /// `changed` is called when this server's buckets change.
  explicit ShardBuckets(std::function<void()> changed) : changed_(std::move(changed)) {}

  /// A request of the leader. Answers it; an error ends the session. `tasks`: of the session
  Task<Status> on_frame(transport::Session& session, const transport::InFrame& frame,
                        const std::vector<std::byte>& payload, TaskGroup& tasks, Service service);

 private:
  Task<Status> on_find(transport::Session& session, const transport::InFrame& frame,
                       RowsService& service);
  Task<Status> on_read(transport::Session& session, const transport::InFrame& frame,
                       RowsService& service);
  Task<Status> on_hold(transport::Session& session, const transport::InFrame& frame,
                       TaskGroup& tasks, Service service);
  Task<Status> on_change(transport::Session& session, const transport::InFrame& frame,
                         TaskGroup& tasks, Service service);

  const std::function<void()> changed_;
};

}  // namespace centroid::server
