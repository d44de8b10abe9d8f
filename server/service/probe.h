#pragma once

#include <array>

#include "common/base/budget.h"
#include "common/codec/spec.h"
#include "common/proto/servers.h"
#include "server/coordinate/coordinator.h"
#include "server/events/event_log.h"
#include "server/store/server_probe.h"

namespace centroid::server {

/// States of the job, in the order of Phase.
inline constexpr std::array kJobStates = {"waiting",  "initializing", "training",
                                          "paused",   "finished",     "halted",
                                          "stopping", "standby",      "stopped"};

/// States of workers, in the order of MemberState.
inline constexpr std::array kWorkerStates = {"joining", "active", "draining",
                                             "left",    "dead",   "fenced"};

/// What is waited for (GET /v1/waits tells who waits, and for whom).
enum class WaitCause : std::uint8_t {
  kContribution,  ///< a worker's gradients
  kAddition,      ///< its addition with its peers
  kPace,          ///< a slower worker, whom the policy lets others leave so far behind only
  kCredit,        ///< a worker that does not read what is sent to it, or its next request
  kJournal,       ///< a write to the disk, or rounds that are read from there
  kState,         ///< a worker that sends the parameters
  kWorkers,       ///< the first workers
  kOperator,      ///< the end of a pause
  kCheckpoint,    ///< a checkpoint that is being written, or the moment for it
  kServers,       ///< a shard server
  kAggregate,     ///< threads that combine chunks, with another aggregate than the mean
};
inline constexpr std::array kWaitCauses = {"contribution", "addition", "pace",     "credit",
                                           "journal",      "state",    "workers",  "operator",
                                           "checkpoint",   "servers",  "aggregate"};

/// What one codec did in one direction.
class CodecProbe {
 public:
  enum class Direction : std::uint8_t { kUp, kDown };
  CodecProbe() = default;
  CodecProbe(metrics::Registry& registry, CodecSpec::Kind kind, Direction direction);

  void moved(std::uint64_t raw_bytes, std::uint64_t encoded_bytes) const {
    raw_.add(static_cast<double>(raw_bytes));
    encoded_.add(static_cast<double>(encoded_bytes));
  }
  void encoded(double seconds) const { encode_seconds_.add(seconds); }
  void decoded(double seconds) const { decode_seconds_.add(seconds); }
  void chunks(std::uint64_t all, std::uint64_t dense) const {
    chunks_.add(static_cast<double>(all));
    dense_chunks_.add(static_cast<double>(dense));
  }

 private:
  metrics::Counter raw_, encoded_, encode_seconds_, decode_seconds_, chunks_, dense_chunks_;
};

/// How rounds end, and how long they take.
struct RoundMetrics {
  explicit RoundMetrics(metrics::Registry& registry);
  metrics::Counter committed, skipped, aborted, samples, state_lost;
  metrics::Gauge open_seconds;
  metrics::Histogram seconds;
};

/// What became of the workers' contributions.
struct ContributionMetrics {
  explicit ContributionMetrics(metrics::Registry& registry);
  metrics::Counter lost, nonfinite, carried, dropped, restarted, returned;
  metrics::Histogram seconds, staleness;
};

/// Who is a member, who came and who went.
struct MemberMetrics {
  explicit MemberMetrics(metrics::Registry& registry);
  metrics::Counter joined, dead, left, silent, compared, drifted;
  metrics::Gauge present, world, generation, silence, lease, scale_hint;
  std::array<metrics::Gauge, kWorkerStates.size()> workers;
  metrics::Budget places;
};

/// What the coordinator measures and decides.
struct CadenceMetrics {
  explicit CadenceMetrics(metrics::Registry& registry);
  metrics::Counter nudges;
  metrics::Gauge steps, exchange_seconds, overhead, divergence;
};

/// How well the model learns.
struct LearningMetrics {
  explicit LearningMetrics(metrics::Registry& registry);
  metrics::Counter clipped;
  metrics::Gauge gradient_norm, rate, loss, accuracy, test_loss;
};

/// Where the job is in the training.
struct PositionMetrics {
  explicit PositionMetrics(metrics::Registry& registry);
  metrics::Gauge round, version, epoch;
};

/// The checkpoints that were written, and those that could not be.
struct CheckpointMetrics {
  explicit CheckpointMetrics(metrics::Registry& registry);
  metrics::Counter written, failures;
  metrics::Gauge bytes, time;
  metrics::Histogram seconds;
};

/// What waits in this server's memory.
struct BufferMetrics {
  explicit BufferMetrics(metrics::Registry& registry);
  metrics::Gauge in_use, capacity, waiting, unsent;
};

/// How many shard servers are here. What each of them tells has its name as a label.
struct ShardMetrics {
  explicit ShardMetrics(metrics::Registry& registry);
  metrics::Gauge present, missing;
};

/// What the codecs did, and what error feedback has left to send.
struct CodecMetrics {
  explicit CodecMetrics(metrics::Registry& registry);
  std::array<CodecProbe, CodecSpec::kKinds> up, down;
  metrics::Gauge residual_up, residual_down;
};

/// The job's state, and what is waited for.
struct StateMetrics {
  explicit StateMetrics(metrics::Registry& registry);
  std::array<metrics::Gauge, kJobStates.size()> job;
  std::array<metrics::Gauge, kWaitCauses.size()> waits;
};

/// The service's metrics behind verbs. Handles are looked up once.
class Probe : public ServerProbe {
 public:
  explicit Probe(metrics::Registry& registry);

