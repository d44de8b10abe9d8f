#pragma once

#include <memory>
#include <vector>

#include "common/proto/servers.h"
#include "worker/exchange/round_state.h"

namespace centroid::worker {

/// The way to a model that lies on several servers: one session with each, beside the leader's.
/// Chunks go to their owners and results come from there; everything else is between worker and
/// leader. When one of the sessions is lost the leader's is closed too, so that the worker joins
/// again and gets the route and the state that are valid then.
///
/// thread  the link's executor
class ShardRoutes final : public transport::FrameSink {
 public:
  ShardRoutes(LinkContext& link, RoundState& round)
      : link_(link), round_(round), changed_(link.executor) {}

  /// All chunks are the leader's.
  void clear();
  /// Between rounds: open the sessions that the route needs, close the others.
  Task<Status> adopt(proto::Route route);
  /// The session by which a chunk reaches its owner; nullptr: the leader's is closed.
  Task<transport::Session*> owner_of(ChunkId chunk, transport::Session& leader);
  /// A chunk of the round's results, from its owner.
  Task<Status> receive_result(transport::Session& session, proto::ResultChunk head,
                              std::uint64_t bytes);
  /// The round is committed: await what other servers have sent of it.
  /// fails  unavailable: it does not come
  Task<Status> await_results(transport::Session& leader, proto::RoundClosed closed);
  /// The leader's session has ended.
  void close(const Error& cause);

 private:
  struct Shard {
    proto::RouteServer server;
    transport::Session* session = nullptr;  // once it let us in
    bool is_dropped = false;
  };
  Task<Status> on_frame(transport::Session& session, transport::InFrame frame) override;
  transport::Session* session_of(ChunkId chunk, transport::Session& leader) const;
  Task<void> serve(transport::Session& leader, std::shared_ptr<Shard> shard, std::uint64_t route);
  Task<Error> run(std::shared_ptr<Shard> shard, std::uint64_t route);
  Task<Status> enter(transport::Session& session, std::shared_ptr<Shard> shard,
                     std::uint64_t route);

  LinkContext& link_;
  RoundState& round_;
  Event changed_;                               // a result came, a session began or ended
  proto::Route route_;                          // no owners: all chunks are the leader's
  std::vector<std::shared_ptr<Shard>> shards_;  // by server of the route; the first is nullptr
};

}  // namespace centroid::worker
