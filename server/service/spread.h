#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/checkpoint/checkpoint.h"
#include "common/tensor/chunk_plan.h"
#include "server/shard/shard_group.h"
#include "server/store/snapshot.h"

namespace centroid::server {

/// Who wants something of shard servers' memory waits so long for their answers.
constexpr std::chrono::seconds kMemoryPlanTimeout{5};
/// What could not be because of one that does not answer, or has no memory, is tried again then.
constexpr std::chrono::seconds kRetryInterval{1};

/// How the model lies on several servers now. Without shard servers: all lists are empty, and all
/// chunks are the leader's.
struct Spread {
  proto::Route route;  ///< version 0: there never were several
  /// By server of the route; the first is nullptr.
  std::vector<std::shared_ptr<ShardSession>> present;
  std::vector<std::uint16_t> target;  ///< owners when all moves are made
  /// By fragment: servers, other than the leader, on which chunks of it lie.
  std::vector<std::vector<const ShardSession*>> holders;
  proto::Opened opened;  ///< what they heard last
  /// Contributions that are whole on a server.
  std::map<std::pair<proto::ContributionKey, const ShardSession*>, proto::Whole> whole;

  // chunks whose owner has changed, and whose values are still where they were
  /// By chunk: the server where it was; nullptr: the leader.
  std::map<ChunkId, std::shared_ptr<ShardSession>> moving;
  std::size_t copiers = 0;  ///< tasks that copy them
  std::optional<Error> copy_failure;
  std::vector<std::pair<ChunkId, double>> summed;  ///< that wait for their values to come
  std::uint64_t moving_bytes = 0;
  TimePoint moving_since;
  Duration copy_time{};     ///< of all copies of the present move
  Duration held{};          ///< what it has held up rounds
  double copy_rate = 80e6;  ///< bytes a second, of the last move

  std::optional<TimePoint> lost_since;
  std::string lost;        ///< name of a server that is gone with its chunks
  bool were_here = false;  ///< as many servers as the setting asks for

  std::uint64_t freezes = 0;  ///< checkpoints that want a version to be kept between two rounds
  std::shared_ptr<Snapshot> frozen;
  CheckpointInfo frozen_info;  ///< of the job when it was kept

  bool has_others() const { return present.size() > 1; }
  /// On which the model lies when `leaving` and those that drain have gone; with the leader.
  std::uint32_t servers_without(const ShardSession* leaving) const {
    std::uint32_t count = 1;
    for (const auto& shard : others())
      count += shard.get() != leaving && !shard->is_gone() && !shard->is_draining ? 1 : 0;
    return count;
  }
  std::vector<std::shared_ptr<ShardSession>> others() const {
    return {present.begin() + (present.empty() ? 0 : 1), present.end()};
  }
};

/// Before chunks move: there may be fewer servers than in its memory plan. One without memory for
/// its share leaves with the numbers if it holds nothing, else nothing moves. False: not now.
Task<bool> has_room_to_move(Spread& spread, ShardGroup& shards, TimePoint limit);

}  // namespace centroid::server
