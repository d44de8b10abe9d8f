#pragma once

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

/// One change that somebody asked for, and what became of it.
struct AuditEntry {
  std::uint64_t number = 0;  ///< grows by one, also over restarts
  double unix_seconds = 0;
  std::string who, role, address;  ///< name of the token, not the token; host:port
  /// As sent, but for values of settings that were refused; the body cut to 1 KiB.
  std::string method, path, body;
  std::string request_id;
  unsigned status = 0;
  std::string outcome;  ///< "ok", or the problem's detail
  std::string server;   ///< which one was asked, of several; empty: there is one
};
View<AuditEntry> describe(const AuditEntry*);

/// Changes in a file of JSON lines that is only appended to and synchronised after each line. At
/// `rotate_bytes` it becomes FILE.1, that FILE.2 and so on up to FILE.4. Several servers may have
/// one file: each appends under a lock (FILE.lock), behind what the others have written, so that
/// numbers and lines are in one order.
///
/// thread  any; all but `newest_first` wait for the disk
/// bounds  five files; the newest 1000 entries in memory, read back at the start
class AuditLog {
 public:
  /// `path` empty: in memory only. `server` stands in its entries.
  /// fails  failed_precondition: the file cannot be read or written
  static Result<std::unique_ptr<AuditLog>> open(std::string path, std::string server = {},
                                                std::uint64_t rotate_bytes = 8u << 20);

  /// Gives the entry its number. When the disk fails it is kept in memory all the same.
  /// `is_patient`: while another server has the lock nothing is done.
  /// fails  aborted (then); failed_precondition: the disk
  Status append(AuditEntry entry, bool is_patient = false);
  /// Take what other servers have written since.
  /// fails  failed_precondition
  Status refresh();
  std::vector<AuditEntry> newest_first() const;

 private:
  AuditLog(std::string path, std::string server, std::uint64_t rotate_bytes);
  Status write(const std::string& line, bool may_rotate);
  Status read_on();
  void read_file(const std::string& path, std::uint64_t from);
  void rotate();
  void remember(AuditEntry entry);

  const std::string path_, server_;
  const std::uint64_t rotate_bytes_;
  std::mutex file_mutex_;  ///< held while files are read or written
  std::uint64_t next_ = 1;
  std::uint64_t file_ = 0, read_ = 0;  ///< which file was read last (inode), how far
  mutable std::mutex mutex_;           ///< held for a moment
  std::deque<AuditEntry> entries_;
};

}  // namespace centroid::server
