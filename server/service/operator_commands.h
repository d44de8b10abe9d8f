#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/async/task.h"
#include "common/base/clock.h"
#include "common/checkpoint/checkpoint.h"
#include "server/config/server_config.h"
#include "server/service/leader_gate.h"
#include "server/service/operator_file.h"
#include "server/service/probe.h"
#include "server/state/job_state.h"

namespace centroid::server {

/// A worker that an operator has sent away.
struct Eviction {
  std::string why;
  double since_unix_seconds = 0;
  std::optional<TimePoint> until;  ///< none: until it is allowed
  double until_unix_seconds = 0;
};

/// What operators asked for, in memory and in a file beside the checkpoints, so that a restart or
/// another leader goes on with it. Of one thread; `save` writes on the thread of files.
class OperatorCommands {
 public:
  /// A copy to write, and its number: a later one may be on the disk before it.
  struct Copy {
    std::shared_ptr<const OperatorState> state;
    std::uint64_t revision = 0;
  };

  OperatorCommands(Executor executor, Executor files, const ServerConfig& config,
                   const Clock& clock, const LeaderGate& gate, const JobState& job)
      : executor_(std::move(executor)),
        files_(std::move(files)),
        config_(config),
        clock_(clock),
        gate_(gate),
        job_(job) {}
  void set_files(Executor files) { files_ = std::move(files); }
  void set_schema(config::Schema* schema) { schema_ = schema; }
  config::Schema* schema() const { return schema_; }

  std::optional<OperatorState::Pause> pause;
  std::optional<OperatorState::Stop> stop;
  OperatorState::ScaleHint scale_hint;
  bool is_changed = false;  ///< settings that are taken between two rounds

  std::string pause_reason() const;

  const std::map<std::string, Eviction>& evicted();  ///< without those whose time is over
  void evict(const std::string& name, Eviction eviction) { evicted_[name] = std::move(eviction); }
  bool allow(const std::string& name) { return evicted_.erase(name) > 0; }
  /// fails  failed_precondition: until it is allowed; unavailable: for a while
  Status check_evicted(const std::string& name);

  /// What an earlier life of this server, or the leader before, was asked for. True: settings have
  /// changed. fails data_loss
  Task<Result<bool>> load(const CheckpointDirectory& checkpoints);
  Copy copy() { return {std::make_shared<const OperatorState>(state()), ++revision_}; }
  /// Something has changed that is copied later.
  void set_unsaved() { ++revision_; }
  bool is_saved() const { return saved_ == revision_; }
  /// fails  unavailable: the disk did not take it
  Task<Status> save(std::shared_ptr<const OperatorState> state, std::uint64_t revision);
  Task<void> save_now();

 private:
  OperatorState state() const;
  bool is_of_this_job(const OperatorState::Job& job,
                      const std::vector<CheckpointEntry>& found) const;
  bool take_settings(const std::vector<OperatorState::Setting>& settings);

  const Executor executor_;
  Executor files_;
  const ServerConfig& config_;
  const Clock& clock_;
  const LeaderGate& gate_;
  const JobState& job_;
  config::Schema* schema_ = nullptr;  ///< none: settings do not change
  std::map<std::string, Eviction> evicted_;
  std::uint64_t revision_ = 0, saved_ = 0;
  std::uint64_t written_ = 0;  ///< of the thread of files
};

/// "2026-01-31T12:00:00Z"
std::string utc(double unix_seconds);

}  // namespace centroid::server
