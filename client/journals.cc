#include "client/journals.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/checkpoint/fault_point.h"
#include "common/checkpoint/journal_match.h"
#include "common/checkpoint/rows_journal.h"
#include "common/checkpoint/safetensors.h"
#include "common/storage/file.h"

namespace centroid::client {
namespace {

namespace fs = std::filesystem;
using journal::Contents;
using Checkpoints = std::function<std::vector<CheckpointEntry>()>;

constexpr const char* kFolder = "journal";
/// Repeated reads, because a running server changes the files meanwhile.
constexpr int kReadAttempts = 5;

unsigned long long number(std::uint64_t value) { return value; }

std::string listed(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "'" : ", '") + name + "'";
  return out;
}

/// "journal-b" if it is one of several, else the usual label.
std::string label_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  return name.starts_with(kFolder) ? name : folder.string();
}

/// The server whose journal a folder is, by its name; empty: the leader. None: another name.
std::optional<std::string> server_of(const fs::path& folder) {
  const std::string name = folder.filename().string(), others = std::string(kFolder) + "-";
  if (name == kFolder) return "";
  if (!name.starts_with(others)) return std::nullopt;
  return name.substr(others.size());
}

/// By the first of its records, else by its name.
bool is_leaders(const fs::path& folder) {
  journal::Reader reader(folder);
  const auto first = reader.next();
  if (first.ok() && *first)
    if (const auto* base = std::get_if<journal::Base>(&**first)) {
      Contents begun;
      begun.bases.push_back(*base);
      return begun.is_leader();
    }
  return server_of(folder) == "";
}

std::set<std::string> runs_of(const Contents& of) {
  std::set<std::string> runs;
  for (const journal::Base& base : of.bases) runs.insert(base.run_id);
  return runs;
}

/// Of a folder that `check_journals` could list.
std::vector<LogSegment> or_none(Result<std::vector<LogSegment>> found) {
  return found.ok() ? std::move(found).value() : std::vector<LogSegment>();
}

/// True also if the folder is unreadable, which `check_journals` reports.
bool has_journal(const fs::path& folder) {
  const auto rounds = journal::segments_of(folder);
  return !rounds.ok() || !rounds->empty() || !or_none(rows_journal::segments_of(folder)).empty();
}

/// The content of a folder, read to its end.
struct Journal {
  fs::path folder;
  Contents rounds;
  bool has_rows = false;
  Result<rows_journal::Report> rows = rows_journal::Report();
};

/// Whether an unreadable file may only have been removed meanwhile: a running server removes
/// segments that a new checkpoint has made needless.
bool has_gone(const std::vector<LogSegment>& listed) {
  return std::ranges::any_of(listed,
                             [](const LogSegment& segment) { return !file::exists(segment.path); });
}

Contents read_rounds(const fs::path& folder) {
  for (int look = 1;; ++look) {
    const auto listed = or_none(journal::segments_of(folder));
    Contents out = journal::read_contents(folder);
    if (out.damage.empty() || look == kReadAttempts || !has_gone(listed)) return out;
  }
}

Result<rows_journal::Report> read_rows(const fs::path& folder) {
  for (int look = 1;; ++look) {
    const auto listed = or_none(rows_journal::segments_of(folder));
    auto out = rows_journal::verify(folder);
    if (out.ok() || look == kReadAttempts || !has_gone(listed)) return out;
  }
}

/// Of tables of sparse rows.
bool report_rows(std::FILE* out, const Journal& journal) {
  if (!journal.has_rows) return true;
  const std::string label = label_of(journal.folder) + " of tables";
  const auto& report = journal.rows;
  if (!report.ok()) {
    std::fprintf(out, "%s  DAMAGED  %s\n", label.c_str(), report.error().message().c_str());
    return false;
  }
  std::fprintf(out, "%s  %zu segments  %llu bytes  %llu pushes in %llu batches  sound\n",
               label.c_str(), report->segments, number(report->bytes), number(report->pushes),
               number(report->batches));
  if (!report->torn.empty())
    std::fprintf(out, "%s  torn tail, which a resume cuts off: %s\n", label.c_str(),
                 report->torn.c_str());
  return true;
}

bool report_rounds(std::FILE* out, const Contents& of) {
  if (of.bases.empty() && of.damage.empty() && of.report.segments == 0) return true;
  const std::string label = label_of(of.folder);
  if (!of.damage.empty()) {
    std::fprintf(out, "%s  DAMAGED  %s\n", label.c_str(), of.damage.c_str());
    return false;
  }
  const journal::Report& report = of.report;
  std::fprintf(
      out, "%s  %zu segments  %llu bytes  rounds %llu to %llu  %llu %s, %llu skipped  sound\n",
      label.c_str(), report.segments, number(report.bytes),
      number(report.first.value_or(Round()).value), number(report.last.value_or(Round()).value),
      number(report.commits), of.is_leader() ? "committed" : "prepared", number(report.skips));
  if (!report.torn.empty())
    std::fprintf(out, "%s  torn tail, which a resume cuts off: %s\n", label.c_str(),
                 report.torn.c_str());
  return true;
}

