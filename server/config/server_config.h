#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "common/base/config.h"
#include "common/base/result.h"
#include "common/optim/optimizer.h"
#include "server/coordinate/coordinator.h"

namespace centroid::server {

/// Settings of one server; every field documents itself in `register_fields` (centroid-server
/// --help).
struct ServerConfig {
  std::string listen = "127.0.0.1:7070";
  std::string token, servers_token;
  struct Api {
    std::string listen = "127.0.0.1:8080", token, viewer_token;
    std::uint64_t max_connections = 8192, max_streams = 64, rate = 1000;
    std::uint64_t header_limit = 8u << 10, body_limit = 64u << 10;
    std::chrono::milliseconds idle_timeout{30'000}, read_timeout{10'000}, write_timeout{10'000};
    bool tls = false;
  } api;
  struct Tls {
    std::string certificate, key, authority;
  } tls;  ///< of the data connections
  std::string endpoints_file;
  struct Metrics {
    std::string listen;
    bool tls = false;
  } metrics;         ///< of a shard server
  std::string join;  ///< a shard server: its leader
  std::uint64_t servers = 1;
  std::string run_id;
  std::string run_dir = "run";
  struct Log {
    std::string level = "info", format = "text";
  } log;
  struct Trace {
    std::string file;
    std::uint64_t limit = 256ull << 20;
  } trace;

  struct Workers {
    std::uint64_t min = 1, min_continue = 0, max = 256;
  } workers;
  struct Goal {
    std::uint64_t epochs = 0, rounds = 0;
  } goal;
  std::uint64_t seed = 1;
  std::string init = "first-worker";
  std::string tables;  ///< of sparse rows: parse_tables
  struct Leaving {
    bool when_finished = false, workers_stay = false;
    std::uint64_t stop_status = 0;
  } leaving;

  std::string policy = "bsp", late = "drop";
  struct LocalSteps {
    std::uint64_t count = 1, fragments = 1, overlap = 0;
    std::string outer = "nesterov", weight_by = "samples";
    double inner_rate = 0;
  } local;
  struct Cadence {
    std::string mode = "off", ratios, guard = "halve";
    double overhead = 0.05, dead_zone = 0.05, divergence = 0.05;
    std::uint64_t max_steps = 200, max_lead = 1'000'000, overshoot = 1'000'000;
  } cadence;
  std::string exchange = "star";
  struct Auto {
    std::string star_for;      ///< exchange auto has become star: the setting that needs it
    bool is_resolved = false;  ///< `finish` has looked at it
  } automatic;
  std::string apply = "auto";
  std::string aggregate = "mean";
  std::string nonfinite = "halt";
  struct Replicas {
    std::uint64_t check_rounds = 100;
    std::string on_drift = "restore";
  } replicas;  ///< where workers apply the optimizer
  OptimizerConfig optimizer;
  double optimizer_scale_ratio = 0;
  struct Reduce {
    std::string algorithm = "auto", ring_order = "rank";
    std::uint64_t bucket_bytes = 8u << 20;
    std::chrono::milliseconds timeout{300'000};
  } reduce;
  struct Transfer {
    std::uint64_t chunk_bytes = 1u << 20, credit_bytes = 0;
    std::string codec_down = "f32", checksum = "auto", congestion_control = "auto";
  } transfer;
  struct Memory {
    std::uint64_t max_model_bytes = 16ull << 30, limit = 0;
  } memory;
  struct Timeouts {
    std::chrono::milliseconds lease{10'000}, drain{30'000}, round{0}, stall{30'000};
    std::chrono::milliseconds join{60'000}, servers{10'000};
  } timeouts;

  struct Checkpoint {
    std::uint64_t every_rounds = 0, every_epochs = 0, keep = 3, keep_every = 0,
                  shard_bytes = 4ull << 30;
    std::chrono::milliseconds interval{0};
    double processor_share = 0.05;
    std::string dir;
  } checkpoint;
  struct Journal {
    std::string mode = "off", dir, full = "wait";
    std::chrono::milliseconds sync{1000};
    std::uint64_t rows_bytes = 4ull << 30;
  } journal;
  bool resume = false;

  // several servers (docs/how-to/high-availability.md)
  struct Etcd {
    std::string endpoints, user, password, authority = "system", certificate, key;
    std::chrono::milliseconds lease{3000};
  } etcd;
  struct Identity {
    std::string cluster = "default", name, advertise, api_advertise;
  } identity;
  bool has_election() const { return !etcd.endpoints.empty(); }

  /// Among the servers of a model.
  std::string leader_name() const { return identity.name.empty() ? "leader" : identity.name; }
  /// The workers sum among themselves; the server coordinates.
  bool is_peer_to_peer() const { return exchange == "ring" || exchange == "hierarchical"; }
  /// Each round among the workers where they can, else through this server.
  bool chooses_exchange() const { return exchange == "auto"; }
  bool may_meet_peers() const { return exchange != "star"; }
  /// Local steps of a worker in one round.
  std::uint64_t steps_per_round() const { return local.count / local.fragments; }
  Coordinator::Options coordination() const;
  bool writes_journal() const { return journal.mode == "on"; }
  /// Results pass through a codec, so they are mean gradients.
  bool compresses_results() const { return transfer.codec_down != "f32"; }
  bool applies_on_worker() const {
    return may_meet_peers() || apply == "worker" || (apply == "auto" && compresses_results());
  }
};

/// The part of `register_fields` for a model on several servers.
void register_servers(config::Schema& schema, ServerConfig& config);
/// The part of `register_fields` for checkpoints and the journal.
void register_durability(config::Schema& schema, ServerConfig& config);
/// The part of `register_fields` and of `finish` for combining contributions.
void register_aggregate(config::Schema& schema, ServerConfig& config);
Status check_aggregate(const ServerConfig& config);
/// Why a model cannot be on several servers with these settings; empty: it can.
std::string why_one_server(const ServerConfig& config);
/// The part of `finish` for a port of metrics, which a server with REST does not need.
Status check_metrics(const ServerConfig& config);
/// Whether the statistics of every chunk on several servers fit into one message.
Status check_chunk_count(const ServerConfig& config, std::size_t chunks);

/// The part of `register_fields` for REST.
void register_api(config::Schema& schema, ServerConfig& config);

/// Bind every field to the schema.
void register_fields(config::Schema& schema, ServerConfig& config);
/// Checks combinations of fields. Fills defaults that depend on others (run_id, checkpoint_dir).
Status finish(ServerConfig& config);

}  // namespace centroid::server
