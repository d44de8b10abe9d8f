#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/base/metrics.h"
#include "common/base/prometheus_registry.h"
#include "transport/collective/group.h"
#include "transport/http/metrics_listener.h"
#include "worker/config.h"
#include "worker/node/sharded_training.h"
#include "worker/parallel/mesh.h"
#include "worker/probe.h"

namespace centroid::worker {

/// What a rank has of the model.
struct RankPart {
  std::uint64_t elements = 0;             ///< of its shard
  std::uint32_t shard = 0, shards = 1;    ///< this one of so many; 0: none, it waits
  std::optional<std::uint32_t> copied{};  ///< another shard, of which it has a copy
  parallel::Range layers{};               ///< none: all
};
RankPart part_of(const parallel::ShardedParameters& parameters);

/// A group of a job, as this rank sees it.
struct GroupShape {
  parallel::Mesh mesh;
  std::string sharding;
  std::string waiting{};               ///< for what the workers wait that have no part
  std::vector<std::uint32_t> numbers;  ///< of the workers, by rank
  RankPart own;
};

/// Ranks that a group has lost or got, between two steps.
struct GroupChange {
  std::uint64_t generation = 0, step = 0;
  std::uint32_t world = 0;
  std::vector<std::uint32_t> lost, joined;  ///< numbers of workers
  std::string from;                         ///< "memory", "checkpoint"
  double seconds = 0;                       ///< until all could go on
  double at = 0;                            ///< Unix time, set by the monitor
};

/// What Prometheus, probes and people see of a sharded job: of this rank, and from the numbers that
/// all exchange once a second, of the others. At metrics.listen, with GET /v1/sharded and a page
/// that shows it. Without that setting it only takes part in exchanges.
///
/// thread  that of training; the listener's thread reads
class ShardedMonitor {
 public:
  enum class Phase : std::uint8_t { kJoining, kWaiting, kTraining, kRegrouping, kSaving, kEnded };

  /// fails  as MetricsListener::start
  static Result<std::unique_ptr<ShardedMonitor>> start(const WorkerConfig& config);
  ~ShardedMonitor();

  /// A group is about to train. Every rank calls it, and receives names and parts of all.
  ///
  /// fails  as parallel::exchange
  Status begin_group(const collective::Group& group, GroupShape shape);
  void changed(GroupChange change);
  void enter(Phase phase, const std::string& end = {});
  /// The observer, which the monitor observes, too. Both and what they name outlive it.
  ShardedObserver observe(const ShardedObserver& observer, const DividedReplica& replica,
                          const collective::Group& group);

 private:
  using Clock = std::chrono::steady_clock;
  struct Row {
    std::string name;
    std::uint32_t number = 0;
    RankPart part;
    RankNumbers numbers;
  };
  /// What the view shows.
  struct State {
    Phase phase = Phase::kJoining;
    std::string end, sharding, waiting;
    ShardedSummary summary;
    std::uint64_t generation = 0;
    std::uint32_t rank = 0;
    parallel::Mesh mesh;
    std::vector<Row> rows;  ///< by rank
    std::deque<GroupChange> changes;
    Clock::time_point stepped, exchanged;
  };
  struct Meters {
    explicit Meters(metrics::Registry& registry);
    Probe probe;
    std::array<metrics::Counter, kOperations> waited, received;
    metrics::Gauge parameters, gradients, state, activations;
    metrics::Gauge bubble, elements, generation, missing, age;
    metrics::Counter lost, joined;
  };

  explicit ShardedMonitor(const WorkerConfig& config);
  std::string json();
  void add(const RankCosts& now);
  void measure(const ShardedSummary& summary, const StepTimes& times);
  RankNumbers numbers(const collective::Group& group);

  const WorkerConfig& config_;
  metrics::PrometheusRegistry registry_;
  Meters meters_{registry_};
  std::atomic<bool> is_member_ = false;
  std::mutex mutex_;
  State state_;  ///< under mutex_
  // Of the training thread:
  RankNumbers total_;
  RankCosts costs_;                                       ///< of this group, which `total_` has
  transport::TrafficCounters traffic_;                    ///< so too
  Clock::time_point exchanged_;                           ///< the last numbers
  std::unique_ptr<transport::MetricsListener> listener_;  ///< its thread ends first
};

}  // namespace centroid::worker
