#include "common/checkpoint/restore_mark.h"

#include <algorithm>
#include <system_error>

#include <nlohmann/json.hpp>

#include "common/base/log.h"
#include "common/checkpoint/fault_point.h"
#include "common/checkpoint/journal_reader.h"
#include "common/checkpoint/replace_file.h"
#include "common/storage/file.h"

namespace centroid {
namespace {

namespace fs = std::filesystem;

Status may(const RestoreMark::MayWrite& may_write) { return may_write ? may_write() : Status(); }

Status remove_file(const fs::path& path) {
  const Status removed = file::remove(path);
  if (!removed.ok()) return Error(ErrorCode::kFailedPrecondition, removed.error().message());
  return {};
}

}  // namespace

Status RestoreMark::write(const fs::path& journal, const MayWrite& may_write,
                          const std::string& writer) const {
  nlohmann::json json;
  json["run_id"] = run_id;
  json["version"] = version.value;
  json["newer"] = newer;
  json["segments"] = nlohmann::json::array();
  for (const Segment& segment : segments)
    json["segments"].push_back({{"name", segment.name}, {"bytes", segment.bytes}});
  const std::string text =
      json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  const fs::path path = journal / kFile;
  std::error_code ignored;
  file::create_directories(journal, ignored);
  Replacement how{fault::Stem("restore.mark")};
  how.draft = draft_of(path, writer);
  how.may = may_write;
  how.is_undone_if_unsure = true;  // failure always means "not there"
  return replace_file(path, text, how);
}

Result<std::optional<RestoreMark>> RestoreMark::read(const fs::path& journal) {
  const fs::path path = journal / kFile;
  const auto there = file::attributes_of(path);
  if (there.ok() && !*there) return std::optional<RestoreMark>();
  const auto text = file::read_text(path);
  const auto json = text.ok() ? nlohmann::json::parse(*text, nullptr, false) : nlohmann::json();
  const auto bad = [&] {
    return Error(
        ErrorCode::kDataLoss,
        path.string() +
            " should name the checkpoint that the job returned to, but is altered or unreadable: "
            "move it away to continue from the newest checkpoint and the journal");
  };
  if (!json.is_object()) return bad();
  RestoreMark mark;
  try {
    mark.run_id = json.at("run_id").get<std::string>();
    mark.version = Version(json.at("version").get<std::uint64_t>());
    mark.newer = json.at("newer").get<std::vector<std::string>>();
    for (const auto& one : json.at("segments"))
      mark.segments.push_back(
          {one.at("name").get<std::string>(), one.at("bytes").get<std::uint64_t>()});
  } catch (const nlohmann::json::exception&) {
    return bad();
  }
  return std::make_optional(std::move(mark));
}

Status RestoreMark::remove(const fs::path& journal) {
  const fs::path path = journal / kFile;
  const auto there = file::attributes_of(path);
  if (there.ok() && !*there) return {};
  CENTROID_TRY(remove_file(path));
  return file::sync_directory(journal);
}

Result<std::string> RestoreMark::why_stale(const fs::path& journal,
                                           const CheckpointDirectory& checkpoints) const {
  CENTROID_ASSIGN(const auto there_are, journal::segments_of(journal));
  for (const LogSegment& there : there_are) {
    const std::string name = there.path.filename().string();
    const auto recorded = std::ranges::find(segments, name, &Segment::name);
    if (recorded == segments.end()) return "it does not name " + there.path.string();
    if (there.bytes > recorded->bytes) return there.path.string() + " has grown since";
  }
  CENTROID_ASSIGN(const auto entries, checkpoints.entries(false));
  for (const CheckpointEntry& there : entries) {
    const std::string name = there.path.filename().string();
    const bool is_newer = there.version > version;
    if (is_newer && std::ranges::find(newer, name) == newer.end())
      return "it does not name " + there.path.string();
  }
  return std::string();
}

Status RestoreMark::complete(const fs::path& journal, const CheckpointDirectory& checkpoints,
                             const MayWrite& may_write) const {
  CENTROID_ASSIGN(const auto entries, checkpoints.entries(false));
  for (const CheckpointEntry& there : entries) {
    if (!(there.version > version)) continue;
    CENTROID_TRY(may(may_write));
    CENTROID_TRY(checkpoints.remove(there));
  }
  CENTROID_TRY(file::sync_directory(checkpoints.root()));
  CENTROID_ASSIGN(auto left, journal::segments_of(journal));
  std::ranges::reverse(left);  // so that the rest always fits together
  for (const LogSegment& segment : left) {
    CENTROID_TRY(may(may_write));
    CENTROID_TRY(remove_file(segment.path));
    fault::point("restore.segment_removed");
  }
  CENTROID_TRY(file::sync_directory(journal));
  fault::point("restore.files_removed");
  CENTROID_TRY(may(may_write));
  CENTROID_TRY(remove(journal));
  fault::point("restore.mark_removed");
  return {};
}

Status complete_restore(const fs::path& journal, const CheckpointDirectory& checkpoints,
                        const RestoreMark::MayWrite& may_write) {
  CENTROID_ASSIGN(const auto mark, RestoreMark::read(journal));
  if (!mark) return {};
  const std::string path = (journal / RestoreMark::kFile).string();
  CENTROID_ASSIGN(const std::string why, mark->why_stale(journal, checkpoints));
  if (!why.empty()) {
    log::warn("checkpoint.restore_discarded",
              {{"path", path}, {"version", mark->version.value}, {"why", why}});
    CENTROID_TRY(may(may_write));
    return RestoreMark::remove(journal);
  }
  const auto entry = checkpoints.find(mark->version, true);
  const std::string expected =
      path + ": the job was going back to the checkpoint of version " + to_string(mark->version);
  const bool is_unreadable =
      entry.ok() ? entry->is_unreadable : entry.error().code() == ErrorCode::kUnavailable;
  if (is_unreadable)
    return Error(ErrorCode::kUnavailable,
                 expected + ": " + (entry.ok() ? entry->problem : entry.error().message()));
  if (!entry.ok()) return Error(ErrorCode::kDataLoss, expected + ": " + entry.error().message());
  if (!entry->problem.empty() || entry->info.run_id != mark->run_id)
    return Error(ErrorCode::kDataLoss,
                 expected + ", " + entry->path.string() + " is " +
                     (entry->problem.empty() ? "of run '" + entry->info.run_id + "'"
                                             : "damaged: " + entry->problem) +
                     ". Move the file away to go on from the newest checkpoint and the journal");
  CENTROID_TRY(mark->complete(journal, checkpoints, may_write));
  log::warn("checkpoint.restore_completed",
            {{"path", entry->path.string()}, {"version", mark->version.value}});
  return {};
}

}  // namespace centroid
