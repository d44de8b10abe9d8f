#include "common/checkpoint/known_problems.h"

#include "common/storage/file.h"

namespace centroid {

void KnownProblems::note(const CheckpointEntry& read) {
  if (read.stamp == 0) return;  // a reader sees it itself
  const std::lock_guard lock(mutex_);
  if (read.problem.empty()) {
    const auto entry = found_.find(read.path);
    if (entry != found_.end() && entry->second.stamp == read.stamp) found_.erase(entry);
    return;
  }
  std::erase_if(found_, [](const auto& one) { return !file::exists(one.first); });
  found_[read.path] = {read.stamp, read.problem};
}

void KnownProblems::apply(CheckpointEntry& seen) const {
  if (seen.stamp == 0 || !seen.problem.empty()) return;
  const std::lock_guard lock(mutex_);
  const auto entry = found_.find(seen.path);
  if (entry != found_.end() && entry->second.stamp == seen.stamp)
    seen.problem = entry->second.problem;
}

std::size_t KnownProblems::size() const {
  const std::lock_guard lock(mutex_);
  return found_.size();
}

}  // namespace centroid
