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
  std::string exchange = "auto";
  std::string server = "127.0.0.1:7070";
  std::string name;
  std::string token;
  struct Tls {
    std::string certificate, key, authority, server_name;
  };
  Tls tls;
  struct Peer {
    std::string listen, advertise, node;
    bool shared_memory = true;
  };
  Peer peer;
  std::chrono::milliseconds join_timeout{60'000};
  std::string data = "digits";
  std::string data_cache_dir = ".cache/data";
  std::string data_vocabulary;
  std::string model = "mlp:64-512-512-10";
  std::string base_weights;
  struct Adapter {
    std::string load, save;
  };
  Adapter adapter;
  std::uint64_t batch = 32;
  std::string devices = "cpu:0", matmul = "f32";
  struct Nccl {
    std::string library = "libnccl.so.2";
    std::chrono::milliseconds timeout{600'000};
  };
  Nccl nccl;
  std::uint64_t blas_threads = 1;
  std::uint64_t load_ahead = 512, memory_limit = 0, pinned_memory = 0;
  double slowdown = 1;
  std::string codec = "f32";
  std::string congestion_control = "auto";
  std::uint64_t seed = 1;
  std::uint64_t stop_status = 0;
  std::string summary_file;
  struct Metrics {
    std::string listen;
    bool tls = false;
  };
  Metrics metrics;
  struct Trace {
    std::string file;
    std::uint64_t limit = 256ull << 20;
  };
  Trace trace;
  std::string state_dir;
  struct Log {
    std::string level = "info", format = "text";
  };
  Log log;
  // exchange local
  std::uint64_t epochs = 0, rounds = 0;
  OptimizerConfig optimizer;
  OptimizerConfig inner;  // of local steps
  struct LocalSteps {
    std::string schedule_by = "worker";
    double scale_ratio = 0;
    bool on_gpu = true;
  };
  LocalSteps local_steps;
  std::string nonfinite = "halt";
  struct Checkpoint {
    std::string dir;
    std::uint64_t every_rounds = 0, keep = 3;
  };
  Checkpoint checkpoint;
  bool resume = false;
  struct Sharded {  // exchange sharded
    std::string sharding = "full", replicas = "auto", codec_down = "f32", rendezvous, save;
    std::string parallel, schedule = "1f1b";
    std::uint64_t rank = 0, world = 0, micro_batches = 0;
    bool exit_when_finished = true;
    std::uint64_t micro_batches_of(std::uint64_t stages) const {
      if (micro_batches > 0) return micro_batches;
      return stages > 1 ? 4 * stages : 1;
    }
    std::string plan_bandwidth;  ///< not empty: only a plan
    std::chrono::milliseconds plan_step_time{0};
  };
  Sharded sharded;
};

void register_fields(config::Schema& schema, WorkerConfig& config);
/// Check fields against each other, and draw a name if none is set.
Status finish(WorkerConfig& config);

}  // namespace centroid::worker
