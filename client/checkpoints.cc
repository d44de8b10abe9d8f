#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "client/fetch.h"
#include "client/journals.h"
#include "client/online.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/export.h"
#include "common/checkpoint/merge.h"
#include "common/storage/file.h"

namespace centroid::client {
namespace {

int fail(const Error& error) {
  std::fprintf(stderr, "centroidctl: %s\n", error.message().c_str());
  return kExitFailed;
}

std::string utc(double unix_seconds) {
  const auto seconds = static_cast<std::time_t>(unix_seconds);
  std::tm parts{};
  char text[32];
  if (gmtime_r(&seconds, &parts) == nullptr) return "?";
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

/// A resolved folder argument: of checkpoints, of a run, or a single checkpoint.
struct Folder {
  std::filesystem::path path;  ///< for a run, the folder of its checkpoints
  bool is_single = false;
};

Folder meant_by(const std::string& folder) {
  const auto directory = CheckpointDirectory::view(folder);
  const bool has_some = directory.ok() && !directory->list(false).empty();
  if (!has_some && CheckpointDirectory::look_at(folder, false)) return {folder, true};
  const std::filesystem::path inner = std::filesystem::path(folder) / "checkpoints";
  if (!has_some && file::is_directory(inner)) return {inner, false};
  return {folder, false};
}

/// At least one, newest first. fails not_found: there is none, which is no success
Result<std::vector<CheckpointEntry>> entries_of(const Folder& folder, bool verify) {
  if (folder.is_single) {
    const auto single = CheckpointDirectory::look_at(folder.path, verify);
    if (single) return std::vector<CheckpointEntry>{*single};
  }
  CENTROID_ASSIGN(const auto directory, CheckpointDirectory::view(folder.path));
  std::vector<CheckpointEntry> entries = directory.list(verify);
  if (entries.empty())
    return Error(
        ErrorCode::kNotFound,
        folder.path.string() +
            ": contains no checkpoint; expected folders checkpoint-VERSION in it, or one of these");
  return entries;
}

/// One line per checkpoint, newest first; kExitFailed if one is damaged, or there is none and
/// nothing else to check (`may_be_none`). Damaged ones are added to `damaged`.
int list(const Session& session, const Folder& folder, bool verify, bool may_be_none = false,
         std::set<std::filesystem::path>* damaged = nullptr) {
  auto entries = entries_of(folder, verify);
  if (!entries.ok() && may_be_none && entries.error().code() == ErrorCode::kNotFound)
    entries = std::vector<CheckpointEntry>();
  if (!entries.ok()) return fail(entries.error());
  int status = kExitDone;
  for (const CheckpointEntry& entry : *entries)
    if (damaged != nullptr && !entry.problem.empty()) damaged->insert(entry.path);
  if (session.style.is_json) {
    Json all = Json::array();
    for (const CheckpointEntry& entry : *entries) {
      Json one;
      one["path"] = entry.path.string();
      one["version"] = entry.version.value;
      one["round"] = entry.info.round.value;
      one["bytes"] = entry.bytes;
      one["created_unix_seconds"] = entry.info.created_unix_seconds;
      one["run_id"] = entry.info.run_id;
      one["problem"] = entry.problem;
      if (!entry.problem.empty()) status = kExitFailed;
      all.push_back(std::move(one));
    }
    Json out;
    out["checkpoints"] = std::move(all);
    std::printf("%s", line_of(out).c_str());
    return status;
  }
  for (const CheckpointEntry& entry : *entries) {
    const CheckpointInfo& info = entry.info;
    const std::string name = entry.path.filename().string();
    if (entry.problem.empty()) {
      std::printf("%s  round %llu  %llu bytes  %s  run %s%s\n", name.c_str(),
                  static_cast<unsigned long long>(info.round.value),
                  static_cast<unsigned long long>(entry.bytes),
                  utc(info.created_unix_seconds).c_str(), info.run_id.c_str(),
                  verify ? "  sound" : "");
    } else {
      std::printf("%s  DAMAGED  %s\n", name.c_str(), entry.problem.c_str());
      status = kExitFailed;
    }
  }
  return status;
}

std::string server_table(const Json& checkpoints) {
  std::vector<std::vector<std::string>> rows;
  for (const Json& one : checkpoints)
    rows.push_back({text_of(one, "version"), text_of(one, "round"),
                    size_text(number_of(one, "bytes")), utc(number_of(one, "created_unix_seconds")),
                    text_of(one, "path"), text_of(one, "problem")});
  return table({"version", "round", "size", "written", "path", "problem"}, rows);
}

/// The checkpoints of the server.
int list_of_server(const Session& session) {
  auto all = get_list(session, "/v1/checkpoints", "checkpoints");
  if (!all.ok()) return complain(all.error());
  const bool is_damaged =
      std::ranges::any_of(*all, [](const Json& one) { return !text_of(one, "problem").empty(); });
  const std::string text = server_table(*all);
  Json out;
  out["checkpoints"] = std::move(*all);
  print(session, out, text);
  return is_damaged ? kExitFailed : kExitDone;
}

/// Let the server read one completely.
int verify_on_server(Session session, const std::string& version) {
  session.remote.timeout = std::max(session.remote.timeout, std::chrono::milliseconds(310'000));
  const auto answer = send_json(session, "POST", "/v1/checkpoints/" + version + ":verify");
  if (!answer.ok()) return complain(answer.error());
  const std::string problem = text_of(*answer, "problem");
  print(session, *answer, "version " + version + (problem.empty() ? " is sound" : ": " + problem));
  return problem.empty() ? kExitDone : kExitFailed;
}

bool is_version(const std::string& text) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return !text.empty() && text.size() < 20 && std::all_of(text.begin(), text.end(), is_digit) &&
         !file::exists(text);
}

struct Export {
  std::string target, dtype = "f32", table;
  bool all = false;
  std::uint64_t version = 0, shard_bytes = 0;
};

int export_model(const std::string& folder, const Export& what) {
  const Folder meant = meant_by(folder);
  const auto directory = CheckpointDirectory::view(meant.path);
  if (!directory.ok()) return fail(directory.error());
  ExportOptions options;
  options.shard_bytes = what.shard_bytes;
  const auto dtype = parse_dtype(what.dtype);
  if (!dtype.ok()) return fail(dtype.error());
  options.dtype = *dtype;
  const auto entries = entries_of(meant, !what.table.empty());
  if (!entries.ok()) return fail(entries.error());
  for (const CheckpointEntry& entry : *entries) {
    if (what.version != 0 && entry.version.value != what.version) continue;
    const Status done = what.table.empty()
                            ? export_checkpoint(*directory, entry, what.target, options)
                            : export_rows(*directory, entry, what.table, what.target, what.all);
    if (!done.ok()) return fail(done.error());
    std::printf("%s: %s of %s as %s\n", what.target.c_str(),
                what.table.empty() ? "parameters" : ("table " + what.table).c_str(),
                entry.path.filename().c_str(), what.dtype.c_str());
    return kExitDone;
  }
  const std::string missing = std::to_string(what.version);
  return fail(
      Error(ErrorCode::kNotFound, folder + ": contains no checkpoint of version " + missing));
}

struct Merge {
  std::string base, adapters, target, dtype = "f32";
  bool any_base = false;
};

int merge(const Merge& what) {
  const auto dtype = parse_dtype(what.dtype);
  if (!dtype.ok()) return fail(dtype.error());
  const Status done = merge_adapters(what.base, what.adapters, what.target,
                                     {.dtype = *dtype, .any_base = what.any_base});
  if (!done.ok()) return fail(done.error());
  std::printf("%s: %s with the adapters of %s, as %s\n", what.target.c_str(), what.base.c_str(),
              what.adapters.c_str(), what.dtype.c_str());
  return kExitDone;
}

void add_merge(CLI::App& group, int& status) {
  const auto wish = std::make_shared<Merge>();
  CLI::App* const merged = group.add_subcommand(
      "merge",
      "Write base weights and the adapters that were trained beside them as one model without "
      "adapters.");
  merged->add_option("BASE", wish->base, "base weights, a safetensors file")->required();
  merged
      ->add_option("ADAPTERS", wish->adapters,
                   "folder that a worker saved (adapter.save), or PEFT's")
      ->required();
  merged->add_option("--to", wish->target, "file to write, NAME.safetensors")->required();
  merged->add_option("--dtype", wish->dtype, "f32, bf16 or f16")->capture_default_str();
  merged->add_flag("--any-base", wish->any_base,
                   "do not compare BASE with the weights that the adapters were trained beside");
  merged->callback([wish, &status] { status = merge(*wish); });
}

}  // namespace

void add_checkpoints(CLI::App& app, std::shared_ptr<Session> session, int& status) {
  CLI::App* const group =
      app.add_subcommand("checkpoints", "Checkpoints of the server, and folders of them.");
  group->require_subcommand(1);
  const auto folder = std::make_shared<std::string>();
  CLI::App* const all = group->add_subcommand("list", "One line per checkpoint, newest first.");
  all->add_option("DIR", *folder,
                  "folder of a run, of checkpoints (such as RUN_DIR/checkpoints) or of one "
                  "checkpoint, read without a server; default: the checkpoints of the server");
  all->callback([=, &status] {
    status = folder->empty() ? list_of_server(*session) : list(*session, meant_by(*folder), false);
  });
  CLI::App* const verify = group->add_subcommand(
      "verify",
      "Read every file and compare every checksum: of a folder and its journals, or of "
      "one version by the server.");
  verify
      ->add_option(
          "DIR|VERSION", *folder,
          "folder of checkpoints, of a run, or a single checkpoint, or a version of the server's")
      ->required();
  const auto wish = std::make_shared<Export>();
  CLI::App* const exported = group->add_subcommand(
      "export",
      "Write the parameters of a checkpoint, or a table of its sparse rows, as safetensors, for "
      "other programs.");
  exported->add_option("DIR", *folder, "folder of checkpoints, of a run, or a single checkpoint")
      ->required();
  exported->add_option("--to", wish->target, "file to write, NAME.safetensors")->required();
  exported->add_option("--version", wish->version, "version of the checkpoint; else the newest");
  exported->add_option("--dtype", wish->dtype, "f32, bf16 or f16")->capture_default_str();
  exported->add_option("--shard-bytes", wish->shard_bytes,
                       "largest file: more of them become NAME-00001-of-0000N.safetensors and an "
                       "index; 0: one file");
  CLI::Option* const table =
      exported->add_option("--table", wish->table, "rows of this table: tensors keys and values")
          ->excludes("--dtype")
          ->excludes("--shard-bytes");
  exported
      ->add_flag("--all", wish->all,
                 "with --table: the optimizer's state, ages, counts and waiting keys too")
      ->needs(table);
  exported->callback([folder, wish, &status] { status = export_model(*folder, *wish); });
  add_merge(*group, status);
  add_get(*group, session, status);
  const auto named = std::make_shared<std::vector<std::string>>();
  verify->add_option("--journal", *named,
                     "folder of a journal, again for those of other servers; else DIR/../journal "
                     "and DIR/../journal-*, of a single checkpoint none");
  verify->callback([=, &status] {
    if (is_version(*folder)) {
      status = verify_on_server(*session, *folder);
      return;
    }
    const Folder meant = meant_by(*folder);
    const auto journals = meant.is_single && named->empty() ? std::vector<std::filesystem::path>()
                                                            : journals_of(meant.path, *named);
    std::set<std::filesystem::path> damaged;
    status = list(*session, meant, true, !journals.empty(), &damaged);  // of first rounds no other
    std::FILE* const out = session->style.is_json ? stderr : stdout;    // not into the JSON
    const auto present = [&] {
      auto entries = entries_of(meant, false);
      return entries.ok() ? std::move(*entries) : std::vector<CheckpointEntry>();
    };
    if (!check_journals(out, present, damaged, journals))
      status = std::max<int>(status, kExitFailed);
  });
}

}  // namespace centroid::client
