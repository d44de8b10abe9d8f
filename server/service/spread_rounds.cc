#include <algorithm>

#include "common/base/crc32c.h"
#include "common/base/log.h"
#include "server/service/cluster.h"

/// How a round is committed on all servers of a model.
namespace centroid::server {

using proto::ServersKind;

/// Nothing more of a worker comes to one of the servers: nobody is to wait for its contribution,
/// whatever it says of itself here.
void Cluster::refused_elsewhere(const ShardGroup::Link& server, const proto::Refused& refused) {
  const auto link = members_.find(refused.member);
  const auto is_it = [&](const auto& one) { return one.get() == &server; };
  if (!link || std::ranges::none_of(spread_.links, is_it)) return;
  const Error why(static_cast<ErrorCode>(refused.code),
                  "server '" + server.name + "': " + refused.why);
  if (members_.roster.lost(link->id, why.to_string())) {
    tell(events_, log::Level::kWarn, "member.lost",
         {{"worker", link->join.name}, {"member", link->id.value}, {"why", why}});
    probe_.member_dead();
  }
  member_gone(link->id, why);
}

/// A server was lost before the round could be committed: on none of the others it is.
Task<Status> Cluster::give_up_merge(Error why) {
  log::error("round.merge_failed", {{"round", job_.round.value}, {"why", why}});
  for (const auto& link : spread_.others())
    if (link->is_gone()) spread_.lost = link->name;
  lose_server();
  co_return Status();
}

}  // namespace centroid::server
