#include "common/checkpoint/known_problems.h"

#include "common/storage/file.h"

namespace centroid {

void KnownProblems::note(const CheckpointEntry& read) {
  if (read.stamp == 0) return;  // who looks sees it
  const std::lock_guard lock(mutex_);
  if (read.problem.empty()) {
    const auto known = found_.find(read.path);
    if (known != found_.end() && known->second.stamp == read.stamp) found_.erase(known);
    return;
  }
  std::erase_if(found_, [](const auto& one) { return !file::exists(one.first); });
  found_[read.path] = {read.stamp, read.problem};
}

void KnownProblems::apply(CheckpointEntry& seen) const {
  if (seen.stamp == 0 || !seen.problem.empty()) return;
  const std::lock_guard lock(mutex_);
  const auto known = found_.find(seen.path);
  if (known != found_.end() && known->second.stamp == seen.stamp)
    seen.problem = known->second.problem;
}

std::size_t KnownProblems::size() const {
  const std::lock_guard lock(mutex_);
  return found_.size();
}

}  // namespace centroid
