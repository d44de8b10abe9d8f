#include <algorithm>

#include <boost/asio/co_spawn.hpp>

#include "common/async/wait_on.h"
#include "common/base/log.h"
#include "common/checkpoint/fault_point.h"
#include "common/checkpoint/rows_journal.h"
#include "common/storage/file.h"
#include "server/service/rows_servers.h"
#include "server/shard/placement.h"
#include "server/tables/row_blocks.h"

/// Checkpoints of tables on several servers: gathered from all into the files that one server
/// writes, and handed out again to any number.
namespace centroid::server {

using proto::TablesKind;

namespace fs = std::filesystem;

// ---- what a checkpoint has is given to the servers

Result<std::optional<RowsServers::Saved>> RowsServers::newest() const {
  const auto refused = [](const CheckpointEntry& entry) {
    log::error("checkpoint.refused", {{"path", entry.path.string()}, {"why", entry.problem}});
  };
  if (!resumes_) return std::optional<Saved>();
  auto entry = checkpoints_->newest_valid(refused);
  if (!entry.ok() && entry.error().code() == ErrorCode::kNotFound) return std::optional<Saved>();
  if (!entry.ok()) return std::move(entry).error();
  Saved saved;
  CENTROID_ASSIGN(saved.files, checkpoints_->parts_of(*entry));
  for (const std::string& file : saved.files) {
    if (!is_pushes_file(file)) {
      const std::string name = table_of_rows_file(file).value_or(file);
      CENTROID_ASSIGN(const std::size_t table, rows_.check_file(entry->path, name));
      RowsSink sink;  // its head says whether the settings fit
      sink.begin = [](const RowTable::State&) { return false; };
      CENTROID_ASSIGN(const RowTable::State state,
                      read_rows(entry->path / file, rows_.spec(table), sink));
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
  return std::optional<Saved>(std::move(saved));
}

bool RowsServers::Saved::is_there() const {
  return std::ranges::all_of(
      files, [this](const std::string& file) { return file::exists(entry.path / file); });
}

Result<bool> RowsServers::prepare(const CheckpointDirectory& checkpoints, bool resumes,
                                  std::string& run_id) {
  checkpoints_ = &checkpoints;
  run_id_ = &run_id;
  resumes_ = resumes;
  CENTROID_ASSIGN(saved_, newest());
  const bool was_spread = saved_ && saved_->journals.size() > 1;
  if (resumes && !was_spread) {
    CENTROID_ASSIGN(const auto journal, rows_journal::verify(options_.journal_dir));
    if (journal.pushes > 0) {  // of all keys
      log::warn("rows.not_spread",
                {{"why", "the journal has pushes behind the checkpoint of one server"},
                 {"action", "all rows stay on the leader until the job is ended and resumed"}});
      rows_.hold("");
      return false;
    }
  }
  if (!saved_) return true;
  if (!saved_->is_followed) return true;
  std::vector<std::string> others;
  for (const auto& [name, journal] : saved_->journals)
    if (!name.empty()) others.push_back(name);
  if (others.size() + 1 != options_.servers)
    log::warn("rows.servers_awaited",
              {{"servers", others.size() + 1},
               {"why",
                "their journals have pushes behind the checkpoint; end the job to go on "
                "with another number"}});
  CENTROID_TRY(place(std::move(others), &*saved_));
  std::vector<bool> mine(holders_.size());
  mine[0] = true;
  is_direct_ = true;
  CENTROID_TRY(load(*saved_, mine));
  is_direct_ = false;
  rows_.end_load(saved_->clock, saved_->journals[""], saved_->entry.path.filename().string());
  CENTROID_TRY(rows_.replay(options_.journal_dir, run_id));
  is_mine_loaded_ = true;
  holders_[0].state = State::kServing;
  return true;
}

/// The server to which a bucket's rows of a checkpoint go: where journals are kept the one on which
/// they lay, for its journal goes on from there; kNobody: it is here no more.
std::vector<std::uint16_t> RowsServers::owners_of(const Saved& saved) const {
  if (!saved.is_followed || saved.route == 0) return rows_.route().owners;
  std::vector<std::uint16_t> owners(proto::kRowBuckets, kNobody);
  for (const auto& [name, buckets] : saved.buckets) {
    const auto which = name.empty() ? std::optional<std::size_t>(0) : index_of(name);
    if (!which) continue;
    for (const std::uint16_t bucket : buckets) owners[bucket] = static_cast<std::uint16_t>(*which);
  }
  return owners;
}

/// The files of a checkpoint to the servers that want their part.
Status RowsServers::load(const Saved& saved, const std::vector<bool>& wanted) {
  for (const std::string& file : saved.files) {
    if (!is_pushes_file(file)) {
      const std::string name = table_of_rows_file(file).value_or(file);
      CENTROID_ASSIGN(const std::size_t table, rows_.check_file(saved.entry.path, name));
      CENTROID_TRY(load_table(saved, table, file, wanted));
      continue;
    }
    CENTROID_ASSIGN(const PushedRows pushed, read_pushes(saved.entry.path / file));
    std::size_t server = 0;  // of one that holds no rows any more, the leader
    for (std::size_t i = 1; i < holders_.size(); ++i)
      if (file != kPushesFile && holders_[i].name == pushed.server) server = i;
    if (wanted[server]) CENTROID_TRY(put_pushes(server, pushed.clients));
  }
  return {};
}

Status RowsServers::load_table(const Saved& saved, std::size_t table, const std::string& file,
                               const std::vector<bool>& wanted) {
  const auto owners = owners_of(saved);
  RowsSink sink;
  sink.begin = [&](const RowTable::State& state) {
    RowTable::State mine = state;
    mine.rows_shape = mine.candidates_shape = {};  // of all rows
    const auto begin = [&] { rows_.begin_load(table, mine); };
    if (wanted[0] && is_direct_) begin();
    if (wanted[0] && !is_direct_) call_on(executor_, begin);
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
  const auto read = read_rows(saved.entry.path / file, rows_.spec(table), sink);
  if (!read.ok()) return read.error();
  return {};
}

Status RowsServers::put_rows(std::size_t server, std::size_t table, const RowTable::Block& block,
                             std::uint64_t clock) {
  if (server == 0) {
    if (is_direct_) return rows_.load(table, block, clock);
    return call_on(executor_, [&] { return rows_.load(table, block, clock); });
  }
  const Link link = holders_[server].link;
  fault::point("servers.rows_put");
  const std::size_t most = rows_of_payload(rows_.spec(table), holders_[server].max_payload);
  for (std::size_t first = 0; first < block.keys.size(); first += most) {
    const std::size_t rows = std::min(most, block.keys.size() - first);
    proto::RowsBlock head;
    head.table = static_cast<std::uint32_t>(table);
    head.is_waiting = block.is_candidates;
    head.rows = static_cast<std::uint32_t>(rows);
    const auto payload = rows_payload(block, first, rows);
    const auto put = ask_blocking(link, TablesKind::kRowsLoad, proto::encode(head), payload);
    if (!put.ok()) return put.error();
  }
  return {};
}

Status RowsServers::put_pushes(std::size_t server, const std::vector<PushWindows::Entry>& clients) {
  if (server == 0) {
    const auto put = [&] { rows_.load_pushes(clients); };
    if (is_direct_)
      put();
    else
      call_on(executor_, put);
    return {};
  }
  const Link link = holders_[server].link;
  const std::size_t most = clients_of_payload(holders_[server].max_payload);
  for (std::size_t first = 0; first < clients.size(); first += most) {
    proto::PushesBlock head;
    head.clients = static_cast<std::uint32_t>(std::min(most, clients.size() - first));
    const auto payload = pushes_payload(clients, first, head.clients);
    const auto put = ask_blocking(link, TablesKind::kPushesLoad, proto::encode(head), payload);
    if (!put.ok()) return put.error();
  }
  return {};
}

/// Ask from the blocking thread.
Result<transport::Reply> RowsServers::ask_blocking(const Link& link, TablesKind kind,
                                                   std::vector<std::byte> head, Bytes payload) {
  auto asked = shards_.ask(link, static_cast<proto::ServersKind>(kind), std::move(head), payload);
  return wait_on(executor_, std::move(asked));
}

// ---- a checkpoint is gathered

Task<Result<std::shared_ptr<RowsSnapshot>>> RowsServers::freeze() {
  const bool is_quiet = co_await pause_moves();
  if (!is_quiet) co_return Error(ErrorCode::kCancelled, "the server is stopping");
  is_frozen_ = true;
  for (Holder& holder : holders_) holder.kept_link.reset();
  if (!is_begun_) co_return Error(ErrorCode::kUnavailable, why_);
  for (std::size_t i = 0; i < holders_.size(); ++i) {
    Holder& holder = holders_[i];
    holder.is_kept = i == 0 || holder.state != State::kAbsent;
    if (!holder.is_kept && (owns(i) || holder.has_held))
      co_return Error(ErrorCode::kUnavailable,
                      "server '" + holder.name + "' is gone with its rows");
  }
  kept_route_ = rows_.route();
  kept_is_last_ = is_ending_;  // `end` may come before it is written
  proto::RowsFreeze how;
  how.is_last = kept_is_last_;
  if (kept_is_last_) rows_.hold("the job is over");
  const auto head = proto::encode(how);
  for (std::size_t i = 1; i < holders_.size(); ++i) {
    if (!holders_[i].is_kept) continue;
    const Link link = holders_[i].link;
    if (!link)
      co_return Error(ErrorCode::kUnavailable, "server '" + holders_[i].name + "' is gone");
    holders_[i].kept_link = link;
    const auto kept =
        co_await shards_.ask(link, static_cast<proto::ServersKind>(TablesKind::kRowsFreeze), head);
    if (!kept.ok()) co_return kept.error();
    CENTROID_CO_ASSIGN(holders_[i].frozen, proto::decode<proto::RowsFrozen>(kept->head));
    if (holders_[i].frozen.tables.size() != rows_.tables())
      co_return Error(ErrorCode::kInvalidArgument,
                      "server '" + holders_[i].name + "' keeps " +
                          std::to_string(holders_[i].frozen.tables.size()) + " tables, not " +
                          std::to_string(rows_.tables()));
    if (holders_[i].frozen.changes != holders_[i].report.changes) ++seen_;
    holders_[i].report.changes = holders_[i].frozen.changes;
    fault::point("tables.server_frozen");
  }
  kept_ = seen_;
  mine_kept_ = rows_.changes();
  co_return rows_.begin_snapshot();
}

Result<bool> RowsServers::fetch_rows(RowsServers& self, const Link& link, std::size_t table,
                                     RowTable::Block& block) {
  proto::RowsRead wanted;
  wanted.table = static_cast<std::uint32_t>(table);
  CENTROID_ASSIGN(const auto reply,
                  self.ask_blocking(link, TablesKind::kRowsRead, proto::encode(wanted)));
  CENTROID_ASSIGN(const auto head, proto::decode<proto::RowsBlock>(reply.head));
  if (head.rows == 0) return false;
  CENTROID_ASSIGN(block, rows_of(head, self.rows_.spec(table), reply.payload));
  return true;
}

Result<PushedRows> RowsServers::fetch_pushes(RowsServers& self, const Link& link,
                                             std::uint32_t clients) {
  PushedRows pushed;
  while (pushed.clients.size() < clients) {
    proto::PushesBlock wanted;
    wanted.first = static_cast<std::uint32_t>(pushed.clients.size());
    CENTROID_ASSIGN(const auto reply,
                    self.ask_blocking(link, TablesKind::kPushesRead, proto::encode(wanted)));
    CENTROID_ASSIGN(const auto head, proto::decode<proto::PushesBlock>(reply.head));
    CENTROID_ASSIGN(const auto some, pushes_of(head, reply.payload));
    if (some.empty())
      return Error(ErrorCode::kAborted,
                   "server '" + link->name + "' keeps fewer clients than it said");
    pushed.clients.insert(pushed.clients.end(), some.begin(), some.end());
  }
  return pushed;
}

std::vector<CheckpointPart> RowsServers::parts(std::shared_ptr<RowsSnapshot> mine) {
  struct Kept {
    std::string name;
    Link link;
    proto::RowsFrozen frozen;
    std::string buckets;
  };
  auto others = std::make_shared<std::vector<Kept>>();
  const auto buckets = [this](std::size_t i) {
    return to_ranges(kept_route_.owners, static_cast<std::uint16_t>(i));
  };
  for (std::size_t i = 1; i < holders_.size(); ++i)
    if (holders_[i].is_kept)
      others->push_back({holders_[i].name, holders_[i].kept_link, holders_[i].frozen, buckets(i)});
  std::vector<CheckpointPart> parts;
  for (std::size_t table = 0; table < rows_.tables(); ++table) {
    auto write = [this, mine, others, table](const fs::path& path) -> Result<FileRecord> {
      RowTable::State all = mine->states()[table];
      all.rows_shape = all.candidates_shape = {};  // of no one table
      for (const Kept& one : *others) {
        const proto::FrozenTable& more = one.frozen.tables[table];
        all.rows += more.rows, all.candidates += more.waiting;
        all.now = std::max(all.now, one.frozen.clock);
        RowCounters& c = all.counters;
        c.pulled += more.pulled, c.pushed += more.pushed, c.admitted += more.admitted;
        c.held_back += more.held_back, c.evicted += more.evicted, c.expired += more.expired;
        c.duplicates += more.duplicates;
      }
      std::size_t from = 0;  // 0: the leader's own
      const auto read = [&](RowTable::Block& block) -> Result<bool> {
        for (; from <= others->size(); ++from) {
          auto found = from == 0 ? mine->read(table, block)
                                 : fetch_rows(*this, (*others)[from - 1].link, table, block);
          if (!found.ok() || *found) return found;
        }
        return false;
      };
      return write_rows(path, rows_.spec(table), all, read);
    };
    parts.push_back({rows_file_name(rows_.spec(table).name), std::move(write)});
  }
  const bool is_followed = options_.keeps_journal && !kept_is_last_;
  const std::uint64_t route = kept_route_.version;
  parts.push_back({kPushesFile, [mine, is_followed, name = options_.leader, route,
                                 buckets = buckets(0)](const fs::path& path) {
                     PushedRows pushed = mine->pushed();
                     pushed.server = name;
                     pushed.is_followed = is_followed;
                     pushed.route = route;
                     pushed.buckets = buckets;
                     return write_pushes(path, pushed);
                   }});
  for (std::size_t i = 0; i < others->size(); ++i) {
    auto write = [this, others, i, is_followed, route](const fs::path& path) -> Result<FileRecord> {
      const Kept& one = (*others)[i];
      CENTROID_ASSIGN(PushedRows pushed, fetch_pushes(*this, one.link, one.frozen.clients));
      pushed.journal = one.frozen.journal;
      pushed.server = one.name;
      pushed.is_followed = is_followed;
      pushed.route = route;
      pushed.buckets = one.buckets;
      return write_pushes(path, pushed);
    };
    parts.push_back({pushes_file_name(i + 1), std::move(write)});
  }
  return parts;
}

Task<void> RowsServers::thaw(bool is_written) {
  if (is_written) {
    checkpointed_ = kept_;
    mine_checkpointed_ = mine_kept_;
    is_ended_ = is_ended_ || kept_is_last_;
    resumes_ = true;
    for (Holder& holder : holders_) holder.is_named = holder.is_kept;
  }
  for (std::size_t i = 1; i < holders_.size(); ++i) {
    const Link link = std::exchange(holders_[i].kept_link, nullptr);
    if (!link || link->is_gone()) continue;
    proto::RowsThaw thaw;
    if (is_written) thaw.journal = holders_[i].frozen.journal;
    const auto kind = static_cast<proto::ServersKind>(TablesKind::kRowsThaw);
    auto head = proto::encode(thaw);
    (void)co_await shards_.ask(link, kind, std::move(head));
  }
  if (std::exchange(is_frozen_, false)) resume_moves();
}

}  // namespace centroid::server
