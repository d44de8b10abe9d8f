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

/// What REST may see and do. Implemented by the server's app; every call may come from the API
/// thread and answers with a copy.
struct WorkerView {
  std::uint64_t member = 0;
  std::string name, address,
      state;               ///< joining | syncing | active | draining | left | dead | fenced
  std::int64_t rank = -1;  ///< -1 when not in the present generation
  std::uint64_t devices = 0, samples = 0, rounds = 0, bytes_in = 0, bytes_out = 0;
  double joined_unix_seconds = 0, silent_seconds = 0, step_seconds = 0, compute_seconds = 0,
         wait_seconds = 0, encode_seconds = 0, decode_seconds = 0, send_seconds = 0,
         exchange_seconds = 0, apply_seconds = 0, receive_seconds = 0;
  double last_loss = 0;
  std::uint64_t local_steps = 0;  ///< of its last share
  double pace_seconds = 0;        ///< of a step, smoothed; 0: not known
  double share_ratio = 0;         ///< its part of the samples of the last round
  double divergence = -1;         ///< docs/explanation/unequal-machines.md; -1: not measured
  double parameter_norm = -1;     ///< of its parameters, when last looked at; -1: not yet
  Scalars scalars;                ///< of its last contribution with any
  std::string reason;             ///< why it left, died or was fenced
  std::string version;            ///< of its program; empty: it has not said
  /// Of the server's clock; NaN: not known.
  double clock_ahead_seconds = std::numeric_limits<double>::quiet_NaN();
  /// Of the certificate that it showed; NaN: none, or it is gone.
  double certificate_expires_unix_seconds = std::numeric_limits<double>::quiet_NaN();
};

/// Where the job stands, what it has come to, and what it was agreed to be.
struct ClusterView {
  std::string run_id, state,
      state_reason;  ///< one of kJobStates (server/service/probe.h)
  std::uint64_t generation = 0, world = 0, round = 0, version = 0, epoch = 0, offset = 0,
                samples_total = 0;
  double progress = 0, samples_per_second = 0, uptime_seconds = 0;

  /// What it trains for. 0: no limit.
  struct Goal {
    std::uint64_t epochs = 0, rounds = 0;
    std::uint64_t train_samples = 0;  ///< the size of the data set
  };
  Goal goal;

  /// How training goes.
  struct Learning {
    double loss = 0, train_accuracy = 0;
    double rate = 0;            ///< of the next step
    double gradient_norm = -1;  ///< of the last mean gradient, before clipping; -1: not looked at
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
    std::string policy, exchange, codec, apply, optimizer;
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
    std::uint64_t returned_samples = 0;  ///< of lost workers, given to others
    std::uint64_t late_dropped = 0,
                  late_carried = 0;  ///< contributions whose round closed without
  };
  Losses losses;

  /// docs/explanation/unequal-machines.md
  struct Cadence {
    std::uint64_t steps = 0;  ///< local steps of the slowest worker in a round
    double exchange_seconds = 0, exchange_overhead = 0, divergence = 0;
  };
  Cadence cadence;

  /// Which of several servers leads, as etcd says.
  struct Lead {
    std::string role = "alone";  ///< alone | leader | standby | held: leader that may not act now
    std::string leader, endpoint, api;  ///< empty: none known, or alone
    std::uint64_t term = 0;             ///< of the leader; 0: none known, or alone
  };
  Lead lead;
};

struct RoundView {
  std::uint64_t round = 0, attempt = 0, generation = 0, version = 0, samples = 0;
  std::string state, outcome;  ///< open | merging | closed; committed | skipped | aborted
  double opened_unix_seconds = 0, seconds = 0, loss = 0;
  std::vector<std::string> contributors, missing;
  std::vector<std::string> late;  ///< whose contributions to earlier rounds counted in it
  Scalars scalars;                ///< that training programs have named
};

/// Committed rounds that follow each other: a point of the job's curves. NaN: not known.
struct CurvePointView {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  std::uint64_t first = 0, last = 0, rounds = 0, samples = 0;
  double seconds = 0;       ///< that the job's rounds have taken until the end of this one
  double unix_seconds = 0;  ///< its end
  double round_seconds = 0, samples_per_second = 0;
  double loss = kUnknown, accuracy = kUnknown;
  double test_loss = kUnknown, test_accuracy = kUnknown;  ///< the newest
  double learning_rate = 0;                               ///< of its last step
  double gradient_norm = kUnknown;                        ///< before clipping
  double workers = 0;                                     ///< contributions to a round
};

struct CurvesView {
  std::uint64_t revision = 0;  ///< another one: points that were given before have changed
  std::vector<CurvePointView> points;
};

/// What one worker did in an epoch.
struct EpochWorkerView {
  std::string name;
  std::uint64_t devices = 0, contributions = 0, samples = 0;
  double loss = 0, accuracy = 0, compute_seconds = 0, samples_per_second = 0,
         share = 0;  ///< of the samples of all
  Scalars scalars;
};

/// An epoch: what was told of its samples, whenever that came.
struct EpochView {
  std::uint64_t epoch = 0, samples = 0;
  double trained = 0;  ///< part of its samples that were in contributions that counted
  std::string state;   ///< open | ended
  double begun_unix_seconds = 0, seconds = 0, loss = 0, accuracy = 0;
  Scalars scalars;
  std::vector<EpochWorkerView> workers;  ///< by name
};

