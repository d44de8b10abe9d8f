#include "server/api/idempotency.h"

#include <utility>

namespace centroid::server {

void IdempotencyTable::expire(TimePoint now) {
  for (auto at = by_age_.begin(); at != by_age_.end();) {
    const auto entry = entries_.find(*at);
    const bool is_old = now - entry->second.begun >= lifetime_;
    if (!is_old && entries_.size() < most_) return;
    if (!entry->second.response) {
      ++at;
      continue;
    }
    entries_.erase(entry);
    at = by_age_.erase(at);
  }
}

IdempotencyTable::Found IdempotencyTable::begin(const std::string& key, const std::string& request,
                                                TimePoint now) {
  Found out;
  auto found = entries_.find(key);
  if (found != entries_.end() && found->second.response && now - found->second.begun >= lifetime_) {
    forget(key);
    found = entries_.end();
  }
  if (found != entries_.end()) {
    if (found->second.request != request)
      out.verdict = Verdict::kOther;
    else if (!found->second.response)
      out.verdict = Verdict::kRunning;
    else
      out = {Verdict::kReplay, found->second.response};
    return out;
  }
  expire(now);
  if (entries_.size() >= most_) {
    out.verdict = Verdict::kFull;
    return out;
  }
  Entry entry;
  entry.request = request;
  entry.begun = now;
  entry.place = by_age_.insert(by_age_.end(), key);
  entries_.emplace(key, std::move(entry));
  return out;
}

void IdempotencyTable::finish(const std::string& key, HttpResponse response) {
  const auto found = entries_.find(key);
  if (found != entries_.end()) found->second.response = std::move(response);
}

void IdempotencyTable::forget(const std::string& key) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return;
  by_age_.erase(found->second.place);
  entries_.erase(found);
}

}  // namespace centroid::server
