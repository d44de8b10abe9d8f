#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace centroid::server {

template <class T>
class View;  // server/api/schema.h

/// One requested change, and its outcome.
struct AuditEntry {
  std::uint64_t number = 0;  ///< grows by one, also over restarts
  double unix_seconds = 0;
  std::string caller, role, address;  ///< name of the token, not the token; host:port
  /// As sent, except values of refused settings; all are shortened, the body to 1 KiB.
  std::string method, path, body;
  std::string request_id;
  unsigned status = 0;
  std::string outcome;  ///< "ok", or the problem's detail
  std::string server;   ///< the called one, of several; empty: there is one
};
View<AuditEntry> describe(const AuditEntry*);

/// Changes in a file of JSON lines, append-only and synced after each line, and refused requests in
/// another (audit-refused.jsonl beside audit.jsonl): so nobody's refused requests displace a
/// change. At `rotate_bytes` a file becomes FILE.1, that FILE.2 and so on up to FILE.4. Several
/// servers may share the files: each appends under a lock (FILE.lock), after the lines of others,
/// so that numbers and lines are in one order.
///
/// thread  any; all but `newest_first` wait for the disk
/// bounds  five files of each kind; the newest 1000 entries of each in memory, read back at the
///         start
class AuditLog {
 public:
  /// `path` empty: in memory only. `server` is recorded in its entries.
  /// fails  failed_precondition: the file cannot be read or written
  static Result<std::unique_ptr<AuditLog>> open(std::string path, std::string server = {},
                                                std::uint64_t rotate_bytes = 8u << 20);

  /// Assigns the entry's number. If the disk fails it stays in memory. `is_patient`: no effect
  /// while another server has the lock.
  /// fails  aborted (then); failed_precondition: the disk
  Status append(AuditEntry entry, bool is_patient = false);
  /// Read what other servers have written since.
  /// fails  failed_precondition
  Status refresh();
  std::vector<AuditEntry> newest_first() const;
  /// Of all files after the last line that this server wrote, and the most that they may have.
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t limit_bytes() const;

 private:
  AuditLog(std::string path, std::string server, std::uint64_t rotate_bytes);
  /// The files of one kind of entries.
  struct Kind {
    std::string path;
    std::uint64_t file = 0, read = 0;  ///< inode of the last file read, and position
    std::deque<AuditEntry> entries;
  };
  Kind& kind_of(const AuditEntry& entry);
  Status write(const Kind& kind, const std::string& line, bool may_rotate);
  Status read_on();
  Status read_on(Kind& kind);
  void read_file(Kind& kind, const std::string& path, std::uint64_t from);
  void remember(Kind& kind, AuditEntry entry);
  void measure();

  const std::string server_;
  const std::uint64_t rotate_bytes_;
  std::atomic<std::uint64_t> bytes_{0};
  std::mutex file_mutex_;  ///< held during file operations
  std::uint64_t next_ = 1;
  mutable std::mutex mutex_;  ///< of the entries; held briefly
  Kind changes_, refused_;
};

}  // namespace centroid::server
