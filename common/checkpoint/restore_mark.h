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
/// commits the return of a job with a journal: before it exists nothing has changed. From then on
/// newer checkpoints and all segments are void, and are removed by its writer or by the next start;
/// the mark goes last. Blocking I/O; one writer at a time.
///
/// stale   a mark counts while there is no segment and no newer checkpoint that it does not name,
///         and no segment has grown. Otherwise the job has continued since: the mark is of an
///         earlier restore, or of a server that was deposed when it wrote it
struct RestoreMark {
  static constexpr const char* kFile = "restore.json";
  struct Segment {
    std::string name;
    std::uint64_t bytes = 0;
  };
  using MayWrite = std::function<Status()>;  ///< called before each change; may be empty

  std::string run_id;
  Version version;
  std::vector<std::string> newer;  ///< folders of newer checkpoints, by name
  std::vector<Segment> segments;   ///< of the journal, after the last write

  /// Atomically, and synced. If it fails there is no mark. `writer`: name of the server, if several
  /// may lead.
  Status write(const std::filesystem::path& journal, const MayWrite& may_write,
               const std::string& writer = {}) const;
  /// fails data_loss: not such a file
  static Result<std::optional<RestoreMark>> read(const std::filesystem::path& journal);
  static Status remove(const std::filesystem::path& journal);

  /// Why it does not count; empty: it counts.
  Result<std::string> why_stale(const std::filesystem::path& journal,
                                const CheckpointDirectory& checkpoints) const;
  /// Remove what it voids, then the mark. Repeatable after a kill.
  Status complete(const std::filesystem::path& journal, const CheckpointDirectory& checkpoints,
                  const MayWrite& may_write) const;
};

/// Call before looking for the newest checkpoint: completes a restore that was committed, and
/// removes a stale mark.
/// fails  data_loss: the target checkpoint is damaged or missing; nothing is removed then
Status complete_restore(const std::filesystem::path& journal,
                        const CheckpointDirectory& checkpoints,
                        const RestoreMark::MayWrite& may_write);

}  // namespace centroid
