#include "server/shard/frozen_rows.h"

#include <algorithm>

#include "server/tables/row_blocks.h"

namespace centroid::server {

proto::RowsFrozen FrozenRows::freeze(RowsService& service, bool is_last) {
  kept_.reset();
  begin_table(0);
  if (is_last) service.hold("the job is over");
  kept_ = service.begin_snapshot();
  proto::RowsFrozen frozen;
  frozen.clock = service.store().now();
  frozen.changes = service.store().changes();
  frozen.journal = kept_->journal();
  frozen.clients = static_cast<std::uint32_t>(kept_->pushed().clients.size());
  for (const RowTable::State& state : kept_->states()) {
    proto::FrozenTable table;
    table.rows = state.rows;
    table.waiting = state.candidates;
    copy_counters(state.counters, table);
    frozen.tables.push_back(table);
  }
  return frozen;
}

void FrozenRows::begin_table(std::uint32_t table) {
  block_ = {};
  read_ = 0;
  table_ = table;
}

Result<proto::RowsBlock> FrozenRows::read(const proto::RowsRead& wanted, const RowsService* service,
                                          std::uint64_t max_payload_bytes,
                                          std::vector<std::byte>& payload) {
  if (!kept_ || wanted.table >= kept_->states().size())
    return Error(ErrorCode::kAborted,
                 "RowsRead: no such table is kept on server '" + server_ + "'");
  if (table_ != wanted.table) begin_table(wanted.table);
  proto::RowsBlock head;
  head.table = wanted.table;
  while (read_ == block_.keys.size()) {
    read_ = 0;
    CENTROID_ASSIGN(const bool is_there, kept_->read(wanted.table, block_));
    if (is_there) continue;
    block_ = {};
    return head;
  }
  const std::size_t rows = std::min<std::size_t>(
      block_.keys.size() - read_,
      rows_of_payload(service->store().spec(wanted.table), max_payload_bytes));
  head.is_waiting = block_.is_candidates;
  head.rows = static_cast<std::uint32_t>(rows);
  payload = rows_payload(block_, read_, rows);
  read_ += rows;
  return head;
}

Result<proto::PushesBlock> FrozenRows::read_pushes(const proto::PushesBlock& wanted,
                                                   std::uint64_t max_payload_bytes,
                                                   std::vector<std::byte>& payload) const {
  if (!kept_ || wanted.first > kept_->pushed().clients.size())
    return Error(ErrorCode::kAborted, "PushesRead: nothing is kept on server '" + server_ + "'");
  const auto& clients = kept_->pushed().clients;
  proto::PushesBlock head;
  head.first = wanted.first;
  head.clients = static_cast<std::uint32_t>(
      std::min<std::size_t>(clients.size() - wanted.first, clients_of_payload(max_payload_bytes)));
  payload = pushes_payload(clients, wanted.first, head.clients);
  return head;
}

void FrozenRows::thaw() {
  kept_.reset();
  block_ = {};
}

}  // namespace centroid::server
