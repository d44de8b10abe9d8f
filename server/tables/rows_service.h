#pragma once

#include <filesystem>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/async/task_group.h"
#include "common/base/clock.h"
#include "common/base/metrics.h"
#include "common/base/standstill.h"
#include "common/proto/rows.h"
#include "common/proto/tables.h"
#include "server/api/view.h"
#include "server/rows/push_windows.h"
#include "server/rows/row_table.h"
#include "server/store/rows_journal_writer.h"
#include "server/tables/rows_snapshot.h"
#include "transport/session.h"

namespace centroid::server {

/// The server's tables of sparse rows, or what lies on it of tables on several servers, and the
/// requests of their clients. A session that begins with
/// RowsOpen is a client's: no member of the cluster. A client that is silent for a lease is closed;
/// it connects again when it wants something.
///
/// With a journal a push is answered when it is written there; a pull may show it before.
///
/// A request that cannot be served is answered with an error that names table and reason, and
/// changes nothing; the session goes on.
/// thread  the service's, but for the snapshots
class RowsService {
 public:
  /// What one session has said.
  class Client {
   public:
    Client(RowsService& service, transport::Session& session);
    ~Client();
    Client(const Client&) = delete;
    Client& operator=(const Client&) = delete;

   private:
    friend class RowsService;
    RowsService& service_;
    transport::Session& session_;
    std::list<Client*>::iterator place_;
    std::uint64_t id = 0;
    std::vector<std::byte> in, out;   ///< payloads, kept for their memory
    const char* waits_for = nullptr;  ///< of the request that is open
    TimePoint since, told;            ///< told: when the client heard last why it waits
    bool is_push = false;             ///< what is open
    std::uint32_t table = 0, rows = 0;
  };

  /// `tables` as parse_tables takes it.
  RowsService(const std::string& tables, std::chrono::milliseconds lease, const Clock& clock,
              metrics::Registry& registry);

  /// Of a question and of an answer; the session's limit holds, too.
  void bound_payload(std::uint64_t bytes) { max_payload_ = bytes; }
  static bool opens(std::uint16_t kind) {
    return kind == static_cast<std::uint16_t>(proto::RowsKind::kOpen);
  }
  /// A frame of a client's session. An error ends the session.
  Task<Status> on_frame(transport::Session& session, const transport::InFrame& frame,
                        Client& client);
  /// Now and then: close clients that are silent, forget who went long ago.
  void tick();

  bool has_tables() const { return !probes_.empty(); }
  /// Grows with every push that was applied.
  std::uint64_t changes() const { return changes_; }
  /// Memory that the tables may take or have taken: max_bytes, of a table without it what it has.
  std::uint64_t reserved_bytes() const;
  /// Memory for all tables: a push for which a table without max_bytes would need more is refused.
  void set_room(std::uint64_t bytes, std::string source);
  /// Not while the one before lives. `duty`: nobody waits for it yet; a push that it holds up
  /// hurries it.
  std::shared_ptr<RowsSnapshot> begin_snapshot(std::shared_ptr<DutyCycle> duty = nullptr);
  /// Fill the empty tables from the files of a checkpoint (names as parts_of gave them).
  /// fails  failed_precondition: a table that the settings do not have, or have otherwise; or
  ///        journals of other servers, which are not here, have more.
  Status restore(const std::filesystem::path& checkpoint, const std::vector<std::string>& files);
  /// Another thread does that, and `replay`: until `end_reading` there are no clients, and views
  /// show what was there before.
  void begin_reading() {
    before_ = views();
    is_reading_ = true;
  }
  void end_reading() { is_reading_ = false; }

  // several servers
  /// Rows of these buckets of keys lie here, on server `self` of the route; of max_bytes the same
  /// share, but not less than it was since rows are here. Requests for other keys are refused with
  /// the name of their server.
  /// fails  invalid_argument: a share of max_bytes is too small
  Status set_route(proto::Route route, std::size_t self);
  const proto::Route& route() const { return route_; }
  /// Refuse all requests for now, for this reason; empty: serve them.
  void hold(std::string why) { held_ = std::move(why); }
  /// Of one server of several that may lead: whether it does, asked before each request.
  void lead_by(std::function<Status()> leads) { leads_ = std::move(leads); }
  /// End all sessions of clients.
  void close_clients(const Error& why);
  /// What `restore` does, piece by piece: `begin_load` for each table, rows, `end_load`. Another
  /// `begin_load` before that begins anew.
  Result<std::size_t> number_of(const std::string& table) const;
  /// The number of a table of a checkpoint.
  /// fails  failed_precondition: the settings have it not
  Result<std::size_t> check_file(const std::filesystem::path& checkpoint,
                                 const std::string& table) const;
  const RowSpec& spec(std::size_t table) const { return tables_->tables[table].spec(); }
  std::size_t tables() const { return probes_.size(); }
  void begin_load(std::size_t table, const RowTable::State& state);
  Status load(std::size_t table, const RowTable::Block& block, std::uint64_t now);
  void load_pushes(const std::vector<PushWindows::Entry>& clients);
  void end_load(std::uint64_t clock, std::uint64_t journal, const std::string& from);
  std::uint64_t clock() const { return now(); }
  std::string restored_from() const { return restored_from_; }
  proto::TablesReport report() const;
  /// What all clients have pushed, by client.
  std::vector<PushWindows::Entry> pushes() const { return windows_.entries(); }

