#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/api/view.h"
#include "server/membership/roster.h"
#include "server/service/link.h"

namespace centroid::server {

/// The workers: the roster decides who is one, `links` has what is known of those that are here.
struct Members {
  explicit Members(Roster::Options options) : roster(options) {}

  Roster roster;
  std::map<MemberId, std::shared_ptr<Link>> links;  ///< of present members
  std::map<MemberId, WorkerView> gone;              ///< the last view of absent ones

  /// nullptr: it is not here.
  std::shared_ptr<Link> find(MemberId member) const {
    const auto it = links.find(member);
    return it == links.end() ? nullptr : it->second;
  }
  /// There may be something to send to these.
  void wake(const std::vector<MemberId>& some) const {
    for (const MemberId member : some)
      if (const auto link = find(member)) link->wake.notify_all();
  }
  void wake_all() const {
    for (const auto& [id, link] : links) link->wake.notify_all();
  }
  std::string name_of(MemberId member) const {
    const Member* const found = roster.find(member);
    return found == nullptr ? "member " + to_string(member) : found->name;
  }
};

}  // namespace centroid::server
