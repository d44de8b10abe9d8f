#include "server/service/room.h"

#include <algorithm>

#include "common/codec/chunk_codec.h"
#include "common/codec/spec.h"
#include "server/aggregate/aggregator.h"
#include "server/service/job_types.h"
#include "server/store/memory_need.h"

namespace centroid::server {

namespace {

/// As a codec may encode it.
std::uint64_t encoded_bytes(const ChunkPlan& plan, const FragmentPlan& fragments,
                            const Codec& codec) {
  std::uint64_t most = 0;
  for (std::uint32_t i = 0; i < fragments.count(); ++i) {
    std::uint64_t bytes = 0;
    for (const Chunk& chunk : fragments[i].chunks)
      bytes += codec_of(codec, plan, chunk).max_bytes(chunk.elements);
    most = std::max(most, bytes);
  }
  return most;
}

}  // namespace

std::string codec_in(const CheckpointInfo& info) {
  const auto kept = info.extra.find("codec");
  const bool is_known = kept != info.extra.end() && CodecSpec::parse(kept->second).ok();
  return is_known ? kept->second : kUnknownCodec;
}

std::uint64_t elements_of_largest(const FragmentPlan& fragments) {
  std::uint64_t most = 0;
  for (std::uint32_t i = 0; i < fragments.count(); ++i)
    most = std::max(most, fragments[i].elements);
  return most;
}

Result<RoomOfOne> room_of_one(const ChunkPlan& plan, const FragmentPlan& fragments,
                              const std::set<std::string>& codecs) {
  const std::uint64_t plain = elements_of_largest(fragments) * sizeof(float);
  RoomOfOne room;
  for (const std::string& spec : codecs) {
    CENTROID_ASSIGN(const auto codec, make_codec(spec));
    room.encoded = std::max(room.encoded, encoded_bytes(plan, fragments, *codec));
    if (codec->spec() != "f32")  // of int8 and others a chunk may be as long as float32, too
      room.decoded =
          std::min(plain, Aggregator::kAtOnce * plan.max_chunk_elements() * sizeof(float));
  }
  return room;
}

Result<std::uint32_t> without_codec(const ChunkPlan& plan, const FragmentPlan& fragments,
                                    const std::set<std::string>& codecs, std::uint64_t workers,
                                    const AggregateRule& rule, std::uint64_t servers) {
  CENTROID_ASSIGN(const RoomOfOne room, room_of_one(plan, fragments, codecs));
  const std::uint64_t plain =
      std::max<std::uint64_t>(1, elements_of_largest(fragments) * sizeof(float));
  std::uint64_t bytes = workers * std::max<std::uint64_t>(1, room.encoded);
  if (!rule.is_mean()) bytes += workers * std::min(servers * room.decoded, plain);
  // A shard server compares fewer workers than there are, by its plan.
  if (rule.mixes() && room.decoded > 0)
    bytes += servers * compared_bytes(workers, Aggregator::kAtOnce);
  return static_cast<std::uint32_t>((bytes + plain - 1) / plain);
}

}  // namespace centroid::server
