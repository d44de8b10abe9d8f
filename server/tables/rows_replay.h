#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "common/checkpoint/rows_journal.h"
#include "server/tables/bucket_moves.h"
#include "server/tables/bucket_route.h"
#include "server/tables/rows_journal.h"
#include "server/tables/rows_sessions.h"
#include "server/tables/table_store.h"

namespace centroid::server {

/// One replay of a journal of tables, behind the checkpoint that was restored: the same calls on
/// the same rows.
///
/// thread  one; nobody else uses the tables until it has ended
class RowsReplay {
 public:
  struct Parts {
    TableStore& store;
    BucketRoute& route;
    BucketMoves& moves;
    RowsJournal& journal;
    RowsSessions& sessions;
  };
  RowsReplay(const Parts& parts, std::filesystem::path folder)
      : parts_(parts), folder_(std::move(folder)) {}

  /// `run_id`: of this run; where it is empty it becomes that of the journal.
  /// fails  failed_precondition: of another run, or of tables that the settings do not have, or
  ///        have otherwise; data_loss
  Status run(std::string& run_id);

 private:
  using Entry = rows_journal::Entry;
  using Reader = rows_journal::Reader;

  Status check_first(const Reader& reader) const;
  Status apply_all(Reader& reader, std::string& run_id);
  Status begin_segment(const Reader& reader, const std::string& run_id);
  Result<std::vector<std::size_t>> adopt(const std::vector<std::string>& tables);
  Status cut_off(Reader& reader);
  void publish();

  Status apply(const Entry& entry);
  Status apply_request(const Entry& entry);
  Status apply_rows(const Entry& entry);
  Status apply_buckets(const Entry& entry);

  const Parts parts_;
  const std::filesystem::path folder_;
  std::vector<std::size_t> places_;  ///< of the segment's tables, by its numbers
  std::uint64_t gap_ = 0;            ///< a segment that follows one
};

}  // namespace centroid::server
