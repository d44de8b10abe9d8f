#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "common/async/task_group.h"
#include "server/api/api_metrics.h"
#include "server/api/audit_log.h"
#include "server/api/event_feed.h"
#include "server/api/http.h"
#include "server/api/routes.h"

namespace centroid::server {

/// Tells the audit log and the events of every change that somebody asked for.
///
/// thread  the server's executor; `group` is joined before this goes
/// bounds  an answer waits at most a second for its line, as long as not 1000 lines are on their
///         way behind answers that did not
class AuditTrail {
 public:
  AuditTrail(Executor executor, TaskGroup& group, Executor blocking, AuditLog& log, EventFeed& feed,
             ApiMetrics& metrics);

  /// Returns when the line is on the disk, or later than it may wait.
  Task<void> record(HttpRequest request, Caller caller, std::string id, HttpResponse response);

 private:
  Task<void> append(std::shared_ptr<const AuditEntry> entry, std::shared_ptr<bool> is_written);

  TaskGroup& group_;
  const Executor blocking_;
  AuditLog& log_;
  EventFeed& feed_;
  ApiMetrics& metrics_;
  std::size_t writing_ = 0;
  Event written_;
};

}  // namespace centroid::server
