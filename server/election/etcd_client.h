#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/async/task.h"
#include "common/base/result.h"
#include "server/election/etcd.h"
#include "transport/stream_layer.h"

namespace centroid::server {

struct EtcdOptions {
  std::vector<std::string> endpoints;                ///< from `parse_etcd_endpoints`
  std::shared_ptr<transport::StreamLayer> tls = {};  ///< for those that are https://
  std::string user, password;                        ///< empty: etcd requires none
  /// Of one request at one endpoint; then the next is tried.
  std::chrono::milliseconds timeout{750};
};

/// "http://H:P,https://H:P"; http:// is optional. Returns each with its scheme.
/// fails  invalid_argument naming the part.
Result<std::vector<std::string>> parse_etcd_endpoints(const std::string& list);

/// etcd's version 3 interface through its HTTP/JSON gateway (etcd 3.4 and later: paths under /v3/).
/// Tries endpoints in turn, beginning with the one that answered last; an error has the reason of
/// each.
///
/// limits  an answer of at most 1 MiB
/// source  https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway/ and rpc.proto of etcd 3.4
class EtcdClient final : public Etcd {
 public:
  EtcdClient(Executor executor, EtcdOptions options);
  ~EtcdClient() override;

  Task<Result<Lease>> grant(Duration ttl) override;
  Task<Result<Lease>> keep_alive(std::int64_t lease) override;
  Task<Result<Lease>> time_to_live(std::int64_t lease) override;
  Task<Status> revoke(std::int64_t lease) override;
  Task<Result<std::optional<Holder>>> get(std::string key) override;
  Task<Result<std::optional<Holder>>> create(std::string key, std::string value,
                                             std::int64_t lease) override;
  Task<Status> put(std::string key, std::string value, std::int64_t lease) override;
  Task<Result<std::vector<Holder>>> list(std::string prefix, std::size_t most) override;
  const std::string& endpoint() const;  ///< that answered last

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace centroid::server