  // rows_moves.cc: buckets that come and go while the tables are in use
  /// Look through so many places for the rows of these buckets; calls go on. Another list begins
  /// anew, an empty one ends it. True: all are found.
  bool find_buckets(const std::vector<std::uint16_t>& buckets, std::size_t places);
  /// Memory of the rows that were found, by bucket of the list.
  std::vector<std::uint64_t> bytes_found() const;
  /// Calls for these, which were found, wait until they are given or kept; then `on_disk`.
  Status hold_buckets(const std::vector<std::uint16_t>& buckets);
  /// The next rows of what is held; head.rows 0: that was all.
  void read_held(std::uint64_t max_payload_bytes, proto::RowsBlock& head,
                 std::vector<std::byte>& payload);
  /// Rows that come, kept beside the tables.
  /// fails  resource_exhausted, as a push
  Status put_rows(const proto::BucketsPut& head, Bytes payload);
  /// What was put is here from now on, with these buckets; then `on_disk`.
  Status take_buckets(const proto::Route& route, const std::vector<std::uint16_t>& buckets);
  Status give_buckets(const proto::Route& route, const std::vector<std::uint16_t>& buckets);
  Status keep_buckets(const proto::Route& route, const std::vector<std::uint16_t>& buckets);
  /// What was done so far is in the journal, and that on the disk.
  /// fails  deadline_exceeded
  Task<Status> on_disk(TimePoint limit);
  /// By bucket the newest route by which it was this server's, as its journal knows; 0: it is not.
  const std::vector<std::uint64_t>& claims() const { return claims_; }
  /// Before it serves: rows of buckets that lie elsewhere by this route go.
  /// fails  data_loss: buckets that are to lie here were never brought here.
  Status settle(const proto::Route& route);
  /// After `settle` and `start_journal`: the journal says what is this server's.
  void journal_claims();
  /// What a server counted that has gone.
  void add_counters(std::size_t table, const RowCounters& counters);
  /// What the tables have beside these rows lies on other servers: for the metrics.
  void tell_elsewhere(std::size_t table, const proto::TableReport& total,
                      const proto::TableReport& more);

  // rows_durability.cc: the journal
  /// What stands in the journal's folder behind the checkpoint that was restored. `run_id`: of this
  /// run, and where it is empty that of the journal.
  /// fails  failed_precondition: of another run, or of tables that the settings do not have, or
  ///        have otherwise; data_loss
  Status replay(const std::filesystem::path& folder, std::string& run_id);
  /// Pushes are written before they are answered, from now on. Not set in `options`: tables,
  /// on_progress. `executor`: the service's
  Status start_journal(const Executor& executor, RowsJournalWriter::Options options);
  /// A checkpoint of a snapshot is on the disk.
  void checkpoint_written(std::uint64_t journal);
  /// Its segments have more than so many bytes, or it is broken: only a checkpoint helps.
  bool journal_wants_checkpoint(std::uint64_t bytes) const;
  /// The server stops: what cannot be written is not waited for any more.
  void give_up();
  std::optional<RowsJournalWriter::State> journal() const;

  std::vector<TableView> views() const;
  /// Requests of clients that are held up, longer than two seconds.
  void waits(std::vector<WaitView>& views) const;

 private:
  std::uint64_t max_payload_of(const transport::Session& session) const;
  /// A table's metrics.
  struct Probe {
    RowCounters told;
    metrics::Counter pulled, pushed, admitted, held_back, evicted, expired;
    metrics::Gauge stored, waiting, bytes;
    proto::TableReport elsewhere = {};
    void tell(const RowTable& table);
    void show(const RowTable& table) const;
  };
  struct Waiting;
  /// Buckets that are to go, or come.
  struct Moves {
    // to go
    std::vector<std::uint16_t> wanted;
    std::vector<std::uint16_t> place;  ///< in `wanted`, by bucket; kNotWanted
    std::size_t table = 0;             ///< that is looked through
    RowTable::Cursor cursor;
    std::vector<std::vector<std::uint64_t>> fresh;              ///< stored meanwhile, by table
    std::vector<std::vector<std::vector<std::uint64_t>>> keys;  ///< by table, by place
    std::vector<std::uint16_t> held;
    std::vector<bool> is_held;  ///< by bucket; empty: none is
    std::size_t read_table = 0, read_row = 0;
    bool reads_waiting = false, is_read = false;
    RowTable::Block rows, waiting;  ///< of the table that is read
    // to come
    std::vector<std::pair<std::uint32_t, RowTable::Block>> staged;
    std::uint64_t staged_bytes = 0;
  };
  static Task<Status> tell(Client& client, TimePoint now);

