#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/service/job_part.h"
#include "server/service/model_servers.h"
#include "server/service/round_control.h"
#include "server/service/state_images.h"
#include "server/store/memory_need.h"
#include "server/tables/rows_service.h"

namespace centroid::server {

/// Plane of a checkpoint behind the optimizer's: what the codec of the results has left out.
inline constexpr const char* kResidualSlot = "codec_down_residual";
/// Fields of a checkpoint: by worker the last round in which its contribution counted.
inline constexpr const char* kCountedPrefix = "counted/";
/// Field of a checkpoint: the job's curves until then.
inline constexpr const char* kCurves = "curves";

/// Makes states of the job: for a new model, from a checkpoint, from a file of initial values; and
/// says first whether there is memory for one. Of one thread; files are read on the thread of
/// files.
class StateLoader : private JobPart {
 public:
  StateLoader(JobContext& context, ModelServers& servers, StateImages& images, RowsService& rows,
              RoundControl& control)
      : JobPart(context), servers_(servers), images_(images), rows_(rows), control_(control) {}

  /// Put an empty model into `into`. fails resource_exhausted, invalid_argument
  Status make_store(JobState& into, const Manifest& manifest, const std::string& codec);
  /// A checkpoint; nullptr: the newest that is sound, or the beginning without one. fails
  /// unavailable where the disk cannot be read: an older state would lose rounds
  Task<Result<JobState>> load_checkpoint(std::shared_ptr<const CheckpointEntry> entry = nullptr);
  Task<Result<JobState>> load_initial_file();
  /// Of a model.
  Task<Result<bool>> has_checkpoint() const;
  /// The job's training data, as its first worker or its checkpoint has it.
  std::optional<DataIdentity> agreed_data() const;

  Status check_another(const proto::Join& join);
  Status check_tables_room();
  MemoryQuestion memory_question() const;
  /// Bytes for what training changes while a checkpoint is written, and for readers' copies.
  std::size_t snapshot_budget() const { return snapshot_budget_; }
  std::uint64_t readers_room() const { return readers_room_; }

 private:
  Task<Result<JobState>> load_newest();
  Status check_room(const ChunkPlan& plan, const FragmentPlan& fragments, std::size_t slots,
                    const std::string& codec);
  Status check_settings(const CheckpointEntry& entry, const std::vector<std::string>& slots,
                        bool has_residual) const;

  ModelServers& servers_;
  StateImages& images_;
  RowsService& rows_;
  RoundControl& control_;
  std::size_t snapshot_budget_ = 0;
  std::uint64_t readers_room_ = 0;
};

}  // namespace centroid::server
