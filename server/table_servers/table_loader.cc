#include "server/table_servers/table_loader.h"

#include <algorithm>

#include "common/async/wait_on.h"
#include "common/base/log.h"
#include "common/checkpoint/fault_point.h"
#include "common/storage/file.h"
#include "server/shard/placement.h"
#include "server/tables/row_blocks.h"
#include "server/tables/row_files.h"

namespace centroid::server {

using proto::TablesKind;

bool SavedTables::is_there() const {
  return std::ranges::all_of(
      files, [this](const std::string& file) { return file::exists(entry.path / file); });
}

Result<std::optional<SavedTables>> TableLoader::newest() const {
  const auto refused = [](const CheckpointEntry& entry) {
    log::error("checkpoint.refused", {{"path", entry.path.string()}, {"why", entry.problem}});
  };
  if (!resumes_) return std::optional<SavedTables>();
  auto entry = checkpoints_->newest_valid(refused);
  if (!entry.ok() && entry.error().code() == ErrorCode::kNotFound)
    return std::optional<SavedTables>();
  if (!entry.ok()) return std::move(entry).error();
  SavedTables saved;
  CENTROID_ASSIGN(saved.files, checkpoints_->parts_of(*entry));
  for (const std::string& file : saved.files) {
    if (!is_pushes_file(file)) {
      CENTROID_ASSIGN(const std::size_t table, group_.rows.store().check_file(entry->path, file));
      RowsSink sink;  // its head shows whether the settings fit
      sink.begin = [](const RowTable::State&) { return false; };
      CENTROID_ASSIGN(const RowTable::State state,
                      read_rows(entry->path / file, group_.rows.store().spec(table), sink));
      saved.clock = std::max(saved.clock, state.now);
      continue;
    }
    CENTROID_ASSIGN(const PushedRows pushed, read_pushes(entry->path / file));
    const std::string server = file == kPushesFile ? "" : pushed.server;
    saved.journals[server] = std::max<std::uint64_t>(pushed.journal, 1);
    saved.is_followed = saved.is_followed || pushed.is_followed;
    if (pushed.route == 0) continue;
    saved.route = pushed.route;
    CENTROID_ASSIGN(saved.buckets[server], buckets_of(pushed.buckets, proto::kRowBuckets));
  }
  saved.entry = std::move(entry).value();
  return std::optional<SavedTables>(std::move(saved));
}

/// The server to which a bucket's rows of a checkpoint go. With journals the one that had them, for
/// its journal continues from there. kNobody: it is gone.
std::vector<std::uint16_t> TableLoader::owners_of(const SavedTables& saved) const {
  if (!saved.is_followed || saved.route == 0) return group_.rows.moves().route().owners;
  std::vector<std::uint16_t> owners(proto::kRowBuckets, kNobody);
  for (const auto& [name, buckets] : saved.buckets) {
    const auto which = name.empty() ? std::optional<std::size_t>(0) : group_.index_of(name);
    if (!which) continue;
    for (const std::uint16_t bucket : buckets) owners[bucket] = static_cast<std::uint16_t>(*which);
  }
  return owners;
}

/// Send the files of a checkpoint to the servers that need their part.
Status TableLoader::load(const SavedTables& saved, const std::vector<bool>& wanted) {
  for (const std::string& file : saved.files) {
    if (!is_pushes_file(file)) {
      CENTROID_ASSIGN(const std::size_t table,
                      group_.rows.store().check_file(saved.entry.path, file));
      CENTROID_TRY(load_table(saved, table, file, wanted));
      continue;
    }
    CENTROID_ASSIGN(const PushedRows pushed, read_pushes(saved.entry.path / file));
    std::size_t server = 0;  // of one that has no rows any more: the leader
    for (std::size_t i = 1; i < group_.holders.size(); ++i)
      if (file != kPushesFile && group_.holders[i].name == pushed.server) server = i;
    if (wanted[server]) CENTROID_TRY(put_pushes(server, pushed.clients));
  }
  return {};
}

Task<Result<std::optional<SavedTables>>> TableLoader::find_newest() const {
  auto look = [this] { return newest(); };
  co_return co_await run_on(group_.blocking, std::move(look));
}

Task<Status> TableLoader::replay_here(std::string& run_id) {
  const auto id = std::make_shared<std::string>(run_id);
  auto read = [&rows = group_.rows, folder = group_.options.journal_dir, id] {
    return rows.replay(folder, *id);
  };
  group_.rows.begin_reading();
  const Status replayed = co_await run_on(group_.blocking, std::move(read));
  group_.rows.end_reading();
  if (replayed.ok()) run_id = *id;
  co_return replayed;
}

Status TableLoader::load_table(const SavedTables& saved, std::size_t table, const std::string& file,
                               const std::vector<bool>& wanted) {
  const auto owners = owners_of(saved);
  RowsSink sink;
  sink.begin = [&](const RowTable::State& state) {
    RowTable::State mine = state;
    mine.rows_shape = mine.candidates_shape = {};  // of all rows
    const auto begin = [&] { group_.rows.store().begin_load(table, mine); };
    if (wanted[0]) call_on(group_.executor, begin);
    return true;
  };
  sink.put = [&](const RowTable::Block& block, std::uint64_t) -> Status {
    const std::size_t n = std::max<std::size_t>(block.keys.size(), 1);
    const std::size_t dim = block.values.size() / n, slots = block.slots.size() / n;
    std::vector<RowTable::Block> parts(wanted.size());
    for (std::size_t i = 0; i < block.keys.size(); ++i) {
      const std::uint16_t owner = owners[proto::row_bucket(block.keys[i])];
      if (owner == kNobody || !wanted[owner]) continue;
      RowTable::Block& part = parts[owner];
      part.keys.push_back(block.keys[i]);
      part.ages.push_back(block.ages[i]);
      part.counts.push_back(block.counts[i]);
      const auto row = [&](const std::vector<float>& from, std::size_t width,
                           std::vector<float>& into) {
        const auto first = from.begin() + static_cast<std::ptrdiff_t>(i * width);
        into.insert(into.end(), first, first + static_cast<std::ptrdiff_t>(width));
      };
      row(block.values, dim, part.values);
      row(block.slots, slots, part.slots);
    }
    for (std::size_t server = 0; server < parts.size(); ++server) {
      parts[server].is_candidates = block.is_candidates;
      if (wanted[server] && !parts[server].keys.empty())
        CENTROID_TRY(put_rows(server, table, parts[server], saved.clock));
    }
    return {};
  };
  const auto read = read_rows(saved.entry.path / file, group_.rows.store().spec(table), sink);
  if (!read.ok()) return read.error();
  return {};
}

Status TableLoader::put_rows(std::size_t server, std::size_t table, const RowTable::Block& block,
                             std::uint64_t clock) {
  if (server == 0) {
    return call_on(group_.executor, [&] { return group_.rows.store().load(table, block, clock); });
  }
  const HolderSession shard = group_.holders[server].shard;
  fault::point("servers.rows_put");
  const std::size_t most =
      rows_of_payload(group_.rows.store().spec(table), group_.holders[server].max_payload);
  for (std::size_t first = 0; first < block.keys.size(); first += most) {
    const std::size_t rows = std::min(most, block.keys.size() - first);
    proto::RowsBlock head;
    head.table = static_cast<std::uint32_t>(table);
    head.is_waiting = block.is_candidates;
    head.rows = static_cast<std::uint32_t>(rows);
    const auto payload = rows_payload(block, first, rows);
    CENTROID_TRY(group_.ask_blocking(shard, TablesKind::kRowsLoad, proto::encode(head), payload));
  }
  return {};
}

Status TableLoader::put_pushes(std::size_t server, const std::vector<PushWindows::Entry>& clients) {
  if (server == 0) {
    call_on(group_.executor, [&] { group_.rows.load_pushes(clients); });
    return {};
  }
  const HolderSession shard = group_.holders[server].shard;
  const std::size_t most = clients_of_payload(group_.holders[server].max_payload);
  for (std::size_t first = 0; first < clients.size(); first += most) {
    proto::PushesBlock head;
    head.clients = static_cast<std::uint32_t>(std::min(most, clients.size() - first));
    const auto payload = pushes_payload(clients, first, head.clients);
    CENTROID_TRY(group_.ask_blocking(shard, TablesKind::kPushesLoad, proto::encode(head), payload));
  }
  return {};
}

}  // namespace centroid::server
