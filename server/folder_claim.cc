#include "server/folder_claim.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "common/base/log.h"
#include "common/base/rights.h"
#include "common/storage/file.h"

namespace centroid::server {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kMaxHolder = 300;

std::string myself() {
  char host[256] = {};
  if (::gethostname(host, sizeof host - 1) != 0) host[0] = '?';
  return "process " + std::to_string(::getpid()) + " on " + host;
}

/// As it wrote into the file; it may have written nothing yet.
std::string holder_in(const fs::path& path) {
  const auto text = file::read_text(path);
  std::string line = text.ok() ? text->substr(0, text->find('\n')) : std::string();
  line.resize(std::min(line.size(), kMaxHolder));
  return line.empty() ? "another process" : line;
}

/// Only where rights are what is missing.
std::string who_may(const std::string& path, const std::error_code& failed) {
  return failed == std::errc::permission_denied ? " (" + rights_text(path) + ")" : "";
}

std::string advice(const std::string& setting) {
  return ": give this server's user that folder, or set " + setting + " to one that it may write";
}

}  // namespace

Status make_folder(const std::string& setting, const std::string& folder) {
  std::error_code failed;
  file::create_directories(folder, failed);
  if (!failed) return {};
  return Error(ErrorCode::kFailedPrecondition, setting + " " + folder +
                                                   ": cannot be created: " + failed.message() +
                                                   who_may(folder, failed) + advice(setting));
}

Status FolderClaim::take(const std::string& setting, const std::string& folder) {
  CENTROID_TRY(make_folder(setting, folder));
  CENTROID_ASSIGN(const auto about, file::attributes_of(fs::path(folder)));
  if (!about) return Error(ErrorCode::kUnavailable, setting + " " + folder + ": it is gone");
  const std::pair whole(about->device, about->inode);
  if (std::ranges::find(folders_, whole) != folders_.end()) return {};
  const fs::path path = fs::path(folder) / kFile;
  auto lock = FileLock::try_take(path.string());
  if (!lock.ok() && lock.error().code() == ErrorCode::kUnimplemented) {
    log::warn("server.lock_failed",
              {{"folder", folder},
               {"why", lock.error()},
               {"note", "see to it that no second server is started on this folder"}});
    return {};
  }
  if (!lock.ok())
    return Error(lock.error().code(),
                 setting + " " + folder + ": " + lock.error().message() + advice(setting));
  if (!*lock)
    return Error(ErrorCode::kUnavailable,
                 setting + " " + folder + " is another server's: " + holder_in(path) + " holds " +
                     path.string() +
                     ". End that one first (a stopped one, too: it would go on with the same job), "
                     "or give this one folders of its own");
  (void)file::write_text(path, myself() + "\n", 0600);  // for whoever is refused
  folders_.push_back(whole);
  locks_.push_back(*std::move(*lock));
  return {};
}

}  // namespace centroid::server
