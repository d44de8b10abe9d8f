#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "common/base/config.h"
#include "common/optim/optimizer.h"

namespace centroid::worker {

/// Settings of one worker; every field documents itself in `register_fields` (centroid-worker
/// --help).
struct WorkerConfig {
  std::string exchange = "star";
  std::string server = "127.0.0.1:7070";
  std::string name;
  std::string token;
  std::string tls_certificate, tls_key, tls_authority, tls_server_name;
  std::string peer_listen, peer_advertise, peer_node;
  bool peer_shared_memory = true;
  std::chrono::milliseconds join_timeout{60'000};
  std::string data = "digits";
  std::string data_cache_dir = ".cache/data";
  std::string data_vocabulary;
  std::string model = "mlp:64-512-512-10";
  std::string base_weights, adapter_load, adapter_save;
  std::uint64_t batch = 32;
  std::string devices = "cpu:0", matmul = "f32";
  std::string nccl = "libnccl.so.2";
  std::chrono::milliseconds nccl_timeout{600'000};
  std::uint64_t blas_threads = 1;
  std::uint64_t load_ahead = 512, memory_limit = 0, pinned_memory = 0;
  double slowdown = 1;
  std::string codec = "f32";
  std::string congestion_control = "auto";
  std::uint64_t seed = 1;
  std::uint64_t stop_status = 0;
  std::string summary_file;
  std::string metrics_listen;
  bool metrics_tls = false;
  std::string trace_file;
  std::uint64_t trace_limit = 256ull << 20;
  std::string state_dir;
  std::string log_level = "info", log_format = "text";
  // exchange local
  std::uint64_t epochs = 0, rounds = 0;
  OptimizerConfig optimizer;
  OptimizerConfig inner;  // of local steps
  std::string inner_schedule_by = "worker";
  double inner_scale_ratio = 0;
  bool inner_on_gpu = true;
  std::string nonfinite = "halt";
  std::string checkpoint_dir;
};

void register_fields(config::Schema& schema, WorkerConfig& config);
/// What single fields cannot see. Draws a name when there is none.
Status finish(WorkerConfig& config);

}  // namespace centroid::worker
