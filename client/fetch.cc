#include "client/fetch.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/online.h"
#include "common/base/crc32c.h"
#include "common/checkpoint/fault_point.h"
#include "common/checkpoint/safetensors.h"
#include "common/storage/file.h"

/// `checkpoints get`: copies a checkpoint of the server into a local folder, for a backup.
namespace centroid::client {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kPiece = 8u << 20;
constexpr int kTries = 5;

struct RequestedFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint32_t crc32c = 0;
};

Result<std::vector<RequestedFile>> files_of(const Session& session, const std::string& url) {
  CENTROID_ASSIGN(const Json listed, get_list(session, url, "files"));
  std::vector<RequestedFile> files;
  for (const Json& one : listed) {
    RequestedFile file;
    file.name = text_of(one, "name");
    file.bytes = one.value("bytes", std::uint64_t{0});
    const std::string crc = text_of(one, "crc32c");
    const bool is_plain = !file.name.empty() && fs::path(file.name).filename() == file.name;
    if (!is_plain || std::sscanf(crc.c_str(), "%" SCNx32, &file.crc32c) != 1)
      return Error(ErrorCode::kDataLoss,
                   url + ": the server lists a file that cannot be fetched: " + one.dump());
    files.push_back(std::move(file));
  }
  if (files.empty()) return Error(ErrorCode::kDataLoss, url + ": the server lists no files");
  const auto is_manifest = [](const RequestedFile& file) { return file.name == "manifest.json"; };
  if (std::none_of(files.begin(), files.end(), is_manifest))
    return Error(ErrorCode::kUnimplemented,
                 url + ": manifest.json is not listed: the server is older than this centroidctl");
  return files;
}

/// Checksum of an existing file, cut to `bytes` at most.
Result<std::uint32_t> checksum(const fs::path& path, std::uint64_t& bytes) {
  CENTROID_ASSIGN(const auto about, file::attributes_of(path));
  bytes = about ? about->bytes : 0;
  return file_crc32c(path);
}

/// Continues the file of an earlier call. fails as `ask`; data_loss: it differs from the server's
Status fetch(const Session& session, const std::string& url, const RequestedFile& file,
             const fs::path& path) {
  std::uint64_t at = 0;
  std::uint32_t crc = 0;
  if (file::exists(path)) {
    CENTROID_ASSIGN(crc, checksum(path, at));
    if (at > file.bytes) {
      CENTROID_TRY(file::remove(path));
      at = 0, crc = 0;
    }
  }
  CENTROID_ASSIGN(file::Descriptor out, file::open_to_append(path));
  while (at < file.bytes) {
    const std::uint64_t count = std::min(kPiece, file.bytes - at);
    const std::string where = url + "/" + file.name;
    CENTROID_ASSIGN(const Answer answer, request_part(session.remote, where, at, count));
    if (!answer.is_success()) return Error(ErrorCode::kFailedPrecondition, explain(answer));
    if (answer.body.size() != count)
      return Error(ErrorCode::kDataLoss, where + ": " + std::to_string(answer.body.size()) +
                                             " bytes received, " + std::to_string(count) +
                                             " requested");
    const Bytes piece = std::as_bytes(std::span(answer.body)), half = piece.first(count / 2);
    CENTROID_TRY(file::write_all(out, path, half));
    fault::point("fetch.piece_torn");
    CENTROID_TRY(file::write_all(out, path, piece.subspan(half.size())));
    fault::point("fetch.piece_written");
    crc = crc32c(piece, crc);
    at += count;
  }
  if (crc == file.crc32c) {
    CENTROID_TRY(file::sync(out, path));
    CENTROID_TRY(file::close(std::move(out), path));
    fault::point("fetch.file_synced");
    return {};
  }
  (void)file::remove(path);
  return Error(
      ErrorCode::kDataLoss,
      path.string() +
          ": CRC-32C differs from the server's; the local copy is removed, fetch it again");
}

Status get(const Session& session, std::uint64_t version, const fs::path& folder,
           fs::path& target) {
  const std::string url = "/v1/checkpoints/" + std::to_string(version) + "/files";
  char name[40];
  std::snprintf(name, sizeof name, "checkpoint-%012" PRIu64, version);
  target = folder / name;
  if (file::exists(target))
    return Error(ErrorCode::kAlreadyExists, target.string() + " is there already");
  CENTROID_ASSIGN(const auto files, files_of(session, url));
  const fs::path begun = folder / (std::string(".") + name + ".part");
  std::error_code failed;
  file::create_directories(begun, failed);
  if (failed) return Error(ErrorCode::kInvalidArgument, begun.string() + ": " + failed.message());
  for (const RequestedFile& file : files)
    CENTROID_TRY(fetch(session, url, file, begun / file.name));
  CENTROID_TRY(
      file::sync_directory(begun));  // the final name implies that all of it is on the disk
  fault::point("fetch.all_there");
  CENTROID_TRY(file::rename(begun, target));
  fault::point("fetch.renamed");
  return file::sync_directory(folder);
}

/// fails not_found: the server has no sound one
Result<std::uint64_t> newest_version(const Session& session) {
  CENTROID_ASSIGN(const Json answer, get_json(session, "/v1/checkpoints"));
  for (const Json& one : answer.value("checkpoints", Json::array()))  // newest first
    if (text_of(one, "problem").empty()) return one.value("version", std::uint64_t{0});
  return Error(ErrorCode::kNotFound,
               "the server has no checkpoint yet: centroidctl checkpoints make writes one");
}

/// It may be deleted between the listing and the first piece, because a newer one exists.
Status get_newest(const Session& session, const fs::path& folder, fs::path& target) {
  Status done;
  for (int tries = 0; tries < kTries; ++tries) {
    CENTROID_ASSIGN(const std::uint64_t version, newest_version(session));
    done = get(session, version, folder, target);
    if (done.ok() || done.error().code() != ErrorCode::kNotFound) break;
  }
  return done;
}

}  // namespace

void add_get(CLI::App& group, const std::shared_ptr<Session>& session, int& status) {
  CLI::App* const command =
      group.add_subcommand("get",
                           "Fetch one from the server, completely or not at all. A repeated call "
                           "continues an interrupted one.");
  const auto version = std::make_shared<std::optional<std::uint64_t>>();
  const auto folder = std::make_shared<std::string>();
  command->add_option("VERSION", *version, "its version; else the newest");
  command->add_option("--to", *folder, "folder in which checkpoint-VERSION is made")->required();
  command->callback([=, &status] {
    fs::path target;
    const Status done = *version ? get(*session, **version, *folder, target)
                                 : get_newest(*session, *folder, target);
    if (!done.ok()) {
      status = complain(done.error());
      return;
    }
    Json out;
    out["path"] = target.string();
    status = print(*session, out, target.string());
  });
}

}  // namespace centroid::client
