#include "server/app.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <memory>
#include <set>
#include <sstream>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/use_future.hpp>
#include <nlohmann/json.hpp>

#include "common/async/io_thread.h"
#include "common/async/pulse.h"
#include "common/base/exit_status.h"
#include "common/base/log.h"
#include "common/base/log_level.h"
#include "common/base/metrics.h"
#include "common/base/process_metrics.h"
#include "common/base/prometheus_registry.h"
#include "common/base/service_manager.h"
#include "common/base/trace_events.h"
#include "common/base/version.h"
#include "common/checkpoint/replace_file.h"
#include "common/storage/file.h"
#include "server/api/api_server.h"
#include "server/election/candidacy.h"
#include "server/election/etcd_client.h"
#include "server/folder_claim.h"
#include "server/service/control.h"
#include "server/shard/read_manifest.h"
#include "server/shard/shard.h"
#include "transport/http/metrics_listener.h"
#include "transport/tls/tls.h"
#include "transport/transport.h"

namespace centroid::server {

namespace {

/// As ApiOptions has it: a shard server computes what room it needs before it takes any.
constexpr std::chrono::minutes kHangAfter{5};

/// `http`: the name of what else listens, and where; "": nothing does.
Status write_endpoints(const std::string& path, const std::string& data, const std::string& http,
                       const std::string& where) {
  std::string text = "{\"data\": \"" + data + "\", ";
  if (!http.empty()) text += '"' + http + "\": \"" + where + "\", ";
  text += "\"pid\": " + std::to_string(::getpid()) + "}\n";
  Replacement how{fault::Stem("endpoints")};
  how.mode = 0666;    // less the umask, as any program's
  how.lasts = false;  // it tells of this process
  const Status written = replace_file(path, text, how);
  if (written.ok()) return {};
  return Error(ErrorCode::kFailedPrecondition,
               "cannot write " + path + " (endpoints_file): " + written.error().message());
}

/// Connections for which open files are left, of which we take as many as the system lets us have.
std::uint64_t connections_for(const ServerConfig& config) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return UINT64_MAX;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
  const std::uint64_t others = config.workers.max + 128;
  const std::uint64_t files = limit.rlim_max, left = files > 2 * others ? files - others : others;
  if (left < config.api.max_connections)
    log::info("api.connections_limited", {{"limit", left},
                                          {"wanted", config.api.max_connections},
                                          {"why", "open files (RLIMIT_NOFILE)"}});
  return left;
}

ApiLimits api_limits(const ServerConfig& config, std::uint64_t most_connections) {
  ApiLimits limits;
  limits.header_limit_bytes = config.api.header_limit;
  limits.body_limit_bytes = config.api.body_limit;
  limits.max_connections = std::min(config.api.max_connections, most_connections);
  limits.max_streams = config.api.max_streams;
  limits.requests_per_second = static_cast<double>(config.api.rate);
  limits.idle_timeout = config.api.idle_timeout;
  limits.read_timeout = config.api.read_timeout;
  limits.write_timeout = config.api.write_timeout;
  return limits;
}

/// Of a state that systemd knows; a manager that cannot be reached stops nothing.
void notify_manager(const char* state) {
  if (const Status sent = notify_service_manager(state); !sent.ok())
    log::warn("server.manager_unreached", {{"error", sent.error()}});
}

/// First signal: stop in order. Second: at once.
Task<void> watch_signals(boost::asio::signal_set& signals,
                         std::function<void(const std::string&)> stop) {
  for (int count = 0;; ++count) {
    const auto [failed, number] = co_await signals.async_wait(kAwait);
    if (failed) co_return;
    const std::string name = number == SIGTERM  ? "SIGTERM"
                             : number == SIGINT ? "SIGINT"
                                                : "signal " + std::to_string(number);
    if (count == 0) notify_manager("STOPPING=1");
    if (count > 0) {
      log::warn("server.killed", {{"why", name + " came a second time"}});
      ::_exit(128 + number);
    }
    stop(name);
  }
}

/// Everything that lives on the service's thread.
Task<Status> serve(JobServer& cluster, transport::Listener& listener,
                   boost::asio::signal_set& signals, const ServerConfig& config,
                   bool& is_signalled) {
  TaskGroup group(co_await boost::asio::this_coro::executor);
  const std::function<void(const std::string&)> stop = [&](const std::string& why) {
    is_signalled = true;
    cluster.request_stop(why, config.leaving.workers_stay);
    // It has nothing of the job that is not on the disk, and may read for long: a standby's lead is
    // given back.
    if (!cluster.is_beginning() || config.has_election()) return;
    log::info("server.stopped", {{"why", why + " while it began"}});
    trace::finish();
    ::_exit(static_cast<int>(config.leaving.stop_status));
  };
  group.spawn(watch_signals(signals, stop));
  Status result = co_await cluster.run(listener);
  signals.cancel();
  co_await group.join();
  co_return result;
}

transport::TlsOptions tls_options(const ServerConfig& config) {
  transport::TlsOptions tls;
  tls.certificate = config.tls.certificate;
  tls.key = config.tls.key;
  tls.authority = config.tls.authority;
  tls.is_server = true;
  return tls;
}

/// TLS of the data connections; nullptr where it is off.
Result<std::shared_ptr<transport::StreamLayer>> tls_layer(const ServerConfig& config) {
  if (config.tls.certificate.empty() && config.tls.key.empty() && config.tls.authority.empty())
    return std::shared_ptr<transport::StreamLayer>();
  return transport::make_tls(tls_options(config));
}

/// For HTTPS, whose clients show no certificates: they have tokens, or need none.
Result<std::shared_ptr<transport::StreamLayer>> https_layer(const ServerConfig& config) {
  transport::TlsOptions tls = tls_options(config);
  tls.authority.clear();
  return transport::make_tls(std::move(tls));
}

/// What a process tells of itself, before its first thread that is traced.
Status begin_measuring(const ServerConfig& config, metrics::Registry& registry,
                       const std::string& process) {
  metrics::add_process(registry, "centroid-server");
  const auto disk = metrics::budget(registry, "disk_bytes", metrics::BudgetKind::kUnguarded);
  registry.on_collect([disk, watch = std::make_shared<DiskWatch>(config.run_dir)] {
    const file::Space space = watch->space();
    disk.show(space.total_bytes - space.free_bytes, space.total_bytes);
  });
  trace::set_process(process);
  trace::start_sampling();
  if (config.trace.file.empty()) return {};
  return trace::write_to(config.trace.file, config.trace.limit);
}

Result<std::unique_ptr<transport::Listener>> listen_for_data(transport::Transport& transport,
                                                             const transport::Endpoint& endpoint) {
  auto listener = transport.listen(endpoint);
  if (!listener.ok()) return std::move(listener).error().with_context("--listen");
  return listener;
}

/// What was posted to the executor before has run.
Task<void> turn_around() { co_return; }

/// `advertised` with the port of `real` where it names none; `real` when it is empty.
Result<std::string> endpoint_for_others(const char* setting, const std::string& advertised,
                                        const transport::Endpoint& real) {
  if (advertised.empty()) {
    if (real.host != "0.0.0.0" && real.host != "::") return real.to_string();
    return Error(ErrorCode::kInvalidArgument, real.to_string() +
                                                  " is no address that others could call: set `" +
                                                  setting + "` to this machine's name or address");
  }
  const bool has_port = advertised.find(':') != std::string::npos;
  auto endpoint = transport::Endpoint::parse(
      has_port ? advertised : advertised + ":" + std::to_string(real.port));
  if (!endpoint.ok()) return std::move(endpoint).error().with_context(setting);
  return endpoint->to_string();
}

Result<Candidacy::Options> candidacy_options(const ServerConfig& config,
                                             const transport::Endpoint& data,
                                             const transport::Endpoint& api) {
  Candidacy::Options options;
  EtcdOptions etcd;
  CENTROID_ASSIGN(etcd.endpoints, parse_etcd_endpoints(config.etcd.endpoints));
  const auto is_secure = [](const std::string& one) { return one.starts_with("https://"); };
  if (std::ranges::any_of(etcd.endpoints, is_secure)) {
    transport::TlsOptions tls;
    tls.authority = config.etcd.authority;
    tls.certificate = config.etcd.certificate;
    tls.key = config.etcd.key;
    auto layer = transport::make_tls(std::move(tls));
    if (!layer.ok()) return std::move(layer).error().with_context("etcd");
    etcd.tls = std::move(layer).value();
  }
  etcd.user = config.etcd.user;
  etcd.password = config.etcd.password;
  etcd.timeout = config.etcd.lease / 4;
  options.connect = [etcd](Executor executor) {
    return std::make_unique<EtcdClient>(std::move(executor), etcd);
  };
  options.election.ttl = config.etcd.lease;
  options.election.renew = config.etcd.lease / 3;
  options.cluster = config.identity.cluster;
  CENTROID_ASSIGN(options.data, endpoint_for_others("advertise", config.identity.advertise, data));
  CENTROID_ASSIGN(options.api,
                  endpoint_for_others("api.advertise", config.identity.api_advertise, api));
  options.name = config.identity.name.empty() ? options.data : config.identity.name;
  return options;
}

/// What one life of the service came to.
struct Ending {
  bool is_halted = false;
  bool is_deposed = false;  ///< and nobody asked the process to stop: the next life is a standby
  bool goes_on = false;     ///< a signal ended it before the job was over
};

/// Of a server without etcd: nobody else writes where it does.
Status claim_folders(const ServerConfig& config, FolderClaim& claim) {
  CENTROID_TRY(Fence::check_alone(config.checkpoint.dir));
  CENTROID_TRY(claim.take("run_dir", config.run_dir));
  CENTROID_TRY(claim.take("checkpoint.dir", config.checkpoint.dir));
  // One of before is replayed, and removed, also by who keeps none.
  const bool has_journal = config.writes_journal() || file::exists(config.journal.dir);
  return has_journal ? claim.take("journal.dir", config.journal.dir) : Status();
}

/// Of the port for workers and shard servers.
Result<transport::TransportOptions> data_options(const ServerConfig& config) {
  transport::TransportOptions options;
  options.limits.max_head_bytes = transport::kMaxHeadBytes;
  options.limits.max_payload_bytes = max_payload_bytes(config.transfer.chunk_bytes);
  options.stall_timeout = config.timeouts.stall;
  options.congestion_control = config.transfer.congestion_control;
  CENTROID_ASSIGN(options.layer, tls_layer(config));
  return options;
}

Result<ApiOptions> rest_options(const ServerConfig& config, const transport::Endpoint& endpoint,
                                std::uint64_t connections) {
  ApiOptions options;
  static_cast<ApiLimits&>(options) = api_limits(config, connections);
  options.endpoint = endpoint;
  options.token = config.api.token;
  if (config.api.tls) {
    CENTROID_ASSIGN(options.tls, https_layer(config));
  }
  options.viewer_token = config.api.viewer_token;
  options.state_dir = config.run_dir;
  if (!config.tls.certificate.empty()) options.certificates.push_back(config.tls.certificate);
  if (config.has_election())
    options.state_name = config.identity.name.empty() ? config.listen : config.identity.name;
  return options;
}

void tell_who_joins(const ServerConfig& config) {
  if (config.token.empty() || !config.servers_token.empty()) return;
  log::info("servers.token_shared",
            {{"action", "whoever has a token for workers may join as a shard server"}});
}

/// The job's server learns of REST's limits and of the tokens it gave out.
void introduce_api(JobServer& server, ApiServer& api, const ServerConfig& config,
                   std::uint64_t connections) {
  server.on_config_change(
      [&api, &config, connections] { api.set_limits(api_limits(config, connections)); });
  server.set_tokens([&api](std::string_view secret) { return api.may_join(secret); },
                    [&api] {
                      proto::Tokens told;
                      for (TokenDigest& token : api.joining_tokens())
                        told.tokens.push_back({std::move(token.id), std::move(token.salt),
                                               std::move(token.hash), token.expires_unix_seconds});
                      return told;
                    });
  tell_who_joins(config);
}

/// Who can reach the port must have a secret.
Status check_token(const ServerConfig& config, const transport::Endpoint& endpoint) {
  if (endpoint.is_loopback() || !config.token.empty()) return {};
  return Error(ErrorCode::kInvalidArgument,
               "--listen " + config.listen +
                   " is reachable from other machines: give --token-file FILE with the secret of "
                   "the workers, or listen on 127.0.0.1");
}

Status start_and_run(ServerConfig& config, config::Schema& schema, Ending& ending) {
  CENTROID_ASSIGN(const auto data_endpoint, transport::Endpoint::parse(config.listen));
  CENTROID_ASSIGN(const auto api_endpoint, transport::Endpoint::parse(config.api.listen));
  CENTROID_TRY(check_token(config, data_endpoint));
  CENTROID_TRY(make_folder("run_dir", config.run_dir));
  FolderClaim claim;  // outlives everything that writes
  if (!config.has_election()) CENTROID_TRY(claim_folders(config, claim));
  const SystemClock clock;
  metrics::PrometheusRegistry registry;
  CENTROID_TRY(begin_measuring(config, registry, "centroid-server"));
  IoThread service("service"), blocking("blocking");
  IoThread operators("operators");  // their writes wait for no other files
  // Answers to requests do not slow training.
  IoThread control("control", ThreadPriority::kLow), files("files", ThreadPriority::kLow);
  IoThread looks("looks"),
      verifies("verifies", ThreadPriority::kLow);  // of checkpoints, while one is written
  CENTROID_ASSIGN(auto transport_options, data_options(config));
  const auto transport = transport::make_tcp(service.executor(), std::move(transport_options));
  boost::asio::signal_set signals(service.context(), SIGINT, SIGTERM);

  Fence fence(config.checkpoint.dir,
              config.identity.name.empty() ? config.listen : config.identity.name);
  JobServer cluster(service.executor(), blocking.executor(), config, clock, registry);
  CENTROID_ASSIGN(const auto listener, listen_for_data(*transport, data_endpoint));
  const ElectionProbe election_probe(registry);
  Control control_plane(cluster);
  cluster.set_files(operators.executor());
  control_plane.set_files(looks.executor(), verifies.executor());
  cluster.set_schema(&schema);
  if (config.has_election()) cluster.stand_by(fence);
  const std::uint64_t connections = connections_for(config);
  CENTROID_ASSIGN(auto api_options, rest_options(config, api_endpoint, connections));
  api_options.blocking = files.executor();
  CENTROID_ASSIGN(const auto api,
                  ApiServer::start(control.executor(), api_options, control_plane, registry));
  auto introduce = [&] {
    introduce_api(cluster, *api, config, connections);
    control_plane.set_endpoints(listener->endpoint().to_string(), api->endpoint().to_string());
  };
  service.wait(run_on(service.executor(), std::move(introduce)));
  Status result;
  if (!config.endpoints_file.empty())
    result = write_endpoints(config.endpoints_file, listener->endpoint().to_string(), "api",
                             api->endpoint().to_string());
  if (result.ok()) {
    log::info("server.started",
              {{"version", kVersion},
               {"data", listener->endpoint().to_string()},
               {"api", (config.api.tls ? "https://" : "http://") + api->endpoint().to_string()},
               {"run_dir", config.run_dir}});
    notify_manager("READY=1");
    std::unique_ptr<Candidacy> candidacy;
    if (config.has_election()) {
      auto options = candidacy_options(config, listener->endpoint(), api->endpoint());
      const auto tell = [&](Leadership present) {
        boost::asio::post(service.context(), [&cluster, present = std::move(present)]() mutable {
          cluster.set_leadership(std::move(present));
        });
      };
      if (options.ok())
        candidacy =
            std::make_unique<Candidacy>(std::move(options).value(), fence, election_probe, tell);
      else
        result = std::move(options).error();
    }
    bool is_signalled = false;
    if (result.ok())
      result = service.wait(serve(cluster, *listener, signals, config, is_signalled));
    ending.is_halted = cluster.is_halted();
    ending.is_deposed = !is_signalled && cluster.is_deposed();
    ending.goes_on = is_signalled && cluster.goes_on();
    candidacy.reset();  // the lead is free now that nothing more is written
    service.wait(turn_around());
  }
  boost::asio::co_spawn(control.context(), api->stop(), boost::asio::use_future).get();
  trace::finish();
  log::info("server.stopped", {});
  return result;
}

Task<Status> serve_shard(Shard& shard, transport::Listener& listener,
                         boost::asio::signal_set& signals) {
  TaskGroup group(co_await boost::asio::this_coro::executor);
  const std::function<void(const std::string&)> stop = [&](const std::string& why) {
    shard.request_stop(why);
  };
  group.spawn(watch_signals(signals, stop));
  Status result = co_await shard.run(listener);
  signals.cancel();
  co_await group.join();
  co_return result;
}

/// Where a shard server has a port for Prometheus and probes; nullptr where not.
Result<std::unique_ptr<transport::MetricsListener>> listen_for_metrics(const ServerConfig& config,
                                                                       metrics::Registry& registry,
                                                                       const Shard& shard,
                                                                       IoThread& service) {
  if (config.metrics.listen.empty()) return std::unique_ptr<transport::MetricsListener>();
  transport::MetricsOptions options;
  CENTROID_ASSIGN(options.endpoint, transport::Endpoint::parse(config.metrics.listen));
  if (config.metrics.tls) {
    CENTROID_ASSIGN(options.tls, https_layer(config));
  }
  const auto ask = [&service](Pulse::Answered answered) {
    boost::asio::post(service.context(), std::move(answered));
  };
  options.is_live = [pulse = std::make_shared<Pulse>(ask, kHangAfter)] { return pulse->check(); };
  options.is_ready = [&shard] { return shard.is_ready(); };
  CENTROID_ASSIGN(auto listener, transport::MetricsListener::start(std::move(options), registry));
  log::info("shard.metrics_opened", {{"endpoint", listener->endpoint().to_string()}});
  return listener;
}

/// A shard server has no REST: its leader shows it.
Status run_shard(const ServerConfig& config) {
  CENTROID_ASSIGN(const auto endpoint, transport::Endpoint::parse(config.listen));
  ShardOptions options;
  std::istringstream joins(config.join);
  for (std::string one; std::getline(joins, one, ',');) {
    auto leader = transport::Endpoint::parse(one);
    if (!leader.ok()) return std::move(leader).error().with_context("join");
    options.leaders.push_back(std::move(leader).value());
  }
  if (options.leaders.empty())
    return Error(ErrorCode::kInvalidArgument, "join " + config.join + ": no HOST:PORT is there");
  CENTROID_TRY(check_token(config, endpoint));
  if (const bool is_any = endpoint.host == "0.0.0.0" || endpoint.host == "::";
      is_any && config.identity.advertise.empty())
    return Error(ErrorCode::kInvalidArgument,
                 "listen " + config.listen +
                     " does not say where workers reach this server: set `advertise`");
  // Servers of one machine have one run_dir by default.
  const bool is_default = config.journal.dir == config.run_dir + "/journal";
  options.journal_dir = config.journal.dir + (is_default ? "-" + config.identity.name : "");
  // Its folder cannot be created: so it can have no journal, and says so where its leader wants
  // one.
  FolderClaim claim;
  if (const Status taken = claim.take("journal.dir", options.journal_dir);
      !taken.ok() && taken.error().code() == ErrorCode::kUnavailable)
    return taken;
  const SystemClock clock;
  metrics::PrometheusRegistry registry;
  CENTROID_TRY(begin_measuring(config, registry, "centroid-server " + config.identity.name));
  IoThread service("service"), files("files");
  transport::TransportOptions transport_options;
  transport_options.limits.max_head_bytes = transport::kMaxHeadBytes;
  transport_options.limits.max_payload_bytes = options.max_payload_bytes;
  transport_options.stall_timeout = config.timeouts.stall;
  transport_options.congestion_control = config.transfer.congestion_control;
  CENTROID_ASSIGN(transport_options.layer, tls_layer(config));
  if (transport_options.layer && config.tls.authority.empty())
    return Error(ErrorCode::kInvalidArgument,
                 "join " + config.join +
                     " with TLS: set tls.authority, by which the leader's certificate is checked");
  const auto transport = transport::make_tcp(service.executor(), transport_options);
  boost::asio::signal_set signals(service.context(), SIGINT, SIGTERM);
  CENTROID_ASSIGN(const auto listener, listen_for_data(*transport, endpoint));
  options.name = config.identity.name;
  options.advertise = config.identity.advertise.empty() ? listener->endpoint().to_string()
                                                        : config.identity.advertise;
  options.token = config.token;
  options.servers_token = config.servers_token;
  options.memory_limit = config.memory.limit;
  options.max_workers = config.workers.max;
  options.join_timeout = config.timeouts.join;
  options.stall_timeout = config.timeouts.stall;
  options.drain_timeout = config.timeouts.drain;
  Shard shard(service.executor(), files.executor(), *transport, options, clock, registry);
  CENTROID_ASSIGN(const auto metrics, listen_for_metrics(config, registry, shard, service));
  if (!config.endpoints_file.empty())
    CENTROID_TRY(write_endpoints(config.endpoints_file, listener->endpoint().to_string(),
                                 metrics ? "metrics" : "",
                                 metrics ? metrics->endpoint().to_string() : ""));
  log::info("shard.started", {{"version", kVersion},
                              {"name", config.identity.name},
                              {"data", listener->endpoint().to_string()},
                              {"leader", config.join}});
  notify_manager("READY=1");
  const Status result =
      boost::asio::co_spawn(service.context(), serve_shard(shard, *listener, signals),
                            boost::asio::use_future)
          .get();
  log::info("server.stopped", {});
  trace::finish();
  return result;
}

}  // namespace

