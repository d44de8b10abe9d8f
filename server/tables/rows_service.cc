#include "server/tables/rows_service.h"

#include <algorithm>

#include "common/base/log.h"
#include "common/base/random.h"

namespace centroid::server {

using proto::RowsKind;
using transport::InFrame;
using transport::Session;

namespace {

/// Changes that are kept in any case for a checkpoint which has not read the rows yet.
constexpr std::uint64_t kCopyBudgetBytes = 64u << 20;
/// What a request waits for.
constexpr const char* kForPayload = "the rest of its message";
constexpr const char* kForDisk = "a checkpoint of the tables, which the disk has not taken yet";
constexpr const char* kForJournal = "the journal of the tables, which the disk has not taken yet";
constexpr std::chrono::seconds kHeldUp{2};  ///< from which on it is told why
constexpr const char* kForReading = "that it reads its answer";
constexpr const char* kForMove = "rows that move to another server";

std::uint64_t row_bytes(std::uint32_t dim) { return sizeof(std::uint64_t) + dim * sizeof(float); }

std::span<const std::uint64_t> keys_in(Bytes payload, std::uint32_t rows) {
  return {reinterpret_cast<const std::uint64_t*>(payload.data()), rows};
}

}  // namespace

RowsService::Client::Client(RowsService& service, Session& session)
    : service_(service),
      session_(session),
      place_(service.clients_.insert(service.clients_.end(), this)) {
  service.sessions_.set(static_cast<double>(service.clients_.size()));
}

RowsService::Client::~Client() {
  service_.clients_.erase(place_);
  service_.sessions_.set(static_cast<double>(service_.clients_.size()));
  if (id != 0) service_.gone_[id] = service_.clock_.now();
}

/// Says what a request waits for, while it waits.
struct RowsService::Waiting {
  Waiting(Client& client, const char* what, bool is_push, std::uint32_t table, std::uint32_t rows)
      : client_(client) {
    client.waits_for = what;
    client.is_push = is_push;
    client.table = table;
    client.rows = rows;
    client.since = client.service_.clock_.now();
  }
  ~Waiting() { client_.waits_for = nullptr; }
  Client& client_;
};

RowsService::RowsService(const std::string& tables, std::chrono::milliseconds lease,
                         const Clock& clock, metrics::Registry& registry)
    : clock_(clock), lease_(lease), started_(clock.now()), incarnation_(random_seed()) {
  auto specs = parse_tables(tables);
  CENTROID_CHECK(specs.ok());     // server::finish has looked
  route_.servers.emplace_back();  // this one
  if (specs->empty()) return;
  repeated_ = registry.counter("centroid_rows_repeated_pushes_total",
                               "Pushes of rows that came again and were not applied again");
  refused_ = registry.counter("centroid_rows_refused_requests_total",
                              "Requests for rows that were refused");
  silent_ = registry.counter("centroid_rows_silent_clients_total",
                             "Clients of rows that were closed after a lease of silence");
  sessions_ = registry.gauge("centroid_rows_clients", "Clients of rows that are connected");
  for (RowSpec& spec : *specs) {
    const metrics::Labels labels{{"table", spec.name}};
    probes_.push_back(
        {.told = {},
         .pulled = registry.counter("centroid_rows_pulled_total", "Rows pulled", labels),
         .pushed = registry.counter("centroid_rows_pushed_total",
                                    "Rows of pushes, a repeated key once", labels),
         .admitted = registry.counter("centroid_rows_admitted_total", "Rows stored anew", labels),
         .held_back = registry.counter("centroid_rows_held_back_total",
                                       "Gradients of rows not yet admitted", labels),
         .evicted = registry.counter("centroid_rows_evicted_total",
                                     "Rows taken away for want of memory", labels),
         .expired =
             registry.counter("centroid_rows_expired_total", "Rows taken away by age", labels),
         .stored = registry.gauge("centroid_rows_stored", "Rows stored", labels),
         .waiting = registry.gauge("centroid_rows_waiting", "Keys that wait for admission", labels),
         .bytes = registry.gauge("centroid_rows_memory_bytes", "Memory of rows", labels)});
    max_bytes_.push_back(spec.max_bytes);
    tables_->tables.emplace_back(std::move(spec));
  }
}

void RowsService::Probe::tell(const RowTable& table) {
  const RowCounters& is = table.counters();
  const auto add = [](const metrics::Counter& counter, std::uint64_t was, std::uint64_t now) {
    if (now != was) counter.add(static_cast<double>(now - was));
  };
  add(pulled, told.pulled, is.pulled);
  add(pushed, told.pushed, is.pushed);
  add(admitted, told.admitted, is.admitted);
  add(held_back, told.held_back, is.held_back);
  add(evicted, told.evicted, is.evicted);
  add(expired, told.expired, is.expired);
  told = is;
  show(table);
}

void RowsService::Probe::show(const RowTable& table) const {
  stored.set(static_cast<double>(table.rows() + elsewhere.rows));
  waiting.set(static_cast<double>(table.candidates() + elsewhere.waiting));
  bytes.set(static_cast<double>(table.bytes() + elsewhere.bytes));
}

std::uint64_t RowsService::now() const {
  return clock_at_start_ +
         static_cast<std::uint64_t>(
             std::chrono::duration_cast<std::chrono::seconds>(clock_.now() - started_).count());
}

std::shared_ptr<RowsSnapshot> RowsService::begin_snapshot(std::shared_ptr<DutyCycle> duty) {
  if (!has_tables()) return nullptr;
  PushedRows pushed;
  pushed.clients = windows_.entries();
  pushed.journal = journal_ ? journal_->rotate() : next_position_.segment;
  duty_ = std::move(duty);
  tables_->copy_budget = copy_budget();
  return std::make_shared<RowsSnapshot>(tables_, now(), std::move(pushed), duty_);
}

Status RowsService::restore(const std::filesystem::path& checkpoint,
                            const std::vector<std::string>& files) {
  std::uint64_t clock = 0, journal = 1;
  std::vector<PushWindows::Entry> clients;
  for (const std::string& file : files) {
    if (is_pushes_file(file)) {
      CENTROID_ASSIGN(PushedRows pushed, read_pushes(checkpoint / file));
      if (pushed.is_followed && file != kPushesFile)
        return Error(ErrorCode::kFailedPrecondition,
                     "checkpoint " + checkpoint.string() + " has rows of server '" + pushed.server +
                         "', whose journal may have more: start this server with " +
                         "`servers` as it was, and that one with its run_dir");
      clients.insert(clients.end(), pushed.clients.begin(), pushed.clients.end());
      if (file == kPushesFile) journal = std::max<std::uint64_t>(pushed.journal, 1);
      continue;
    }
    const std::string name = table_of_rows_file(file).value_or(file);
    CENTROID_ASSIGN(const std::size_t number, check_file(checkpoint, name));
    const std::lock_guard lock(tables_->mutex);
    CENTROID_ASSIGN(const RowTable::State state,
                    read_rows(checkpoint / file, tables_->tables[number]));
    clock = std::max(clock, state.now);
  }
  load_pushes(clients);
  if (!files.empty()) end_load(clock, journal, checkpoint.filename().string());
  return {};
}

Result<std::size_t> RowsService::check_file(const std::filesystem::path& checkpoint,
                                            const std::string& table) const {
  auto number = number_of(table);
  if (number.ok()) return number;
  return Error(ErrorCode::kFailedPrecondition,
               "checkpoint " + checkpoint.string() + " has a table '" + table +
                   "', which the setting `tables` has not: name it there as it was, so that "
                   "its rows are not lost");
}

std::uint64_t RowsService::reserved_bytes() const {
  std::uint64_t bytes = 0;
  for (const RowTable& table : tables_->tables)
    bytes += table.spec().max_bytes != 0
                 ? table.spec().max_bytes
                 : std::max(table.bytes(), RowTable::least_bytes(table.spec()));
  return bytes;
}

void RowsService::set_room(std::uint64_t bytes, std::string source) {
  room_ = bytes;
  room_source_ = std::move(source);
}

/// Memory that all tables may have taken after a push to a table without max_bytes that may grow by
/// it; 0: it does not.
std::uint64_t RowsService::bytes_after(const RowTable& table,
                                       std::span<const std::uint64_t> pushed) const {
  if (table.spec().max_bytes != 0 || table.bytes_for_push(pushed.size()) <= table.bytes()) return 0;
  // Rows that are there need no room.
  const std::uint64_t wanted = table.bytes_for_push(table.without_row(pushed));
  return wanted <= table.bytes() ? 0 : reserved_bytes() - table.bytes() + wanted;
}

Status RowsService::check_room(const RowTable& table, std::span<const std::uint64_t> keys) const {
  const std::uint64_t after = bytes_after(table, keys);
  if (after <= room_) return {};
  const std::size_t fresh = table.without_row(keys);
  return Error(ErrorCode::kResourceExhausted,
               "table '" + table.spec().name + "' holds " + std::to_string(table.rows()) +
                   " rows in " + std::to_string(table.bytes()) + " bytes; with " +
                   std::to_string(fresh) + " more the tables may need " + std::to_string(after) +
                   " bytes, " + room_source_ + " leaves them " + std::to_string(room_) +
                   ". Give the table max_bytes or max_age, so that rows are evicted, or the server "
                   "more memory (memory_limit)");
}

std::vector<TableView> RowsService::views() const {
  if (is_reading_) return before_;
  std::vector<TableView> views;
  const std::lock_guard lock(tables_->mutex);
  for (const RowTable& table : tables_->tables) {
    const RowSpec& spec = table.spec();
    const RowCounters& counted = table.counters();
    TableView view;
    view.name = spec.name;
    view.optimizer = to_string(spec.rule);
    RowSpec whole = spec;
    whole.max_bytes = max_bytes_[views.size()];
    view.spec = to_string(whole);
    view.dim = spec.dim;
    view.rows = table.rows();
    view.waiting = table.candidates();
    view.bytes = table.bytes();
    view.payload_bytes = table.payload_bytes();
    view.max_bytes = max_bytes_[views.size()];
    view.pulled = counted.pulled;
    view.pushed = counted.pushed;
    view.admitted = counted.admitted;
    view.held_back = counted.held_back;
    view.evicted = counted.evicted;
    view.expired = counted.expired;
    views.push_back(std::move(view));
  }
  return views;
}

void RowsService::waits(std::vector<WaitView>& views) const {
  constexpr double kLong = 2;
  for (const Client* const client : clients_) {
    if (client->waits_for == nullptr) continue;
    const double seconds = std::chrono::duration<double>(clock_.now() - client->since).count();
    if (seconds < kLong) continue;
    const transport::Peer& peer = client->session_.peer();
    const std::string name = "rows client " + peer.name + " (" + peer.address + ")";
    const bool is_for_checkpoint = client->waits_for == kForDisk;
    const bool is_for_move = client->waits_for == kForMove;
    const bool is_its_own = !is_for_checkpoint && !is_for_move && client->waits_for != kForJournal;
    std::string what = client->is_push ? "push of " : "pull of ";
    what += std::to_string(client->rows) + " rows, table '" +
            tables_->tables[client->table].spec().name + "': " + client->waits_for;
    if (client->waits_for == kForJournal)
      if (const auto trouble = journal_->state().trouble; !trouble.empty()) what += ": " + trouble;
    views.push_back({.who = is_its_own ? "a request for rows" : name,
                     .for_whom = is_its_own          ? name
                                 : is_for_checkpoint ? "checkpoint"
                                 : is_for_move       ? "servers"
                                                     : "journal",
                     .what = std::move(what),
                     .seconds = seconds});
  }
}

void RowsService::tick() {
  const TimePoint now = clock_.now();
  standstill_.look(now, lease_ / 2);
  if (is_reading_) return;
  for (Client* const client : clients_) {
    if (client->id != 0) gone_.erase(client->id);
    // Nothing is read while a request is open; the transport has a deadline for its bytes.
    const Duration silent = now - standstill_.since(client->session_.connection().last_received());
    if (client->waits_for != nullptr || silent <= lease_) continue;
    if (client->session_.is_closed()) continue;
    silent_.add();
    const transport::Peer& peer = client->session_.peer();
    log::warn("rows.client_silent",
              {{"client", peer.name}, {"peer", peer.address}, {"lease_ms", lease_.count()}});
    client->session_.close(
        Error(ErrorCode::kUnavailable, "client '" + peer.name + "' of rows sent nothing for " +
                                           std::to_string(lease_.count()) + " ms (lease)"));
  }
  std::erase_if(gone_, [&](const auto& gone) {
    if (now - gone.second <= proto::kRowsClientKept) return false;
    windows_.forget(gone.first);
    journal_forget(gone.first);
    return true;
  });
}

/// Of what the tables leave free a quarter is for copies.
std::uint64_t RowsService::copy_budget() const {
  return kCopyBudgetBytes + (room_ - std::min(room_, reserved_bytes())) / 4;
}

/// Past its budget of copies a change waits for the checkpoint that is being written, as does a
/// push that may evict, which would change most rows at once, and one that needs the memory that
/// the copies have.
bool RowsService::is_held_up(const RowTable& table, std::span<const std::uint64_t> pushed) const {
  const std::uint64_t copies = tables_->frozen_bytes;
  if (table.is_frozen()) {
    tables_->copy_budget = copy_budget();
    if (copies > tables_->copy_budget || table.may_evict(pushed.size())) return true;
  }
  if (copies <= kCopyBudgetBytes) return false;
  const std::uint64_t after = bytes_after(table, pushed);
  return after <= room_ && after > room_ - std::min(room_, copies - kCopyBudgetBytes);
}

/// Every two seconds, of a request that is held up, to whoever waits for its answer.
Task<Status> RowsService::tell(Client& client, TimePoint now) {
  if (now - client.since < kHeldUp || now - client.told < kHeldUp) co_return Status();
  client.told = now;
  proto::Wait wait;
  wait.ms = static_cast<std::uint32_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(now - client.since).count());
  wait.what = std::string("the request waits for ") + client.waits_for;
  const auto head = proto::encode(wait);
  const auto kind = static_cast<std::uint16_t>(proto::Kind::kWait);
  co_return co_await client.session_.send(kind, head, Bytes(), now + kHeldUp);
}

