#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>

#include "common/checkpoint/checkpoint.h"

namespace centroid {

/// What reading checkpoints has shown to be wrong with their bytes, for those who look at names and
/// sizes only. It counts for the files that were read: with another stamp they may be mended.
///
/// thread  any
/// bounds  one text for each damaged checkpoint that is in the folder
class KnownProblems {
 public:
  /// After all its files were read: damaged, or sound, which takes back what was noted of the same
  /// files.
  void note(const CheckpointEntry& read);
  /// Give an entry that only was looked at the problem that is known of it.
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
