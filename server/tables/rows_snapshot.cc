#include "server/tables/rows_snapshot.h"

#include <utility>

namespace centroid::server {
namespace {

/// Bytes per block, written by five writes.
constexpr std::uint64_t kBlockBytes = 256u << 10;
/// Bytes to read between two rests.
constexpr std::uint64_t kPieceBytes = 1u << 20;

}  // namespace

RowsSnapshot::RowsSnapshot(std::shared_ptr<RowTables> tables, std::uint64_t now, PushedRows pushed,
                           std::shared_ptr<DutyCycle> duty)
    : tables_(std::move(tables)), pushed_(std::move(pushed)), duty_(std::move(duty)) {
  const std::lock_guard lock(tables_->mutex);
  for (RowTable& table : tables_->tables) states_.push_back(table.freeze(now));
}

RowsSnapshot::~RowsSnapshot() {
  const std::lock_guard lock(tables_->mutex);
  for (RowTable& table : tables_->tables) table.thaw();
  tables_->frozen_bytes = 0;
}

std::vector<CheckpointPart> RowsSnapshot::parts() {
  std::vector<CheckpointPart> parts;
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const RowSpec& spec = tables_->tables[i].spec();
    auto write = [this, i, &spec](const std::filesystem::path& path) {
      return write_rows(path, spec, states_[i],
                        [&](RowTable::Block& block) { return read(i, block); });
    };
    parts.push_back({rows_file_name(spec.name), std::move(write)});
  }
  parts.push_back({kPushesFile, [this](const std::filesystem::path& path) {
                     return write_pushes(path, pushed_);
                   }});
  return parts;
}

Result<bool> RowsSnapshot::read(std::size_t at, RowTable::Block& block) {
  rest();
  block.keys.clear(), block.ages.clear(), block.counts.clear();
  block.values.clear(), block.slots.clear();
  std::uint64_t bytes = 0;
  while ((bytes < kBlockBytes || block.keys.empty()) && take(at, block)) {
    block.is_candidates = frozen_.is_candidates;
    tables_->tables[at].unpack(frozen_, states_[at].now, block);
    bytes += frozen_.slab.records.size();
    read_bytes_ += frozen_.slab.records.size();
  }
  return !block.keys.empty();
}

/// Take the next rows into frozen_, unless the block has the other kind.
bool RowsSnapshot::take(std::size_t at, const RowTable::Block& block) {
  // Requests wait for the lock, and this thread may have a lower priority: hold it only briefly.
  const std::lock_guard lock(tables_->mutex);
  RowTable& table = tables_->tables[at];
  if (!block.keys.empty() && table.reads_candidates() != block.is_candidates) return false;
  const std::uint64_t before = table.frozen_bytes();
  const bool is_there = table.take_frozen(frozen_);
  tables_->frozen_bytes -= before - table.frozen_bytes();
  return is_there;
}

/// Rest between blocks. If copies of all unread rows would exceed the budget, and half of it is
/// used, the rests end, because requests would have to wait.
void RowsSnapshot::rest() {
  if (!duty_ || read_bytes_ < kPieceBytes) return;
  read_bytes_ = 0;
  std::uint64_t at_most = 0;
  {
    const std::lock_guard lock(tables_->mutex);
    for (const RowTable& table : tables_->tables) at_most += table.frozen_bytes_at_most();
  }
  const std::uint64_t budget = tables_->copy_budget;
  if (at_most > budget && tables_->frozen_bytes > budget / 2) duty_->hurry();
  duty_->rest();
}

}  // namespace centroid::server
