#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/async/task_group.h"
#include "common/base/clock.h"
#include "common/base/metrics.h"
#include "common/proto/rows.h"
#include "common/proto/tables.h"
#include "server/api/view.h"
#include "server/rows/push_windows.h"
#include "server/rows/row_table.h"
#include "server/store/rows_journal_writer.h"
#include "server/tables/bucket_moves.h"
#include "server/tables/bucket_route.h"
#include "server/tables/rows_gate.h"
#include "server/tables/rows_journal.h"
#include "server/tables/rows_requests.h"
#include "server/tables/rows_sessions.h"
#include "server/tables/rows_snapshot.h"
#include "server/tables/table_room.h"
#include "server/tables/table_store.h"
#include "transport/session.h"

namespace centroid::server {

/// The server's tables of sparse rows, or what lies on it of tables on several servers, and the
/// requests of their clients. A session that begins with RowsOpen is a client's: no member of the
/// cluster. A client that is silent for a lease is closed; it connects again when it wants
/// something.
///
/// With a journal a push is answered when it is written there; a pull may show it before.
/// thread  the service's, but for the snapshots
class RowsService {
 public:
  /// What one session has said.
  class Client : public RowsSession {
   public:
    Client(RowsService& service, transport::Session& session)
        : RowsSession(service.sessions_, session) {}
  };

  /// `tables` as parse_tables takes it.
  RowsService(const std::string& tables, std::chrono::milliseconds lease, const Clock& clock,
              metrics::Registry& registry);

  /// Of a question and of an answer; the session's limit holds, too.
  void bound_payload(std::uint64_t bytes) { requests_.bound_payload(bytes); }
  static bool opens(std::uint16_t kind) {
    return kind == static_cast<std::uint16_t>(proto::RowsKind::kOpen);
  }
  /// A frame of a client's session. An error ends the session.
  Task<Status> on_frame(transport::Session& session, const transport::InFrame& frame,
                        Client& client) {
    return requests_.on_frame(session, frame, client);
  }
  /// Now and then: close clients that are silent, forget who went long ago.
  void tick();

  bool has_tables() const { return store_.size() > 0; }
  /// Grows with every push that was applied.
  std::uint64_t changes() const { return store_.changes(); }
  /// Memory that the tables may take or have taken: max_bytes, of a table without it what it has.
  std::uint64_t reserved_bytes() const { return room_.reserved_bytes(); }
  /// Memory for all tables: a push for which a table without max_bytes would need more is refused.
  void set_room(std::uint64_t bytes, std::string source) { room_.set(bytes, std::move(source)); }
  /// Not while the one before lives. `duty`: nobody waits for it yet; a push that it holds up
  /// hurries it.
  std::shared_ptr<RowsSnapshot> begin_snapshot(std::shared_ptr<DutyCycle> duty = nullptr);
  /// Fill the empty tables from the files of a checkpoint (names as parts_of gave them).
  /// fails  failed_precondition: a table that the settings do not have, or have otherwise; or
  ///        journals of other servers, which are not here, have more.
  Status restore(const std::filesystem::path& checkpoint, const std::vector<std::string>& files);
  /// Another thread does that, and `replay`: until `end_reading` there are no clients, and views
  /// show what was there before.
  void begin_reading();
  void end_reading() { is_reading_ = false; }

  // several servers
  /// Rows of these buckets of keys lie here, on server `self` of the route; of max_bytes the same
  /// share, but not less than it was since rows are here. Requests for other keys are refused with
  /// the name of their server.
  /// fails  invalid_argument: a share of max_bytes is too small
  Status set_route(proto::Route route, std::size_t self) {
    return moves_.set_route(std::move(route), self);
  }
  const proto::Route& route() const { return route_.route(); }
  /// Refuse all requests, for this reason; empty: serve them.
  void hold(std::string why) { gate_.hold(std::move(why)); }
  /// Of one server of several that may lead: whether it does, asked before each request.
  void lead_by(std::function<Status()> leads) { gate_.lead_by(std::move(leads)); }
  /// End all sessions of clients.
  void close_clients(const Error& why) { sessions_.close_all(why); }
  /// What `restore` does, piece by piece: `begin_load` for each table, rows, `end_load`. Another
  /// `begin_load` before that begins anew.
  void begin_load(std::size_t table, const RowTable::State& state) {
    store_.begin_load(table, state);
  }
  Status load(std::size_t table, const RowTable::Block& block, std::uint64_t now);
  /// Beside what is here. Nobody who has pushed is forgotten while it may come again.
  void load_pushes(const std::vector<PushWindows::Entry>& clients);
  void end_load(std::uint64_t clock, std::uint64_t journal, const std::string& from);
  /// The number of a table of a checkpoint.
  /// fails  failed_precondition: the settings have it not
  Result<std::size_t> check_file(const std::filesystem::path& checkpoint,
                                 const std::string& table) const {
    return store_.check_file(checkpoint, table);
  }
  const RowSpec& spec(std::size_t table) const { return store_.spec(table); }
  std::size_t tables() const { return store_.size(); }
  std::uint64_t clock() const { return store_.now(); }
  proto::TablesReport report() const;
  /// What all clients have pushed, by client.
  std::vector<PushWindows::Entry> pushes() const { return store_.windows().entries(); }
  /// What a server counted that has gone.
  void add_counters(std::size_t table, const RowCounters& counters) {
    store_.add_counters(table, counters);
  }
  /// What the tables have beside these rows lies on other servers: for the metrics.
  void tell_elsewhere(std::size_t table, const proto::TableReport& total,
                      const proto::TableReport& more) {
    store_.show_elsewhere(table, total, more);
  }

