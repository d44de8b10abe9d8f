#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "server/tokens/digest.h"

namespace centroid::server {

/// What a caller may do; a later one may all that an earlier one may.
enum class Role : std::uint8_t {
  kAnyone,  ///< also without a token
  kViewer,  ///< reads
  kWorker,  ///< reads, and joins the cluster as a worker
  kAdmin,   ///< changes things
};
std::string_view to_string(Role role);
std::optional<Role> parse_role(std::string_view text);  ///< viewer, worker, admin

/// What is told of a token; never its secret.
struct TokenInfo {
  std::string name;
  Role role = Role::kViewer;
  std::string created_by;
  double created_unix_seconds = 0;
  double expires_unix_seconds = 0;  ///< 0: never
};

/// Named tokens, kept in a file of mode 0600 as salted SHA-256 (the secrets are 256 random bits, so
/// that a slow hash would protect nothing). Several servers may have one file: each changes what is
/// in it then, one at a time (a lock on FILE.lock), and takes what others wrote with `refresh`.
///
/// thread  any; `create`, `revoke` and `refresh` wait for the disk, the others do not
/// bounds  at most 1000 tokens
class TokenStore {
 public:
  /// `path` empty: in memory only.
  /// fails  failed_precondition: others can read the file; data_loss: it is not one of ours
  static Result<std::unique_ptr<TokenStore>> open(
      std::string path, std::shared_ptr<const Clock> clock = std::make_shared<SystemClock>());
  ~TokenStore();

  struct Created {
    TokenInfo info;
    std::string secret;  ///< shown once
  };
  /// `lifetime` 0: for ever.
  /// fails  invalid_argument (name), already_exists, resource_exhausted, aborted (another server
  ///        holds the lock now: repeat)
  Result<Created> create(const std::string& name, Role role, std::chrono::seconds lifetime,
                         const std::string& created_by);
  /// fails not_found, aborted
  Status revoke(const std::string& name);
  /// What another server has written since.
  /// fails  as `open`; what was known stays then
  Status refresh();
  std::vector<TokenInfo> list() const;  ///< by name; those that have expired too
  /// Whose secret it is. Takes the same time for every wrong secret of a known token.
  std::optional<TokenInfo> find(std::string_view secret) const;
  /// Of tokens that may do what `least` may, for servers that do not have the file.
  std::vector<TokenDigest> digests(Role least) const;

 private:
  struct Entry;
  TokenStore(std::string path, std::shared_ptr<const Clock> clock);
  Result<std::vector<Entry>> read() const;
  Status reload();
  Status save(std::vector<Entry> entries);

  const std::string path_;
  const std::shared_ptr<const Clock> clock_;
  std::mutex file_mutex_;       ///< held while the file is read or written
  std::uint64_t stamp_ = 0;     ///< of the file that `entries_` are from
  mutable std::mutex mutex_;    ///< held for a moment
  std::vector<Entry> entries_;  ///< changed with both held
};

}  // namespace centroid::server
