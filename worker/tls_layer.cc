#include "worker/tls_layer.h"

#include <utility>

#include "transport/tls/tls.h"

namespace centroid::worker {

Result<std::shared_ptr<transport::StreamLayer>> tls_layer(const WorkerConfig& config,
                                                          bool among_workers) {
  if (config.tls.authority.empty()) return std::shared_ptr<transport::StreamLayer>();
  transport::TlsOptions tls;
  tls.certificate = config.tls.certificate;
  tls.key = config.tls.key;
  tls.authority = config.tls.authority;
  tls.server_name = config.tls.server_name;
  tls.is_server = tls.any_name = among_workers;
  return transport::make_tls(std::move(tls));
}

}  // namespace centroid::worker