/// Wait until this request may change the tables.
Task<Status> RowsService::room(std::uint32_t table, std::uint32_t pushed_keys, std::uint32_t keys,
                               Client& client) {
  for (;;) {
    bool is_held = false;
    {
      const std::lock_guard lock(tables_->mutex);
      is_held = is_held_up(tables_->tables[table], keys_in(client.in, pushed_keys));
    }
    if (is_held && duty_) duty_->hurry();
    const bool moves = is_moving(keys_in(client.in, keys)) && held_.empty();
    client.waits_for = is_held ? kForDisk : moves ? kForMove : kForJournal;
    if (!is_held && !moves && (!journal_ || journal_->has_room())) co_return Status();
    CENTROID_CO_TRY(co_await tell(client, clock_.now()));
    const bool goes_on = co_await sleep_until(clock_.now() + std::chrono::milliseconds(1));
    if (!goes_on) co_return Error(ErrorCode::kCancelled, "the server is stopping");
  }
}

Result<proto::RowsOpenReply> RowsService::open(const Session& session, const proto::RowsOpen& head,
                                               Client& client) const {
  if (client.id != 0 && client.id != head.client)
    return Error(ErrorCode::kInvalidArgument,
                 "RowsOpen.client is another than this session began with");
  const std::vector<RowTable>& tables = tables_->tables;
  const auto found = std::ranges::find_if(
      tables, [&](const RowTable& table) { return table.spec().name == head.table; });
  if (found == tables.end()) {
    std::string names;
    for (const RowTable& table : tables) names += (names.empty() ? "" : ", ") + table.spec().name;
    return Error(ErrorCode::kNotFound, "there is no table '" + head.table +
                                           "' here; this server has " +
                                           (names.empty() ? "none (its setting `tables`)" : names));
  }
  const RowSpec& spec = found->spec();
  const std::uint64_t most = max_payload_of(session) / row_bytes(spec.dim);
  if (most == 0)
    return Error(ErrorCode::kFailedPrecondition, "a row of table '" + spec.name +
                                                     "' does not fit into a message of " +
                                                     std::to_string(max_payload_of(session)) +
                                                     " bytes: raise the server's chunk_bytes");
  client.id = head.client;
  proto::RowsOpenReply reply;
  reply.table = static_cast<std::uint32_t>(found - tables.begin());
  reply.dim = spec.dim;
  reply.max_rows = static_cast<std::uint32_t>(std::min<std::uint64_t>(most, proto::kMaxRows));
  reply.incarnation = incarnation_;
  reply.newest = windows_.newest(head.client);
  reply.optimizer = to_string(spec.rule);
  reply.lease_ms = static_cast<std::uint32_t>(lease_.count());
  reply.restored_from = restored_from_;
  return reply;
}

