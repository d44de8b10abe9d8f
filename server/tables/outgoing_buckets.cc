#include <algorithm>
#include <mutex>
#include <string>

#include "common/checkpoint/fault_point.h"
#include "common/proto/rows.h"
#include "server/tables/bucket_moves.h"
#include "server/tables/row_blocks.h"

namespace centroid::server {

namespace {

constexpr std::uint16_t kNotWanted = 0xFFFF;

}  // namespace

void BucketMoves::end() {
  const std::lock_guard lock(store_.mutex());
  for (RowTable& table : store_.shared().tables) table.note_new(nullptr);
  wanted_.clear();
  place_.clear();
  table_ = 0;
  cursor_ = {};
  fresh_.clear();
  keys_.clear();
  release();
}

void BucketMoves::begin(const Buckets& buckets) {
  end();
  wanted_ = buckets;
  place_.assign(proto::kRowBuckets, kNotWanted);
  for (std::size_t i = 0; i < buckets.size(); ++i)
    place_[buckets[i]] = static_cast<std::uint16_t>(i);
  const std::lock_guard lock(store_.mutex());
  fresh_.resize(store_.size());
  keys_.assign(store_.size(), std::vector<std::vector<std::uint64_t>>(buckets.size()));
  for (std::size_t i = 0; i < store_.size(); ++i) store_.table(i).note_new(&fresh_[i]);
}

/// Record the keys of wanted buckets, by bucket.
void BucketMoves::note(std::size_t table, std::vector<std::uint64_t>& keys) {
  for (const std::uint64_t key : keys)
    if (const std::uint16_t place = place_[proto::row_bucket(key)]; place != kNotWanted)
      keys_[table][place].push_back(key);
  keys.clear();
}

void BucketMoves::note_fresh() {
  for (std::size_t i = 0; i < fresh_.size(); ++i) note(i, fresh_[i]);
}

bool BucketMoves::find(const Buckets& buckets, std::size_t places) {
  if (buckets.empty()) {  // after a reconnect there may be no scan to end
    end();
    return true;
  }
  if (buckets != wanted_) begin(buckets);
  const std::lock_guard lock(store_.mutex());
  std::vector<std::uint64_t> keys;
  if (table_ < store_.size()) {
    const bool has_more = store_.table(table_).keys(cursor_, places, keys);
    note(table_, keys);
    if (!has_more) {
      ++table_;
      cursor_ = {};
    }
  }
  note_fresh();
  return table_ == store_.size();
}

std::vector<std::uint64_t> BucketMoves::bytes_found() const {
  std::vector<std::uint64_t> bytes(wanted_.size());
  const std::lock_guard lock(store_.mutex());
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    const RowSpec& spec = store_.spec(i);
    const std::uint64_t row = 16 + sizeof(float) * (spec.dim + spec.slot_floats());
    for (std::size_t place = 0; place < bytes.size(); ++place)
      bytes[place] += row * keys_[i][place].size();
  }
  return bytes;
}

Status BucketMoves::hold(const Buckets& buckets) {
  const bool all_found = !place_.empty() && table_ >= store_.size();
  for (const std::uint16_t bucket : buckets)
    if (!all_found || place_[bucket] == kNotWanted || route_.owners[bucket] != self_)
      return Error(ErrorCode::kFailedPrecondition, "bucket " + std::to_string(bucket) +
                                                       " does not lie here, or was not looked for");
  held_ = buckets;
  is_held_.assign(proto::kRowBuckets, false);
  for (const std::uint16_t bucket : buckets) is_held_[bucket] = true;
  reader_ = {};
  {
    const std::lock_guard lock(store_.mutex());
    note_fresh();
  }
  fault::point("rows_moves.held");
  return {};
}

bool BucketMoves::is_held(std::span<const std::uint64_t> keys) const {
  if (is_held_.empty()) return false;
  return std::ranges::any_of(keys,
                             [&](std::uint64_t key) { return is_held_[proto::row_bucket(key)]; });
}

void BucketMoves::release() {
  is_held_.clear();
  held_.clear();
  reader_ = {};
}

std::vector<std::uint64_t> BucketMoves::keys_of(std::size_t table, const Buckets& buckets) const {
  std::vector<std::uint64_t> keys;
  for (const std::uint16_t bucket : buckets) {
    const auto& found = keys_[table][place_[bucket]];
    keys.insert(keys.end(), found.begin(), found.end());
  }
  std::ranges::sort(keys);  // a key that was dropped and stored again occurs twice
  keys.erase(std::ranges::unique(keys).begin(), keys.end());
  return keys;
}

void BucketMoves::read_table() {
  reader_.rows = reader_.waiting = {};
  const auto keys = keys_of(reader_.table, held_);
  const std::lock_guard lock(store_.mutex());
  store_.table(reader_.table).copy(keys, store_.now(), reader_.rows, reader_.waiting);
  reader_.is_read = true;
  reader_.is_waiting = false;
  reader_.row = 0;
}

void BucketMoves::read(std::uint64_t max_payload_bytes, proto::RowsBlock& head,
                       std::vector<std::byte>& payload) {
  head = {};
  while (reader_.table < keys_.size()) {
    if (!reader_.is_read) read_table();
    const RowTable::Block& block = reader_.is_waiting ? reader_.waiting : reader_.rows;
    if (reader_.row == block.keys.size()) {
      reader_.row = 0;
      if (reader_.is_waiting) {
        ++reader_.table;
        reader_.is_read = false;
      }
      reader_.is_waiting = !reader_.is_waiting;
      continue;
    }
    const std::size_t rows =
        std::min<std::size_t>(block.keys.size() - reader_.row,
                              rows_of_payload(store_.spec(reader_.table), max_payload_bytes));
    head.table = static_cast<std::uint32_t>(reader_.table);
    head.is_waiting = reader_.is_waiting;
    head.rows = static_cast<std::uint32_t>(rows);
    payload = rows_payload(block, reader_.row, rows);
    reader_.row += rows;
    return;
  }
}

Status BucketMoves::give(const proto::Route& route, const Buckets& buckets) {
  CENTROID_TRY(move_to(route));
  if (buckets.empty()) return {};
  release();
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    const auto keys = keys_of(i, buckets);
    for (const std::uint16_t bucket : buckets)
      std::vector<std::uint64_t>().swap(keys_[i][place_[bucket]]);
    if (keys.empty()) continue;
    const std::lock_guard lock(store_.mutex());
    store_.table(i).drop(keys);
    store_.update_probe(i);
    journal_.drop(i, keys);
  }
  journal_.give(route_.version, buckets, false);
  claim(buckets, 0);
  store_.count_change();
  fault::point("rows_moves.given");
  return {};
}

Status BucketMoves::keep(const proto::Route& route, const Buckets& buckets) {
  CENTROID_TRY(move_to(route));
  release();
  // Newer than a Take in the other server's journal; later pushes follow it.
  journal_.take(route_.version, buckets, false);
  claim(buckets, route_.version);
  return {};
}

}  // namespace centroid::server
