#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/async/task_group.h"
#include "common/base/clock.h"
#include "common/base/metrics.h"
#include "common/proto/rows.h"
#include "common/proto/tables.h"
#include "server/api/view.h"
#include "server/tables/bucket_moves.h"
#include "server/tables/rows_journal.h"
#include "server/tables/rows_sessions.h"
#include "server/tables/rows_snapshot.h"
#include "server/tables/table_store.h"
#include "transport/session.h"

namespace centroid::server {

/// The server's tables of sparse rows, or its part of tables on several servers, and the requests
/// of their clients. A session that begins with RowsOpen belongs to a client, which is not a member
/// of the cluster. A session that is silent for a lease is closed; the client reconnects for its
/// next request. A request that fails changes nothing, its error names table and reason, and the
/// session continues.
///
/// With a journal a push is answered after it is written; a pull may return it earlier.
/// thread  the service's, except snapshots
class RowsService {
 public:
  /// `tables`: in the format of parse_tables.
  RowsService(const std::string& tables, std::chrono::milliseconds lease, const Clock& clock,
              metrics::Registry& registry);

  TableStore& store() { return store_; }
  const TableStore& store() const { return store_; }
  BucketMoves& moves() { return moves_; }
  const BucketMoves& moves() const { return moves_; }
  RowsJournal& journal() { return journal_; }
  const RowsJournal& journal() const { return journal_; }
  RowsSessions& sessions() { return sessions_; }
  bool has_tables() const { return store_.size() > 0; }

  // requests
  static bool opens(std::uint16_t kind) {
    return kind == static_cast<std::uint16_t>(proto::RowsKind::kOpen);
  }
  /// A frame of a client's session. An error ends the session.
  Task<Status> on_frame(transport::Session& session, const transport::InFrame& frame,
                        RowsSession& client);
  /// Limit of request and answer payloads, besides the session's limit.
  void bound_payload(std::uint64_t bytes) { max_payload_ = bytes; }
  /// Refuse all requests, for this reason; empty: serve them.
  void hold(std::string why) { why_held_ = std::move(why); }
  /// If several servers may lead: `leads` is called before each request, and again when a push is
  /// in the journal. After a suspension a leader does not know that another one leads, but sees
  /// that its lease has expired.
  void lead_by(std::function<Status()> leads) { leads_ = std::move(leads); }
  /// Call periodically: closes silent sessions and forgets clients that left long ago.
  void tick();

  // initial state
  /// Fill the empty tables from the files of a checkpoint (names as parts_of gave them).
  /// fails  failed_precondition: a table that the settings lack or define differently; or journals
  ///        of other servers may have later pushes.
  Status restore(const std::filesystem::path& checkpoint, const std::vector<std::string>& files);
  /// The last step of a restore in blocks: TableStore::begin_load for each table, rows, `end_load`.
  /// Another `begin_load` before that restarts the table.
  void end_load(std::uint64_t clock, std::uint64_t journal, const std::string& from);
  /// Add records of pushes. A client is not forgotten while it may return.
  void load_pushes(const std::vector<PushWindows::Entry>& clients);
  /// Replay the journal after the restored checkpoint: the same calls on the same rows. `run_id`:
  /// of this run; if empty, it is set to the journal's.
  /// fails  failed_precondition: another run, or tables that the settings lack or define
  ///        differently; data_loss
  Status replay(const std::filesystem::path& folder, std::string& run_id);
  /// Another thread runs `restore` and `replay` until `end_reading`: there are no clients, and
  /// views show the earlier state.
  void begin_reading();
  void end_reading() { is_reading_ = false; }

  /// Not while an earlier one exists. `duty`: as in TableStore::snapshot
  std::shared_ptr<RowsSnapshot> begin_snapshot(std::shared_ptr<DutyCycle> duty = nullptr);
  proto::TablesReport report() const;
  std::vector<TableView> views() const { return is_reading_ ? before_ : store_.views(); }
  /// Append the clients' requests that have waited for more than two seconds.
  void waits(std::vector<WaitView>& views) const;

 private:
  using Session = transport::Session;
  using InFrame = transport::InFrame;

  Task<Status> on_open(Session& session, const InFrame& frame, RowsSession& client);
  Task<Status> on_pull(Session& session, const InFrame& frame, RowsSession& client);
  Task<Status> on_push(Session& session, const InFrame& frame, RowsSession& client);
  Task<Status> refuse(Session& session, const InFrame& frame, Error why) const;

  Status check_serves() const;
  Status check_lead() const;
  Status check_size(const RowsSession& client, std::uint32_t number, std::uint32_t rows,
                    std::uint64_t payload_bytes, bool has_gradients) const;
  Status check_answer(const Session& session, const proto::RowsPull& head) const;
  std::uint64_t max_payload_of(const Session& session) const;
  Result<proto::RowsOpenReply> open(const Session& session, const proto::RowsOpen& head,
                                    RowsSession& client) const;
  Task<Status> await_room(std::uint32_t table, std::uint32_t pushed_keys, std::uint32_t keys,
                          RowsSession& client);
  void read(const proto::RowsPull& head, RowsSession& client);
  Result<proto::RowsPushReply> apply(const proto::RowsPush& head, const RowsSession& client);

  const Clock& clock_;
  RowsSessions sessions_;
  TableStore store_;
  RowsJournal journal_;
  BucketMoves moves_;
  const std::uint64_t incarnation_;
  std::uint64_t max_payload_ = ~std::uint64_t{0};
  std::string why_held_;
  std::function<Status()> leads_;
  bool is_reading_ = false;
  std::vector<TableView> before_;  ///< while another thread reads
};

}  // namespace centroid::server