Result<std::uint32_t> RowsService::table_of(const Client& client, std::uint32_t number,
                                            std::uint32_t rows, std::uint64_t payload_bytes,
                                            bool has_gradients) const {
  if (client.id == 0)
    return Error(ErrorCode::kFailedPrecondition, "RowsOpen must come first on this session");
  const std::vector<RowTable>& tables = tables_->tables;
  if (number >= tables.size())
    return Error(ErrorCode::kNotFound, "there is no table number " + std::to_string(number) +
                                           "; RowsOpenReply.table is it, below " +
                                           std::to_string(tables.size()));
  const RowSpec& spec = tables[number].spec();
  const std::uint64_t wanted = rows * (has_gradients ? row_bytes(spec.dim) : sizeof(std::uint64_t));
  if (payload_bytes != wanted)
    return Error(ErrorCode::kInvalidArgument,
                 "table '" + spec.name + "': the payload of " + std::to_string(rows) +
                     " rows of dim " + std::to_string(spec.dim) + " is " +
                     std::to_string(payload_bytes) + " bytes, it must be " +
                     std::to_string(wanted) + (has_gradients ? " (keys, gradients)" : " (keys)"));
  return number;
}

/// Whether requests are served now. A leader that was stopped does not know yet that another one
/// leads: by its own clock its lease is out.
Status RowsService::check_open() const {
  if (!held_.empty()) return Error(ErrorCode::kUnavailable, held_);
  if (const Status leads = leads_ ? leads_() : Status(); !leads.ok())
    return Error(ErrorCode::kUnavailable, leads.error().message());
  return {};
}

