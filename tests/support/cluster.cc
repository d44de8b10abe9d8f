#include "tests/support/cluster.h"

#include <future>
#include <limits>

#include <boost/asio/post.hpp>
#include <boost/asio/use_future.hpp>

#include "common/base/prometheus_registry.h"
#include "common/base/random.h"
#include "server/service/control.h"
#include "worker/exchange/local_exchange.h"
#include "worker/exchange/peer_reducer.h"
#include "worker/node/local_steps.h"

namespace centroid::test {

namespace asio = boost::asio;

worker::DataSplit make_blobs(std::uint64_t samples, std::uint64_t features, std::uint32_t classes,
                             std::uint64_t seed, std::uint64_t bad_sample) {
  CounterRng rng(seed);
  std::vector<float> centres(classes * features);
  for (float& x : centres) x = static_cast<float>(rng.normal());
  const auto fill = [&](worker::Dataset& set, std::uint64_t n) {
    set.name = "blobs";
    set.samples = n;
    set.features = features;
    set.classes = classes;
    for (std::uint64_t i = 0; i < n; ++i) {
      const auto label = static_cast<std::uint32_t>(rng.below(classes));
      set.y.push_back(label);
      for (std::uint64_t f = 0; f < features; ++f)
        set.x.push_back(centres[label * features + f] + 0.3f * static_cast<float>(rng.normal()));
    }
  };
  worker::DataSplit split;
  fill(split.train, samples);
  fill(split.test, samples / 4);
  if (bad_sample < samples)
    split.train.x[bad_sample * features] = std::numeric_limits<float>::quiet_NaN();
  return split;
}

TestServer::TestServer(server::ServerConfig config, const TransportFactory& make_transport,
                       server::Fence* fence)
    : config_(std::move(config)) {
  CENTROID_CHECK(server::finish(config_).ok());
  transport_ = make_transport(service_.executor());
  cluster_ = std::make_unique<server::JobServer>(service_.executor(), blocking_.executor(), config_,
                                                 clock_, registry_);
  control_ = std::make_unique<server::Control>(*cluster_);
  if (fence != nullptr) {  // `run` prepares
    cluster_->stand_by(*fence);
    server::Leadership leads;
    leads.role = server::Election::Role::kLeader;
    leads.term = fence->term();
    cluster_->set_leadership(leads);
  } else {
    const Status prepared =
        asio::co_spawn(service_.context(), cluster_->prepare(), asio::use_future).get();
    CENTROID_CHECK(prepared.ok());
  }
  auto listener = transport_->listen(transport::Endpoint{});
  CENTROID_CHECK(listener.ok());
  listener_ = std::move(listener).value();
  auto run = [](server::JobServer* cluster, transport::Listener* l) -> Task<std::optional<Status>> {
    co_return co_await cluster->run(*l);
  };
  auto running =
      asio::co_spawn(service_.context(), run(cluster_.get(), listener_.get()), asio::use_future);
  running_ = std::async(std::launch::deferred,
                        [future = std::make_shared<std::future<std::optional<Status>>>(
                             std::move(running))] { return *future->get(); });
}

TestServer::~TestServer() {
  if (running_.valid()) {
    stop();
    (void)running_.get();
  }
}

void TestServer::stop() {
  const auto ask = [this] { cluster_->request_stop("the test stops the server"); };
  asio::post(service_.context(), asio::use_future(ask)).get();
}

Status TestServer::join() { return running_.get(); }

server::ClusterView TestServer::view() {
  return asio::co_spawn(service_.context(), control_->cluster(), asio::use_future).get();
}

std::vector<server::WorkerView> TestServer::workers() {
  return asio::co_spawn(service_.context(), control_->workers(), asio::use_future).get();
}

std::vector<server::RoundView> TestServer::rounds() {
  return asio::co_spawn(service_.context(), control_->rounds(1000, std::nullopt), asio::use_future)
      .get();
}

std::size_t TestServer::present() {
  std::size_t n = 0;
  for (const auto& worker : workers())
    n +=
        worker.state == "joining" || worker.state == "active" || worker.state == "draining" ? 1 : 0;
  return n;
}

Status TestServer::drain(std::uint64_t member) {
  return *asio::co_spawn(service_.context(), to_optional(control_->drain(member)), asio::use_future)
              .get();
}

std::vector<server::ServerView> TestServer::servers() {
  return asio::co_spawn(service_.context(), control_->servers(), asio::use_future).get();
}

Status TestServer::drain_server(const std::string& name) {
  return *asio::co_spawn(service_.context(), to_optional(control_->drain_server(name)),
                         asio::use_future)
              .get();
}

Result<server::CheckpointView> TestServer::checkpoint() {
  return *asio::co_spawn(service_.context(), to_optional(control_->make_checkpoint()),
                         asio::use_future)
              .get();
}

Result<server::RestoreView> TestServer::restore(std::uint64_t version) {
  return *asio::co_spawn(service_.context(),
                         to_optional(control_->restore_checkpoint(version, false)),
                         asio::use_future)
              .get();
}

std::vector<server::WaitView> TestServer::waits() {
  return asio::co_spawn(service_.context(), control_->waits(), asio::use_future).get();
}

bool TestServer::wait_for_wait(const std::string& waits_for, const std::string& what) {
  return wait_until([&](const auto&) {
    for (const server::WaitView& wait : waits())
      if (wait.waits_for.find(waits_for) != std::string::npos &&
          wait.what.find(what) != std::string::npos)
        return true;
    return false;
  });
}

Result<server::ActView> TestServer::pause() {
  return *asio::co_spawn(service_.context(), to_optional(control_->pause()), asio::use_future)
              .get();
}

Result<server::ActView> TestServer::resume() {
  return *asio::co_spawn(service_.context(), to_optional(control_->resume()), asio::use_future)
              .get();
}

std::shared_ptr<void> TestServer::hold_disk() {
  const auto released = std::make_shared<std::promise<void>>();
  asio::post(blocking_.context(), [released] { released->get_future().wait(); });
  return {nullptr, [released](void*) { released->set_value(); }};
}

bool TestServer::wait_until(const std::function<bool(const server::ClusterView&)>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (std::chrono::steady_clock::now() < deadline) {
    if (condition(view())) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // lint-ok: a poll, under a deadline
  }
  return false;
}

WorkerOutcome run_worker(const WorkerSpec& spec, const worker::DataSplit& data,
                         transport::Endpoint server,
                         const TestServer::TransportFactory& make_transport,
                         const worker::RoundObserver& observer) {
  WorkerOutcome outcome;
  const auto model = worker::make_model(spec.model).value();
  const auto group = spec.custom ? spec.custom->make_group()
                                 : worker::make_replica_group(
                                       *model, {.devices = spec.devices, .slowdown = spec.slowdown})
                                       .value();
  metrics::PrometheusRegistry registry;
  IoThread io("test-worker");
  worker::ClusterOptions options;
  options.servers = {server};
  options.token = spec.token;
  options.join_timeout = spec.join_timeout;
  options.join.name = spec.name;
  options.join.exchange = spec.exchange;
  options.join.codec = spec.codec;
  options.join.batch = spec.batch;
  options.join.train_samples = data.train.samples;
  options.join.data_fingerprint = data.train.fingerprint();
  options.join.model = model->spec();
  options.join.manifest = spec.custom ? spec.custom->manifest : model->manifest();
  options.state_dir = spec.state_dir;
  worker::LocalSteps::Options local_options;
  local_options.optimizer = spec.inner;
  local_options.batch = spec.batch;
  local_options.worker = spec.name;
  local_options.schedules_by_cluster = spec.schedules_by_cluster;
  local_options.scale_ratio = spec.scale_ratio;
  local_options.on_gpu = spec.on_gpu;
  local_options.state_dir = spec.state_dir;
  worker::Rounds rounds(options.join.manifest, data.train.samples, group->params());
  const auto local = worker::LocalSteps::make(*group, rounds, local_options).value();
  worker::ExchangeMemory memory;
  memory.params = group->params();
  memory.gradients = group->gradients();
  memory.use_params = [&](std::span<float> params) { local->use_params(params); };
  memory.initialize = [&, params = group->params()](std::uint64_t seed) {
    if (spec.custom)
      spec.custom->initialize(seed, params);
    else
      model->initialize(seed, params);
  };
  memory.begin_local = [&](const worker::LocalTerms& terms, const ChunkPlan& plan) {
    return local->begin(terms, plan);
  };
  if (!spec.state_dir.empty()) memory.save_local = [&](Round round) { return local->keep(round); };
  if (spec.custom && spec.custom->residual)
    memory.device_residual = [&](const std::string& codec, const ChunkPlan& plan) {
      return spec.custom->residual(*group, codec, plan);
    };
  if (spec.exchange != "star") {
    collective::MeshOptions mesh;
    mesh.token = spec.token;
    options.peers = worker::PeerReducer::open(spec.peers, transport::Endpoint{}, mesh).value();
    options.join.peer_endpoint =
        spec.peer_endpoint.empty() ? options.peers->endpoint().to_string() : spec.peer_endpoint;
  }
  const auto exchange = worker::make_cluster_exchange(io.executor(), make_transport(io.executor()),
                                                      options, memory, registry);
  rounds.connect(*exchange);
  const auto observe = [&, params = memory.params](const auto& share, const auto&... more) {
    if (observer) observer(share, more...);
    if (spec.after_round) spec.after_round(share, params);
  };
  outcome.status = worker::train(*group, data, rounds, outcome.summary, observe, local.get());
  rounds.leave("test over");
  local->leave();
  outcome.params.assign(group->params().begin(), group->params().end());
  return outcome;
}

std::vector<WorkerOutcome> run_workers(const std::vector<WorkerSpec>& specs,
                                       const worker::DataSplit& data, transport::Endpoint server,
                                       const TestServer::TransportFactory& make_transport,
                                       const worker::RoundObserver& first) {
  std::vector<WorkerOutcome> outcomes(specs.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < specs.size(); ++i)
    threads.emplace_back([&, i] {
      outcomes[i] = run_worker(specs[i], data, server, make_transport,
                               i == 0 ? first : worker::RoundObserver());
    });
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

WorkerOutcome run_local(const std::string& spec, const worker::DataSplit& data,
                        const server::ServerConfig& config, std::uint64_t batch) {
  WorkerOutcome outcome;
  const auto model = worker::make_model(spec).value();
  const auto group = worker::make_replica_group(*model, {.devices = "cpu:0"}).value();
  worker::LocalOptions options;
  options.optimizer = config.optimizer;
  options.seed = config.seed;
  options.batch = batch;
  options.train_samples = data.train.samples;
  options.epochs = config.goal.epochs;
  options.rounds = config.goal.rounds;
  options.manifest = model->manifest();
  worker::ExchangeMemory memory;
  memory.params = group->params();
  memory.gradients = group->gradients();
  memory.initialize = [&](std::uint64_t seed) { model->initialize(seed, group->params()); };
  const auto exchange = worker::make_local_exchange(options, memory).value();
  worker::Rounds rounds(options.manifest, options.train_samples, group->params());
  rounds.connect(*exchange);
  outcome.status = worker::train(*group, data, rounds, outcome.summary);
  outcome.params.assign(group->params().begin(), group->params().end());
  return outcome;
}

}  // namespace centroid::test
