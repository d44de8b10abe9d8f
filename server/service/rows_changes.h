#pragma once

#include <string>
#include <vector>

#include "server/service/rows_kept.h"

namespace centroid::server {

/// Servers that come and go while their tables are in use. Of one thread.
class RowsChanges : private RowsPart {
 public:
  RowsChanges(RowsContext& context, RowsHolders& servers, RowsMoves& moves, const RowsKept& kept)
      : RowsPart(context), context_(context), servers_(servers), moves_(moves), kept_(kept) {}

  // False: look again.
  Task<bool> welcome();
  Task<bool> let_go();
  Task<bool> owe_checkpoint();

  /// Rows lie, or are to lie, on this server, or a checkpoint needs it.
  bool holds(const std::string& server) const;
  const std::vector<std::string>& released() const { return released_; }

 private:
  Task<Status> fetch_all_pushes(std::size_t which);

  RowsContext& context_;
  RowsHolders& servers_;
  RowsMoves& moves_;
  const RowsKept& kept_;
  std::vector<std::string> released_;  ///< when a checkpoint is written that does not name them
};

}  // namespace centroid::server
