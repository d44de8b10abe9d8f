#include <cmath>

#include "common/tensor/squares.h"
#include "server/service/cluster.h"

/// What workers claim against what came, and who may come to other servers.
namespace centroid::server {

/// What PushEnd says of the norm is what came, here and elsewhere. Who says nothing is believed.
Status Cluster::check_norm(const Link& link, const proto::PushEnd& end, double squares_here) const {
  if (end.norm < 0 || end.weight == 0 || is_short(end)) return {};
  if (policy_.nonfinite == NonFinitePolicy::kPropagate) return {};  // nothing was looked at
  double squares = squares_here;
  if (spread_.has_others()) {
    const proto::ContributionKey key{link.id, end.generation, end.round, end.attempt};
    for (const ShardGroup::Link* holder :
         spread_.holders[fragments_.turn(store_->optimizer_step())])
      squares += spread_.whole.at({key, holder}).squares;
  }
  // Numbers that are not finite are checked one by one where they may not be.
  if (!std::isfinite(squares) || is_norm_of(end.norm, squares)) return {};
  return Error(ErrorCode::kInvalidArgument, "PushEnd of " + link.join.name + " in round " +
                                                to_string(end.round) + " claims norm " +
                                                std::to_string(end.norm) + ", its chunks have " +
                                                std::to_string(std::sqrt(squares)));
}

/// Which named tokens let workers and clients in there. When they have changed since it was told.
void Cluster::tell_tokens(ShardGroup::Link& server) {
  if (!joining_tokens_ || server.is_gone()) return;
  auto head = proto::encode(joining_tokens_());
  if (head == server.tokens) return;
  server.tokens = head;
  auto send = [](transport::Session* session, std::vector<std::byte> what) -> Task<void> {
    const auto kind = static_cast<std::uint16_t>(proto::ServersKind::kTokens);
    (void)co_await session->send(kind, what, Bytes(), TimePoint::max());
  };
  server.tasks->spawn(send(server.session, std::move(head)));
}

}  // namespace centroid::server
