#include <algorithm>
#include <cstring>

#include "common/base/log.h"
#include "common/checkpoint/fault_point.h"
#include "server/tables/row_blocks.h"
#include "server/tables/rows_service.h"

/// Buckets of keys that go to another server, or come from one, while the tables are in use.
///
/// giver    find (calls go on), hold (calls for them wait), read, and give or keep
/// taker    put, and take: the rows are in the tables and in the journal then
/// journal  who takes a bucket is its owner from the moment that its Take is on the disk; who held
///          it until then has the same rows and no newer ones. So of two that claim a bucket after
///          a crash the one with the newer route is right. What the giver applied is on its disk
///          before a row is read, so no push is in the taker's rows that the giver forgets
/// thread   the service's
namespace centroid::server {

using rows_journal::Entry;

namespace {

constexpr std::uint16_t kNotWanted = 0xFFFF;

std::uint64_t bytes_of(const RowTable::Block& block) {
  return block.keys.size() * 16 + (block.values.size() + block.slots.size()) * sizeof(float);
}

}  // namespace

bool RowsService::is_moving(std::span<const std::uint64_t> keys) const {
  if (moves_.is_held.empty()) return false;
  return std::ranges::any_of(
      keys, [&](std::uint64_t key) { return moves_.is_held[proto::row_bucket(key)]; });
}

void RowsService::end_moves() {
  const std::lock_guard lock(tables_->mutex);
  for (RowTable& table : tables_->tables) table.note_new(nullptr);
  auto staged = std::move(moves_.staged);  // they come from others
  const std::uint64_t bytes = moves_.staged_bytes;
  moves_ = {};
  moves_.staged = std::move(staged);
  moves_.staged_bytes = bytes;
}

/// Those of the buckets that are looked for, by bucket.
void RowsService::note_found(std::size_t table, std::vector<std::uint64_t>& keys) {
  for (const std::uint64_t key : keys)
    if (const std::uint16_t place = moves_.place[proto::row_bucket(key)]; place != kNotWanted)
      moves_.keys[table][place].push_back(key);
  keys.clear();
}

bool RowsService::find_buckets(const std::vector<std::uint16_t>& buckets, std::size_t places) {
  if (buckets.empty()) {  // it may look for none: it was lost and is back since it was asked to
    end_moves();
    return true;
  }
  if (buckets != moves_.wanted) {
    end_moves();
    moves_.wanted = buckets;
    moves_.place.assign(proto::kRowBuckets, kNotWanted);
    for (std::size_t i = 0; i < buckets.size(); ++i)
      moves_.place[buckets[i]] = static_cast<std::uint16_t>(i);
    const std::lock_guard lock(tables_->mutex);
    const std::size_t tables = tables_->tables.size();
    moves_.fresh.resize(tables);
    moves_.keys.assign(tables, std::vector<std::vector<std::uint64_t>>(buckets.size()));
    for (std::size_t i = 0; i < tables; ++i) tables_->tables[i].note_new(&moves_.fresh[i]);
  }
  const std::lock_guard lock(tables_->mutex);
  std::vector<std::uint64_t> keys;
  if (moves_.table < tables_->tables.size()) {
    const RowTable& table = tables_->tables[moves_.table];
    const bool has_more = table.keys(moves_.cursor, places, keys);
    note_found(moves_.table, keys);
    if (!has_more) {
      ++moves_.table;
      moves_.cursor = {};
    }
  }
  for (std::size_t i = 0; i < moves_.fresh.size(); ++i) note_found(i, moves_.fresh[i]);
  return moves_.table == tables_->tables.size();
}

std::vector<std::uint64_t> RowsService::bytes_found() const {
  std::vector<std::uint64_t> bytes(moves_.wanted.size());
  const std::lock_guard lock(tables_->mutex);
  for (std::size_t i = 0; i < moves_.keys.size(); ++i) {
    const RowSpec& spec = tables_->tables[i].spec();
    const std::uint64_t row = 16 + sizeof(float) * (spec.dim + spec.slot_floats());
    for (std::size_t place = 0; place < bytes.size(); ++place)
      bytes[place] += row * moves_.keys[i][place].size();
  }
  return bytes;
}

Status RowsService::hold_buckets(const std::vector<std::uint16_t>& buckets) {
  for (const std::uint16_t bucket : buckets)
    if (moves_.place.empty() || moves_.place[bucket] == kNotWanted ||
        moves_.table < tables_->tables.size() || route_.owners[bucket] != self_)
      return Error(ErrorCode::kFailedPrecondition, "bucket " + std::to_string(bucket) +
                                                       " does not lie here, or was not looked for");
  moves_.held = buckets;
  moves_.is_held.assign(proto::kRowBuckets, false);
  for (const std::uint16_t bucket : buckets) moves_.is_held[bucket] = true;
  moves_.read_table = moves_.read_row = 0;
  moves_.reads_waiting = moves_.is_read = false;
  moves_.rows = moves_.waiting = {};
  const std::lock_guard lock(tables_->mutex);
  for (std::size_t i = 0; i < moves_.fresh.size(); ++i) note_found(i, moves_.fresh[i]);
  fault::point("rows_moves.held");
  return {};
}

/// Of what is held: each once.
std::vector<std::uint64_t> RowsService::keys_of(std::size_t table,
                                                const std::vector<std::uint16_t>& buckets) const {
  std::vector<std::uint64_t> keys;
  for (const std::uint16_t bucket : buckets) {
    const auto& found = moves_.keys[table][moves_.place[bucket]];
    keys.insert(keys.end(), found.begin(), found.end());
  }
  std::ranges::sort(keys);  // one that went and came again stands there twice
  keys.erase(std::ranges::unique(keys).begin(), keys.end());
  return keys;
}

void RowsService::read_held(std::uint64_t max_payload_bytes, proto::RowsBlock& head,
                            std::vector<std::byte>& payload) {
  head = {};
  while (moves_.read_table < moves_.keys.size()) {
    if (!moves_.is_read) {
      moves_.rows = moves_.waiting = {};
      const auto keys = keys_of(moves_.read_table, moves_.held);
      const std::lock_guard lock(tables_->mutex);
      tables_->tables[moves_.read_table].copy(keys, now(), moves_.rows, moves_.waiting);
      moves_.is_read = true;
      moves_.reads_waiting = false;
      moves_.read_row = 0;
    }
    const RowTable::Block& block = moves_.reads_waiting ? moves_.waiting : moves_.rows;
    if (moves_.read_row == block.keys.size()) {
      moves_.read_row = 0;
      if (moves_.reads_waiting) {
        ++moves_.read_table;
        moves_.is_read = false;
      }
      moves_.reads_waiting = !moves_.reads_waiting;
      continue;
    }
    const std::size_t rows =
        std::min<std::size_t>(block.keys.size() - moves_.read_row,
                              rows_of_payload(spec(moves_.read_table), max_payload_bytes));
    head.table = static_cast<std::uint32_t>(moves_.read_table);
    head.is_waiting = moves_.reads_waiting;
    head.rows = static_cast<std::uint32_t>(rows);
    payload = rows_payload(block, moves_.read_row, rows);
    moves_.read_row += rows;
    return;
  }
}

Status RowsService::put_rows(const proto::BucketsPut& head, Bytes payload) {
  if (head.is_first) {
    moves_.staged.clear();
    moves_.staged_bytes = 0;
  }
  if (head.rows == 0) return {};
  if (head.table >= tables())
    return Error(ErrorCode::kInvalidArgument, "BucketsPut.table is " + std::to_string(head.table) +
                                                  ", there are " + std::to_string(tables()) +
                                                  " tables");
  proto::RowsBlock of;
  of.table = head.table;
  of.is_waiting = head.is_waiting;
  of.rows = head.rows;
  CENTROID_ASSIGN(auto block, rows_of(of, spec(head.table), payload));
  // Staged, then in the table beside the staged ones.
  const std::uint64_t after = reserved_bytes() + 2 * (moves_.staged_bytes + bytes_of(block));
  if (spec(head.table).max_bytes == 0 && after > room_)
    return Error(ErrorCode::kResourceExhausted, "the tables may need " + std::to_string(after) +
                                                    " bytes with the rows that come, " +
                                                    room_source_ + " leaves them " +
                                                    std::to_string(room_));
  moves_.staged_bytes += bytes_of(block);
  moves_.staged.emplace_back(head.table, std::move(block));
  fault::point("rows_moves.put");
  return {};
}

/// In the tables, and in the journal if there is one.
Status RowsService::put_staged(std::uint64_t at) {
  const std::lock_guard lock(tables_->mutex);
  for (const auto& [table, block] : moves_.staged) {
    CENTROID_TRY(restore_block(tables_->tables[table], block, at, &left_out_));
    if (!journal_) continue;
    const auto payload = rows_payload(block, 0, block.keys.size());
    Entry entry;
    entry.kind = Entry::Kind::kRows;
    entry.table = static_cast<std::uint16_t>(table);
    entry.rows = static_cast<std::uint32_t>(block.keys.size());
    entry.now = at;
    entry.client = block.is_candidates ? 1 : 0;
    entry.data = payload;
    journal_->append(entry);
  }
  moves_.staged.clear();
  moves_.staged_bytes = 0;
  for (std::size_t i = 0; i < probes_.size(); ++i) probes_[i].tell(tables_->tables[i]);
  return {};
}

void RowsService::journal_buckets(Entry::Kind kind, const std::vector<std::uint16_t>& buckets,
                                  bool flag) {
  if (!journal_) return;
  Entry entry;
  entry.kind = kind;
  entry.rows = static_cast<std::uint32_t>(buckets.size());
  entry.now = now();
  entry.client = flag ? 1 : 0;
  entry.sequence = route_.version;
  entry.data = std::as_bytes(std::span(buckets));
  journal_->append(entry);
}

/// This server's.
Result<std::size_t> RowsService::place_in(const proto::Route& route) const {
  const auto self =
      std::ranges::find(route.servers, route_.servers[self_].name, &proto::RouteServer::name);
  if (self == route.servers.end() || route.owners.size() != proto::kRowBuckets)
    return Error(ErrorCode::kInvalidArgument,
                 "the route does not name server '" + route_.servers[self_].name + "'");
  return static_cast<std::size_t>(self - route.servers.begin());
}

Status RowsService::take_buckets(const proto::Route& route,
                                 const std::vector<std::uint16_t>& buckets) {
  CENTROID_ASSIGN(const std::size_t self, place_in(route));
  CENTROID_TRY(set_route(route, self));
  if (buckets.empty()) return {};
  CENTROID_TRY(put_staged(now()));
  journal_buckets(Entry::Kind::kTake, buckets, true);
  for (const std::uint16_t bucket : buckets) claims_[bucket] = route.version;
  ++changes_;
  if (left_out_ > 0)
    log::warn("rows.left_out", {{"rows", left_out_}, {"why", "max_bytes, shared by the servers"}});
  left_out_ = 0;
  fault::point("rows_moves.taken");
  return {};
}

Status RowsService::give_buckets(const proto::Route& route,
                                 const std::vector<std::uint16_t>& buckets) {
  CENTROID_ASSIGN(const std::size_t self, place_in(route));
  CENTROID_TRY(set_route(route, self));
  if (buckets.empty()) return {};
  moves_.is_held.clear();
  moves_.held.clear();
  moves_.rows = moves_.waiting = {};
  for (std::size_t i = 0; i < moves_.keys.size(); ++i) {
    const auto keys = keys_of(i, buckets);
    for (const std::uint16_t bucket : buckets)
      std::vector<std::uint64_t>().swap(moves_.keys[i][moves_.place[bucket]]);
    if (keys.empty()) continue;
    const std::lock_guard lock(tables_->mutex);
    tables_->tables[i].drop(keys);
    probes_[i].tell(tables_->tables[i]);
    if (!journal_) continue;
    Entry entry;
    entry.kind = Entry::Kind::kDrop;
    entry.table = static_cast<std::uint16_t>(i);
    entry.rows = static_cast<std::uint32_t>(keys.size());
    entry.now = now();
    entry.data = std::as_bytes(std::span(keys));
    journal_->append(entry);
  }
  journal_buckets(Entry::Kind::kGive, buckets, false);
  for (const std::uint16_t bucket : buckets) claims_[bucket] = 0;
  ++changes_;
  fault::point("rows_moves.given");
  return {};
}

Status RowsService::keep_buckets(const proto::Route& route,
                                 const std::vector<std::uint16_t>& buckets) {
  CENTROID_ASSIGN(const std::size_t self, place_in(route));
  CENTROID_TRY(set_route(route, self));
  moves_.is_held.clear();
  moves_.held.clear();
  moves_.rows = moves_.waiting = {};
  // Newer than what the other may have in its journal; pushes stand behind it.
  journal_buckets(Entry::Kind::kTake, buckets, false);
  for (const std::uint16_t bucket : buckets) claims_[bucket] = route.version;
  return {};
}

Task<Status> RowsService::on_disk(TimePoint limit) {
  if (!journal_) co_return Status();
  journal_->sync();
  co_return co_await journalled(limit);
}

/// Rows of these buckets go, all tables are looked through. The lock is the caller's.
void RowsService::drop_buckets(const std::vector<std::uint16_t>& buckets) {
  std::vector<bool> goes(proto::kRowBuckets);
  for (const std::uint16_t bucket : buckets) goes[bucket] = true;
  constexpr std::size_t kPlaces = 1u << 16;
  for (RowTable& table : tables_->tables) {
    std::vector<std::uint64_t> keys;
    RowTable::Cursor cursor;
    for (bool has_more = true; has_more;) {
      has_more = table.keys(cursor, kPlaces, keys);
      std::erase_if(keys, [&](std::uint64_t key) { return !goes[proto::row_bucket(key)]; });
      table.drop(keys);
      keys.clear();
    }
  }
}

Status RowsService::settle(const proto::Route& route) {
  CENTROID_ASSIGN(const std::size_t mine, place_in(route));
  std::vector<std::uint16_t> lost;
  for (std::size_t bucket = 0; bucket < proto::kRowBuckets; ++bucket) {
    if (route.owners[bucket] == mine && claims_[bucket] == 0)
      return Error(ErrorCode::kDataLoss,
                   "bucket " + std::to_string(bucket) +
                       " of the tables lies on this server by route " +
                       std::to_string(route.version) +
                       ", and its journal has not its rows: is this another run_dir?");
    if (route.owners[bucket] != mine && claims_[bucket] != 0)
      lost.push_back(static_cast<std::uint16_t>(bucket));
  }
  CENTROID_TRY(set_route(route, mine));
  if (lost.empty()) return {};
  const std::lock_guard lock(tables_->mutex);
  drop_buckets(lost);
  for (std::size_t i = 0; i < probes_.size(); ++i) probes_[i].tell(tables_->tables[i]);
  return {};
}

void RowsService::journal_claims() {
  std::vector<std::uint16_t> mine, lost;
  for (std::size_t bucket = 0; bucket < route_.owners.size(); ++bucket) {
    if (route_.owners[bucket] == self_)
      mine.push_back(static_cast<std::uint16_t>(bucket));
    else if (claims_[bucket] != 0)
      lost.push_back(static_cast<std::uint16_t>(bucket));
  }
  for (const std::uint16_t bucket : mine) claims_[bucket] = route_.version;
  for (const std::uint16_t bucket : lost) claims_[bucket] = 0;
  if (!mine.empty()) journal_buckets(Entry::Kind::kTake, mine, false);
  if (!lost.empty()) journal_buckets(Entry::Kind::kGive, lost, true);
}

void RowsService::add_counters(std::size_t table, const RowCounters& counters) {
  const std::lock_guard lock(tables_->mutex);
  RowTable& into = tables_->tables[table];
  into.add(counters);
  probes_[table].told = into.counters();  // their server has told them
}

Status RowsService::replay_move(const Entry& entry, const std::vector<std::size_t>& tables) {
  clock_at_start_ = std::max(clock_at_start_, entry.now);
  const auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::kDataLoss,
                 "rows that moved by route " + std::to_string(entry.sequence) + ": " + why);
  };
  if (entry.kind == Entry::Kind::kRows || entry.kind == Entry::Kind::kDrop) {
    if (entry.table >= tables.size()) return refuse("the segment has no table of their number");
    const std::size_t number = tables[entry.table];
    RowTable& table = tables_->tables[number];
    if (entry.kind == Entry::Kind::kRows) {
      proto::RowsBlock head;
      head.table = static_cast<std::uint32_t>(number);
      head.is_waiting = entry.client != 0;
      head.rows = entry.rows;
      CENTROID_ASSIGN(auto block, rows_of(head, table.spec(), entry.data));
      moves_.staged.emplace_back(head.table, std::move(block));
      return {};
    }
    if (entry.data.size() != entry.rows * sizeof(std::uint64_t))
      return refuse("a Drop is cut short");
    std::vector<std::uint64_t> keys(entry.rows);
    if (!keys.empty()) std::memcpy(keys.data(), entry.data.data(), entry.data.size());
    table.drop(keys);
    return {};
  }
  if (entry.data.size() != entry.rows * sizeof(std::uint16_t))
    return refuse("its buckets are cut short");
  std::vector<std::uint16_t> buckets(entry.rows);
  if (!buckets.empty()) std::memcpy(buckets.data(), entry.data.data(), entry.data.size());
  for (const std::uint16_t bucket : buckets)
    if (bucket >= proto::kRowBuckets) return refuse("there is no bucket " + std::to_string(bucket));
  const bool takes = entry.kind == Entry::Kind::kTake;
  for (const std::uint16_t bucket : buckets) claims_[bucket] = takes ? entry.sequence : 0;
  if (!takes && entry.client != 0) drop_buckets(buckets);
  if (takes && entry.client != 0)
    for (const auto& [table, block] : moves_.staged)
      CENTROID_TRY(restore_block(tables_->tables[table], block, entry.now, &left_out_));
  if (takes) moves_.staged.clear();
  ++changes_;
  return {};
}

}  // namespace centroid::server
