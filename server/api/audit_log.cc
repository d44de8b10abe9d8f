#include "server/api/audit_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include <nlohmann/json.hpp>

namespace centroid::server {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kKept = 1000, kMaxBody = 1024, kMaxLine = 64 * 1024;
constexpr int kOldFiles = 4;

std::string line_of(const AuditEntry& entry) {
  Json json;
  json["number"] = entry.number;
  json["unix_seconds"] = entry.unix_seconds;
  json["who"] = entry.who;
  json["role"] = entry.role;
  json["address"] = entry.address;
  json["method"] = entry.method;
  json["path"] = entry.path;
  json["body"] = entry.body;
  json["request_id"] = entry.request_id;
  json["status"] = entry.status;
  json["outcome"] = entry.outcome;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

/// False for a line that is none of ours, such as one that a crash cut short.
bool parse(const std::string& line, AuditEntry& entry) {
  const Json json = Json::parse(line, nullptr, false);
  if (!json.is_object()) return false;
  try {
    entry.number = json.at("number");
    entry.unix_seconds = json.at("unix_seconds");
    entry.who = json.at("who");
    entry.role = json.at("role");
    entry.address = json.at("address");
    entry.method = json.at("method");
    entry.path = json.at("path");
    entry.body = json.at("body");
    entry.request_id = json.at("request_id");
    entry.status = json.at("status");
    entry.outcome = json.at("outcome");
  } catch (const Json::exception&) {
    return false;
  }
  return true;
}

Error failure(const std::string& path, const char* doing) {
  return {ErrorCode::kFailedPrecondition,
          "audit log " + path + ": " + doing + ": " + std::strerror(errno)};
}

bool write_all(int fd, const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t n = ::write(fd, text.data() + at, text.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace

AuditLog::AuditLog(std::string path, std::uint64_t rotate_bytes)
    : path_(std::move(path)), rotate_bytes_(rotate_bytes) {}

AuditLog::~AuditLog() {
  if (fd_ >= 0) ::close(fd_);
}

Result<std::unique_ptr<AuditLog>> AuditLog::open(std::string path, std::uint64_t rotate_bytes) {
  std::unique_ptr<AuditLog> log(new AuditLog(std::move(path), rotate_bytes));
  if (log->path_.empty()) return log;
  CENTROID_TRY(log->load());
  CENTROID_TRY(log->open_file());
  return log;
}

Status AuditLog::load() {
  for (const std::string& path : {path_ + ".1", path_}) {
    std::ifstream file(path, std::ios::binary);
    std::string line;
    while (std::getline(file, line)) {
      AuditEntry entry;
      if (line.size() > kMaxLine || !parse(line, entry)) continue;
      next_ = std::max(next_, entry.number + 1);
      entries_.push_back(std::move(entry));
      if (entries_.size() > kKept) entries_.pop_front();
    }
    if (file.bad()) return failure(path, "cannot be read");
  }
  return {};
}

Status AuditLog::open_file() {
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  struct stat about{};
  if (fd_ < 0 || ::fstat(fd_, &about) != 0) return failure(path_, "cannot be written");
  bytes_ = static_cast<std::uint64_t>(about.st_size);
  char last = '\n';
  if (bytes_ > 0 && ::pread(fd_, &last, 1, about.st_size - 1) == 1 && last != '\n' &&
      !write_all(fd_, "\n"))  // what a crash cut short stays a line of its own
    return failure(path_, "cannot be written");
  return {};
}

Status AuditLog::rotate() {
  ::close(fd_);
  fd_ = -1;
  for (int number = kOldFiles - 1; number >= 0; --number) {
    const std::string from = number == 0 ? path_ : path_ + "." + std::to_string(number);
    (void)std::rename(from.c_str(), (path_ + "." + std::to_string(number + 1)).c_str());
  }
  return open_file();
}

Status AuditLog::append(AuditEntry entry) {
  const std::scoped_lock lock(mutex_);
  entry.number = next_++;
  if (entry.body.size() > kMaxBody) entry.body.resize(kMaxBody);
  const std::string line = line_of(entry);
  entries_.push_back(std::move(entry));
  if (entries_.size() > kKept) entries_.pop_front();
  if (path_.empty()) return {};
  if (fd_ < 0) CENTROID_TRY(open_file());  // the last rotation failed half-way
  if (bytes_ > 0 && bytes_ + line.size() > rotate_bytes_) CENTROID_TRY(rotate());
  if (!write_all(fd_, line) || ::fdatasync(fd_) != 0) return failure(path_, "cannot be written");
  bytes_ += line.size();
  return {};
}

std::vector<AuditEntry> AuditLog::newest_first() const {
  const std::scoped_lock lock(mutex_);
  return {entries_.rbegin(), entries_.rend()};
}

}  // namespace centroid::server
