#include "tests/simulation/server_program.h"

#include <boost/asio/post.hpp>

#include "common/async/io_thread.h"
#include "common/base/prometheus_registry.h"
#include "server/election/candidacy.h"
#include "server/election/fence.h"

namespace centroid::simulation {

using std::chrono::milliseconds;

server::ServerConfig ServerProgram::config() const {
  const Plan& plan = around_.plan;
  server::ServerConfig config;
  config.run_dir = "/shared/run";
  config.identity.name = name();
  config.identity.advertise = name() + ":7070";
  config.resume = has_run_ && plan.servers == 1;
  config.run_id = "simulated";
  if (plan.servers > 1) config.etcd.endpoints = "http://etcd:2379";
  config.goal.rounds = plan.rounds;
  config.workers.min = plan.min_workers;
  config.token = plan.token();
  config.exchange = plan.exchange;
  config.policy = plan.policy;
  config.late = plan.late;
  config.apply = plan.apply;
  config.transfer.codec_down = plan.codec_down;
  if (plan.local_steps > 1) {
    config.local.count = plan.local_steps;
    config.local.fragments = plan.fragments;
    config.local.overlap = plan.overlap;
    config.local.outer = "average";
  } else {
    config.optimizer.name = plan.optimizer;
    config.optimizer.learning_rate = kRate;
  }
  if (plan.rows_clients > 0) config.tables = kTable;
  config.servers = 1 + plan.shards;
  config.transfer.chunk_bytes = 512;
  config.journal.mode = plan.has_peers() ? "off" : "on";
  config.journal.sync = milliseconds(0);
  config.checkpoint.every_rounds = plan.checkpoint_every;
  config.memory.limit = 1u << 30;
  config.timeouts.lease = milliseconds(3000);
  config.timeouts.stall = milliseconds(5000);
  config.reduce.timeout = milliseconds(5000);
  return config;
}

void ServerProgram::run(Process& process) {
  ended_.reset();
  bool is_deposed = true;
  Status ended;
  while (is_deposed && !process.is_killed) ended = run_service(process, config(), is_deposed);
  if (process.is_killed) return;
  ended_ = ended;
  around_.world.note(name() + " ended: " + (ended.ok() ? "ok" : ended.error().to_string()));
}

Status ServerProgram::run_service(Process& process, server::ServerConfig config, bool& is_deposed) {
  is_deposed = false;
  CENTROID_TRY(server::finish(config));
  has_run_ = true;
  const SystemClock clock;
  metrics::PrometheusRegistry registry;
  IoThread service("service"), blocking("blocking"), files("files"), looks("looks"),
      verifies("verifies");
  const auto transport = around_.network.make_transport(service.executor(), {});
  server::Fence fence(config.checkpoint.dir, config.identity.name);
  server::JobServer cluster(service.executor(), blocking.executor(), config, clock, registry);
  server::Control control(cluster);
  cluster.set_files(files.executor());
  control.set_files(looks.executor(), verifies.executor());
  std::uint64_t last_event = 0;
  control.events().listen([&] {
    if (!process.is_killed) note_lost_states(control.events(), last_event);
  });
  const server::ElectionProbe probe(registry);
  if (config.has_election()) cluster.stand_by(fence);
  CENTROID_ASSIGN(const auto listener, transport->listen({.host = name(), .port = 7070}));
  const auto mine = running_ = std::make_shared<Running>();
  mine->executor = service.executor();
  mine->cluster = &cluster;
  mine->control = &control;
  std::unique_ptr<server::Candidacy> candidacy;
  if (config.has_election()) {
    server::Candidacy::Options options;
    options.connect = around_.etcd.connector();
    options.election.ttl = config.etcd.lease;
    options.election.renew = config.etcd.lease / 3;
    options.cluster = config.identity.cluster;
    options.name = name();
    options.data = config.identity.advertise;
    candidacy = std::make_unique<server::Candidacy>(
        std::move(options), fence, probe, [mine](server::Leadership present) {
          boost::asio::post(mine->executor, [mine, present = std::move(present)]() mutable {
            if (mine->cluster != nullptr) mine->cluster->set_leadership(std::move(present));
          });
        });
  }
  if (process.is_killed) ask_to_end();
  const Status ended = service.wait(cluster.run(*listener));
  is_deposed = cluster.is_deposed();
  candidacy.reset();
  mine->cluster = nullptr;
  while (mine->calls > 0) around_.world.let_pass(milliseconds(1));
  return ended;
}

void ServerProgram::ask_to_end() {
  const auto life = running_;
  if (!life || life->cluster == nullptr) return;
  boost::asio::post(life->executor, [life] {
    if (life->cluster != nullptr) life->cluster->request_stop("killed", true);
  });
}

/// At once, before a worker gets a share of the state that the job went back to.
void ServerProgram::note_lost_states(server::EventLog& events, std::uint64_t& last) {
  const auto is_lost = [](std::string_view type) { return type == "state.lost"; };
  const auto page = events.read(last, 1000, is_lost);
  last = page.last;
  for (const server::EventRecord& event : page.events) {
    const auto number = [&](std::string_view name) {
      for (const auto& [field, value] : event.fields)
        if (field == name) return std::get<std::uint64_t>(value);
      return std::uint64_t{0};
    };
    around_.ledger.go_back(number("version"), number("to_version"));
  }
}

std::optional<server::ClusterView> ServerProgram::view() {
  if (!is_up() || process().frozen_until > around_.world.time()) return std::nullopt;
  return ask<server::ClusterView>([](server::Control& control) { return control.cluster(); });
}

}  // namespace centroid::simulation