  Result<proto::RowsOpenReply> open(const transport::Session& session, const proto::RowsOpen& head,
                                    Client& client) const;
  Result<std::uint32_t> table_of(const Client& client, std::uint32_t number, std::uint32_t rows,
                                 std::uint64_t payload_bytes, bool has_gradients) const;
  Status check_open() const;
  Status check_keys(const RowTable& table, std::span<const std::uint64_t> keys) const;
  Task<Status> pull(transport::Session& session, const transport::InFrame& frame, Client& client);
  Task<Status> push(transport::Session& session, const transport::InFrame& frame, Client& client);
  Result<proto::RowsPushReply> apply(const proto::RowsPush& head, const Client& client);
  Task<Status> room(std::uint32_t table, std::uint32_t pushed_keys, std::uint32_t keys,
                    Client& client);
  bool is_held_up(const RowTable& table, std::span<const std::uint64_t> pushed) const;
  std::uint64_t copy_budget() const;
  std::uint64_t bytes_after(const RowTable& table, std::span<const std::uint64_t> pushed) const;
  Status check_room(const RowTable& table, std::span<const std::uint64_t> keys) const;
  bool journals_pulls(const RowTable& table) const;
  void journal_push(const proto::RowsPush& head, const Client& client);
  void journal_pull(const proto::RowsPull& head, const Client& client);
  void journal_forget(std::uint64_t client);
  Task<Status> journalled(TimePoint limit = TimePoint::max(), Client* client = nullptr);
  Result<std::vector<std::size_t>> adopt(const std::vector<std::string>& tables);
  Status replay(const rows_journal::Entry& entry, const std::vector<std::size_t>& tables);
  Status replay_move(const rows_journal::Entry& entry, const std::vector<std::size_t>& tables);
  bool is_moving(std::span<const std::uint64_t> keys) const;
  void note_found(std::size_t table, std::vector<std::uint64_t>& keys);
  std::vector<std::uint64_t> keys_of(std::size_t table,
                                     const std::vector<std::uint16_t>& buckets) const;
  void drop_buckets(const std::vector<std::uint16_t>& buckets);
  void end_moves();
  Status put_staged(std::uint64_t at);
  Result<std::size_t> place_in(const proto::Route& route) const;
  void journal_buckets(rows_journal::Entry::Kind kind, const std::vector<std::uint16_t>& buckets,
                       bool flag);
  std::uint64_t now() const;  ///< seconds since the tables were begun, while there was a server

  const Clock& clock_;
  const std::chrono::milliseconds lease_;
  Standstill standstill_;
  TimePoint started_;
  std::uint64_t clock_at_start_ = 0;
  const std::uint64_t incarnation_;
  std::string restored_from_;
  std::shared_ptr<RowTables> tables_ = std::make_shared<RowTables>();
  std::vector<Probe> probes_;  ///< by table
  PushWindows windows_;
  proto::Route route_;
  std::uint16_t self_ = 0;
  std::vector<std::uint64_t> max_bytes_;  ///< by table: on all servers
  std::string held_;
  bool is_reading_ = false;
  std::vector<TableView> before_;
  std::function<Status()> leads_;
  Moves moves_;
  std::vector<std::uint64_t> claims_;  ///< by bucket
  std::uint64_t left_out_ = 0;         ///< rows that had no room when they were loaded
  std::uint64_t changes_ = 0;
  std::uint64_t max_payload_ = ~std::uint64_t{0};
  std::uint64_t room_ = ~std::uint64_t{0};
  std::string room_source_;
  std::shared_ptr<DutyCycle> duty_;  ///< of the newest snapshot
  std::list<Client*> clients_;
  std::unordered_map<std::uint64_t, TimePoint> gone_;  ///< by client: when its last session ended
  metrics::Counter repeated_, refused_, silent_;
  metrics::Gauge sessions_;

  std::uint64_t first_segment_ = 1;            ///< behind the restored checkpoint
  RowsJournalWriter::Position next_position_;  ///< where a journal begins, or would
  std::shared_ptr<Event> journal_moved_;
  std::unique_ptr<RowsJournalWriter> journal_;  ///< none: pushes are in no journal
};

}  // namespace centroid::server
