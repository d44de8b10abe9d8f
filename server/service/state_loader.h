#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/service/leader_gate.h"
#include "server/service/model_servers.h"
#include "server/service/round_control.h"
#include "server/service/state_images.h"
#include "server/service/state_use.h"
#include "server/store/memory_need.h"
#include "server/tables/rows_service.h"

namespace centroid::server {

/// Plane of a checkpoint behind the optimizer's: what the codec of the results has left out.
inline constexpr const char* kResidualSlot = "codec_down_residual";
/// Fields of a checkpoint: by worker the last round in which its contribution counted.
inline constexpr const char* kCountedPrefix = "counted/";

/// Makes states of the job: for a new model, from a checkpoint, from a file of initial values; and
/// says first whether there is memory for one. Of one thread; files are read on the thread of
/// files.
class StateLoader {
 public:
  StateLoader(const ServerConfig& config, const RoundPolicy& policy, const AggregateRule& aggregate,
              JobState& job, OpenRound& open, Members& members, ModelServers& servers,
              StateImages& images, RowsService& rows, Journal& journal, JobPhase& phase,
              const LeaderGate& gate, RoundControl& control,
              const std::optional<CheckpointDirectory>& checkpoints, FileThread& disk,
              StateUse& use, Waits& waits, Event& changed)
      : config_(config),
        policy_(policy),
        aggregate_(aggregate),
        job_(job),
        open_(open),
        members_(members),
        servers_(servers),
        images_(images),
        rows_(rows),
        journal_(journal),
        phase_(phase),
        gate_(gate),
        control_(control),
        checkpoints_(checkpoints),
        disk_(disk),
        use_(use),
        waits_(waits),
        changed_(changed) {}

  /// Put an empty model into `into`. fails resource_exhausted, invalid_argument
  Status make_store(JobState& into, const Manifest& manifest, const std::string& codec);
  /// The newest checkpoint that is sound; without one: the beginning.
  Task<Result<JobState>> load_checkpoint();
  Task<Result<JobState>> load_checkpoint(std::shared_ptr<const CheckpointEntry> entry);
  Task<Result<JobState>> load_initial_file();
  /// Of a model.
  bool has_checkpoint() const;
  /// The job's training data, as its first worker or its checkpoint has it.
  std::optional<DataIdentity> agreed_data() const;

  Status check_another(const proto::Join& join);
  Status check_tables_room();
  MemoryQuestion memory_question() const;
  /// Bytes for what training changes while a checkpoint is written, and for readers' copies.
  std::size_t snapshot_budget() const { return snapshot_budget_; }
  std::uint64_t readers_room() const { return readers_room_; }

 private:
  Status check_room(const ChunkPlan& plan, const FragmentPlan& fragments, std::size_t slots,
                    const std::string& codec);
  Status make_replies(JobState& into) const;
  Status check_settings(const CheckpointEntry& entry, const std::vector<std::string>& slots,
                        bool has_residual) const;

  const ServerConfig& config_;
  const RoundPolicy& policy_;
  const AggregateRule& aggregate_;
  JobState& job_;
  OpenRound& open_;
  Members& members_;
  ModelServers& servers_;
  StateImages& images_;
  RowsService& rows_;
  Journal& journal_;
  JobPhase& phase_;
  const LeaderGate& gate_;
  RoundControl& control_;
  const std::optional<CheckpointDirectory>& checkpoints_;
  FileThread& disk_;
  StateUse& use_;
  Waits& waits_;
  Event& changed_;
  std::size_t snapshot_budget_ = 0;
  std::uint64_t readers_room_ = 0;
};

}  // namespace centroid::server
