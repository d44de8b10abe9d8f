#include "server/shard/shard_rows.h"

#include <algorithm>

#include <boost/asio/post.hpp>

#include "common/base/log.h"
#include "common/checkpoint/rows_journal.h"
#include "server/shard/reply_of.h"
#include "server/store/memory_need.h"
#include "server/tables/row_blocks.h"

namespace centroid::server {

using proto::TablesKind;

namespace fs = std::filesystem;

namespace {

/// Copies of rows that change while a checkpoint reads them.
constexpr std::uint64_t kCopyBytes = 64u << 20;
/// Longest wait for the clients of an earlier session to end.
constexpr std::chrono::seconds kEnd{10};
constexpr const char* kNotYet = "its rows are being loaded";

Error before_tables(const std::string& what) {
  return Error(ErrorCode::kFailedPrecondition,
               what +
                   " came before Tables (the leader sends Tables, RowsLoad, PushesLoad, Replay, "
                   "Serve)");
}

/// End the session with the leader and this server with `why`.
void refuse(transport::Session* session, LeaderSession* leader, const Error& why) {
  leader->set_fatal(why);
  session->close(why);
}

}  // namespace

ShardRows::ShardRows(Executor executor, Executor files, Options options, const Clock& clock)
    : executor_(std::move(executor)),
      files_(std::move(files)),
      options_(std::move(options)),
      clock_(clock),
      ended_(std::make_shared<Event>(executor_)),
      frozen_(options_.name),
      buckets_([this] { set_beside(beside_); }) {}

bool ShardRows::is_for_rows(std::uint16_t kind) {
  return kind >= static_cast<std::uint16_t>(TablesKind::kTables) &&
         kind <= static_cast<std::uint16_t>(TablesKind::kBucketsClaims);
}

Result<std::shared_ptr<RowsService>> ShardRows::service() const {
  if (service_) return service_;
  return Error(ErrorCode::kUnavailable,
               "no tables lie on server '" + options_.name + "' at the moment");
}

void ShardRows::forget(const Error& why) {
  frozen_.thaw();
  if (!service_) return;
  service_->hold(why.message());
  service_->journal().give_up();
  service_->sessions().close_all(why);
  last_ = service_;
  service_.reset();
}

void ShardRows::tick() {
  if (service_ && !is_replaying_) service_->tick();
}

std::uint64_t ShardRows::reserved_bytes() const {
  if (!service_ || is_replaying_) return 0;
  return service_->store().reserved_bytes() + kCopyBytes +
         (tables_.writes_journal ? RowsJournalWriter::kQueueBytes : 0);
}

void ShardRows::set_beside(std::uint64_t bytes) {
  beside_ = bytes;
  if (!service_ || is_replaying_) return;
  const MemoryLimit limit = memory_limit(options_.memory_limit);
  const std::uint64_t beside = beside_ == 0 ? memory_need({}).base : beside_;
  const std::uint64_t taken = beside + reserved_bytes() - service_->store().reserved_bytes();
  service_->store().set_room(limit.bytes - std::min(limit.bytes, taken),
                             limit.source + (beside_ == 0 ? "" : " beside the model"));
}

Status ShardRows::check_room() const {
  MemoryQuestion question;
  question.tables_bytes = reserved_bytes() + beside_;
  const Status fits = check_memory(memory_need(question), memory_limit(options_.memory_limit));
  if (fits.ok()) return fits;
  return fits.error().with_context("server '" + options_.name +
                                   "', with its share of the tables of " +
                                   std::to_string(tables_.route.servers.size()) + " servers");
}

Status ShardRows::take_tables(const proto::Tables& tables, const proto::ServerTerms& terms) {
  if (const auto parsed = parse_tables(tables.tables); !parsed.ok())
    return parsed.error().with_context("Tables.tables");
  const auto self =
      std::ranges::find(tables.route.servers, options_.name, &proto::RouteServer::name);
  if (self == tables.route.servers.end())
    return Error(ErrorCode::kInvalidArgument,
                 "Tables: server '" + options_.name + "' is not in their route");
  const std::chrono::milliseconds lease(terms.lease_ms);
  const std::shared_ptr<RowsService> fresh(
      new RowsService(tables.tables, lease, clock_, registry_),
      [files = files_, executor = executor_, ended = ended_](RowsService* gone) {
        // The destructor closes its journal and waits for the disk.
        boost::asio::post(files, [owned = std::shared_ptr<RowsService>(gone)] {});
        boost::asio::post(executor, [ended] { ended->notify_all(); });
      });
  fresh->hold("server '" + options_.name + "': " + kNotYet);
  CENTROID_TRY(fresh->moves().set_route(
      tables.route, static_cast<std::size_t>(self - tables.route.servers.begin())));
  tables_ = tables;
  run_id_ = terms.run_id;
  has_journal_ = is_replaying_ = is_loaded_ = false;
  service_ = fresh;
  set_beside(beside_);
  return check_room();
}

/// Skip the journal of a server that the checkpoint does not name: its content is older. Returns
/// the number of the first new segment.
Result<std::uint64_t> ShardRows::pass_over_journal(const fs::path& folder,
                                                   const std::string& run_id,
                                                   const std::string& restored_from) {
  rows_journal::Reader old(folder, 0);
  std::uint64_t next = 1;
  CENTROID_TRY(old.listed());
  if (old.segments().empty()) return next;
  const std::string move = ": move the rows-*.log away to go on without it";
  if (restored_from.empty())
    return Error(ErrorCode::kFailedPrecondition,
                 "there is a journal of tables of an earlier run in " + folder.string() +
                     ", and the leader has no checkpoint" + move);
  CENTROID_ASSIGN(const auto found, old.next());
  if (found == rows_journal::Reader::Found::kBase && old.base().run_id != run_id)
    return Error(ErrorCode::kFailedPrecondition, "journal " + folder.string() +
                                                     " belongs to run '" + old.base().run_id +
                                                     "', this one is '" + run_id + "'" + move);
  for (const LogSegment& segment : old.segments()) next = std::max(next, segment.number + 1);
  return next;
}

/// Replay the journal after all rows of the checkpoint have arrived. The tables are not used
/// otherwise meanwhile.
Task<void> ShardRows::replay(Session* session, LeaderSession* leader) {
  const auto service = service_;
  is_replaying_ = true;
  if (tables_.journal == 0) {
    auto look = [folder = options_.journal_dir, run_id = run_id_, from = tables_.restored_from] {
      return pass_over_journal(folder, run_id, from);
    };
    const auto first = co_await run_on(files_, std::move(look));
    if (service != service_) co_return;
    if (!first.ok()) {
      is_replaying_ = false;
      refuse(session, leader, first.error().with_context("server '" + options_.name + "'"));
      co_return;
    }
    tables_.journal = first.value();
  }
  service->end_load(tables_.clock, tables_.journal, tables_.restored_from);
  auto work = [service, folder = options_.journal_dir, run_id = run_id_]() mutable {
    return service->replay(folder, run_id);
  };
  const auto replayed = co_await run_on(files_, std::move(work));
  if (service != service_) co_return;
  is_replaying_ = false;
  if (!replayed.ok()) {
    refuse(session, leader, replayed.error().with_context("server '" + options_.name + "'"));
    co_return;
  }
  if (const Status fits = check_room(); !fits.ok()) {
    refuse(session, leader, fits.error());
    co_return;
  }
  is_loaded_ = true;
  set_beside(beside_);
}

Task<Status> ShardRows::serve(proto::Route route) {
  if (!service_ || !is_loaded_) co_return before_tables("Serve");
  CENTROID_CO_TRY(service_->moves().settle(route));
  if (tables_.writes_journal && !has_journal_) {
    RowsJournalWriter::Options options;
    options.folder = options_.journal_dir;
    options.run_id = run_id_;
    options.sync_every = std::chrono::milliseconds(tables_.journal_sync_ms);
    CENTROID_CO_TRY(co_await service_->journal().start(executor_, files_, std::move(options)));
    has_journal_ = true;
  }
  service_->moves().journal_claims();
  set_beside(beside_);
  service_->hold("");
  log::info("rows.serving", {{"route", route.version}, {"servers", route.servers.size()}});
  co_return Status();
}

Task<Status> ShardRows::on_leader(Session& session, const InFrame& frame, TaskGroup& tasks,
                                  LeaderSession& leader) {
  Payload in(frame.header.payload_bytes);
  if (!in.empty()) CENTROID_CO_TRY(co_await session.read_payload(in));
  switch (static_cast<TablesKind>(frame.header.kind)) {
    case TablesKind::kTables:
      co_return co_await on_tables(session, frame, leader);
    case TablesKind::kRowsLoad:
      co_return co_await on_rows_load(session, frame, in, leader);
    case TablesKind::kPushesLoad:
      co_return co_await on_pushes_load(session, frame, in);
    case TablesKind::kReplay:
      co_return co_await on_replay(session, frame, tasks, leader);
    case TablesKind::kServe:
      co_return co_await on_serve(session, frame, leader);
    case TablesKind::kRowsFreeze:
      co_return co_await on_freeze(session, frame);
    case TablesKind::kRowsRead:
      co_return co_await on_rows_read(session, frame);
    case TablesKind::kPushesRead:
      co_return co_await on_pushes_read(session, frame);
    case TablesKind::kRowsThaw:
      co_return co_await on_thaw(session, frame);
    case TablesKind::kTablesReport:
      co_return co_await on_report(session, frame);
    default:
      co_return co_await on_buckets(session, frame, in, tasks);
  }
}

Task<Status> ShardRows::on_tables(Session& session, const InFrame& frame, LeaderSession& leader) {
  CENTROID_CO_ASSIGN(const auto tables, proto::decode<proto::Tables>(frame.head));
  const Error again(ErrorCode::kUnavailable, "the leader has placed the tables anew");
  forget(again);
  const TimePoint end = clock_.now() + kEnd;
  const auto has_ended = [this] { return last_.expired(); };
  const bool is_free = co_await until(*ended_, has_ended, end);
  if (!is_free && clock_.now() < end)
    co_return Error(ErrorCode::kCancelled, "the server is stopping");
  if (!is_free) {
    const Error late(ErrorCode::kUnavailable,
                     "clients of an earlier session with the leader do not end");
    co_return co_await session.respond_error(frame.header, late);
  }
  const Status taken = take_tables(tables, leader.terms());
  if (!taken.ok()) leader.set_fatal(taken.error());
  co_return co_await session.respond(frame.header, taken);
}

Status ShardRows::load_rows(const proto::RowsBlock& head, const Payload& in) {
  if (!service_ || head.table >= service_->store().size())
    return before_tables("RowsLoad of table " + std::to_string(head.table));
  CENTROID_ASSIGN(const auto block, rows_of(head, service_->store().spec(head.table), in));
  CENTROID_TRY(service_->store().load(head.table, block, tables_.saved_clock));
  return check_room();
}

Task<Status> ShardRows::on_rows_load(Session& session, const InFrame& frame, const Payload& in,
                                     LeaderSession& leader) {
  CENTROID_CO_ASSIGN(const auto head, proto::decode<proto::RowsBlock>(frame.head));
  const Status loaded = load_rows(head, in);
  if (!loaded.ok()) leader.set_fatal(loaded.error());
  co_return co_await session.respond(frame.header, loaded);
}

Status ShardRows::load_pushes(const proto::PushesBlock& head, const Payload& in) {
  if (!service_) return before_tables("PushesLoad");
  CENTROID_ASSIGN(const auto entries, pushes_of(head, in));
  service_->load_pushes(entries);
  return {};
}

Task<Status> ShardRows::on_pushes_load(Session& session, const InFrame& frame, const Payload& in) {
  CENTROID_CO_ASSIGN(const auto head, proto::decode<proto::PushesBlock>(frame.head));
  const Status loaded = load_pushes(head, in);
  co_return co_await session.respond(frame.header, loaded);
}

Task<Status> ShardRows::on_replay(Session& session, const InFrame& frame, TaskGroup& tasks,
                                  LeaderSession& leader) {
  const bool is_ready = service_ && !is_replaying_ && !is_loaded_;
  const Status begun = is_ready ? Status() : Status(before_tables("Replay"));
  if (is_ready) tasks.spawn(replay(&session, &leader));
  co_return co_await session.respond(frame.header, begun);
}

Task<Status> ShardRows::on_serve(Session& session, const InFrame& frame, LeaderSession& leader) {
  CENTROID_CO_ASSIGN(const auto route, proto::decode<proto::Route>(frame.head));
  const Status served = co_await serve(route);
  if (!served.ok()) leader.set_fatal(served.error());
  co_return co_await session.respond(frame.header, served);
}

Task<Status> ShardRows::on_freeze(Session& session, const InFrame& frame) {
  CENTROID_CO_ASSIGN(const auto how, proto::decode<proto::RowsFreeze>(frame.head));
  Result<proto::RowsFrozen> frozen = before_tables("RowsFreeze");
  if (service_ && is_loaded_) frozen = frozen_.freeze(*service_, how.is_last);
  auto reply = reply_of(frozen);
  co_return co_await session.respond(frame.header, std::move(reply));
}

Task<Status> ShardRows::on_rows_read(Session& session, const InFrame& frame) {
  CENTROID_CO_ASSIGN(const auto wanted, proto::decode<proto::RowsRead>(frame.head));
  const std::uint64_t limit = session.peer().limits.max_payload_bytes;
  Payload rows;
  const auto block = frozen_.read(wanted, service_.get(), limit, rows);
  auto reply = reply_of(block, std::move(rows));
  co_return co_await session.respond(frame.header, std::move(reply));
}

Task<Status> ShardRows::on_pushes_read(Session& session, const InFrame& frame) {
  CENTROID_CO_ASSIGN(const auto wanted, proto::decode<proto::PushesBlock>(frame.head));
  const std::uint64_t limit = session.peer().limits.max_payload_bytes;
  Payload pushes;
  const auto block = frozen_.read_pushes(wanted, limit, pushes);
  auto reply = reply_of(block, std::move(pushes));
  co_return co_await session.respond(frame.header, std::move(reply));
}

Task<Status> ShardRows::on_thaw(Session& session, const InFrame& frame) {
  CENTROID_CO_ASSIGN(const auto thaw, proto::decode<proto::RowsThaw>(frame.head));
  frozen_.thaw();
  if (service_ && thaw.journal != 0) service_->journal().prune(thaw.journal);
  co_return co_await session.respond(frame.header, Status());
}

Task<Status> ShardRows::on_report(Session& session, const InFrame& frame) {
  Result<proto::TablesReport> report = before_tables("TablesReport");
  if (service_ && !is_loaded_) report = proto::TablesReport();
  if (service_ && is_loaded_) report = service_->report();
  auto reply = reply_of(report);
  co_return co_await session.respond(frame.header, std::move(reply));
}

Task<Status> ShardRows::on_buckets(Session& session, const InFrame& frame, const Payload& in,
                                   TaskGroup& tasks) {
  if (service_ && is_loaded_)
    co_return co_await buckets_.on_frame(session, frame, in, tasks, service_);
  const Error early(ErrorCode::kFailedPrecondition,
                    "server '" + options_.name + "' has no tables that it serves yet");
  co_return co_await session.respond_error(frame.header, early);
}

}  // namespace centroid::server
