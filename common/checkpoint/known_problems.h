#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>

#include "common/checkpoint/checkpoint.h"

namespace centroid {

/// Damage that reading checkpoints has found, for callers that check names and sizes only. It
/// counts for the files that were read: another stamp means other files.
///
/// thread  any
/// bounds  one text for each damaged checkpoint in the folder
class KnownProblems {
 public:
  /// Call after all its files were read: records damage, or removes it if the same files are sound.
  void note(const CheckpointEntry& read);
  /// Set the known problem of an entry whose files were not read.
  void apply(CheckpointEntry& seen) const;
  std::size_t size() const;

 private:
  struct Found {
    std::uint64_t stamp = 0;
    std::string problem;
  };

  mutable std::mutex mutex_;
  std::map<std::filesystem::path, Found> found_;
};

}  // namespace centroid
