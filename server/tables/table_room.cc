#include "server/tables/table_room.h"

#include <algorithm>
#include <utility>

namespace centroid::server {

namespace {

/// Changes that are kept in any case for a checkpoint which has not read the rows yet.
constexpr std::uint64_t kCopyBudgetBytes = 64u << 20;

}  // namespace

void TableRoom::set(std::uint64_t bytes, std::string source) {
  bytes_ = bytes;
  source_ = std::move(source);
}

std::uint64_t TableRoom::reserved_bytes() const {
  std::uint64_t bytes = 0;
  for (const RowTable& table : store_.tables())
    bytes += table.spec().max_bytes != 0
                 ? table.spec().max_bytes
                 : std::max(table.bytes(), RowTable::least_bytes(table.spec()));
  return bytes;
}

/// Memory that all tables may have taken after a push to a table without max_bytes that may grow by
/// it; 0: it does not.
std::uint64_t TableRoom::bytes_after(const RowTable& table,
                                     std::span<const std::uint64_t> pushed) const {
  if (table.spec().max_bytes != 0 || table.bytes_for_push(pushed.size()) <= table.bytes()) return 0;
  // Rows that are there need no room.
  const std::uint64_t wanted = table.bytes_for_push(table.without_row(pushed));
  return wanted <= table.bytes() ? 0 : reserved_bytes() - table.bytes() + wanted;
}

Status TableRoom::check_push(const RowTable& table, std::span<const std::uint64_t> keys) const {
  const std::uint64_t after = bytes_after(table, keys);
  if (after <= bytes_) return {};
  const std::size_t fresh = table.without_row(keys);
  return Error(ErrorCode::kResourceExhausted,
               "table '" + table.spec().name + "' holds " + std::to_string(table.rows()) +
                   " rows in " + std::to_string(table.bytes()) + " bytes; with " +
                   std::to_string(fresh) + " more the tables may need " + std::to_string(after) +
                   " bytes, " + source_ + " leaves them " + std::to_string(bytes_) +
                   ". Give the table max_bytes or max_age, so that rows are evicted, or the server "
                   "more memory (memory_limit)");
}

Status TableRoom::check_staged(const RowSpec& spec, std::uint64_t bytes) const {
  // Staged, then in the table beside the staged ones.
  const std::uint64_t after = reserved_bytes() + 2 * bytes;
  if (spec.max_bytes != 0 || after <= bytes_) return {};
  return Error(ErrorCode::kResourceExhausted, "the tables may need " + std::to_string(after) +
                                                  " bytes with the rows that come, " + source_ +
                                                  " leaves them " + std::to_string(bytes_));
}

void TableRoom::begin_snapshot(std::shared_ptr<DutyCycle> duty) {
  duty_ = std::move(duty);
  store_.shared().copy_budget = copy_budget();
}

/// Of what the tables leave free a quarter is for copies.
std::uint64_t TableRoom::copy_budget() const {
  return kCopyBudgetBytes + (bytes_ - std::min(bytes_, reserved_bytes())) / 4;
}

/// Past its budget of copies a change waits for the checkpoint that is being written, as does a
/// push that may evict, which would change most rows at once, and one that needs the memory that
/// the copies have.
bool TableRoom::is_held_up(const RowTable& table, std::span<const std::uint64_t> pushed) const {
  RowTables& tables = store_.shared();
  const std::uint64_t copies = tables.frozen_bytes;
  if (table.is_frozen()) {
    tables.copy_budget = copy_budget();
    if (copies > tables.copy_budget || table.may_evict(pushed.size())) return true;
  }
  if (copies <= kCopyBudgetBytes) return false;
  const std::uint64_t after = bytes_after(table, pushed);
  return after <= bytes_ && after > bytes_ - std::min(bytes_, copies - kCopyBudgetBytes);
}

void TableRoom::hurry_snapshot() {
  if (duty_) duty_->hurry();
}

}  // namespace centroid::server
