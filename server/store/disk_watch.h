#pragma once

#include <chrono>
#include <filesystem>
#include <mutex>

#include "common/base/thread.h"
#include "common/storage/file.h"

namespace centroid::server {

/// The free space of a folder's disk, polled by a thread of its own: a disk that does not answer
/// blocks only the destructor.
class DiskWatch {
 public:
  explicit DiskWatch(std::filesystem::path folder,
                     std::chrono::milliseconds every = std::chrono::seconds(5));
  ~DiskWatch();
  DiskWatch(const DiskWatch&) = delete;
  DiskWatch& operator=(const DiskWatch&) = delete;

  /// At the last poll; zeros: the folder is missing, or unknown. Any thread.
  file::Space space() const;

 private:
  void run();

  const std::filesystem::path folder_;
  const std::chrono::milliseconds every_;
  mutable Mutex mutex_;  // guards the next
  file::Space space_;
  bool stops_ = false;
  Condition changed_;
  Thread thread_;
};

}  // namespace centroid::server
