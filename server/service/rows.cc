#include "server/service/rows.h"

#include <algorithm>
#include <random>

namespace centroid::server {

using proto::RowsKind;
using transport::InFrame;
using transport::Session;

namespace {

std::uint64_t draw() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) ^ device();
}

std::uint64_t row_bytes(std::uint32_t dim) { return sizeof(std::uint64_t) + dim * sizeof(float); }

std::span<const std::uint64_t> keys_in(Bytes payload, std::uint32_t rows) {
  return {reinterpret_cast<const std::uint64_t*>(payload.data()), rows};
}

}  // namespace

RowsService::RowsService(const std::string& tables, const Clock& clock, metrics::Registry& registry)
    : clock_(clock), started_(clock.now()), incarnation_(draw()) {
  auto specs = parse_tables(tables);
  CENTROID_CHECK(specs.ok());  // server::finish has looked
  if (specs->empty()) return;
  repeated_ = registry.counter("centroid_rows_repeated_pushes_total",
                               "Pushes of rows that came again and were not applied again");
  refused_ = registry.counter("centroid_rows_refused_requests_total",
                              "Requests for rows that were refused");
  for (RowSpec& spec : *specs) {
    const metrics::Labels labels{{"table", spec.name}};
    Table table{
        .rows = RowTable(std::move(spec)),
        .told = {},
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
        .bytes = registry.gauge("centroid_rows_memory_bytes", "Memory of rows", labels)};
    tables_.push_back(std::move(table));
  }
}

void RowsService::Table::tell() {
  const RowCounters& is = rows.counters();
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
  stored.set(static_cast<double>(rows.rows()));
  bytes.set(static_cast<double>(rows.bytes()));
}

std::uint64_t RowsService::now() const {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::seconds>(clock_.now() - started_).count());
}

Result<proto::RowsOpenReply> RowsService::open(const Session& session, const proto::RowsOpen& head,
                                               Client& client) const {
  if (client.id != 0 && client.id != head.client)
    return Error(ErrorCode::kInvalidArgument,
                 "RowsOpen.client is another than this session began with");
  const auto found = std::ranges::find_if(
      tables_, [&](const Table& table) { return table.rows.spec().name == head.table; });
  if (found == tables_.end()) {
    std::string names;
    for (const Table& table : tables_)
      names += (names.empty() ? "" : ", ") + table.rows.spec().name;
    return Error(ErrorCode::kNotFound, "there is no table '" + head.table +
                                           "' here; this server has " +
                                           (names.empty() ? "none (its setting `tables`)" : names));
  }
  const RowSpec& spec = found->rows.spec();
  const std::uint64_t most = session.peer().limits.max_payload_bytes / row_bytes(spec.dim);
  if (most == 0)
    return Error(ErrorCode::kFailedPrecondition,
                 "a row of table '" + spec.name + "' does not fit into a message of " +
                     std::to_string(session.peer().limits.max_payload_bytes) +
                     " bytes: raise the server's chunk_bytes");
  client.id = head.client;
  proto::RowsOpenReply reply;
  reply.table = static_cast<std::uint32_t>(found - tables_.begin());
  reply.dim = spec.dim;
  reply.max_rows = static_cast<std::uint32_t>(std::min<std::uint64_t>(most, proto::kMaxRows));
  reply.incarnation = incarnation_;
  reply.newest = windows_.newest(head.client);
  reply.optimizer = to_string(spec.rule);
  return reply;
}

Result<RowsService::Table*> RowsService::table_of(const Client& client, std::uint32_t number,
                                                  std::uint32_t rows, std::uint64_t payload_bytes,
                                                  bool has_gradients) {
  if (client.id == 0)
    return Error(ErrorCode::kFailedPrecondition, "RowsOpen must come first on this session");
  if (number >= tables_.size())
    return Error(ErrorCode::kNotFound, "there is no table number " + std::to_string(number) +
                                           "; RowsOpenReply.table is it, below " +
                                           std::to_string(tables_.size()));
  Table& table = tables_[number];
  const std::uint32_t dim = table.rows.spec().dim;
  const std::uint64_t wanted = rows * (has_gradients ? row_bytes(dim) : sizeof(std::uint64_t));
  if (payload_bytes != wanted)
    return Error(ErrorCode::kInvalidArgument,
                 "table '" + table.rows.spec().name + "': the payload of " + std::to_string(rows) +
                     " rows of dim " + std::to_string(dim) + " is " +
                     std::to_string(payload_bytes) + " bytes, it must be " +
                     std::to_string(wanted) + (has_gradients ? " (keys, gradients)" : " (keys)"));
  return &table;
}