/// Report the shards of earlier runs beside this one's.
void report_shards(std::FILE* out, const std::vector<Journal>& journals,
                   const std::string& run_id) {
  const auto tell = [&](const std::string& label, const std::set<std::string>& runs) {
    if (run_id.empty() || runs.empty() || runs.contains(run_id)) return;
    std::fprintf(out, "%s  has nothing of run '%s', only of %s: it counts as not there\n",
                 label.c_str(), run_id.c_str(), listed({runs.begin(), runs.end()}).c_str());
  };
  for (const Journal& one : journals) {
    if (one.rounds.damage.empty()) tell(label_of(one.folder), runs_of(one.rounds));
    if (one.rows.ok()) tell(label_of(one.folder) + " of tables", one.rows->runs);
  }
}

/// Compare the rounds after the newest checkpoint in the leader's journal with the others'.
bool check_parts(std::FILE* out, const std::vector<Journal>& journals, const std::string& run_id,
                 Round over) {
  std::vector<Contents> others;
  std::vector<const Contents*> leaders;
  for (const Journal& journal : journals) {
    const Contents& one = journal.rounds;
    if (one.is_leader() && (!one.damage.empty() || one.has_run(run_id))) leaders.push_back(&one);
    if (!one.server().empty()) others.push_back(one);
  }
  if (leaders.empty() && !others.empty())
    std::fprintf(out,
                 "parts  the leader's journal, which records the commits, is missing; --journal "
                 "names its folder\n");
  bool is_sound = true;
  for (const Contents* leader : leaders) {
    const journal::Match match = journal::match(*leader, others, over);
    for (const std::string& problem : match.problems)
      std::fprintf(out, "parts  DAMAGED  %s\n", problem.c_str());
    is_sound = is_sound && match.problems.empty();
    const std::string rounds = "rounds " + to_string(match.first) + " to " + to_string(match.last) +
                               ", " + std::to_string(match.rounds) +
                               " committed after the newest checkpoint";
    if (!match.sound.empty())
      std::fprintf(out, "parts  %s  those of %s are complete\n", rounds.c_str(),
                   listed(match.sound).c_str());
    if (!match.absent.empty())
      std::fprintf(out,
                   "parts  %s  those of %s are missing, and a resume needs them; --journal names a "
                   "folder, once for each journal\n",
                   rounds.c_str(), listed(match.absent).c_str());
  }
  return is_sound;
}

/// Whether it has its part of the tables of a run, if known.
bool has_tables_of(const Journal& one, const std::string& server, const std::string& run_id) {
  const bool is_known = !one.rounds.bases.empty();
  if ((is_known ? one.rounds.server() : server_of(one.folder)) != server) return false;
  if (!one.rows.ok()) return true;
  const std::set<std::string> runs = one.has_rows ? one.rows->runs : runs_of(one.rounds);
  return runs.contains(run_id) || (runs.empty() && has_journal(one.folder));
}

/// The fault of the present segments, if the tables continue with `first`; empty: none. That
/// segment may not exist yet.
std::string trouble_of(const std::vector<LogSegment>& segments, std::uint64_t first) {
  if (segments.empty()) return "has no rows-*.log";
  if (segments.front().number > first)
    return "begins with " + segments.front().path.filename().string();
  if (segments.back().number + 1 < first)
    return "ends with " + segments.back().path.filename().string();
  return "";
}

struct Tables {
  std::vector<std::string> problems, absent;
  bool is_read = true;  ///< all that the checkpoint records
};

/// With tables on several servers, a checkpoint records the segment with which each server's
/// journal continues.
Tables inspect_tables(const CheckpointEntry& newest, const std::vector<Journal>& journals) {
  Tables out;
  const auto directory = CheckpointDirectory::view(newest.path);
  const auto files = directory.ok() ? directory->parts_of(newest) : directory.error();
  out.is_read = files.ok();
  if (!files.ok()) return out;
  const std::string checkpoint = newest.path.filename().string();
  for (const std::string& file : *files) {
    if (!is_pushes_file(file)) continue;
    const auto pushes = SafetensorsReader::open(newest.path / file);
    out.is_read = out.is_read && pushes.ok();
    if (!pushes.ok()) continue;
    const auto text = [&](const char* key) {
      const auto at = pushes->metadata().find(key);
      return at == pushes->metadata().end() ? std::string() : at->second;
    };
    if (text("followed").empty()) continue;
    const std::string server = file == kPushesFile ? "" : text("server");
    const std::uint64_t first =
        std::max<std::uint64_t>(std::strtoull(text("journal").c_str(), nullptr, 10), 1);
    bool is_there = false;
    for (const Journal& one : journals) {
      if (!has_tables_of(one, server, newest.info.run_id)) continue;
      is_there = true;
      const std::string trouble = trouble_of(or_none(rows_journal::segments_of(one.folder)), first);
      if (!trouble.empty())
        out.problems.push_back(label_of(one.folder) + " of tables  DAMAGED  " + trouble + ", but " +
                               checkpoint + " goes on with " + rows_journal::segment_name(first));
    }
    if (!is_there) out.absent.push_back(server.empty() ? "the leader" : server);
  }
  return out;
}

