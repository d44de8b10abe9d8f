#include "worker/metrics_port.h"

#include <utility>

#include "common/base/log.h"
#include "common/base/process_metrics.h"
#include "common/base/trace_events.h"
#include "transport/tls/tls.h"
#include "worker/gpu_metrics.h"

namespace centroid::worker {

Status begin_measuring(const WorkerConfig& config, metrics::Registry& registry) {
  metrics::add_process(registry, "centroid-worker");
  if (const std::size_t gpus = add_gpus(registry); gpus > 0)
    log::info("gpu.measured", {{"gpus", gpus}});
  trace::set_process("centroid-worker " + config.name);
  trace::start_sampling();
  if (config.trace.file.empty()) return {};
  return trace::write_to(config.trace.file, config.trace.limit);
}

Result<std::unique_ptr<transport::MetricsListener>> listen_for_metrics(
    const WorkerConfig& config, metrics::Registry& registry, const std::atomic<bool>& is_member,
    std::vector<transport::MetricsView> views) {
  if (config.metrics.listen.empty()) return std::unique_ptr<transport::MetricsListener>();
  transport::MetricsOptions options;
  CENTROID_ASSIGN(options.endpoint, transport::Endpoint::parse(config.metrics.listen));
  if (config.metrics.tls) {
    transport::TlsOptions tls;  // clients need no certificate
    tls.certificate = config.tls.certificate;
    tls.key = config.tls.key;
    tls.is_server = true;
    CENTROID_ASSIGN(options.tls, transport::make_tls(std::move(tls)));
  }
  options.views = std::move(views);
  options.is_ready = [&is_member]() -> Status {
    if (is_member) return {};
    return Error(ErrorCode::kUnavailable, "not a member of a cluster now");
  };
  CENTROID_ASSIGN(auto listener, transport::MetricsListener::start(std::move(options), registry));
  log::info("worker.metrics_opened", {{"endpoint", listener->endpoint().to_string()}});
  return listener;
}

}  // namespace centroid::worker