/// An epoch, and 0.
using EpochPlace = std::pair<std::uint64_t, std::uint64_t>;

/// A round and its attempt.
using RoundPlace = std::pair<std::uint64_t, std::uint64_t>;

struct WaitView {
  std::string who, for_whom, what;
  double seconds = 0;
};

struct CheckpointView {
  std::string path, problem;
  std::uint64_t version = 0, number = 0, round = 0, bytes = 0;
  double created_unix_seconds = 0;
};

struct CheckpointFileView {
  std::string name, path;  ///< within the checkpoint, and of the file itself
  std::uint64_t bytes = 0;
  std::uint32_t crc32c = 0;
};

/// The job went back to a checkpoint.
struct RestoreView {
  std::string path;
  std::uint64_t version = 0, round = 0, from_version = 0;
  std::uint64_t deleted = 0;  ///< newer checkpoints, which were in the way
};

/// One tensor of the parameters. NaN and infinities are counted and left out of the rest.
struct ParameterView {
  std::string name, dtype;
  std::vector<std::uint64_t> shape;
  std::uint64_t elements = 0, bytes = 0, nonfinite = 0;
  double min = 0, max = 0, mean = 0, deviation = 0, norm = 0;
};

struct ParametersView {
  std::uint64_t version = 0;  ///< whose values these are
  bool is_current = true;     ///< false: the workers hold newer ones (exchange ring, hierarchical)
  double measured_unix_seconds = 0;
  std::vector<ParameterView> parameters;  ///< in the order of the model
};

/// A name that may not join.
struct EvictionView {
  std::string name, why;
  double since_unix_seconds = 0, until_unix_seconds = 0;  ///< until 0: until it is allowed
};

/// How many workers would help (docs/reference/rest.md, "Scale").
struct ScaleView {
  std::uint64_t workers = 0, useful_workers = 0;
  double efficiency = 0, speedup = 0, round_seconds = 0, compute_seconds = 0, overhead_seconds = 0;
  std::string limited_by, straggler, advice;
  std::uint64_t target_workers = 0;  ///< what to scale to: the hint, else useful_workers in bounds
  std::uint64_t hint_workers = 0;    ///< what a person wants; 0: nobody has said
  std::string hint_why;
  double hint_since_unix_seconds = 0;
};

/// The network between the server and one worker, or from one worker to another.
struct NetworkView {
  std::uint64_t member = 0, round_trips = 0;
  std::string name;
  double median_seconds = 0, p99_seconds = 0;  ///< of a round trip
  /// As the server sees it, or, of two workers, as `member` sees the other one.
  double bytes_per_second_to = 0, bytes_per_second_from = 0;
  std::optional<std::uint64_t> to;  ///< the other worker
  std::string to_name;
};

/// What of a tensor, or of a table of sparse rows, lies on one server.
struct PartView {
  std::string server;
  std::uint64_t bytes = 0, rows = 0;
};

/// A table of sparse rows.
struct TableView {
  std::string name, optimizer, spec;  ///< spec: as in the setting `tables`
  std::uint64_t dim = 0, rows = 0, waiting = 0;
  std::uint64_t bytes = 0, payload_bytes = 0, max_bytes = 0;  ///< of memory; 0: no bound
  /// rows; since the table was begun
  std::uint64_t pulled = 0, pushed = 0, admitted = 0, held_back = 0, evicted = 0, expired = 0;
  std::vector<PartView> servers;  ///< the leader first; empty: this server stands by
};

/// One of the servers that the model lies on, or one that stands by.
struct ServerView {
  std::string name, endpoint, address;
  std::string state;  ///< leader | joining | serving | draining | awaited | standby
  std::uint64_t chunks = 0, bytes = 0;    ///< of the parameters, that lie there
  std::uint64_t moves = 0;                ///< chunks that are still to come or go
  std::uint64_t buckets = 0;              ///< of keys of tables, that lie there; of 4096
  std::uint64_t bucket_moves = 0;         ///< that are still to come or go
  std::uint64_t rows = 0, row_bytes = 0;  ///< of all tables, as it told last; their memory
  double joined_unix_seconds = 0;
  std::uint64_t memory_bytes = 0;   ///< parameters, slots and the next version
  std::uint64_t journal_bytes = 0;  ///< on its disk
  // of shard servers, as they told last
  std::uint64_t staged_bytes = 0, bytes_in = 0, bytes_out = 0, workers = 0;
  double merge_seconds = 0;  ///< a round, on average
  std::string trouble;       ///< of its journal
  bool knows_tokens = true;  ///< the named tokens as they are now
  std::string version;       ///< of its program; empty: it has not said
  /// Of the leader's clock; NaN: not known.
  double clock_ahead_seconds = std::numeric_limits<double>::quiet_NaN();
  /// Of the certificate that it showed; NaN: none, or the leader.
  double certificate_expires_unix_seconds = std::numeric_limits<double>::quiet_NaN();
  /// Of the disk with its journals; 0: it keeps none, or the leader, whose disk REST shows apart.
  std::uint64_t disk_free_bytes = 0, disk_total_bytes = 0;
  std::string api;  ///< HOST:PORT of its REST; empty: it has none, or that is not known
  double seen_unix_seconds = 0;  ///< when it was last heard of; 0: it was not
};

/// What an operator asked for is under way.
struct ActView {
  bool is_kept = true;  ///< false: the disk has not taken it yet; who is killed now forgets it
};

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
