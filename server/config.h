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
  std::string api_listen = "127.0.0.1:8080";
  std::string token, api_token, api_viewer_token;
  std::uint64_t api_max_connections = 8192, api_max_streams = 64, api_rate = 1000;
  std::uint64_t api_header_limit = 8u << 10, api_body_limit = 64u << 10;
  std::chrono::milliseconds api_idle_timeout{30'000}, api_read_timeout{10'000},
      api_write_timeout{10'000};
  std::string tls_certificate, tls_key, tls_authority;  ///< of the data connections
  bool api_tls = false;
  std::string endpoints_file;
  std::string join;  ///< a shard server: its leader
  std::string metrics_listen;
  bool metrics_tls = false;
  std::uint64_t servers = 1;
  std::chrono::milliseconds servers_wait{10'000}, join_timeout{60'000};
  std::string run_id;
  std::string run_dir = "run";
  std::string log_level = "info", log_format = "text";

  std::uint64_t min_workers = 1, keep_min_workers = 0, max_workers = 256;
  std::uint64_t epochs = 0, rounds = 0;
  std::uint64_t seed = 1;
  bool exit_when_finished = false;
  bool leave_workers = false;
  std::uint64_t stop_status = 0;

  std::string policy = "bsp", late = "drop";
  std::uint64_t local_steps = 1, fragments = 1, overlap = 0;
  std::string outer = "nesterov", weight_by = "samples";
  std::string cadence_mode = "off", cadence_ratios, cadence_guard = "halve";
  double cadence_overhead = 0.05, cadence_dead_zone = 0.05, cadence_divergence = 0.05;
  std::uint64_t cadence_max_steps = 200, cadence_max_lead = 1'000'000,
                cadence_overshoot = 1'000'000;
  std::string exchange = "star";
  std::string apply = "auto";
  std::string codec_down = "f32";
  std::string aggregate = "mean";
  std::string payload_checksum = "auto";
  std::string reduce_algorithm = "auto";
  std::string reduce_ring_order = "rank";
  std::uint64_t reduce_bucket_bytes = 8u << 20;
  std::chrono::milliseconds reduce_timeout{300'000};
  std::string nonfinite = "halt";
  OptimizerConfig optimizer;
  double optimizer_scale_ratio = 0;
  std::uint64_t chunk_bytes = 1u << 20;
  std::uint64_t credit_bytes = 0;
  std::string trace_file;
  std::uint64_t trace_limit = 256ull << 20;
  std::uint64_t max_model_bytes = 16ull << 30, memory_limit = 0;
  std::string init = "first-worker";

  std::string tables;  ///< of sparse rows: parse_tables

  std::chrono::milliseconds lease{10'000};
  std::chrono::milliseconds drain_timeout{30'000};
  std::chrono::milliseconds round_timeout{0};
  std::chrono::milliseconds stall_timeout{30'000};
  std::string congestion_control = "auto";

  std::uint64_t checkpoint_every_rounds = 0, checkpoint_every_epochs = 0, checkpoint_keep = 3,
                checkpoint_keep_every = 0, checkpoint_shard_bytes = 4ull << 30;
  std::chrono::milliseconds checkpoint_interval{0};
  double checkpoint_processor_share = 0.05;
  std::string checkpoint_dir;
  std::string journal = "off", journal_dir, journal_full = "wait";
  std::chrono::milliseconds journal_sync{1000};
  std::uint64_t journal_rows_bytes = 4ull << 30;
  bool resume = false;

  // several servers (docs/high-availability.md)
  std::string etcd, etcd_user, etcd_password, etcd_authority = "system", etcd_certificate, etcd_key;
  std::string cluster = "default", name, advertise, api_advertise;
  std::chrono::milliseconds etcd_lease{3000};
  bool has_election() const { return !etcd.empty(); }

  /// Among the servers of a model.
  std::string leader_name() const { return name.empty() ? "leader" : name; }
  /// The workers add among themselves; the server coordinates.
  bool is_peer_to_peer() const { return exchange != "star"; }
  /// Local steps of a worker in one round.
  std::uint64_t steps_per_round() const { return local_steps / fragments; }
  Coordinator::Options coordination() const;
  bool keeps_journal() const { return journal == "on"; }
  /// Results go through a codec, so they are mean gradients.
  bool compresses_results() const { return codec_down != "f32"; }
  bool applies_on_worker() const {
    return is_peer_to_peer() || apply == "worker" || (apply == "auto" && compresses_results());
  }
};

/// The part of `register_fields` for a model on several servers.
void register_servers(config::Schema& schema, ServerConfig& config);
/// The part of `register_fields` for checkpoints and the journal.
void register_durability(config::Schema& schema, ServerConfig& config);
/// The part of `register_fields` and of `finish` for how contributions become one.
void register_aggregate(config::Schema& schema, ServerConfig& config);
Status check_aggregate(const ServerConfig& config);
/// Why a model may not lie on several servers with these settings; empty: it may.
std::string why_one_server(const ServerConfig& config);
/// The part of `finish` for a port of metrics, which who has REST does not need.
Status check_metrics(const ServerConfig& config);
/// Whether what is told of every chunk on several servers fits into one message.
Status check_told_chunks(const ServerConfig& config, std::size_t chunks);

/// The part of `register_fields` for REST.
void register_api(config::Schema& schema, ServerConfig& config);

/// Bind every field to the schema.
void register_fields(config::Schema& schema, ServerConfig& config);
/// What single fields cannot see: combinations. Fills defaults that depend on others (run_id,
/// checkpoint_dir).
Status finish(ServerConfig& config);

}  // namespace centroid::server
