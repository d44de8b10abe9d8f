#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/api/view.h"
#include "server/membership/roster.h"
#include "server/service/worker_session.h"

namespace centroid::server {

/// The workers: the roster decides who is one, `present` has what is known of those that are here.
struct Members {
  explicit Members(Roster::Options options) : roster(options) {}

  Roster roster;
  std::map<MemberId, std::shared_ptr<WorkerSession>> present;
  std::map<MemberId, WorkerView> gone;  ///< the last view of absent ones
  /// Each worker's session owns a reference until it ends. A session may outlive its member.
  std::shared_ptr<const char> sessions = std::make_shared<const char>();

  /// nullptr: it is not here.
  std::shared_ptr<WorkerSession> find(MemberId member) const {
    const auto it = present.find(member);
    return it == present.end() ? nullptr : it->second;
  }
  /// There may be something to send to these.
  void wake(const std::vector<MemberId>& some) const {
    for (const MemberId member : some)
      if (const auto worker = find(member)) worker->wake.notify_all();
  }
  void wake_all() const {
    for (const auto& [id, worker] : present) worker->wake.notify_all();
  }
  std::string name_of(MemberId member) const {
    const Member* const found = roster.find(member);
    return found == nullptr ? "member " + to_string(member) : found->name;
  }
};

}  // namespace centroid::server