Task<Status> RowsService::on_frame(Session& session, const InFrame& frame, Client& client) {
  if (frame.header.kind == static_cast<std::uint16_t>(proto::Kind::kHeartbeat))
    co_return co_await session.send(frame.header.kind, Bytes(), Bytes(), TimePoint::max());
  const Status is_open = check_open();
  if (!is_open.ok()) co_return co_await session.respond_error(frame.header, is_open.error());
  if (frame.header.payload_bytes > max_payload_of(session)) {
    refused_.add();
    const Error large(ErrorCode::kInvalidArgument,
                      "a question of " + std::to_string(frame.header.payload_bytes) +
                          " bytes is over the limit of " + std::to_string(max_payload_of(session)) +
                          "; RowsOpenReply.max_rows holds");
    co_return co_await session.respond_error(frame.header, large);
  }
  switch (static_cast<RowsKind>(frame.header.kind)) {
    case RowsKind::kOpen: {
      CENTROID_CO_ASSIGN(const auto head, proto::decode<proto::RowsOpen>(frame.head));
      const auto opened = open(session, head, client);
      if (!opened.ok()) co_return co_await session.respond_error(frame.header, opened.error());
      const auto reply = proto::encode(opened.value());
      co_return co_await session.respond(frame.header, reply);
    }
    case RowsKind::kRoute: {
      const auto route = proto::encode(route_);
      co_return co_await session.respond(frame.header, route);
    }
    case RowsKind::kPull:
      co_return co_await pull(session, frame, client);
    case RowsKind::kPush:
      co_return co_await push(session, frame, client);
    default:
      co_return Error(ErrorCode::kInvalidArgument,
                      "unexpected message kind " + std::to_string(frame.header.kind) +
                          " from a client of rows (docs/wire.md lists what it may send)");
  }
}