Status check_shard_settings(const ServerConfig& config, const std::string& effective_json) {
  if (config.join.empty()) return {};
  static const std::set<std::string> kOwn{
      "join",
      "name",
      "advertise",
      "join_timeout",
      "listen",
      "token",
      "servers_token",
      "endpoints_file",
      "log.level",
      "log.format",
      "stall_timeout",
      "max_workers",
      "run_dir",
      "journal.dir",
      "memory_limit",
      "congestion_control",
      "tls.certificate",
      "tls.key",
      "tls.authority",
      "drain_timeout",
      "metrics.listen",
      "metrics.tls",
      "trace.file",
      "trace.limit",
      "api.listen"};  // not used; images set it for every server
  std::string others;
  const auto settings = nlohmann::json::parse(effective_json);
  for (const auto& [key, field] : settings.items())
    if (field.value("origin", "default") != "default" && !kOwn.contains(key))
      others += (others.empty() ? "" : ", ") + key;
  if (!others.empty())
    return Error(ErrorCode::kInvalidArgument,
                 "join " + config.join +
                     ": a shard server gets the job's settings from its leader; "
                     "leave away " +
                     others + ", or give them to the leader");
  if (config.identity.name.empty())
    return Error(ErrorCode::kInvalidArgument,
                 "join " + config.join + ": give this server a name of its own (--name)");
  if (config.identity.name.find('/') != std::string::npos)
    return Error(ErrorCode::kInvalidArgument,
                 "name " + config.identity.name +
                     ": a shard server's journal is named by it: leave '/' away");
  return {};
}

int run_server(ServerConfig& config, config::Schema& schema) {
  Status result;
  Ending ending;
  if (!config.join.empty()) result = run_shard(config);
  while (config.join.empty()) {
    ending = {};
    result = start_and_run(config, schema, ending);
    if (ending.is_deposed) log::warn("server.demoted", {});
    if (!ending.is_deposed) break;
    // What was changed live is with the leader of now, and comes back with the lead.
    schema.take_back_changes();
    log::set_level(log::parse_level(config.log.level).value());
  }
  if (result.ok()) return ending.goes_on ? static_cast<int>(config.leaving.stop_status) : kExitDone;
  if (!ending.is_halted) log::error("server.failed", {{"error", result.error()}});
  if (ending.is_halted) return kExitHalted;
  return exit_status_of(result.error());
}

}  // namespace centroid::server
