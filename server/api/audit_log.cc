#include "server/api/audit_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>

#include <nlohmann/json.hpp>

#include "common/base/os_error.h"
#include "server/tokens/file_lock.h"

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
  if (!entry.server.empty()) json["server"] = entry.server;
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
    entry.server = json.value("server", "");
  } catch (const Json::exception&) {
    return false;
  }
  return true;
}

Error failure(const std::string& path, const char* doing) {
  return {code_of_os_error(errno), "audit log " + path + ": " + doing + ": " +
                                       std::strerror(errno) +
                                       " (look at the disk and the rights of run_dir)"};
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

/// Of a file; 0: there is none.
std::uint64_t inode_of(const std::string& path) {
  struct stat about{};
  return ::stat(path.c_str(), &about) == 0 ? about.st_ino : 0;
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  const int fd_;
};

std::string old_file(const std::string& path, int number) {
  return number == 0 ? path : path + "." + std::to_string(number);
}

}  // namespace

AuditLog::AuditLog(std::string path, std::string server, std::uint64_t rotate_bytes)
    : path_(std::move(path)), server_(std::move(server)), rotate_bytes_(rotate_bytes) {}

Result<std::unique_ptr<AuditLog>> AuditLog::open(std::string path, std::string server,
                                                 std::uint64_t rotate_bytes) {
  std::unique_ptr<AuditLog> log(new AuditLog(std::move(path), std::move(server), rotate_bytes));
  if (log->path_.empty()) return log;
  const Descriptor file(::open(log->path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (file.get() < 0) return failure(log->path_, "cannot be written");
  log->read_file(old_file(log->path_, 1), 0);
  CENTROID_TRY(log->read_on());
  return log;
}

void AuditLog::remember(AuditEntry entry) {
  next_ = std::max(next_, entry.number + 1);
  const std::scoped_lock lock(mutex_);
  entries_.push_back(std::move(entry));
  if (entries_.size() > kKept) entries_.pop_front();
}

/// The whole lines of a file behind `from`; `file_` and `read_` say how far that is.
void AuditLog::read_file(const std::string& path, std::uint64_t from) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return;
  const std::uint64_t inode = inode_of(path);
  file.seekg(static_cast<std::streamoff>(from));
  std::string line;
  // A line that ends with the file and not with '\n' is being written, or was cut short.
  while (std::getline(file, line) && !file.eof()) {
    from += line.size() + 1;
    AuditEntry entry;
    if (line.size() <= kMaxLine && parse(line, entry)) remember(std::move(entry));
  }
  file_ = inode;
  read_ = from;
}

/// What has been written since, also to files that have been rotated away.
Status AuditLog::read_on() {
  const std::uint64_t now = inode_of(path_);
  if (now == 0 && errno != ENOENT) return failure(path_, "cannot be read");
  if (now == 0) return {};
  if (file_ != 0 && file_ != now) {
    int number = 1;
    while (number <= kOldFiles && inode_of(old_file(path_, number)) != file_) ++number;
    if (number <= kOldFiles) read_file(old_file(path_, number), read_);
    for (int newer = std::min(number, kOldFiles + 1) - 1; newer >= 1; --newer)
      read_file(old_file(path_, newer), 0);
  }
  read_file(path_, file_ == now ? read_ : 0);
  return {};
}

void AuditLog::rotate() {
  for (int number = kOldFiles - 1; number >= 0; --number)
    (void)std::rename(old_file(path_, number).c_str(), old_file(path_, number + 1).c_str());
}

Status AuditLog::write(const std::string& line, bool may_rotate) {
  constexpr int kFlags = O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC;
  struct stat about{};
  if (may_rotate && ::stat(path_.c_str(), &about) == 0 && about.st_size > 0 &&
      static_cast<std::uint64_t>(about.st_size) + line.size() > rotate_bytes_)
    rotate();
  const Descriptor file(::open(path_.c_str(), kFlags, 0600));
  if (file.get() < 0 || ::fstat(file.get(), &about) != 0)
    return failure(path_, "cannot be written");
  char last = '\n';  // what a crash or a full disk cut short stays a line of its own
  if (about.st_size > 0 && ::pread(file.get(), &last, 1, about.st_size - 1) != 1)
    return failure(path_, "cannot be read");
  if (!write_all(file.get(), last == '\n' ? line : "\n" + line) || ::fdatasync(file.get()) != 0)
    return failure(path_, "cannot be written");
  return {};
}

Status AuditLog::append(AuditEntry entry, bool is_patient) {
  const std::scoped_lock file(file_mutex_);
  entry.server = server_;
  if (entry.body.size() > kMaxBody) entry.body.resize(kMaxBody);
  std::optional<FileLock> lock;
  Status written;
  if (!path_.empty()) {
    auto taken = FileLock::try_take(path_ + ".lock");
    if (!taken.ok()) written = taken.error();
    if (taken.ok() && *taken) lock.emplace(std::move(**taken));
    if (taken.ok() && !lock && is_patient)
      return Error(ErrorCode::kAborted, "audit log: another server holds " + path_ + ".lock");
    const Status seen = read_on();  // numbers go on from those of others
    if (written.ok()) written = seen;
  }
  entry.number = next_;
  // Without the lock the line is written all the same: it is worth more than its number.
  if (!path_.empty()) {
    const Status line = write(line_of(entry), lock.has_value());
    if (line.ok()) (void)read_on();
    if (!line.ok()) written = line;
  }
  if (next_ == entry.number) remember(std::move(entry));  // not read back
  return written;
}

Status AuditLog::refresh() {
  const std::scoped_lock lock(file_mutex_);
  return path_.empty() ? Status() : read_on();
}

std::vector<AuditEntry> AuditLog::newest_first() const {
  const std::scoped_lock lock(mutex_);
  return {entries_.rbegin(), entries_.rend()};
}

}  // namespace centroid::server