std::uint64_t RowsService::max_payload_of(const Session& session) const {
  return std::min(max_payload_, session.peer().limits.max_payload_bytes);
}

Task<Status> RowsService::pull(Session& session, const InFrame& frame, Client& client) {
  CENTROID_CO_ASSIGN(const auto head, proto::decode<proto::RowsPull>(frame.head));
  auto number = table_of(client, head.table, head.rows, frame.header.payload_bytes, false);
  if (number.ok() &&
      head.rows * std::uint64_t{tables_->tables[head.table].spec().dim} * sizeof(float) >
          max_payload_of(session))
    number =
        Error(ErrorCode::kInvalidArgument, "RowsPull of " + std::to_string(head.rows) +
                                               " rows: the answer would be over the limit of " +
                                               std::to_string(max_payload_of(session)) +
                                               " bytes; RowsOpenReply.max_rows holds");
  if (!number.ok()) {
    refused_.add();
    co_return co_await session.respond_error(frame.header, number.error());
  }
  Waiting waiting(client, kForPayload, false, head.table, head.rows);
  client.in.resize(frame.header.payload_bytes);
  CENTROID_CO_TRY(co_await session.read_payload(client.in));
  CENTROID_CO_TRY(co_await room(head.table, 0, head.rows, client));
  Status is_here = check_keys(tables_->tables[head.table], keys_in(client.in, head.rows));
  if (is_here.ok()) is_here = check_open();
  if (!is_here.ok()) {
    refused_.add();
    co_return co_await session.respond_error(frame.header, is_here.error());
  }
  {
    const std::lock_guard lock(tables_->mutex);
    RowTable& table = tables_->tables[head.table];
    const std::size_t floats = std::size_t{head.rows} * table.spec().dim;
    client.out.resize(floats * sizeof(float));
    const std::uint64_t copied = table.frozen_bytes();
    table.pull(keys_in(client.in, head.rows),
               std::span(reinterpret_cast<float*>(client.out.data()), floats), now());
    tables_->frozen_bytes += table.frozen_bytes() - copied;
    probes_[head.table].tell(table);
    if (journals_pulls(table)) journal_pull(head, client);
  }
  client.waits_for = kForReading;
  co_return co_await session.respond(frame.header, Bytes(), client.out);
}

