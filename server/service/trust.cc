#include <cmath>

#include "common/tensor/squares.h"
#include "server/service/cluster.h"

/// What workers claim against what came, and who may come to other servers.
namespace centroid::server {

namespace {
/// Who makes or revokes a token waits so long for a shard server to know.
constexpr std::chrono::seconds kTokensTold{2};
}  // namespace

/// What PushEnd says of the norm is what came, here and elsewhere. Who says nothing is believed.
Status Cluster::check_norm(const Link& link, const proto::PushEnd& end, double squares_here) const {
  if (end.norm < 0 || end.weight == 0 || is_short(end)) return {};
  if (policy_.nonfinite == NonFinitePolicy::kPropagate) return {};  // nothing was looked at
  double squares = squares_here;
  if (spread_.has_others()) {
    const proto::ContributionKey key{link.id, end.generation, end.round, end.attempt};
    for (const ShardGroup::Link* holder :
         spread_.holders[job_.fragments.turn(job_.store->optimizer_step())])
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
  if (proto::encode(joining_tokens_()) == server.tokens) return;
  if (auto link = shards_.find(server.name)) server.tasks->spawn(send_tokens(std::move(link)));
}

/// Until it has them, or is slow: then it is told again with its next report.
Task<void> Cluster::send_tokens(std::shared_ptr<ShardGroup::Link> server) {
  auto head = proto::encode(joining_tokens_());
  server->tokens = head;
  server->knows_tokens = false;
  const TimePoint limit = clock_.now() + kTokensTold;
  const auto told = co_await shards_.ask(server, proto::ServersKind::kTokens, head, Bytes(), limit);
  if (server->is_gone()) co_return;
  if (told.ok()) {
    server->knows_tokens = server->tokens == head;  // else others are on their way
    co_return;
  }
  server->tokens.clear();
  log::warn("tokens.not_told", {{"server", server->name}, {"why", told.error()}});
}

}  // namespace centroid::server