  void round_committed(double seconds, std::uint64_t samples, double loss) const;
  /// One that training programs have named; the names are bounded.
  void scalar(const std::string& name, double mean) const;
  void member_silent() const { members_.silent.add(); }
  void round_skipped() const { rounds_.skipped.add(); }
  void round_aborted() const { rounds_.aborted.add(); }
  void state_lost() const { rounds_.state_lost.add(); }
  void replicas_compared() const { members_.compared.add(); }
  void replica_drifted() const { members_.drifted.add(); }
  void contribution_lost() const { contributions_.lost.add(); }
  void contribution_late(bool is_carried) const {
    (is_carried ? contributions_.carried : contributions_.dropped).add();
  }
  void state_restarted() const { contributions_.restarted.add(); }
  void contribution_nonfinite() const { contributions_.nonfinite.add(); }
  void contribution_received(double seconds_since_open) const {
    contributions_.seconds.observe(seconds_since_open);
  }
  void coordinated(const Coordinator& coordinator, std::uint64_t nudges) const;
  void share_returned(std::uint64_t samples) const {
    contributions_.returned.add(static_cast<double>(samples));
  }
  void member_joined() const { members_.joined.add(); }
  void member_refused() const { members_.places.refused.add(); }  ///< there are as many as may be
  void places(std::uint64_t used, std::uint64_t limit) const { members_.places.show(used, limit); }
  void events(const EventLog::Usage& usage) const;
  void member_dead() const { members_.dead.add(); }
  void member_left() const { members_.left.add(); }
  void checkpoint_written(double seconds, std::uint64_t bytes, double unix_seconds) const;
  void checkpoint_failed() const { checkpoints_.failures.add(); }
  void scale_hint(std::uint64_t workers) const;
  void members(std::uint64_t present, std::uint64_t world, std::uint64_t generation) const;
  void position(std::uint64_t round, std::uint64_t version, std::uint64_t epoch) const;
  void job(std::size_t state) const;  ///< one of kJobStates
  void round_is_open(double seconds) const { rounds_.open_seconds.set(seconds); }  ///< 0: none
  void buffers(std::size_t in_use, std::size_t capacity, std::size_t waiting) const;
  void unsent(std::size_t results) const { buffers_.unsent.set(static_cast<double>(results)); }
  void silence(double longest_seconds, double lease_seconds) const;
  void gradient_norm(double norm, bool is_clipped) const;
  void learning_rate(double rate) const { learning_.rate.set(rate); }
  void evaluated(double accuracy, double loss) const;
  /// Of a contribution that counts: rounds between the parameters it was computed on and those it
  /// changes.
  void staleness(std::uint64_t rounds) const {
    contributions_.staleness.observe(static_cast<double>(rounds));
  }
  void workers(const std::array<std::size_t, kWorkerStates.size()>& by_state) const;
  void waits(const std::array<std::size_t, kWaitCauses.size()>& by_cause) const;
  const CodecProbe& up(CodecSpec::Kind codec) const { return codecs_.up[std::size_t(codec)]; }
  const CodecProbe& down(CodecSpec::Kind codec) const { return codecs_.down[std::size_t(codec)]; }
  /// Of a shard server, as it tells; and when it is gone.
  void shard(const std::string& server, const proto::ServerReport& report) const;
  void shard_gone(const std::string& server) const;
  void shards(std::size_t present, std::size_t missing) const;
  void residual_up(double norm) const { codecs_.residual_up.set(norm); }
  void residual_down(double norm) const { codecs_.residual_down.set(norm); }

 private:
  metrics::Registry& registry_;
  const RoundMetrics rounds_;
  const ContributionMetrics contributions_;
  const MemberMetrics members_;
  const CadenceMetrics cadence_;
  const LearningMetrics learning_;
  const PositionMetrics position_;
  const CheckpointMetrics checkpoints_;
  const BufferMetrics buffers_;
  const ShardMetrics shards_;
  const CodecMetrics codecs_;
  const StateMetrics states_;
  const metrics::Budget events_;
};

}  // namespace centroid::server
