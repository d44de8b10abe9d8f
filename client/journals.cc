#include "client/journals.h"

#include <algorithm>
#include <map>
#include <optional>

#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/journal_match.h"
#include "common/checkpoint/rows_journal.h"
#include "common/checkpoint/safetensors.h"

namespace centroid::client {
namespace {

namespace fs = std::filesystem;
using journal::Contents;

constexpr const char* kFolder = "journal";

unsigned long long number(std::uint64_t value) { return value; }

std::string listed(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "'" : ", '") + name + "'";
  return out;
}

/// Where it is one of several "journal-b", else as always.
std::string label_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  return name.starts_with(kFolder) ? name : folder.string();
}

/// The server whose journal a folder is by its name; empty: the leader's. None: another name.
std::optional<std::string> server_of(const fs::path& folder) {
  const std::string name = folder.filename().string(), others = std::string(kFolder) + "-";
  if (name == kFolder) return "";
  if (!name.starts_with(others)) return std::nullopt;
  return name.substr(others.size());
}

bool has_journal(const fs::path& folder) {
  return !journal::segments_of(folder).empty() || !rows_journal::segments_of(folder).empty();
}

/// Of tables of sparse rows.
bool check_rows(std::FILE* out, const fs::path& folder) {
  if (rows_journal::segments_of(folder).empty()) return true;
  const std::string label = label_of(folder) + " of tables";
  const auto report = rows_journal::verify(folder);
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

bool tell(std::FILE* out, const fs::path& folder, const Contents& of) {
  const std::string label = label_of(folder);
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

/// The rounds behind the newest checkpoint, as the leader's journal and those of the others have
/// them.
bool check_parts(std::FILE* out, const std::vector<Contents>& journals, Round over) {
  std::vector<Contents> others;
  std::vector<const Contents*> leaders;
  for (const Contents& one : journals) {
    if (one.is_leader()) leaders.push_back(&one);
    if (!one.server().empty()) others.push_back(one);
  }
  if (leaders.empty() && !others.empty())
    std::fprintf(out,
                 "parts  the leader's journal, which says what is committed, was not there to look "
                 "at; --journal names its folder\n");
  bool is_sound = true;
  for (const Contents* leader : leaders) {
    const journal::Match match = journal::match(*leader, others, over);
    for (const std::string& problem : match.problems)
      std::fprintf(out, "parts  DAMAGED  %s\n", problem.c_str());
    is_sound = is_sound && match.problems.empty();
    const std::string rounds = "rounds " + to_string(match.first) + " to " + to_string(match.last) +
                               ", " + std::to_string(match.rounds) +
                               " committed behind the newest checkpoint";
    if (!match.sound.empty())
      std::fprintf(out, "parts  %s  those of %s are whole\n", rounds.c_str(),
                   listed(match.sound).c_str());
    if (!match.absent.empty())
      std::fprintf(out,
                   "parts  %s  those of %s were not there to look at, and a resume needs them; "
                   "--journal names a folder, once for each journal\n",
                   rounds.c_str(), listed(match.absent).c_str());
  }
  return is_sound;
}

/// Where tables lie on several servers the newest checkpoint says with which segment each server's
/// journal goes on.
bool check_tables(std::FILE* out, const CheckpointDirectory& directory,
                  const CheckpointEntry& newest, const std::vector<fs::path>& folders) {
  const auto files = directory.parts_of(newest);
  if (!files.ok()) return true;  // said with the checkpoint
  bool is_sound = true;
  std::vector<std::string> absent;
  for (const std::string& file : *files) {
    if (!is_pushes_file(file)) continue;
    const auto pushes = SafetensorsReader::open(newest.path / file);
    if (!pushes.ok()) continue;
    const auto text = [&](const char* key) {
      const auto at = pushes->metadata().find(key);
      return at == pushes->metadata().end() ? std::string() : at->second;
    };
    if (text("followed").empty()) continue;
    const std::string server = file == kPushesFile ? "" : text("server");
    const auto its = std::ranges::find(folders, std::optional(server), server_of);
    if (its == folders.end()) {
      absent.push_back(server.empty() ? "the leader" : server);
      continue;
    }
    const auto segments = rows_journal::segments_of(*its);
    const std::uint64_t first = std::strtoull(text("journal").c_str(), nullptr, 10);
    if (segments.empty() || segments.front().number <= first) continue;
    is_sound = false;
    std::fprintf(out, "%s of tables  DAMAGED  begins with %s, but %s goes on with %s\n",
                 label_of(*its).c_str(), segments.front().path.filename().c_str(),
                 newest.path.filename().c_str(), rows_journal::segment_name(first).c_str());
  }
  if (!absent.empty())
    std::fprintf(out,
                 "tables  journals of %s were not there to look at: they may have pushes behind "
                 "%s\n",
                 listed(absent).c_str(), newest.path.filename().c_str());
  return is_sound;
}

}  // namespace

std::vector<fs::path> journals_of(const fs::path& checkpoints,
                                  const std::vector<std::string>& named) {
  std::vector<fs::path> all;
  for (const fs::path folder : named)
    all.push_back(folder.has_filename() ? folder : folder.parent_path());
  const auto look_in = [&all](const fs::path& run) {
    std::error_code ignored;
    for (const auto& item : fs::directory_iterator(run, ignored))
      if (server_of(item.path()) && item.is_directory(ignored)) all.push_back(item.path());
  };
  if (named.empty()) {
    look_in((fs::absolute(checkpoints) / "..").lexically_normal());
    if (std::ranges::none_of(all, has_journal)) look_in(checkpoints);
  }
  if (named.empty())
    std::erase_if(all, [](const fs::path& folder) { return !has_journal(folder); });
  std::ranges::sort(all);  // the leader's before the others': what it has they had before
  return all;
}

bool check_journals(std::FILE* out, const fs::path& checkpoints, const std::set<fs::path>& damaged,
                    const std::vector<fs::path>& folders) {
  bool is_sound = true;
  std::vector<Contents> journals;
  for (const fs::path& folder : folders) {
    if (!has_journal(folder)) {
      std::fprintf(out,
                   "%s  holds no journal: expected files journal-NUMBER.log or "
                   "rows-NUMBER.log\n",
                   folder.c_str());
      is_sound = false;
    }
    is_sound = check_rows(out, folder) && is_sound;
    if (journal::segments_of(folder).empty()) continue;
    journals.push_back(journal::read_contents(folder));
    is_sound = tell(out, folder, journals.back()) && is_sound;
  }
  // Looked at behind the journals: a server that runs drops rounds once they are in a checkpoint.
  std::optional<CheckpointEntry> newest;
  const auto directory = CheckpointDirectory::view(checkpoints);
  if (directory.ok())
    for (CheckpointEntry& entry : directory->list(false)) {
      if (!entry.problem.empty() || damaged.contains(entry.path)) continue;
      newest = std::move(entry);
      break;
    }
  is_sound = check_parts(out, journals, newest ? newest->info.round : Round()) && is_sound;
  if (newest) is_sound = check_tables(out, *directory, *newest, folders) && is_sound;
  return is_sound;
}

}  // namespace centroid::client
