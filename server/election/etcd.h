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

/// The calls of etcd that an election needs.
///
/// thread  its executor; one call at a time
/// fails   unavailable if no endpoint answered; failed_precondition if etcd refuses
class Etcd {
 public:
  struct Lease {
    std::int64_t id = 0;
    Duration ttl{};      ///< left; zero: there is no such lease
    Duration granted{};  ///< of `time_to_live`
  };

  virtual ~Etcd() = default;
  virtual Task<Result<Lease>> grant(Duration ttl) = 0;
  virtual Task<Result<Lease>> keep_alive(std::int64_t lease) = 0;
  virtual Task<Result<Lease>> time_to_live(std::int64_t lease) = 0;
  virtual Task<Status> revoke(std::int64_t lease) = 0;
  /// The present key (a linearizable read); nothing: there is none.
  virtual Task<Result<std::optional<Holder>>> get(std::string key) = 0;
  /// Create the key with `value` unless it exists. Returns its value afterwards.
  virtual Task<Result<std::optional<Holder>>> create(std::string key, std::string value,
                                                     std::int64_t lease) = 0;
  virtual Task<Status> put(std::string key, std::string value, std::int64_t lease) = 0;
  /// At most `most` of the keys that begin with `prefix`, which is not empty.
  virtual Task<Result<std::vector<Holder>>> list(std::string prefix, std::size_t most) = 0;
};

/// Connects an executor to etcd.
using MakeEtcd = std::function<std::unique_ptr<Etcd>(Executor)>;

}  // namespace centroid::server
