#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "common/checkpoint/checkpoint.h"
#include "common/tensor/fragments.h"
#include "server/aggregate/robust.h"

/// What contributions take of memory. Bytes are of the fragment that takes most.
namespace centroid::server {

/// Of a worker with one of these codecs.
struct RoomOfOne {
  std::uint64_t encoded = 0;  ///< at most
  std::uint64_t decoded = 0;  ///< of chunks that a robust aggregate combines; 0: all send float32
};
/// fails  as make_codec
Result<RoomOfOne> room_of_one(const ChunkPlan& plan, const FragmentPlan& fragments,
                              const std::set<std::string>& codecs);
/// Workers without a codec that take as much of a shard server as these with theirs.
/// fails  as make_codec
Result<std::uint32_t> without_codec(const ChunkPlan& plan, const FragmentPlan& fragments,
                                    const std::set<std::string>& codecs, std::uint64_t workers,
                                    const AggregateRule& rule, std::uint64_t servers);
std::uint64_t elements_of_largest(const FragmentPlan& fragments);
/// As the workers said that were there when the checkpoint was written.
std::string codec_in(const CheckpointInfo& info);

}  // namespace centroid::server
