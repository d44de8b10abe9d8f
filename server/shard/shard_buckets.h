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

/// Buckets of tables that come and go at a shard server while they are in use: its leader says
/// which, and waits for each step.
///
/// thread  one executor
class ShardBuckets {
 public:
  using Service = std::shared_ptr<RowsService>;
  /// `changed`: other buckets lie here than before.
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
