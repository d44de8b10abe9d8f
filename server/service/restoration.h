#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/checkpoint/restore_mark.h"
#include "server/service/job_start.h"

namespace centroid::server {

/// Going back to a checkpoint while the job runs: for the workers it is as if the server had been
/// restarted with that checkpoint as the newest. With a journal a mark decides (RestoreMark). Of
/// one thread.
class Restoration {
 public:
  Restoration(const ServerConfig& config, const Clock& clock, EventLog& events, RowsService& rows,
              Event& changed, LeaderGate& gate, Members& members, RoundPolicy& policy,
              JobState& job, OpenRound& open, Spread& spread, Journal& journal,
              std::unique_ptr<Replay>& replay, std::optional<CheckpointDirectory>& checkpoints,
              ModelServers& servers, RoundJournal& round_journal, ChunkMoves& moves,
              StateLoader& loader, Checkpointer& checkpointer, FileThread& disk, StateUse& use,
              RoundControl& control, std::shared_ptr<RestoreWanted>& restore, JobStart& start)
      : config_(config),
        clock_(clock),
        events_(events),
        rows_(rows),
        changed_(changed),
        gate_(gate),
        members_(members),
        policy_(policy),
        job_(job),
        open_(open),
        spread_(spread),
        journal_(journal),
        replay_(replay),
        checkpoints_(checkpoints),
        servers_(servers),
        round_journal_(round_journal),
        moves_(moves),
        loader_(loader),
        checkpointer_(checkpointer),
        disk_(disk),
        use_(use),
        control_(control),
        restore_(restore),
        start_(start) {}

  /// Between two rounds: what `restore` asks for.
  Task<Status> restore_wanted();

 private:
  /// What the folder of checkpoints has.
  struct Folder {
    std::optional<Result<CheckpointEntry>> found;
    std::vector<CheckpointEntry> newer;
    bool has_journal = false;
  };
  Task<Result<std::shared_ptr<const Folder>>> look(Version version, bool delete_newer);
  Task<Status> remove_newer(std::shared_ptr<const Folder> folder);
  Task<Status> write_mark(std::shared_ptr<RestoreMark> mark, std::shared_ptr<const Folder> folder);
  Task<Status> complete(std::shared_ptr<RestoreMark> mark);
  Task<Result<RestoreView>> restore(Version version, bool delete_newer);
  Task<void> dismiss_everybody(std::string why);

  const ServerConfig& config_;
  const Clock& clock_;
  EventLog& events_;
  RowsService& rows_;
  Event& changed_;
  LeaderGate& gate_;
  Members& members_;
  RoundPolicy& policy_;
  JobState& job_;
  OpenRound& open_;
  Spread& spread_;
  Journal& journal_;
  std::unique_ptr<Replay>& replay_;
  std::optional<CheckpointDirectory>& checkpoints_;
  ModelServers& servers_;
  RoundJournal& round_journal_;
  ChunkMoves& moves_;
  StateLoader& loader_;
  Checkpointer& checkpointer_;
  FileThread& disk_;
  StateUse& use_;
  RoundControl& control_;
  std::shared_ptr<RestoreWanted>& restore_;
  JobStart& start_;
};

}  // namespace centroid::server
