#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/checkpoint/restore_mark.h"
#include "server/service/job_part.h"
#include "server/service/job_start.h"

namespace centroid::server {

/// Going back to a checkpoint while the job runs: for the workers it is as if the server had been
/// restarted with that checkpoint as the newest. With a journal a mark decides (RestoreMark). Of
/// one thread.
class Restoration : private JobPart {
 public:
  Restoration(JobContext& context, RowsService& rows, ModelServers& servers,
              RoundJournal& round_journal, ChunkMoves& moves, StateLoader& loader,
              Checkpointer& checkpointer, RoundControl& control, JobStart& start)
      : JobPart(context),
        rows_(rows),
        servers_(servers),
        round_journal_(round_journal),
        moves_(moves),
        loader_(loader),
        checkpointer_(checkpointer),
        control_(control),
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
  Result<Folder> read_folder(Version version) const;
  Task<Result<std::shared_ptr<const Folder>>> look(Version version, bool delete_newer);
  Task<Status> remove_newer(std::shared_ptr<const Folder> folder);
  Task<Status> write_mark(std::shared_ptr<RestoreMark> mark, std::shared_ptr<const Folder> folder);
  Task<Status> complete(std::shared_ptr<RestoreMark> mark);
  Task<Result<RestoreView>> restore(Version version, bool delete_newer);
  Task<void> dismiss_everybody(std::string why);

  RowsService& rows_;
  ModelServers& servers_;
  RoundJournal& round_journal_;
  ChunkMoves& moves_;
  StateLoader& loader_;
  Checkpointer& checkpointer_;
  RoundControl& control_;
  JobStart& start_;
};

}  // namespace centroid::server