Task<Status> RowsService::push(Session& session, const InFrame& frame, Client& client) {
  CENTROID_CO_ASSIGN(const auto head, proto::decode<proto::RowsPush>(frame.head));
  const auto number = table_of(client, head.table, head.rows, frame.header.payload_bytes, true);
  if (!number.ok()) {
    refused_.add();
    co_return co_await session.respond_error(frame.header, number.error());
  }
  Waiting waiting(client, kForPayload, true, head.table, head.rows);
  client.in.resize(frame.header.payload_bytes);
  CENTROID_CO_TRY(co_await session.read_payload(client.in));
  CENTROID_CO_TRY(co_await room(head.table, head.rows, head.rows, client));
  const auto applied = apply(head, client);
  client.waits_for = kForJournal;
  // Also of one that came again: the first may not be written yet.
  if (applied.ok() && journal_) CENTROID_CO_TRY(co_await journalled(TimePoint::max(), &client));
  client.waits_for = kForReading;
  if (!applied.ok()) {
    refused_.add();
    co_return co_await session.respond_error(frame.header, applied.error());
  }
  const auto reply = proto::encode(applied.value());
  co_return co_await session.respond(frame.header, reply);
}

Result<proto::RowsPushReply> RowsService::apply(const proto::RowsPush& head, const Client& client) {
  proto::RowsPushReply reply;
  CENTROID_ASSIGN(reply.applied, windows_.is_new(client.id, head.sequence));
  if (!reply.applied) {
    repeated_.add();
    return reply;
  }
  const auto keys = keys_in(client.in, head.rows);
  const auto* const gradients = reinterpret_cast<const float*>(keys.data() + keys.size());
  const std::lock_guard lock(tables_->mutex);
  RowTable& table = tables_->tables[head.table];
  CENTROID_TRY(windows_.check_room(client.id));
  // Only now: one that was applied before its rows went elsewhere was applied.
  CENTROID_TRY(check_keys(table, keys));
  CENTROID_TRY(check_open());
  CENTROID_TRY(check_room(table, keys));
  const std::uint64_t copied = table.frozen_bytes();
  const Status pushed =
      table.push(keys, std::span(gradients, keys.size() * table.spec().dim), now(), head.step);
  if (pushed.ok()) {
    windows_.mark(client.id, head.sequence);
    ++changes_;
    if (journal_) journal_push(head, client);
    // Twice as many places as rows: the whole index is gone through in less than its growth.
    table.sweep(2 * keys.size(), now());
  }
  tables_->frozen_bytes += table.frozen_bytes() - copied;
  probes_[head.table].tell(table);
  CENTROID_TRY(pushed);
  return reply;
}

}  // namespace centroid::server
