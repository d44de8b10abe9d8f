#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/storage/file.h"
#include "server/api/http.h"

namespace centroid::server {

/// Keys of requests and their answers on disk, so that a request that is sent again is not done
/// again although the server was restarted in between. Lines of JSON in a file of mode 0600.
///
/// thread  any; every call waits for the disk
/// bounds  a file of 8 MiB at most when it was opened, the oldest keys go; and 32 MiB until then
class IdempotencyLog {
 public:
  struct Kept {
    std::string key, request;  ///< as IdempotencyTable has them
    double begun_unix_seconds = 0;
    std::optional<HttpResponse> response;  ///< none: the server ended before there was one
  };
  /// `path` empty: nothing is kept. Begins a file that holds what is younger than
  /// `lifetime_seconds`.
  ///
  /// fails  failed_precondition: the file cannot be read or written, or others can read it
  static Result<std::unique_ptr<IdempotencyLog>> open(std::string path, double now_unix_seconds,
                                                      double lifetime_seconds);

  /// What the file held, oldest first; once.
  std::vector<Kept> take_kept() { return std::move(kept_); }

  /// This server's from now on, of those that keep keys in the same folder; else what the other one
  /// has of it. fails aborted: another server claims one at this moment; failed_precondition: the
  /// disk, so nobody else knows of it
  Result<std::optional<Kept>> claim(const std::string& key, const std::string& request,
                                    double unix_seconds);
  Status finish(const std::string& key, const HttpResponse& response);
  Status forget(const std::string& key);

 private:
  explicit IdempotencyLog(std::string path) : path_(std::move(path)) {}
  Status rewrite();
  Status append(const std::string& line);
  Status write_line(const std::string& text);
  std::optional<Kept> find_elsewhere(const std::string& key, double now_unix_seconds) const;

  const std::string path_;
  std::mutex mutex_;
  file::Descriptor file_;
  bool is_cut_ = false;  ///< the last line is not whole
  std::uint64_t bytes_ = 0;
  double lifetime_seconds_ = 0;
  std::vector<Kept> kept_;
};

/// The text of such a file: what it says of each key, oldest first, without what is older than
/// `lifetime_seconds`. Lines that are none of ours are left out. Pure.
std::vector<IdempotencyLog::Kept> parse_idempotency(std::string_view text, double now_unix_seconds,
                                                    double lifetime_seconds);

}  // namespace centroid::server
