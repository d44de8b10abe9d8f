#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/async/task.h"
#include "common/base/result.h"
#include "common/base/scalars.h"
#include "server/events/event_log.h"

namespace centroid::server {

// What REST shows. Each field is described where it becomes JSON: `describe` in *_routes.cc.

struct WorkerView {
  std::uint64_t member = 0;
  std::string name, address, state;
  std::int64_t rank = -1;
  std::uint64_t devices = 0, samples = 0, rounds = 0, bytes_in = 0, bytes_out = 0;
  double joined_unix_seconds = 0, silent_seconds = 0, step_seconds = 0, compute_seconds = 0,
         wait_seconds = 0, encode_seconds = 0, decode_seconds = 0, send_seconds = 0,
         exchange_seconds = 0, apply_seconds = 0, receive_seconds = 0;
  double last_loss = 0;
  std::uint64_t local_steps = 0;
  double pace_seconds = 0;
  double share_ratio = 0;
  double divergence = -1;
  double parameter_norm = -1;
  Scalars scalars;
  std::string reason;
  std::string version;
  /// Of the server's clock; NaN: not known.
  double clock_ahead_seconds = std::numeric_limits<double>::quiet_NaN();
  /// Of the certificate that it showed; NaN: none, or it is gone.
  double certificate_expires_unix_seconds = std::numeric_limits<double>::quiet_NaN();
};

/// Where the job stands, what it has come to, and what it was agreed to be.
struct ClusterView {
  std::string run_id, state, state_reason;
  std::uint64_t generation = 0, world = 0, round = 0, version = 0, epoch = 0, offset = 0,
                samples_total = 0;
  double progress = 0, samples_per_second = 0, uptime_seconds = 0;

  /// What it trains for. 0: no limit.
  struct Goal {
    std::uint64_t epochs = 0, rounds = 0;
    std::uint64_t train_samples = 0;
  };
  Goal goal;

  /// How training goes.
  struct Learning {
    double loss = 0, train_accuracy = 0;
    double rate = 0;
    double gradient_norm = -1;
    std::uint64_t clipped_rounds = 0;
  };
  Learning learning;

  /// What a worker found on held-out data. -1: none has evaluated yet.
  struct Test {
    double accuracy = -1, loss = -1;
    std::uint64_t version = 0;
  };
  Test test;

  struct Endpoints {
    std::string data, api;
  };
  Endpoints endpoints;

  /// What is agreed with the workers.
  struct Terms {
    std::string policy, exchange, exchange_why, codec, apply, optimizer;
  };
  Terms terms;

  struct Model {
    std::string spec;
    std::uint64_t parameters = 0, chunks = 0;
  };
  Model model;

  /// What did not count, or was done again.
  struct Losses {
    std::uint64_t skipped_rounds = 0, aborted_attempts = 0, contributions = 0;
    std::uint64_t returned_samples = 0;
    std::uint64_t late_dropped = 0, late_carried = 0;
  };
  Losses losses;

  /// docs/explanation/unequal-machines.md
  struct Cadence {
    std::uint64_t steps = 0;
    double exchange_seconds = 0, exchange_overhead = 0, divergence = 0;
  };
  Cadence cadence;

