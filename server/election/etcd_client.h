#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/async/task.h"
#include "common/base/result.h"
#include "server/election/election.h"
#include "transport/tls/tls_files.h"

namespace centroid::server {

struct EtcdOptions {
  std::vector<std::string> endpoints;             ///< from `parse_etcd_endpoints`
  std::shared_ptr<transport::TlsFiles> tls = {};  ///< for those that are https://
  std::string user, password;                     ///< empty: etcd wants none
  /// Of one request at one endpoint; then the next is tried.
  std::chrono::milliseconds timeout{750};
};

/// "http://H:P,https://H:P"; http:// may be left out. Each comes with its scheme.
/// fails  invalid_argument naming the part.
Result<std::vector<std::string>> parse_etcd_endpoints(const std::string& list);

/// The few calls of etcd's version 3 interface that an election needs, through its HTTP/JSON
/// gateway (etcd 3.4 and later: paths under /v3/). Endpoints are tried in turn, beginning with the
/// one that answered last.
///
/// thread  its executor; one call at a time
/// fails   unavailable, with each endpoint's reason, when none answered; failed_precondition when
///         etcd refuses (user, password, rights), with what it said
/// limits  an answer of at most 1 MiB
/// source  https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway/ and rpc.proto of etcd 3.4
class EtcdClient {
 public:
  EtcdClient(Executor executor, EtcdOptions options);
  ~EtcdClient();

  struct Lease {
    std::int64_t id = 0;
    Duration ttl{};      ///< left; zero: there is no such lease
    Duration granted{};  ///< of `look`
  };
  Task<Result<Lease>> grant(Duration ttl);
  Task<Result<Lease>> keep_alive(std::int64_t lease);
  Task<Result<Lease>> look(std::int64_t lease);
  Task<Status> revoke(std::int64_t lease);
  /// The key as it stands now (a linearizable read); nothing: there is none.
  Task<Result<std::optional<Holder>>> get(std::string key);
  /// Create the key with `value` unless it is there. What stands under it then.
  Task<Result<std::optional<Holder>>> create(std::string key, std::string value,
                                             std::int64_t lease);
  Task<Status> put(std::string key, std::string value, std::int64_t lease);
  /// At most `most` of the keys that begin with `prefix`, which is not empty.
  Task<Result<std::vector<Holder>>> list(std::string prefix, std::size_t most);
  /// That answered last.
  const std::string& endpoint() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace centroid::server
