#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/checkpoint/checkpoint.h"

namespace centroid {

/// "From here on the state is this checkpoint": a file in the folder of the journal of rounds. It
/// is what decides that a job which keeps a journal goes back: before it is there nothing has
/// changed, from then on newer checkpoints and all segments are of no account, and are removed by
/// who wrote it or by who starts next; it goes last. Blocking I/O; one writer at a time.
///
/// stale   a mark counts while no segment and no newer checkpoint is there that it does not name,
///         and none of the segments has grown: where the job has gone on since, it is one of an
///         earlier restore, or of a server that had been deposed when it wrote it
struct RestoreMark {
  static constexpr const char* kFile = "restore.json";
  struct Segment {
    std::string name;
    std::uint64_t bytes = 0;
  };
  using MayWrite = std::function<Status()>;  ///< asked before each change; may be empty

  std::string run_id;
  Version version;
  std::vector<std::string> newer;  ///< folders of newer checkpoints, by name
  std::vector<Segment> segments;   ///< of the journal, when nothing was written to it any more

  /// Atomically, and on the disk. When it fails there is none. `writer`: of several servers that
  /// may lead, by name.
  Status write(const std::filesystem::path& journal, const MayWrite& may_write,
               const std::string& writer = {}) const;
  /// fails data_loss: it is no such file
  static Result<std::optional<RestoreMark>> read(const std::filesystem::path& journal);
  static Status remove(const std::filesystem::path& journal);

  /// Why it does not count; empty: it does.
  std::string why_stale(const std::filesystem::path& journal,
                        const CheckpointDirectory& checkpoints) const;
  /// Remove what it says is of no account, then itself. Whoever is killed in between does it again.
  Status complete(const std::filesystem::path& journal, const CheckpointDirectory& checkpoints,
                  const MayWrite& may_write) const;
};

/// Before the newest checkpoint is looked for: a restore that was decided is completed, a stale
/// mark removed.
/// fails  data_loss: the checkpoint to go back to is damaged or gone; nothing is removed then
Status complete_restore(const std::filesystem::path& journal,
                        const CheckpointDirectory& checkpoints,
                        const RestoreMark::MayWrite& may_write);

}  // namespace centroid