  // buckets that come and go while the tables are in use: as BucketMoves
  bool find_buckets(const std::vector<std::uint16_t>& buckets, std::size_t places) {
    return moves_.outgoing().find(buckets, places);
  }
  std::vector<std::uint64_t> bytes_found() const { return moves_.outgoing().bytes_found(); }
  /// Then `on_disk`.
  Status hold_buckets(const std::vector<std::uint16_t>& buckets) { return moves_.hold(buckets); }
  void read_held(std::uint64_t max_payload_bytes, proto::RowsBlock& head,
                 std::vector<std::byte>& payload) {
    moves_.outgoing().read(max_payload_bytes, head, payload);
  }
  Status put_rows(const proto::BucketsPut& head, Bytes payload) {
    return moves_.put(head, payload);
  }
  /// Then `on_disk`.
  Status take_buckets(const proto::Route& route, const std::vector<std::uint16_t>& buckets) {
    return moves_.take(route, buckets);
  }
  Status give_buckets(const proto::Route& route, const std::vector<std::uint16_t>& buckets) {
    return moves_.give(route, buckets);
  }
  Status keep_buckets(const proto::Route& route, const std::vector<std::uint16_t>& buckets) {
    return moves_.keep(route, buckets);
  }
  /// What was done so far is in the journal, and that on the disk.
  /// fails  deadline_exceeded
  Task<Status> on_disk(TimePoint limit) { return journal_.on_disk(sessions_.clock(), limit); }
  /// By bucket the newest route by which it was this server's, as its journal knows; 0: it is not.
  const std::vector<std::uint64_t>& claims() const { return route_.claims(); }
  /// Before it serves: rows of buckets that lie elsewhere by this route go.
  /// fails  data_loss: buckets that are to lie here were never brought here.
  Status settle(const proto::Route& route);
  /// After `settle` and `start_journal`: the journal says what is this server's.
  void journal_claims();

  // the journal
  /// What stands in the journal's folder behind the checkpoint that was restored. `run_id`: of this
  /// run, and where it is empty that of the journal.
  /// fails  failed_precondition: of another run, or of tables that the settings do not have, or
  ///        have otherwise; data_loss
  Status replay(const std::filesystem::path& folder, std::string& run_id);
  /// Pushes are written before they are answered, from now on. Not set in `options`: tables,
  /// on_progress. `executor`: the service's; the thread of `files` opens it
  Task<Status> start_journal(Executor executor, Executor files, RowsJournalWriter::Options options);
  /// A checkpoint of a snapshot is on the disk.
  void checkpoint_written(std::uint64_t journal) { journal_.prune(journal); }
  /// Its segments have more than so many bytes, or it is broken: only a checkpoint helps.
  bool journal_wants_checkpoint(std::uint64_t bytes) const {
    return journal_.wants_checkpoint(bytes);
  }
  /// The server stops: what cannot be written is not waited for any more.
  void give_up() { journal_.give_up(); }
  std::optional<RowsJournalWriter::State> journal() const { return journal_.state(); }

  std::vector<TableView> views() const { return is_reading_ ? before_ : store_.views(); }
  /// Requests of clients that are held up, longer than two seconds.
  void waits(std::vector<WaitView>& views) const;

 private:
  RowsService(std::vector<RowSpec> specs, std::chrono::milliseconds lease, const Clock& clock,
              metrics::Registry& registry);

  RowsSessions sessions_;
  TableStore store_;
  TableRoom room_;
  BucketRoute route_;
  RowsJournal journal_;
  BucketMoves moves_;
  RowsGate gate_;
  RowsRequests requests_;
  bool is_reading_ = false;
  std::vector<TableView> before_;  ///< while another thread reads
};

}  // namespace centroid::server
