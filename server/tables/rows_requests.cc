#include <algorithm>
#include <mutex>
#include <string>

#include "server/tables/rows_service.h"

namespace centroid::server {

using proto::RowsKind;
using transport::InFrame;
using transport::Session;

namespace {

std::uint64_t row_bytes(std::uint32_t dim) { return sizeof(std::uint64_t) + dim * sizeof(float); }

}  // namespace

/// Check that this server still leads.
Status RowsService::check_lead() const {
  if (const Status leads = leads_ ? leads_() : Status(); !leads.ok())
    return Error(ErrorCode::kUnavailable, leads.error().message());
  return {};
}

Status RowsService::check_serves() const {
  if (!why_held_.empty()) return Error(ErrorCode::kUnavailable, why_held_);
  return check_lead();
}

std::uint64_t RowsService::max_payload_of(const Session& session) const {
  return std::min(max_payload_, session.peer().limits.max_payload_bytes);
}

Task<Status> RowsService::refuse(Session& session, const InFrame& frame, Error why) const {
  sessions_.count_refused();
  co_return co_await session.respond_error(frame.header, why);
}

Task<Status> RowsService::on_frame(Session& session, const InFrame& frame, RowsSession& client) {
  if (frame.header.kind == static_cast<std::uint16_t>(proto::Kind::kHeartbeat))
    co_return co_await session.send(frame.header.kind, Bytes(), Bytes(), TimePoint::max());
  const Status is_open = check_serves();
  if (!is_open.ok()) co_return co_await session.respond_error(frame.header, is_open.error());
  if (frame.header.payload_bytes > max_payload_of(session)) {
    const Error large(ErrorCode::kInvalidArgument,
                      "a question of " + std::to_string(frame.header.payload_bytes) +
                          " bytes is over the limit of " + std::to_string(max_payload_of(session)) +
                          "; RowsOpenReply.max_rows holds");
    co_return co_await refuse(session, frame, large);
  }
  switch (static_cast<RowsKind>(frame.header.kind)) {
    case RowsKind::kOpen:
      co_return co_await on_open(session, frame, client);
    case RowsKind::kRoute: {
      const auto route = proto::encode(moves_.route());
      co_return co_await session.respond(frame.header, route);
    }
    case RowsKind::kPull:
      co_return co_await on_pull(session, frame, client);
    case RowsKind::kPush:
      co_return co_await on_push(session, frame, client);
    default:
      co_return Error(ErrorCode::kInvalidArgument,
                      "unexpected message kind " + std::to_string(frame.header.kind) +
                          " from a client of rows (docs/reference/wire.md lists what it may send)");
  }
}

Task<Status> RowsService::on_open(Session& session, const InFrame& frame, RowsSession& client) {
  CENTROID_CO_ASSIGN(const auto head, proto::decode<proto::RowsOpen>(frame.head));
  const auto opened = open(session, head, client);
  if (!opened.ok()) co_return co_await session.respond_error(frame.header, opened.error());
  const auto reply = proto::encode(opened.value());
  co_return co_await session.respond(frame.header, reply);
}

Result<proto::RowsOpenReply> RowsService::open(const Session& session, const proto::RowsOpen& head,
                                               RowsSession& client) const {
  if (client.id != 0 && client.id != head.client)
    return Error(ErrorCode::kInvalidArgument,
                 "RowsOpen.client is another than this session began with");
  const auto number = store_.number_of(head.table);
  if (!number.ok()) {
    std::string names;
    for (const RowTable& table : store_.tables())
      names += (names.empty() ? "" : ", ") + table.spec().name;
    return Error(ErrorCode::kNotFound, "there is no table '" + head.table +
                                           "' here; this server has " +
                                           (names.empty() ? "none (its setting `tables`)" : names));
  }
  const RowSpec& spec = store_.spec(*number);
  const std::uint64_t most = max_payload_of(session) / row_bytes(spec.dim);
  if (most == 0)
    return Error(ErrorCode::kFailedPrecondition, "a row of table '" + spec.name +
                                                     "' does not fit into a message of " +
                                                     std::to_string(max_payload_of(session)) +
                                                     " bytes: raise the server's chunk_bytes");
  client.id = head.client;
  proto::RowsOpenReply reply;
  reply.table = static_cast<std::uint32_t>(*number);
  reply.dim = spec.dim;
  reply.max_rows = static_cast<std::uint32_t>(std::min<std::uint64_t>(most, proto::kMaxRows));
  reply.incarnation = incarnation_;
  reply.newest = store_.windows().newest(head.client);
  reply.optimizer = to_string(spec.rule);
  reply.lease_ms = static_cast<std::uint32_t>(sessions_.lease().count());
  reply.restored_from = store_.restored_from();
  return reply;
}

/// Check that the table exists, and that the payload has the size of `rows` rows.
Status RowsService::check_size(const RowsSession& client, std::uint32_t number, std::uint32_t rows,
                               std::uint64_t payload_bytes, bool has_gradients) const {
  if (client.id == 0)
    return Error(ErrorCode::kFailedPrecondition, "RowsOpen must come first on this session");
  if (number >= store_.size())
    return Error(ErrorCode::kNotFound, "there is no table number " + std::to_string(number) +
                                           "; RowsOpenReply.table is it, below " +
                                           std::to_string(store_.size()));
  const RowSpec& spec = store_.spec(number);
  const std::uint64_t wanted = rows * (has_gradients ? row_bytes(spec.dim) : sizeof(std::uint64_t));
  if (payload_bytes == wanted) return {};
  return Error(ErrorCode::kInvalidArgument,
               "table '" + spec.name + "': the payload of " + std::to_string(rows) +
                   " rows of dim " + std::to_string(spec.dim) + " is " +
                   std::to_string(payload_bytes) + " bytes, it must be " + std::to_string(wanted) +
                   (has_gradients ? " (keys, gradients)" : " (keys)"));
}

Status RowsService::check_answer(const Session& session, const proto::RowsPull& head) const {
  const std::uint64_t dim = store_.spec(head.table).dim;
  if (head.rows * dim * sizeof(float) <= max_payload_of(session)) return {};
  return Error(ErrorCode::kInvalidArgument, "RowsPull of " + std::to_string(head.rows) +
                                                " rows: the answer would be over the limit of " +
                                                std::to_string(max_payload_of(session)) +
                                                " bytes; RowsOpenReply.max_rows holds");
}

/// Wait until this request may change the tables.
Task<Status> RowsService::await_room(std::uint32_t table, std::uint32_t pushed_keys,
                                     std::uint32_t keys, RowsSession& client) {
  for (;;) {
    bool is_held = false;
    {
      const std::lock_guard lock(store_.mutex());
      is_held = store_.is_held_up(store_.table(table), keys_in(client.in, pushed_keys));
    }
    if (is_held) store_.hurry_snapshot();
    const bool moves = moves_.is_held(keys_in(client.in, keys)) && why_held_.empty();
    client.request.waits_for = is_held ? RowsWaitFor::kDisk
                               : moves ? RowsWaitFor::kMove
                                       : RowsWaitFor::kJournal;
    if (!is_held && !moves && journal_.has_room()) co_return Status();
    CENTROID_CO_TRY(co_await client.report_wait(clock_.now()));
    const TimePoint again = clock_.now() + std::chrono::milliseconds(1);
    const bool goes_on = co_await sleep_until(again);  // lint-ok: threads of disks make room
    if (!goes_on) co_return Error(ErrorCode::kCancelled, "the server is stopping");
  }
}

Task<Status> RowsService::on_pull(Session& session, const InFrame& frame, RowsSession& client) {
  CENTROID_CO_ASSIGN(const auto head, proto::decode<proto::RowsPull>(frame.head));
  Status fits = check_size(client, head.table, head.rows, frame.header.payload_bytes, false);
  if (fits.ok()) fits = check_answer(session, head);
  if (!fits.ok()) co_return co_await refuse(session, frame, fits.error());
  const OpenRequest open(
      client, {.is_push = false, .table = head.table, .rows = head.rows, .since = clock_.now()});
  client.in.resize(frame.header.payload_bytes);
  CENTROID_CO_TRY(co_await session.read_payload(client.in));
  CENTROID_CO_TRY(co_await await_room(head.table, 0, head.rows, client));
  Status is_here = moves_.check_keys(store_.table(head.table), keys_in(client.in, head.rows));
  if (is_here.ok()) is_here = check_serves();
  if (!is_here.ok()) co_return co_await refuse(session, frame, is_here.error());
  read(head, client);
  client.request.waits_for = RowsWaitFor::kReading;
  co_return co_await session.respond(frame.header, Bytes(), client.out);
}

void RowsService::read(const proto::RowsPull& head, RowsSession& client) {
  const std::lock_guard lock(store_.mutex());
  RowTable& table = store_.table(head.table);
  const std::size_t floats = std::size_t{head.rows} * table.spec().dim;
  client.out.resize(floats * sizeof(float));
  const std::uint64_t copied = table.frozen_bytes();
  table.pull(keys_in(client.in, head.rows),
             std::span(reinterpret_cast<float*>(client.out.data()), floats), store_.now());
  store_.shared().frozen_bytes += table.frozen_bytes() - copied;
  store_.update_probe(head.table);
  journal_.pull(head, client.in);
}

Task<Status> RowsService::on_push(Session& session, const InFrame& frame, RowsSession& client) {
  CENTROID_CO_ASSIGN(const auto head, proto::decode<proto::RowsPush>(frame.head));
  const Status fits = check_size(client, head.table, head.rows, frame.header.payload_bytes, true);
  if (!fits.ok()) co_return co_await refuse(session, frame, fits.error());
  const OpenRequest open(
      client, {.is_push = true, .table = head.table, .rows = head.rows, .since = clock_.now()});
  client.in.resize(frame.header.payload_bytes);
  CENTROID_CO_TRY(co_await session.read_payload(client.in));
  CENTROID_CO_TRY(co_await await_room(head.table, head.rows, head.rows, client));
  const auto applied = apply(head, client);
  client.request.waits_for = RowsWaitFor::kJournal;
  // Also for a repeated push: the first one may not be written yet.
  if (applied.ok()) CENTROID_CO_TRY(co_await journal_.written(TimePoint::max(), &client));
  client.request.waits_for = RowsWaitFor::kReading;
  if (!applied.ok()) co_return co_await refuse(session, frame, applied.error());
  // Another server that took over may have read the journal before this entry was written.
  if (const Status leads = check_lead(); !leads.ok())
    co_return co_await refuse(session, frame, leads.error());
  const auto reply = proto::encode(applied.value());
  co_return co_await session.respond(frame.header, reply);
}

Result<proto::RowsPushReply> RowsService::apply(const proto::RowsPush& head,
                                                const RowsSession& client) {
  proto::RowsPushReply reply;
  CENTROID_ASSIGN(reply.applied, store_.windows().is_new(client.id, head.sequence));
  if (!reply.applied) {
    sessions_.count_repeated();
    return reply;
  }
  const auto keys = keys_in(client.in, head.rows);
  const auto* const gradients = reinterpret_cast<const float*>(keys.data() + keys.size());
  const std::lock_guard lock(store_.mutex());
  RowTable& table = store_.table(head.table);
  CENTROID_TRY(store_.windows().check_room(client.id));
  // After the check for repetition: a push that was applied before its rows moved stays applied.
  CENTROID_TRY(moves_.check_keys(table, keys));
  CENTROID_TRY(check_serves());
  CENTROID_TRY(store_.check_push(table, keys));
  const std::uint64_t copied = table.frozen_bytes();
  const Status pushed = table.push(keys, std::span(gradients, keys.size() * table.spec().dim),
                                   store_.now(), head.step);
  if (pushed.ok()) {
    store_.windows().mark(client.id, head.sequence);
    store_.count_change();
    journal_.push(head, client.id, client.in);
    // Twice as many places as rows: the sweep passes the whole index faster than it grows.
    table.sweep(2 * keys.size(), store_.now());
  }
  store_.shared().frozen_bytes += table.frozen_bytes() - copied;
  store_.update_probe(head.table);
  CENTROID_TRY(pushed);
  return reply;
}

}  // namespace centroid::server
