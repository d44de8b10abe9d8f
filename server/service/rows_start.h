#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/service/rows_loader.h"

namespace centroid::server {

/// How tables on several servers begin: where their keys are to lie, and who has them after a
/// restart. Of one thread.
class RowsStart : private RowsPart {
 public:
  RowsStart(RowsContext& context, RowsLoader& loader) : RowsPart(context), loader_(loader) {}

  /// As RowsServers's; the loader knows where to look.
  Task<Result<bool>> prepare(bool resumes, std::string& run_id);
  /// It is known where the rows are to lie; else look again.
  bool choose();
  /// All servers of the route have theirs: the first checkpoint is written, and calls are served.
  Task<Status> begin();
  /// The checkpoint of the start, until `begin`.
  const std::optional<SavedRows>& saved() const { return saved_; }

 private:
  Status place(std::vector<std::string> others, const SavedRows* saved);
  Task<Status> settle_claims();

  RowsLoader& loader_;
  std::optional<SavedRows> saved_;
};

}  // namespace centroid::server
