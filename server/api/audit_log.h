#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace centroid::server {

/// One change that somebody asked for, and what became of it.
struct AuditEntry {
  std::uint64_t number = 0;  ///< grows by one, also over restarts
  double unix_seconds = 0;
  std::string who, role, address;  ///< name of the token, not the token; host:port
  std::string method, path, body;  ///< as sent; the body cut to 1 KiB
  std::string request_id;
  unsigned status = 0;
  std::string outcome;  ///< "ok", or the problem's detail
};

/// Changes in a file of JSON lines that is only appended to and synchronised after each line. At
/// `rotate_bytes` it becomes FILE.1, that FILE.2 and so on up to FILE.4.
///
/// thread  any; `append` waits for the disk
/// bounds  five files; the newest 1000 entries in memory, read back at the start
class AuditLog {
 public:
  /// `path` empty: in memory only. fails failed_precondition: the file cannot be read or written
  static Result<std::unique_ptr<AuditLog>> open(std::string path,
                                                std::uint64_t rotate_bytes = 8u << 20);
  ~AuditLog();
  AuditLog(const AuditLog&) = delete;
  AuditLog& operator=(const AuditLog&) = delete;

  /// Gives the entry its number. When the disk fails it is kept in memory all the same.
  Status append(AuditEntry entry);
  std::vector<AuditEntry> newest_first() const;

 private:
  AuditLog(std::string path, std::uint64_t rotate_bytes);
  Status load();
  Status open_file();
  Status rotate();

  const std::string path_;
  const std::uint64_t rotate_bytes_;
  mutable std::mutex mutex_;
  std::deque<AuditEntry> entries_;
  std::uint64_t next_ = 1, bytes_ = 0;
  int fd_ = -1;
};

}  // namespace centroid::server
