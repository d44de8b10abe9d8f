#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>

#include "common/async/task_group.h"
#include "server/api/api_metrics.h"
#include "server/api/audit_log.h"
#include "server/api/event_feed.h"
#include "server/api/http.h"
#include "server/api/routes.h"
#include "transport/stranger_budget.h"

namespace centroid::server {

/// Records every requested change in the audit log and the events; of one caller's refused requests
/// a few at once and then one a second, which says how many were left out.
///
/// thread  the server's executor; `group` is joined before this is destroyed
/// bounds  an answer waits at most a second for its line, while fewer than 1000 lines are pending
///         for answers that did not wait
class AuditTrail {
 public:
  AuditTrail(Executor executor, TaskGroup& group, Executor blocking, AuditLog& log, EventFeed& feed,
             ApiMetrics& metrics);

  /// Returns when the line is on the disk, or after the longest wait.
  Task<void> record(HttpRequest request, Caller caller, std::string id, HttpResponse response);

 private:
  Task<void> append(std::shared_ptr<const AuditEntry> entry, std::shared_ptr<bool> is_written);

  TaskGroup& group_;
  const Executor blocking_;
  AuditLog& log_;
  EventFeed& feed_;
  ApiMetrics& metrics_;
  std::map<std::string, transport::LineBudget> refused_;  ///< by caller's name
  std::size_t writing_ = 0;
  Event written_;
};

}  // namespace centroid::server
