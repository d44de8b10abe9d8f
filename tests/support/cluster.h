#pragma once

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/async/io_thread.h"
#include "common/base/metrics.h"
#include "common/base/prometheus_registry.h"
#include "server/api/view.h"
#include "server/config/server_config.h"
#include "transport/transport.h"
#include "worker/data/data_source.h"
#include "worker/exchange/cluster_exchange.h"
#include "worker/model/model.h"
#include "worker/node/replica_group.h"
#include "worker/node/training_loop.h"

namespace centroid::server {
class Fence;
class JobServer;
}  // namespace centroid::server

namespace centroid::test {

/// A learnable data set: class = nearest of random centres. `bad_sample` < samples gets a NaN
/// feature.
worker::DataSplit make_blobs(std::uint64_t samples, std::uint64_t features, std::uint32_t classes,
                             std::uint64_t seed, std::uint64_t bad_sample = ~std::uint64_t{0});

/// A server on its own threads, over in-process or TCP transport.
class TestServer {
 public:
  using TransportFactory = std::function<std::unique_ptr<transport::Transport>(Executor)>;
  /// With a fence, which outlives this, it is the leader of several servers that may lead.
  TestServer(server::ServerConfig config, const TransportFactory& make_transport,
             server::Fence* fence = nullptr);
  ~TestServer();
  transport::Endpoint endpoint() const { return listener_->endpoint(); }
  server::JobServer& cluster() { return *cluster_; }
  server::ControlPlane& control() { return *control_; }
  metrics::Registry& registry() { return registry_; }
  /// Block until the view satisfies `condition`; false after 120 s.
  bool wait_until(const std::function<bool(const server::ClusterView&)>& condition);
  server::ClusterView view();
  std::vector<server::WorkerView> workers();
  std::vector<server::RoundView> rounds();  ///< newest first
  /// Number of workers that are members now.
  std::size_t present();
  Status drain(std::uint64_t member);
  std::vector<server::ServerView> servers();
  Status drain_server(const std::string& name);
  Result<server::CheckpointView> checkpoint();
  Result<server::RestoreView> restore(std::uint64_t version);
  Executor executor() { return service_.executor(); }  ///< of the cluster
  std::vector<server::WaitView> waits();
  /// Block until a wait with this `waits_for` and `what` is reported; false after 120 s.
  bool wait_for_wait(const std::string& waits_for, const std::string& what);
  Result<server::ActView> pause();
  Result<server::ActView> resume();
  /// Block the thread that writes checkpoints until the result is dropped.
  std::shared_ptr<void> hold_disk();
  /// Wait for the end of the job (a config that exits by itself, or after `stop`).
  Status join();
  void stop();  ///< as a signal does: the job may be resumed

 private:
  server::ServerConfig config_;
  SystemClock clock_;
  metrics::PrometheusRegistry registry_;
  IoThread service_{"test-service"}, blocking_{"test-blocking"};
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<server::JobServer> cluster_;
  std::unique_ptr<server::ControlPlane> control_;
  std::unique_ptr<transport::Listener> listener_;
  std::future<Status> running_;
};

struct WorkerOutcome {
  Status status;
  worker::TrainingSummary summary;
  std::vector<float> params;
};

/// A model other than a multi-layer perceptron.
struct CustomModel {
  Manifest manifest;
  std::function<std::unique_ptr<worker::ReplicaGroup>()> make_group;
  std::function<void(std::uint64_t seed, std::span<float>)> initialize;
  /// Optional: a codec's residual on the gradient's device (ExchangeMemory::device_residual).
  std::function<Result<std::unique_ptr<DeviceResidual>>(worker::ReplicaGroup&,
                                                        const std::string& codec, const ChunkPlan&)>
      residual{};
};

struct WorkerSpec {
  std::string name;
  std::string model = "mlp:8-16-4";
  std::string codec = "f32", devices = "cpu:0", token, exchange = "star";
  TestServer::TransportFactory peers{};  ///< exchange ring, hierarchical: transport among workers
  std::string peer_endpoint{};           ///< told to others instead of the real one
  std::uint64_t batch = 8;
  OptimizerConfig inner{};  ///< of local steps
  bool schedules_by_cluster = false;
  double scale_ratio = 0;  ///< of the inner learning rate
  double slowdown = 1;
  bool on_gpu = true;  ///< local steps: LocalSteps::Options
  std::string state_dir{};
  /// Optional: after each round, with the memory of the cluster's parameters; the loop's thread.
  std::function<void(const worker::Share&, std::span<float> params)> after_round{};
  std::shared_ptr<const CustomModel> custom{};  ///< instead of `model`
  std::chrono::milliseconds join_timeout{20'000};
};

/// Train as one worker in this thread until the exchange ends.
WorkerOutcome run_worker(const WorkerSpec& spec, const worker::DataSplit& data,
                         transport::Endpoint server,
                         const TestServer::TransportFactory& make_transport,
                         const worker::RoundObserver& observer = {});

/// Run all workers concurrently, each on its own thread. Outcomes are in the order of the specs;
/// `first` observes the first worker.
std::vector<WorkerOutcome> run_workers(const std::vector<WorkerSpec>& specs,
                                       const worker::DataSplit& data, transport::Endpoint server,
                                       const TestServer::TransportFactory& make_transport,
                                       const worker::RoundObserver& first = {});

/// The same training without a network, with batch `batch` and the server's settings.
WorkerOutcome run_local(const std::string& model, const worker::DataSplit& data,
                        const server::ServerConfig& config, std::uint64_t batch);

}  // namespace centroid::test
