#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/api/view.h"
#include "server/service/rows_context.h"
#include "server/tables/row_files.h"

namespace centroid::server {

/// What is known of the servers on which rows lie, and questions to them. Of one thread, but for
/// what asks from the blocking one.
class RowsHolders : private RowsPart {
 public:
  explicit RowsHolders(RowsContext& context) : RowsPart(context) {}

  std::optional<std::size_t> index_of(const std::string& server) const;
  /// Buckets lie there.
  bool owns(std::size_t which) const;

  Task<Status> ask(std::size_t which, proto::TablesKind kind, std::vector<std::byte> head);
  /// On the blocking thread.
  Result<transport::Reply> ask_blocking(const Link& link, proto::TablesKind kind,
                                        std::vector<std::byte> head, Bytes payload = {});
  /// What so many clients have pushed there; on the blocking thread.
  Result<PushedRows> fetch_pushes(const Link& link, std::uint32_t clients);

  void lost(Holder& holder);
  void take_report(Holder& holder, proto::TablesReport report);
  /// Ask all servers how their tables are.
  Task<void> refresh();
  TimePoint refreshed() const { return refreshed_; }
  /// Add what they said last.
  void add_to(std::vector<TableView>& views) const;
  /// As RowsJournal::wants_checkpoint, of the others.
  bool journal_wants_checkpoint(std::uint64_t bytes) const;

 private:
  void tell_elsewhere(const proto::TablesReport& before, const proto::TablesReport& now);

  TimePoint refreshed_;
};

}  // namespace centroid::server