Task<Status> RowsService::on_frame(Session& session, const InFrame& frame, Client& client) {
  switch (static_cast<RowsKind>(frame.header.kind)) {
    case RowsKind::kOpen: {
      CENTROID_CO_ASSIGN(const auto head, proto::decode<proto::RowsOpen>(frame.head));
      const auto opened = open(session, head, client);
      if (!opened.ok()) co_return co_await session.respond_error(frame.header, opened.error());
      const auto reply = proto::encode(opened.value());
      co_return co_await session.respond(frame.header, reply);
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

Task<Status> RowsService::pull(Session& session, const InFrame& frame, Client& client) {
  CENTROID_CO_ASSIGN(const auto head, proto::decode<proto::RowsPull>(frame.head));
  auto table = table_of(client, head.table, head.rows, frame.header.payload_bytes, false);
  if (table.ok() && head.rows * std::uint64_t{table.value()->rows.spec().dim} * sizeof(float) >
                        session.peer().limits.max_payload_bytes)
    table = Error(ErrorCode::kInvalidArgument,
                  "RowsPull of " + std::to_string(head.rows) +
                      " rows: the answer would be over the limit of " +
                      std::to_string(session.peer().limits.max_payload_bytes) +
                      " bytes; RowsOpenReply.max_rows holds");
  if (!table.ok()) {
    refused_.add();
    co_return co_await session.respond_error(frame.header, table.error());
  }
  client.in.resize(frame.header.payload_bytes);
  CENTROID_CO_TRY(co_await session.read_payload(client.in));
  RowTable& rows = table.value()->rows;
  const std::size_t floats = std::size_t{head.rows} * rows.spec().dim;
  client.out.resize(floats * sizeof(float));
  rows.pull(keys_in(client.in, head.rows),
            std::span(reinterpret_cast<float*>(client.out.data()), floats), now());
  table.value()->tell();
  co_return co_await session.respond(frame.header, Bytes(), client.out);
}

Task<Status> RowsService::push(Session& session, const InFrame& frame, Client& client) {
  CENTROID_CO_ASSIGN(const auto head, proto::decode<proto::RowsPush>(frame.head));
  const auto table = table_of(client, head.table, head.rows, frame.header.payload_bytes, true);
  if (!table.ok()) {
    refused_.add();
    co_return co_await session.respond_error(frame.header, table.error());
  }
  client.in.resize(frame.header.payload_bytes);
  CENTROID_CO_TRY(co_await session.read_payload(client.in));
  const auto applied = apply(*table.value(), head, client);
  if (!applied.ok()) {
    refused_.add();
    co_return co_await session.respond_error(frame.header, applied.error());
  }
  const auto reply = proto::encode(applied.value());
  co_return co_await session.respond(frame.header, reply);
}

Result<proto::RowsPushReply> RowsService::apply(Table& table, const proto::RowsPush& head,
                                                const Client& client) {
  proto::RowsPushReply reply;
  CENTROID_ASSIGN(reply.applied, windows_.is_new(client.id, head.sequence));
  if (!reply.applied) {
    repeated_.add();
    return reply;
  }
  const auto keys = keys_in(client.in, head.rows);
  const auto* const gradients = reinterpret_cast<const float*>(keys.data() + keys.size());
  const std::size_t floats = keys.size() * table.rows.spec().dim;
  CENTROID_TRY(table.rows.push(keys, std::span(gradients, floats), now()));
  windows_.mark(client.id, head.sequence);
  // Twice as many places as rows: the whole index is gone through in less than its growth.
  table.rows.sweep(2 * keys.size(), now());
  table.tell();
  return reply;
}

}  // namespace centroid::server
