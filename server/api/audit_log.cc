#include "server/api/audit_log.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>

#include "common/storage/file.h"
#include "server/api/schema.h"
#include "server/tokens/file_lock.h"
#include "server/tokens/private_file.h"
#include "transport/stranger_budget.h"

namespace centroid::server {

namespace {

constexpr std::size_t kKept = 1000, kMaxBody = 1024, kMaxLine = 64 * 1024;
constexpr std::size_t kMaxMethod = 16, kMaxPath = 256, kMaxOutcome = 1024;
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
    entry.caller =
        json.contains("caller") ? json.at("caller") : json.at("who");  // of earlier versions
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
           {"caller", &V::caller, "Name of the token; `local` where no token is required."},
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
    : server_(std::move(server)), rotate_bytes_(rotate_bytes) {
  const std::string stem = path.substr(0, path.rfind('.'));
  if (!path.empty()) refused_.path = stem + "-refused" + path.substr(stem.size());
  changes_.path = std::move(path);
}

Result<std::unique_ptr<AuditLog>> AuditLog::open(std::string path, std::string server,
                                                 std::uint64_t rotate_bytes) {
  std::unique_ptr<AuditLog> log(new AuditLog(std::move(path), std::move(server), rotate_bytes));
  const std::string& file = log->changes_.path;
  if (file.empty()) return log;
  const auto opened = file::open_to_append(file, kPrivateMode);
  if (!opened.ok()) return failure(file, "cannot be written", opened.error());
  for (Kind* const kind : {&log->changes_, &log->refused_})
    log->read_file(*kind, old_file(kind->path, 1), 0);
  CENTROID_TRY(log->read_on());
  log->measure();
  return log;
}

AuditLog::Kind& AuditLog::kind_of(const AuditEntry& entry) {
  return entry.status < 400 ? changes_ : refused_;
}

void AuditLog::remember(Kind& kind, AuditEntry entry) {
  next_ = std::max(next_, entry.number + 1);
  const std::scoped_lock lock(mutex_);
  kind.entries.push_back(std::move(entry));
  if (kind.entries.size() > kKept) kind.entries.pop_front();
}

/// Read the complete lines of a file from `from` on, which is the new position.
void AuditLog::read_file(Kind& kind, const std::string& path, std::uint64_t from) {
  const auto tail = read_tail(path, from);
  if (!tail.ok()) return;
  std::string_view left = tail->text;
  // A last line without '\n' is being written, or was cut short.
  for (auto end = left.find('\n'); end != std::string_view::npos; end = left.find('\n')) {
    const std::string line(left.substr(0, end));
    left.remove_prefix(end + 1);
    AuditEntry entry;
    if (line.size() <= kMaxLine && parse(line, entry)) remember(kind, std::move(entry));
  }
  kind.file = tail->inode;
  kind.read = from + (tail->text.size() - left.size());
}

/// Read what was written since, also to files that have been rotated away.
Status AuditLog::read_on() {
  CENTROID_TRY(read_on(refused_));
  return read_on(changes_);
}

Status AuditLog::read_on(Kind& kind) {
  const auto found = inode_of(kind.path);
  if (!found.ok()) return failure(kind.path, "cannot be read", found.error());
  const std::uint64_t now = *found;
  if (now == 0) return {};
  if (kind.file != 0 && kind.file != now) {
    int number = 1;
    while (number <= kOldFiles && !is_inode_of(old_file(kind.path, number), kind.file)) ++number;
    if (number <= kOldFiles) read_file(kind, old_file(kind.path, number), kind.read);
    for (int newer = std::min(number, kOldFiles + 1) - 1; newer >= 1; --newer)
      read_file(kind, old_file(kind.path, newer), 0);
  }
  read_file(kind, kind.path, kind.file == now ? kind.read : 0);
  return {};
}

Status AuditLog::write(const Kind& kind, const std::string& line, bool may_rotate) {
  const std::string& path = kind.path;
  const auto before = file::attributes_of(path);
  const std::uint64_t bytes = before.ok() && *before ? (*before)->bytes : 0;
  if (may_rotate && bytes > 0 && bytes + line.size() > rotate_bytes_) {
    for (int number = kOldFiles - 1; number >= 0; --number)
      (void)file::rename(old_file(path, number), old_file(path, number + 1));
  }
  const auto append_line = [&]() -> Status {
    CENTROID_ASSIGN(const file::Descriptor file, file::open_to_append(path, kPrivateMode));
    CENTROID_ASSIGN(const std::uint64_t end, file::size_of(file, path));
    char last = '\n';  // a line that a crash or a full disk cut short stays separate
    if (end > 0)
      CENTROID_TRY(file::read_at(file, path, end - 1, std::as_writable_bytes(std::span(&last, 1))));
    const std::string text = last == '\n' ? line : "\n" + line;
    CENTROID_TRY(file::write_all(file, path, std::as_bytes(std::span(text))));
    return file::sync_data(file, path);
  };
  const Status appended = append_line();
  if (!appended.ok()) return failure(path, "cannot be written", appended.error());
  return {};
}

std::uint64_t AuditLog::limit_bytes() const { return 2 * (kOldFiles + 1) * rotate_bytes_; }

void AuditLog::measure() {
  std::uint64_t bytes = 0;
  for (const Kind* const kind : {&changes_, &refused_})
    for (int number = 0; number <= kOldFiles; ++number) {
      const auto file = file::attributes_of(old_file(kind->path, number));
      if (file.ok() && *file) bytes += (*file)->bytes;
    }
  bytes_ = bytes;
}

Status AuditLog::append(AuditEntry entry, bool is_patient) {
  const std::scoped_lock file(file_mutex_);
  entry.server = server_;
  if (entry.body.size() > kMaxBody) entry.body.resize(kMaxBody);
  entry.method = transport::shortened(entry.method, kMaxMethod);
  entry.path = transport::shortened(entry.path, kMaxPath);
  entry.outcome = transport::shortened(entry.outcome, kMaxOutcome);
  Kind& kind = kind_of(entry);
  std::optional<FileLock> lock;
  Status written;
  if (!kind.path.empty()) {
    const std::string lock_path = changes_.path + ".lock";
    auto taken = FileLock::try_take(lock_path);
    if (!taken.ok()) written = taken.error();
    if (taken.ok() && *taken) lock.emplace(std::move(**taken));
    if (taken.ok() && !lock && is_patient)
      return Error(ErrorCode::kAborted, "audit log: another server has locked " + lock_path);
    const Status seen = read_on();  // numbers continue those of others
    if (written.ok()) written = seen;
  }
  entry.number = next_;
  // Without the lock the line is still written: it is worth more than its number.
  if (!kind.path.empty()) {
    const Status line = write(kind, line_of(entry), lock.has_value());
    if (line.ok()) (void)read_on();
    measure();
    if (!line.ok()) written = line;
  }
  if (next_ == entry.number) remember(kind, std::move(entry));  // not read back
  return written;
}

Status AuditLog::refresh() {
  const std::scoped_lock lock(file_mutex_);
  return changes_.path.empty() ? Status() : read_on();
}

std::vector<AuditEntry> AuditLog::newest_first() const {
  const std::scoped_lock lock(mutex_);
  std::vector<AuditEntry> all(changes_.entries.rbegin(), changes_.entries.rend());
  const auto middle = static_cast<std::ptrdiff_t>(all.size());
  all.insert(all.end(), refused_.entries.rbegin(), refused_.entries.rend());
  std::inplace_merge(all.begin(), all.begin() + middle, all.end(),
                     [](const AuditEntry& a, const AuditEntry& b) { return a.number > b.number; });
  return all;
}

}  // namespace centroid::server