  /// Which of several servers leads, as etcd says.
  struct Lead {
    std::string role = "alone";
    std::string leader, endpoint, api;
    std::uint64_t term = 0;
  };
  Lead lead;
};

struct RoundView {
  std::uint64_t round = 0, attempt = 0, generation = 0, version = 0, samples = 0;
  std::string state, outcome;
  double opened_unix_seconds = 0, seconds = 0, loss = 0;
  std::vector<std::string> contributors, missing;
  std::vector<std::string> late;
  Scalars scalars;
};

/// Committed rounds that follow each other: a point of the job's curves. NaN: not known.
struct CurvePointView {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  std::uint64_t first = 0, last = 0, rounds = 0, samples = 0;
  double seconds = 0;
  double unix_seconds = 0;
  double round_seconds = 0, samples_per_second = 0;
  double loss = kUnknown, accuracy = kUnknown;
  double test_loss = kUnknown, test_accuracy = kUnknown;
  double learning_rate = 0;
  double gradient_norm = kUnknown;
  double workers = 0;
};

struct CurvesView {
  std::uint64_t revision = 0;
  std::vector<CurvePointView> points;
};

/// What one worker did in an epoch.
struct EpochWorkerView {
  std::string name;
  std::uint64_t devices = 0, contributions = 0, samples = 0;
  double loss = 0, accuracy = 0, compute_seconds = 0, samples_per_second = 0, share = 0;
  Scalars scalars;
};

/// An epoch: what was told of its samples, whenever that came.
struct EpochView {
  std::uint64_t epoch = 0, samples = 0;
  double trained = 0;
  std::string state;
  double start_unix_seconds = 0, seconds = 0, loss = 0, accuracy = 0;
  Scalars scalars;
  std::vector<EpochWorkerView> workers;
};

/// An epoch, and 0.
using EpochPlace = std::pair<std::uint64_t, std::uint64_t>;

/// A round and its attempt.
using RoundPlace = std::pair<std::uint64_t, std::uint64_t>;

struct WaitView {
  std::string waiter, waits_for, what;
  double seconds = 0;
};

struct CheckpointView {
  std::string path, problem;
  std::uint64_t version = 0, number = 0, round = 0, bytes = 0;
  double created_unix_seconds = 0;
};

struct CheckpointFileView {
  std::string name, path;
  std::uint64_t bytes = 0;
  std::uint32_t crc32c = 0;
};

/// The job went back to a checkpoint.
struct RestoreView {
  std::string path;
  std::uint64_t version = 0, round = 0, from_version = 0;
  std::uint64_t deleted = 0;
};

/// One tensor of the parameters. NaN and infinities are counted and left out of the rest.
struct ParameterView {
  std::string name, dtype;
  std::vector<std::uint64_t> shape;
  std::uint64_t elements = 0, bytes = 0, nonfinite = 0;
  double min = 0, max = 0, mean = 0, deviation = 0, norm = 0;
};

struct ParametersView {
  std::uint64_t version = 0;
  bool is_current = true;
  double measured_unix_seconds = 0;
  std::vector<ParameterView> parameters;
};

/// A name that may not join.
struct EvictionView {
  std::string name, why;
  double since_unix_seconds = 0, until_unix_seconds = 0;
};

/// How many workers would help (docs/reference/rest.md, "Scale").
struct ScaleView {
  std::uint64_t workers = 0, useful_workers = 0;
  double efficiency = 0, speedup = 0, round_seconds = 0, compute_seconds = 0, overhead_seconds = 0;
  std::string limited_by, straggler, advice;
  std::uint64_t target_workers = 0;
  std::uint64_t hint_workers = 0;
  std::string hint_why;
  double hint_since_unix_seconds = 0;
};

/// The network between the server and one worker, or from one worker to another.
struct NetworkView {
  std::uint64_t member = 0, round_trips = 0;
  std::string name;
  double median_seconds = 0, p99_seconds = 0;
  double bytes_per_second_to = 0, bytes_per_second_from = 0;
  std::optional<std::uint64_t> to;
  std::string to_name;
};

/// What of a tensor, or of a table of sparse rows, lies on one server.
struct PartView {
  std::string server;
  std::uint64_t bytes = 0, rows = 0;
};

/// A table of sparse rows.
struct TableView {
  std::string name, optimizer, spec;
  std::uint64_t dim = 0, rows = 0, waiting = 0;
  std::uint64_t bytes = 0, payload_bytes = 0, max_bytes = 0;
  std::uint64_t pulled = 0, pushed = 0, admitted = 0, held_back = 0, evicted = 0, expired = 0;
  std::vector<PartView> servers;
};

/// One of the servers that the model lies on, or one that stands by.
struct ServerView {
  std::string name, endpoint, address;
  std::string state;
  std::uint64_t chunks = 0, bytes = 0;
  std::uint64_t moves = 0;
  std::uint64_t buckets = 0;
  std::uint64_t bucket_moves = 0;
  std::uint64_t rows = 0, row_bytes = 0;
  double joined_unix_seconds = 0;
  std::uint64_t memory_bytes = 0;
  std::uint64_t journal_bytes = 0;
  std::uint64_t staged_bytes = 0, bytes_in = 0, bytes_out = 0, workers = 0;
  double merge_seconds = 0;
  std::string trouble;
  bool has_tokens = true;
  std::string version;
  /// Of the leader's clock; NaN: not known.
  double clock_ahead_seconds = std::numeric_limits<double>::quiet_NaN();
  /// Of the certificate that it showed; NaN: none, or the leader.
  double certificate_expires_unix_seconds = std::numeric_limits<double>::quiet_NaN();
  std::uint64_t disk_free_bytes = 0, disk_total_bytes = 0;
  std::string api;
  double seen_unix_seconds = 0;
};

/// What an operator asked for is under way.
struct ActView {
  bool is_kept = true;
};

/// What REST may see and do. Implemented by the server's app; every call may come from the API
/// thread and answers with a copy.
class ControlPlane {
 public:
  virtual ~ControlPlane() = default;
  virtual Task<ClusterView> cluster() = 0;
  virtual Task<std::vector<WorkerView>> workers() = 0;
  /// Newest first, at most `limit`; of those before `before`, a round and an attempt, where it is
  /// given.
  virtual Task<std::vector<RoundView>> rounds(std::size_t limit,
                                              std::optional<RoundPlace> before) = 0;
  /// The whole job, oldest first; of that the points with rounds behind `after`.
  virtual Task<CurvesView> curves(std::uint64_t after) = 0;
  /// As `rounds`, of epochs.
  virtual Task<std::vector<EpochView>> epochs(std::size_t limit,
                                              std::optional<EpochPlace> before) = 0;
  virtual Task<std::vector<WaitView>> waits() = 0;
  /// The leader first; those that stand by last.
  virtual Task<std::vector<ServerView>> servers() = 0;
  /// not_found, failed_precondition (the leader)
  virtual Task<Status> drain_server(const std::string& name) = 0;
  /// Named tokens have changed: returns when the other servers know, or after two seconds with the
  /// names of those that do not.
  virtual Task<std::vector<std::string>> share_tokens() = 0;
  virtual Task<std::vector<CheckpointView>> checkpoints() = 0;
  virtual Task<std::vector<TableView>> tables() = 0;
  virtual Task<Result<CheckpointView>> make_checkpoint() = 0;  ///< written before it returns
  /// Reads every file of it and compares checksums; `problem` says what it found. not_found
  virtual Task<Result<CheckpointView>> verify_checkpoint(std::uint64_t version) = 0;
  virtual Task<Result<CheckpointView>> delete_checkpoint(std::uint64_t version) = 0;
  /// Between two rounds; done when it returns. failed_precondition: not possible, with the reason
  virtual Task<Result<RestoreView>> restore_checkpoint(std::uint64_t version,
                                                       bool delete_newer) = 0;
  virtual Task<Result<std::vector<CheckpointFileView>>> checkpoint_files(std::uint64_t version) = 0;
  virtual Task<Result<ParametersView>> parameters() = 0;
  /// Of tensors `first`, `first` + 1, ..., at most `count`, in the order of the model: what of each
  /// lies where now, the leader first. Fewer where the model has no more.
  virtual Task<std::vector<std::vector<PartView>>> tensor_parts(std::size_t first,
                                                                std::size_t count) = 0;
  virtual Task<Status> drain(std::uint64_t member) = 0;  ///< not_found, failed_precondition
  /// End its membership; its name is refused for `seconds`, 0: until it is allowed.
  virtual Task<Result<EvictionView>> evict(std::uint64_t member, double seconds,
                                           std::string why) = 0;
  virtual Task<std::vector<EvictionView>> evictions() = 0;
  virtual Task<Status> allow(std::string name) = 0;  ///< not_found
  /// `efficiency`: share of a round in which workers are to compute, between 0 and 1
  virtual Task<ScaleView> scale(double efficiency) = 0;
  /// How many workers a person wants, 0: nobody says any more. failed_precondition: out of bounds
  virtual Task<Result<ScaleView>> hint_scale(std::uint64_t workers, std::string why) = 0;
  /// Measure the way to a worker while it trains, or its own way to another worker; one at a time.
  /// not_found, aborted (another one is being measured), failed_precondition (workers do not listen
  /// to each other), unavailable
  virtual Task<Result<NetworkView>> measure(std::uint64_t member,
                                            std::optional<std::uint64_t> to) = 0;
  virtual Task<Result<ActView>> pause() = 0;
  virtual Task<Result<ActView>> resume() = 0;
  virtual Task<Result<ActView>> stop() = 0;  ///< finish the round, checkpoint, leave
  /// Initialised and able to take members; else unavailable with the reason.
  virtual Task<Status> is_ready() = 0;
  virtual Task<std::string> config_json() = 0;
  /// A JSON object of settings that are live; all or none. The settings as `config_json`.
  virtual Task<Result<std::string>> change_config(std::string json) = 0;
  /// Returns when the thread of training has come to it.
  virtual Task<void> ping() = 0;
  virtual EventLog& events() = 0;  ///< may be used from any thread
};

}  // namespace centroid::server
