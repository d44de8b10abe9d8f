#pragma once

#include <array>

#include "common/base/metrics.h"
#include "common/codec/spec.h"
#include "common/proto/servers.h"
#include "server/coordinate/coordinator.h"
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
};
inline constexpr std::array kWaitCauses = {"contribution", "addition", "pace",    "credit",
                                           "journal",      "state",    "workers", "operator",
                                           "checkpoint",   "servers"};

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

/// The service's metrics behind verbs. Handles are looked up once.
class Probe : public ServerProbe {
 public:
  explicit Probe(metrics::Registry& registry);

  void round_committed(double seconds, std::uint64_t samples, double loss) const;
  /// One that training programs have named; the names are bounded.
  void scalar(const std::string& name, double mean) const;
  void member_silent() const { silent_.add(); }
  void round_skipped() const { skipped_.add(); }
  void round_aborted() const { aborted_.add(); }
  void state_lost() const { state_lost_.add(); }
  void contribution_lost() const { lost_.add(); }
  void contribution_late(bool is_carried) const { (is_carried ? carried_ : dropped_).add(); }
  void state_restarted() const { restarted_.add(); }
  void contribution_nonfinite() const { nonfinite_.add(); }
  void contribution_received(double seconds_since_open) const {
    contribution_seconds_.observe(seconds_since_open);
  }
  void coordinated(const Coordinator& coordinator, std::uint64_t nudges) const;
  void share_returned(std::uint64_t samples) const { returned_.add(static_cast<double>(samples)); }
  void member_joined() const { joined_.add(); }
  void member_dead() const { dead_.add(); }
  void member_left() const { left_.add(); }
  void checkpoint_written(double seconds, std::uint64_t bytes, double unix_seconds) const;
  void checkpoint_failed() const { checkpoint_failures_.add(); }
  void scale_hint(std::uint64_t workers) const;
  void members(std::uint64_t present, std::uint64_t world, std::uint64_t generation) const;
  void position(std::uint64_t round, std::uint64_t version, std::uint64_t epoch) const;
  void job(std::size_t state) const;                                      ///< one of kJobStates
  void round_is_open(double seconds) const { round_open_.set(seconds); }  ///< 0: none
  void buffers(std::size_t in_use, std::size_t capacity, std::size_t waiting) const;
  void unsent(std::size_t results) const { unsent_.set(static_cast<double>(results)); }
  void silence(double longest_seconds, double lease_seconds) const;
  void gradient_norm(double norm, bool is_clipped) const;
  void evaluated(double accuracy, double loss) const;
  /// Of a contribution that counts: rounds between the parameters it was computed on and those it
  /// changes.
  void staleness(std::uint64_t rounds) const { staleness_.observe(static_cast<double>(rounds)); }
  void workers(const std::array<std::size_t, kWorkerStates.size()>& by_state) const;
  void waits(const std::array<std::size_t, kWaitCauses.size()>& by_cause) const;
  const CodecProbe& up(CodecSpec::Kind codec) const { return up_[std::size_t(codec)]; }
  const CodecProbe& down(CodecSpec::Kind codec) const { return down_[std::size_t(codec)]; }
  /// Of a shard server, as it tells; and when it is gone.
  void shard(const std::string& server, const proto::ServerReport& report) const;
  void shard_gone(const std::string& server) const;
  void shards(std::size_t present, std::size_t missing) const;
  void residual_up(double norm) const { residual_up_.set(norm); }
  void residual_down(double norm) const { residual_down_.set(norm); }

 private:
  metrics::Registry& registry_;
  metrics::Counter committed_, skipped_, aborted_, lost_, nonfinite_, joined_, dead_, left_,
      samples_, checkpoints_, checkpoint_failures_, state_lost_, clipped_, carried_, dropped_,
      restarted_, nudges_, returned_, silent_;
  metrics::Gauge shards_, shards_missing_;
  metrics::Gauge loss_, present_, world_, generation_, round_, version_, epoch_, buffers_in_use_,
      waiting_, checkpoint_bytes_, checkpoint_time_, accuracy_, test_loss_, gradient_norm_,
      residual_up_, residual_down_, round_open_, cadence_steps_, exchange_seconds_, overhead_,
      divergence_, scale_hint_;
  std::array<metrics::Gauge, kJobStates.size()> job_;
  std::array<CodecProbe, CodecSpec::kKinds> up_, down_;
  metrics::Histogram round_seconds_, contribution_seconds_, checkpoint_seconds_;
  metrics::Gauge buffers_capacity_, unsent_, silence_, lease_;
  metrics::Histogram staleness_;
  std::array<metrics::Gauge, kWorkerStates.size()> workers_;
  std::array<metrics::Gauge, kWaitCauses.size()> waits_;
};

}  // namespace centroid::server
