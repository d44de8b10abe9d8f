#include "server/store/disk_watch.h"

#include <utility>

namespace centroid::server {

DiskWatch::DiskWatch(std::filesystem::path folder, std::chrono::milliseconds every)
    : folder_(std::move(folder)),
      every_(every),
      thread_("disk-watch", [this, storage = &storage::current()] {
        const storage::ScopedStorage own(*storage);
        run();
      }) {}

DiskWatch::~DiskWatch() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

file::Space DiskWatch::space() const {
  const std::lock_guard lock(mutex_);
  return space_;
}

void DiskWatch::run() {
  for (;;) {
    const auto found = file::space_around(folder_);
    std::unique_lock lock(mutex_);
    space_ = found.ok() ? *found : file::Space();
    if (changed_.wait_for(lock, every_, [this] { return stops_; })) return;
  }
}

}  // namespace centroid::server
