#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>
#include <string>

#include "client/command.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/journal_reader.h"

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

/// One line per checkpoint, newest first; kExitFailed when one is damaged.
int list(const std::string& folder, bool verify) {
  const auto directory = CheckpointDirectory::view(folder);
  if (!directory.ok()) return fail(directory.error());
  int status = kExitDone;
  for (const CheckpointEntry& entry : directory->list(verify)) {
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

/// The journal that belongs to a folder of checkpoints: beside it, unless named.
int check_journal(const std::string& checkpoints, std::string folder) {
  if (folder.empty())
    folder = (std::filesystem::absolute(checkpoints) / "..").lexically_normal() / "journal";
  if (journal::segments_of(folder).empty()) return kExitDone;
  const auto report = journal::verify(folder);
  if (!report.ok()) {
    std::printf("journal  DAMAGED  %s\n", report.error().message().c_str());
    return kExitFailed;
  }
  std::printf(
      "journal  %zu segments  %llu bytes  rounds %llu to %llu  %llu committed, %llu skipped%s\n",
      report->segments, static_cast<unsigned long long>(report->bytes),
      static_cast<unsigned long long>(report->first.value_or(Round()).value),
      static_cast<unsigned long long>(report->last.value_or(Round()).value),
      static_cast<unsigned long long>(report->commits),
      static_cast<unsigned long long>(report->skips), "  sound");
  if (!report->torn.empty())
    std::printf("journal  torn tail, which a resume cuts off: %s\n", report->torn.c_str());
  return kExitDone;
}

}  // namespace

void add_checkpoints(CLI::App& app, int& status) {
  CLI::App* const group = app.add_subcommand("checkpoints", "Folders of checkpoints.");
  group->require_subcommand(1);
  const auto folder = std::make_shared<std::string>();
  CLI::App* const all = group->add_subcommand("list", "One line per checkpoint, newest first.");
  all->add_option("DIR", *folder, "folder of checkpoints, such as RUN_DIR/checkpoints")->required();
  all->callback([folder, &status] { status = list(*folder, false); });
  CLI::App* const verify =
      group->add_subcommand("verify", "Read every file and the journal, compare every checksum.");
  verify->add_option("DIR", *folder, "folder of checkpoints")->required();
  const auto journal_folder = std::make_shared<std::string>();
  verify->add_option("--journal", *journal_folder, "folder of the journal; else DIR/../journal");
  verify->callback([folder, journal_folder, &status] {
    status = list(*folder, true);
    if (const int journal = check_journal(*folder, *journal_folder); status == kExitDone)
      status = journal;
  });
}

}  // namespace centroid::client
