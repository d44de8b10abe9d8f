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

/// The server's tables of sparse rows, or what lies on it of tables on several servers, and the
/// requests of their clients. A session that begins with RowsOpen is a client's: no member of the
/// cluster. A client that is silent for a lease is closed; it connects again when it wants
/// something. A request that cannot be served is answered with an error that names table and
/// reason, and changes nothing; the session goes on.
///
/// With a journal a push is answered when it is written there; a pull may show it before.
/// thread  the service's, but for the snapshots
class RowsService {
 public:
  /// `tables` as parse_tables takes it.
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
  /// Of a question and of an answer; the session's limit holds, too.
  void bound_payload(std::uint64_t bytes) { max_payload_ = bytes; }
  /// Refuse all requests, for this reason; empty: serve them.
  void hold(std::string why) { why_held_ = std::move(why); }
  /// Of one server of several that may lead: whether it does, asked before each request, and
  /// again when a push is in the journal. A leader that was stopped does not know yet that another
  /// one leads: by its own clock its lease is out.
  void lead_by(std::function<Status()> leads) { leads_ = std::move(leads); }
  /// Now and then: close clients that are silent, forget who went long ago.
  void tick();

  // what it begins with
  /// Fill the empty tables from the files of a checkpoint (names as parts_of gave them).
  /// fails  failed_precondition: a table that the settings do not have, or have otherwise; or
  ///        journals of other servers, which are not here, have more.
  Status restore(const std::filesystem::path& checkpoint, const std::vector<std::string>& files);
  /// What `restore` does, piece by piece: TableStore::begin_load for each table, rows, `end_load`.
  /// Another `begin_load` before that begins anew.
  void end_load(std::uint64_t clock, std::uint64_t journal, const std::string& from);
  /// Beside what is here. Nobody who has pushed is forgotten while it may come again.
  void load_pushes(const std::vector<PushWindows::Entry>& clients);
  /// What stands in the journal's folder behind the checkpoint that was restored: the same calls on
  /// the same rows. `run_id`: of this run, and where it is empty that of the journal.
  /// fails  failed_precondition: of another run, or of tables that the settings do not have, or
  ///        have otherwise; data_loss
  Status replay(const std::filesystem::path& folder, std::string& run_id);
  /// Another thread does that, and `restore`: until `end_reading` there are no clients, and views
  /// show what was there before.
  void begin_reading();
  void end_reading() { is_reading_ = false; }

  /// Not while the one before lives. `duty`: as TableStore::snapshot's
  std::shared_ptr<RowsSnapshot> begin_snapshot(std::shared_ptr<DutyCycle> duty = nullptr);
  proto::TablesReport report() const;
  std::vector<TableView> views() const { return is_reading_ ? before_ : store_.views(); }
  /// Requests of clients that are held up, longer than two seconds.
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
