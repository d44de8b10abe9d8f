#include "server/api/audit_log.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>

#include "common/storage/file.h"
#include "server/api/schema.h"
#include "server/tokens/file_lock.h"
#include "server/tokens/private_file.h"

namespace centroid::server {

namespace {

constexpr std::size_t kKept = 1000, kMaxBody = 1024, kMaxLine = 64 * 1024;
constexpr int kOldFiles = 4;

std::string line_of(const AuditEntry& entry) {
  Json json = view_of<AuditEntry>().to_json(entry);
  if (entry.server.empty()) json.erase("server");
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

/// False for a line of another form, such as one that a crash cut short.
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

Error failure(const std::string& path, const char* doing, const Error& why) {
  return private_file_error("audit log " + path + ": " + doing, why);
}

/// Of a file; 0: it is missing.
Result<std::uint64_t> inode_of(const std::string& path) {
  CENTROID_ASSIGN(const auto about, file::attributes_of(path));
  return about ? about->inode : 0;
}

bool is_inode_of(const std::string& path, std::uint64_t inode) {
  const auto found = inode_of(path);
  return found.ok() && *found == inode;
}

/// A file from byte `from` on, and its inode.
struct Tail {
  std::string text;
  std::uint64_t inode = 0;
};

Result<Tail> read_tail(const std::string& path, std::uint64_t from) {
  CENTROID_ASSIGN(const file::Descriptor file, file::open_regular(path));
  CENTROID_ASSIGN(const auto about, file::attributes_of(file, path));
  Tail tail;
  tail.inode = about.inode;
  tail.text.resize(about.bytes - std::min(about.bytes, from));
  CENTROID_TRY(file::read_at(file, path, from, std::as_writable_bytes(std::span(tail.text))));
  return tail;
}

std::string old_file(const std::string& path, int number) {
  return number == 0 ? path : path + "." + std::to_string(number);
}

}  // namespace

View<AuditEntry> describe(const AuditEntry*) {
  using V = AuditEntry;
  return {"AuditEntry",
          "A change that a client requested.",
          {{"number", &V::number, "Grows by one.", least(1)},
           {"unix_seconds", &V::unix_seconds, "When it was answered."},
           {"who", &V::who, "Name of the token; `local` where no token is required."},
           {"role", &V::role, "Its role."},
           {"address", &V::address, "host:port of the client."},
           {"method", &V::method, "HTTP method."},
           {"path", &V::path, "Path as sent."},
           {"body", &V::body, "Body as sent, cut to 1 KiB."},
           {"request_id", &V::request_id, "Its X-Request-Id."},
           {"status", &V::status, "HTTP status of the answer.", least(100)},
           {"outcome", &V::outcome, "`ok`, or the detail of the problem document."},
           {"server", &V::server,
            "The server that was called, of several with one `run_dir`; empty: there is one."}}};
}

AuditLog::AuditLog(std::string path, std::string server, std::uint64_t rotate_bytes)
    : path_(std::move(path)), server_(std::move(server)), rotate_bytes_(rotate_bytes) {}

Result<std::unique_ptr<AuditLog>> AuditLog::open(std::string path, std::string server,
                                                 std::uint64_t rotate_bytes) {
  std::unique_ptr<AuditLog> log(new AuditLog(std::move(path), std::move(server), rotate_bytes));
  if (log->path_.empty()) return log;
  const auto file = file::open_to_append(log->path_, kPrivateMode);
  if (!file.ok()) return failure(log->path_, "cannot be written", file.error());
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

/// Read the complete lines of a file from `from` on; `file_` and `read_` are the new position.
void AuditLog::read_file(const std::string& path, std::uint64_t from) {
  const auto tail = read_tail(path, from);
  if (!tail.ok()) return;
  std::string_view left = tail->text;
  // A last line without '\n' is being written, or was cut short.
  for (auto end = left.find('\n'); end != std::string_view::npos; end = left.find('\n')) {
    const std::string line(left.substr(0, end));
    left.remove_prefix(end + 1);
    AuditEntry entry;
    if (line.size() <= kMaxLine && parse(line, entry)) remember(std::move(entry));
  }
  file_ = tail->inode;
  read_ = from + (tail->text.size() - left.size());
}

/// Read what was written since, also to files that have been rotated away.
Status AuditLog::read_on() {
  const auto found = inode_of(path_);
  if (!found.ok()) return failure(path_, "cannot be read", found.error());
  const std::uint64_t now = *found;
  if (now == 0) return {};
  if (file_ != 0 && file_ != now) {
    int number = 1;
    while (number <= kOldFiles && !is_inode_of(old_file(path_, number), file_)) ++number;
    if (number <= kOldFiles) read_file(old_file(path_, number), read_);
    for (int newer = std::min(number, kOldFiles + 1) - 1; newer >= 1; --newer)
      read_file(old_file(path_, newer), 0);
  }
  read_file(path_, file_ == now ? read_ : 0);
  return {};
}

void AuditLog::rotate() {
  for (int number = kOldFiles - 1; number >= 0; --number)
    (void)file::rename(old_file(path_, number), old_file(path_, number + 1));
}

Status AuditLog::write(const std::string& line, bool may_rotate) {
  const auto before = file::attributes_of(path_);
  const std::uint64_t bytes = before.ok() && *before ? (*before)->bytes : 0;
  if (may_rotate && bytes > 0 && bytes + line.size() > rotate_bytes_) rotate();
  const auto append_line = [&]() -> Status {
    CENTROID_ASSIGN(const file::Descriptor file, file::open_to_append(path_, kPrivateMode));
    CENTROID_ASSIGN(const std::uint64_t end, file::size_of(file, path_));
    char last = '\n';  // a line that a crash or a full disk cut short stays separate
    if (end > 0)
      CENTROID_TRY(
          file::read_at(file, path_, end - 1, std::as_writable_bytes(std::span(&last, 1))));
    const std::string text = last == '\n' ? line : "\n" + line;
    CENTROID_TRY(file::write_all(file, path_, std::as_bytes(std::span(text))));
    return file::sync_data(file, path_);
  };
  const Status appended = append_line();
  if (!appended.ok()) return failure(path_, "cannot be written", appended.error());
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
      return Error(ErrorCode::kAborted, "audit log: another server has locked " + path_ + ".lock");
    const Status seen = read_on();  // numbers continue those of others
    if (written.ok()) written = seen;
  }
  entry.number = next_;
  // Without the lock the line is still written: it is worth more than its number.
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
