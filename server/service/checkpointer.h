#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "server/service/chunk_moves.h"
#include "server/service/data_shares.h"
#include "server/service/job_part.h"
#include "server/service/state_loader.h"

namespace centroid::server {

using CheckpointOutcome = std::optional<Result<CheckpointView>>;
CheckpointView checkpoint_view(const CheckpointEntry& entry);

/// Writes checkpoints: when they are due or asked for, beside the rounds or between them, of a
/// model on one server or on several, with the rows of tables. One at a time. Of one thread; files
/// are written on the thread of files.
class Checkpointer : private JobPart {
 public:
  Checkpointer(JobContext& context, DataShares& data, ShardGroup& shards, ModelServers& servers,
               RoundServers& round_servers, ChunkMoves& moves, const StateLoader& loader,
               RowsService& rows, const std::unique_ptr<TableServers>& table_servers)
      : JobPart(context),
        started_(clock_.now()),
        data_(data),
        shards_(shards),
        servers_(servers),
        round_servers_(round_servers),
        moves_(moves),
        loader_(loader),
        rows_(rows),
        table_servers_(table_servers) {}

  /// The state is in no checkpoint.
  bool needs_checkpoint() const;
  bool is_checkpoint_due() const;
  void checkpoint_behind_round();
  void catch_up();
  /// An epoch has ended that calls for one.
  void set_due() { is_due_ = true; }
  /// `may_announce`: workers that keep their error feedback on disk save it with this state.
  /// `is_beside_rounds`: nobody waits for it yet. Of tasks that only the end of the server cancels.
  Task<Result<CheckpointView>> write_checkpoint(bool may_announce, bool is_beside_rounds = false);
  Task<void> checkpoint_in_background(bool may_rest = true);
  Task<void> checkpoint_for(std::shared_ptr<CheckpointOutcome> outcome);
  /// One was found damaged, or was deleted.
  void checkpoint_lost(Version version);

  // of the round loop, between two rounds
  bool is_announcement_wanted() const { return announcement_wanted_; }
  void announce_checkpoint();
  Task<Status> freeze_for_checkpoint();
  /// Until none is being written.
  Task<Status> finish_writing();
  /// A checkpoint waits for the newest values.
  bool awaits_state() const { return state_waiters_ > 0; }

 private:
  class SpreadReader;
  using PlaneReader = std::function<Status(std::size_t, std::uint64_t, std::span<float>)>;
  /// One that is being written.
  struct Writing {
    bool is_beside_rounds = false, has_model = false, is_spread = false;
    bool is_there = false;               ///< a sound one of this version was written before
    std::string doing;                   ///< for who waits
    std::shared_ptr<Snapshot> snapshot;  ///< of the model
    std::shared_ptr<RowsSnapshot> rows;
    std::uint64_t rows_changes = 0, rows_journal = 0;  ///< that the rows have
    CheckpointInfo info;
    TimePoint begin;
  };
  Task<Status> await_state();
  Task<Result<bool>> await_turn(bool may_announce, Writing& one);
  Task<Status> freeze(Writing& one);
  Task<Result<CheckpointEntry>> write_files(Writing& one);
  CheckpointView note_written(const Writing& one, const CheckpointEntry& written);
  bool announces_checkpoint() const;
  Round first_counted() const;
  CheckpointInfo checkpoint_info() const;
  Task<Status> freeze_servers();
  Task<std::shared_ptr<Snapshot>> frozen_servers();
  std::shared_ptr<Snapshot> take_frozen();
  PlaneReader snapshot_reader(std::shared_ptr<Snapshot> snapshot);

  const TimePoint started_;
  DataShares& data_;
  ShardGroup& shards_;
  ModelServers& servers_;
  RoundServers& round_servers_;
  ChunkMoves& moves_;
  const StateLoader& loader_;
  RowsService& rows_;
  const std::unique_ptr<TableServers>& table_servers_;
  std::uint64_t rows_checkpointed_ =
      0;  ///< store().changes() of the rows that the newest checkpoint holds
  TimePoint checkpoint_begun_;
  bool is_due_ = false;        ///< and not by the number of the round
  bool is_asked_ = false;      ///< in the background; it may wait for its turn
  bool is_postponed_ = false;  ///< one was due while another was being written
  std::uint64_t state_waiters_ = 0;
  bool announcement_wanted_ = false;
};

}  // namespace centroid::server