/// The newest sound one.
std::optional<CheckpointEntry> newest_of(const Checkpoints& checkpoints,
                                         const std::set<fs::path>& damaged) {
  for (CheckpointEntry& entry : checkpoints())
    if (entry.problem.empty() && !damaged.contains(entry.path)) return std::move(entry);
  return std::nullopt;
}

bool check_tables(std::FILE* out, const Checkpoints& checkpoints, const std::set<fs::path>& damaged,
                  const std::vector<Journal>& journals) {
  auto newest = newest_of(checkpoints, damaged);
  Tables tables;
  for (int look = 1; newest; ++look) {
    fault::point("verify.tables");
    tables = inspect_tables(*newest, journals);
    if ((tables.problems.empty() && tables.is_read) || look == kReadAttempts) break;
    // With a newer one, a running server removes what only earlier ones need.
    auto later = newest_of(checkpoints, damaged);
    if (!later || later->path == newest->path) break;
    newest = std::move(later);
  }
  for (const std::string& problem : tables.problems) std::fprintf(out, "%s\n", problem.c_str());
  if (!tables.absent.empty())
    std::fprintf(out, "tables  journals of %s are missing: they may have pushes after %s\n",
                 listed(tables.absent).c_str(), newest->path.filename().c_str());
  return tables.problems.empty();
}

}  // namespace

std::vector<fs::path> journals_of(const fs::path& checkpoints,
                                  const std::vector<std::string>& named) {
  std::vector<fs::path> all;
  for (const fs::path folder : named)
    all.push_back(folder.has_filename() ? folder : folder.parent_path());
  const auto look_in = [&all](const fs::path& run) {
    const auto found = file::list(run);
    if (!found.ok()) return;
    for (const auto& [name, about] : *found)
      if (server_of(run / name) && about.kind == file::Kind::kFolder) all.push_back(run / name);
  };
  if (named.empty()) {
    look_in((fs::absolute(checkpoints) / "..").lexically_normal());
    if (std::ranges::none_of(all, has_journal)) look_in(checkpoints);
  }
  if (named.empty())
    std::erase_if(all, [](const fs::path& folder) { return !has_journal(folder); });
  // The leader's first: the others had its content before.
  std::ranges::sort(all, {},
                    [](const fs::path& folder) { return std::pair(!is_leaders(folder), folder); });
  return all;
}

bool check_journals(std::FILE* out, const Checkpoints& checkpoints,
                    const std::set<fs::path>& damaged, const std::vector<fs::path>& folders) {
  bool is_sound = true;
  std::vector<Journal> journals;
  for (const fs::path& folder : folders) {
    if (const auto listed = journal::segments_of(folder); !listed.ok()) {
      std::fprintf(out, "%s  is unreadable: %s: look at the disk and the rights of the folder\n",
                   folder.c_str(), listed.error().message().c_str());
      is_sound = false;
      continue;
    }
    if (!has_journal(folder)) {
      std::fprintf(
          out, "%s  contains no journal: expected files journal-NUMBER.log or rows-NUMBER.log\n",
          folder.c_str());
      is_sound = false;
    }
    Journal& one = journals.emplace_back();
    one.folder = folder;
    one.has_rows = !or_none(rows_journal::segments_of(folder)).empty();
    if (one.has_rows) one.rows = read_rows(folder);
    is_sound = report_rows(out, one) && is_sound;
    one.rounds = read_rounds(folder);
    is_sound = report_rounds(out, one.rounds) && is_sound;
  }
  // Read after the journals: a running server drops rounds that are in a checkpoint.
  const auto newest = newest_of(checkpoints, damaged);
  std::string run_id = newest ? newest->info.run_id : "";
  for (const Journal& one : journals)
    if (run_id.empty() && one.rounds.is_leader()) run_id = one.rounds.bases.back().run_id;
  report_shards(out, journals, run_id);
  is_sound = check_parts(out, journals, run_id, newest ? newest->info.round : Round()) && is_sound;
  return check_tables(out, checkpoints, damaged, journals) && is_sound;
}

}  // namespace centroid::client
