#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/async/task.h"
#include "common/base/result.h"
#include "server/election/election.h"

namespace centroid::server {

/// The few calls of etcd that an election needs.
///
/// thread  its executor; one call at a time
/// fails   unavailable when no endpoint answered; failed_precondition when etcd refuses
class Etcd {
 public:
  struct Lease {
    std::int64_t id = 0;
    Duration ttl{};      ///< left; zero: there is no such lease
    Duration granted{};  ///< of `look`
  };

  virtual ~Etcd() = default;
  virtual Task<Result<Lease>> grant(Duration ttl) = 0;
  virtual Task<Result<Lease>> keep_alive(std::int64_t lease) = 0;
  virtual Task<Result<Lease>> look(std::int64_t lease) = 0;
  virtual Task<Status> revoke(std::int64_t lease) = 0;
  /// The key as it stands now (a linearizable read); nothing: there is none.
  virtual Task<Result<std::optional<Holder>>> get(std::string key) = 0;
  /// Create the key with `value` unless it is there. What stands under it then.
  virtual Task<Result<std::optional<Holder>>> create(std::string key, std::string value,
                                                     std::int64_t lease) = 0;
  virtual Task<Status> put(std::string key, std::string value, std::int64_t lease) = 0;
  /// At most `most` of the keys that begin with `prefix`, which is not empty.
  virtual Task<Result<std::vector<Holder>>> list(std::string prefix, std::size_t most) = 0;
};

/// Connects an executor to etcd.
using MakeEtcd = std::function<std::unique_ptr<Etcd>(Executor)>;

}  // namespace centroid::server
