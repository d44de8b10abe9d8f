#pragma once

#include <string>

#include "server/service/data_shares.h"
#include "server/service/job_context.h"
#include "server/tables/rows_service.h"

namespace centroid::server {

/// The end of a job before its goal: a stop of this process, and a stop or halt that holds when
/// something starts the server again or another server takes over. Of one thread.
class JobStop {
 public:
  JobStop(JobContext& context, const DataShares& data, RowsService& rows)
      : ctx_(context), data_(data), rows_(rows) {}

  /// Finish the round, checkpoint, tell everybody, end. `leaves_workers`: nobody is told; the
  /// workers' connections end, and they wait for a server to come back.
  void request_stop(const std::string& why, bool leaves_workers);
  Task<void> honour_stop();
  Task<void> stay_stopped();
  bool keeps_halts() const;
  Task<void> keep_halt(const Error& why);

 private:
  JobContext& ctx_;
  const DataShares& data_;
  RowsService& rows_;
};

}  // namespace centroid::server
