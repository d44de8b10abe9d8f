#include <algorithm>
#include <set>

#include "common/base/log.h"
#include "server/service/cluster.h"
#include "server/service/room.h"

/// The memory of shard servers: each is asked whether it has room before more comes to it.
namespace centroid::server {

using proto::ServersKind;

namespace {

/// Workers without a codec that bring as much at once as these with theirs.
Result<std::uint32_t> without_codec(const FragmentPlan& fragments,
                                    const std::set<std::string>& codecs, std::uint64_t workers) {
  std::uint64_t most = 1;
  for (const std::string& codec : codecs) {
    CENTROID_ASSIGN(const std::uint64_t bytes, contribution_bytes(fragments, codec));
    most = std::max(most, bytes);
  }
  const std::uint64_t plain =
      std::max<std::uint64_t>(1, elements_of_largest(fragments) * sizeof(float));
  return static_cast<std::uint32_t>((workers * most + plain - 1) / plain);
}

bool is_refusal(const Error& error) { return error.code() == ErrorCode::kFailedPrecondition; }

std::string plural(std::uint32_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

}  // namespace

/// With which shard servers are to reckon their memory: those that are here, one that is `joining`,
/// or some `more`.
Result<std::uint32_t> Cluster::workers_to_reckon(const proto::Join* joining,
                                                 std::size_t more) const {
  std::set<std::string> codecs;
  if (job_.agreed) codecs.insert(job_.agreed->codec);
  if (joining != nullptr) codecs.insert(joining->codec);
  for (const auto& [id, worker] : links_) {
    codecs.insert(worker->join.codec);
    if (joining != nullptr && worker->join.name == joining->name) more = 0;
  }
  if (codecs.empty())
    codecs.insert(job_.resumed_from ? codec_in(job_.resumed_from->info) : kUnknownCodec);
  // Where nobody has said how many workers there will be, some more than are here.
  const bool is_said = config_.min_workers > 1;
  return without_codec(job_.fragments, codecs, expected_workers(is_said, more));
}

/// Shard servers keep contributions whole: a worker beyond those that they have reckoned with, or
/// with another codec, may bring more than they have memory for. fails resource_exhausted: names
/// worker and server; unavailable: that one does not answer
Task<Status> Cluster::reckon_worker(const proto::Join& join) {
  if (!job_.store || epilogue_ || shards_.present().empty()) co_return Status();
  const auto is_it = [&](const auto& one) { return one.second->join.name == join.name; };
  const std::size_t more = std::ranges::any_of(links_, is_it) ? 0 : 1;
  const auto all = static_cast<std::uint32_t>(expected_workers(config_.min_workers > 1, more));
  const ShardGroup::Wanted wanted = [&](const ShardGroup::Link& link) {
    std::optional<proto::Reckon> need;
    const auto count = workers_to_reckon(&join, 1);
    if (!job_.store || epilogue_ || !count.ok()) return need;  // `admit` says what is wrong with it
    need = link.reckoned;
    need->workers = *count;
    // As the chunks lie, or will when those that go have gone.
    const bool is_settled = spread_.moving.empty() && spread_.target == spread_.route.owners;
    need->servers = is_settled ? std::max(need->servers, spread_.servers_without(nullptr))
                               : std::min(need->servers, shards_.count_of_staying());
    return need;
  };
  const TimePoint limit = clock_.now() + kReckoned;
  const Status fits = co_await shards_.reckon(wanted, limit);
  if (fits.ok()) co_return Status();
  const std::string who = "worker '" + join.name + "' is refused: ";
  if (!is_refusal(fits.error()))
    co_return Error(ErrorCode::kUnavailable,
                    who + "whether there is memory for it is not known: " + fits.error().message());
  co_return Error(ErrorCode::kResourceExhausted,  // it may fit when another one has left
                  who + "there is no memory for contributions of " + plural(all, "worker") + ": " +
                      fits.error().message());
}

/// A shard server is to go, if the others have memory for its chunks; else nothing moves. fails
/// failed_precondition: with the numbers of the one that has not; unavailable: one does not answer
Task<Status> Cluster::drain(std::shared_ptr<ShardGroup::Link> server) {
  const ShardGroup::Wanted wanted = [&](const ShardGroup::Link& link) {
    std::optional<proto::Reckon> need;
    const auto is_it = [&](const auto& one) { return one.get() == &link; };
    const auto workers = workers_to_reckon(nullptr, 0);
    if (&link == server.get() || link.is_draining || !job_.store || !workers.ok() ||
        std::ranges::none_of(spread_.links, is_it))
      return need;
    need.emplace();
    need->workers = *workers;
    need->servers = std::min(link.reckoned.servers, spread_.servers_without(server.get()));
    return need;
  };
  const auto goes = [&](const auto& one) { return one == server; };
  if (!server->is_draining && std::ranges::any_of(spread_.links, goes)) {
    const TimePoint limit = clock_.now() + kReckoned;
    const Status fits = co_await shards_.reckon(wanted, limit);
    const std::string who = "server '" + server->name + "' is not drained, nothing has moved: ";
    if (!fits.ok() && is_refusal(fits.error()))
      co_return Error(ErrorCode::kFailedPrecondition,
                      who + "there is no memory for its chunks elsewhere: " +
                          fits.error().message() + "; or start another server first");
    if (!fits.ok())
      co_return Error(ErrorCode::kUnavailable,
                      who + "whether there is memory for its chunks elsewhere is not known: " +
                          fits.error().message());
  }
  if (server->is_gone())
    co_return Error(ErrorCode::kUnavailable, "server '" + server->name + "' has gone meanwhile");
  let_go(*server);
  co_return Status();
}

/// A server that stops waits for this as long as its own settings say.
Task<void> Cluster::drain_leaving(std::shared_ptr<ShardGroup::Link> server) {
  std::string why = "others are asked whether they have memory for its chunks";
  const auto what = [&why] { return why; };
  const auto waits = waits_.begin(WaitCause::kServers, server->name, "servers", what);
  while (!server->is_gone()) {
    const Status drained = co_await drain(server);
    if (drained.ok() || server->is_gone()) co_return;
    if (why != drained.error().message())
      log::warn("server.not_drained", {{"server", server->name}, {"why", drained.error()}});
    why = drained.error().message();
    if (!co_await sleep_until(clock_.now() + kAskAgain)) co_return;
  }
}

Task<bool> has_room_to_move(Spread& spread, ShardGroup& shards, TimePoint limit) {
  const std::uint32_t servers = spread.servers_without(nullptr);
  for (std::size_t i = 1; i < spread.links.size(); ++i) {
    const auto link = spread.links[i];
    if (link->is_draining || link->is_gone() || link->reckoned.servers <= servers) continue;
    const ShardGroup::Wanted wanted = [&](const ShardGroup::Link& one) {
      std::optional<proto::Reckon> need;
      if (&one != link.get()) return need;
      need = one.reckoned;
      need->servers = std::min(servers, one.reckoned.servers);
      return need;
    };
    const Status fits = co_await shards.reckon(wanted, limit);
    if (fits.ok()) continue;
    log::warn("chunks.not_moved", {{"server", link->name}, {"why", fits.error()}});
    const bool holds = std::ranges::find(spread.route.owners, i) != spread.route.owners.end();
    if (is_refusal(fits.error()) && holds) spread.target = spread.route.owners;
    if (is_refusal(fits.error()) && !holds) {  // it says both numbers, and ends
      shards.dismiss(*link, fits.error());
      shards.left(link, fits.error());
    }
    co_return false;
  }
  co_return true;
}

}  // namespace centroid::server
