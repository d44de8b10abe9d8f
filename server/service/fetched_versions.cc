#include "server/service/fetched_versions.h"

#include <algorithm>

namespace centroid::server {

void FetchedVersions::renew(Version version, TimePoint now) {
  const std::lock_guard lock(mutex_);
  until_[version] = now + kPatience;
  if (until_.size() <= kMost) return;
  const auto is_sooner = [](const auto& a, const auto& b) { return a.second < b.second; };
  until_.erase(std::min_element(until_.begin(), until_.end(), is_sooner));
}

void FetchedVersions::forget(Version version) {
  const std::lock_guard lock(mutex_);
  until_.erase(version);
}

bool FetchedVersions::holds(Version version, TimePoint now) const {
  const std::lock_guard lock(mutex_);
  const auto found = until_.find(version);
  return found != until_.end() && now < found->second;
}

}  // namespace centroid::server
